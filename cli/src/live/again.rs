//! Another stream, when the one that was watched is over: its daemon may be on its way back.

use std::io::{self, Write};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::Lost;
use crate::terminal::safe;

/// The pause before the first try, and the longest one.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// Tries, and the pauses between them.
#[derive(Debug)]
pub(super) struct Again {
    pause: Duration,
    /// When the stream began.
    since: Instant,
}

impl Default for Again {
    fn default() -> Self {
        Self { pause: PAUSES.0, since: Instant::now() }
    }
}

impl Again {
    /// Tries until there is a stream, and says on the standard error what happens.
    ///
    /// # Errors
    /// Whatever is not [`Lost`].
    pub(super) fn connect<T>(&mut self, lost: anyhow::Error, connect: impl Fn() -> Result<T>) -> Result<T> {
        // One that ends as soon as it has begun is none to begin anew with.
        if self.since.elapsed() > PAUSES.1 {
            self.pause = PAUSES.0;
        }
        let mut said = format!("{lost:#}");
        tell(&format!("{said}; connecting again"));
        loop {
            thread::sleep(self.pause);
            self.pause = (self.pause * 2).min(PAUSES.1);
            match connect() {
                Ok(stream) => {
                    self.since = Instant::now();
                    tell("connected again: what came meanwhile is not shown");
                    return Ok(stream);
                }
                Err(error) if error.is::<Lost>() => {
                    let why = format!("{error:#}");
                    if why != said {
                        tell(&format!("{why}; trying again"));
                        said = why;
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }
}

fn tell(what: &str) {
    let _unsaid = writeln!(io::stderr(), "blkin: {}", safe(what));
}
