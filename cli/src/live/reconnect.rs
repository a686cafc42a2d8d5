//! Reconnecting when a stream is over: its daemon may be restarting.

use std::io::{self, Write};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::Lost;
use crate::terminal::safe;

/// The pause before the first attempt, and the longest pause.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// Attempts to reconnect, and the pauses between them.
#[derive(Debug)]
pub(super) struct Reconnect {
    pause: Duration,
    /// When the current stream began.
    since: Instant,
}

impl Default for Reconnect {
    fn default() -> Self {
        Self { pause: PAUSES.0, since: Instant::now() }
    }
}

impl Reconnect {
    /// Tries until there is a stream, and reports on standard error what happens.
    ///
    /// # Errors
    /// Any error that is not [`Lost`].
    pub(super) fn connect<T>(&mut self, lost: anyhow::Error, connect: impl Fn() -> Result<T>) -> Result<T> {
        // A stream that ended right after it began does not reset the pauses.
        if self.since.elapsed() > PAUSES.1 {
            self.pause = PAUSES.0;
        }
        let mut said = format!("{lost:#}");
        report(&format!("{said}; reconnecting"));
        loop {
            thread::sleep(self.pause);
            self.pause = (self.pause * 2).min(PAUSES.1);
            match connect() {
                Ok(stream) => {
                    self.since = Instant::now();
                    report("reconnected; spans that arrived meanwhile are not shown");
                    return Ok(stream);
                }
                Err(error) if error.is::<Lost>() => {
                    let why = format!("{error:#}");
                    if why != said {
                        report(&format!("{why}; still trying"));
                        said = why;
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }
}

fn report(what: &str) {
    let _unsaid = writeln!(io::stderr(), "blkin: {}", safe(what));
}
