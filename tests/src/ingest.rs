//! Posting to the collector.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use blkin_cli::http::Client;

/// Posts a body; returns status and answer, whatever the status.
///
/// # Errors
/// When there is no answer.
pub fn post(client: &Client, path: &str, content_type: &str, body: &[u8]) -> Result<(u16, String)> {
    let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
    let request = agent.post(format!("{}{path}", client.base())).header("Content-Type", content_type);
    let mut response = request.send(body)?;
    Ok((response.status().as_u16(), response.body_mut().read_to_string()?))
}

/// Microseconds since the epoch.
pub fn now_us() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as i64)
}
