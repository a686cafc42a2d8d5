//! Bounded GET requests to the daemons' HTTP interfaces.

use std::time::Duration;

use anyhow::{Context, Result, bail};

/// No answer of a daemon is read beyond this: a search of 1,000 large traces stays well below it.
const MAX_BODY_BYTES: u64 = 256 << 20;

/// One daemon's HTTP interface.
#[derive(Debug)]
pub struct Client {
    agent: ureq::Agent,
    base: String,
}

/// An answer: status and body.
#[derive(Debug)]
pub struct Answer {
    /// HTTP status code.
    pub status: u16,
    /// The body as text.
    pub body: String,
}

impl Client {
    /// A client of the daemon at `url`, such as `http://127.0.0.1:9411`; the scheme may be left out.
    pub fn new(url: &str) -> Client {
        let url = url.trim_end_matches('/');
        let base = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let config = ureq::Agent::config_builder()
            .timeout_connect(Some(Duration::from_secs(3)))
            .timeout_global(Some(Duration::from_secs(30)))
            .http_status_as_error(false)
            .build();
        Client { agent: config.new_agent(), base }
    }

    /// The address that requests go to.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Gets `path` with its query, whatever the status.
    ///
    /// # Errors
    /// When nobody answers there, or the answer is no text of bearable size.
    pub fn get(&self, path: &str, query: &[(&str, &str)]) -> Result<Answer> {
        let mut request = self.agent.get(format!("{}{path}", self.base));
        for (key, value) in query {
            request = request.query(key, value);
        }
        let mut response = request.call().with_context(|| format!("failed to reach {}", self.base))?;
        let status = response.status().as_u16();
        let body = response
            .body_mut()
            .with_config()
            .limit(MAX_BODY_BYTES)
            .read_to_string()
            .with_context(|| format!("failed to read the answer of {}{path}", self.base))?;
        Ok(Answer { status, body })
    }

    /// Gets `path` and takes anything but 200 for an error that carries the daemon's own words.
    ///
    /// # Errors
    /// As [`Client::get`], and when the status is not 200.
    pub fn get_ok(&self, path: &str, query: &[(&str, &str)]) -> Result<String> {
        let answer = self.get(path, query)?;
        if answer.status != 200 {
            let words: String = answer.body.trim().chars().take(300).collect();
            bail!("{}{path} answered {}: {words}", self.base, answer.status);
        }
        Ok(answer.body)
    }
}
