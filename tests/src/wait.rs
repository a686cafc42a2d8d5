//! Waiting for an event, with a limit.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// The pause between two looks.
const PERIOD: Duration = Duration::from_millis(10);

/// Calls `look` until it finds something.
///
/// # Errors
/// When nothing was found within `limit`; the error says that `what` was waited for.
pub fn until<T>(limit: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> Result<T> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        if Instant::now() > deadline {
            bail!("waited {limit:?} in vain for {what}");
        }
        std::thread::sleep(PERIOD);
    }
}
