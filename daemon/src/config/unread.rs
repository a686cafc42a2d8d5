//! A configuration file that cannot be read: whether it may be later, and what to do about it.

use std::io::{self, ErrorKind};

use rustix::io::Errno;

use super::ConfigError;

/// What the system says of a file that it may give in a moment, as when it has too many open.
const PASSING: [Errno; 6] =
    [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::IO, Errno::STALE, Errno::TIMEDOUT];

impl ConfigError {
    /// Whether it says nothing of the configuration itself: the next start may be able to read it.
    pub fn may_pass(&self) -> bool {
        matches!(self, ConfigError::Read { source, .. } if is_passing(source))
    }
}

fn is_passing(error: &io::Error) -> bool {
    Errno::from_io_error(error).is_some_and(|errno| PASSING.contains(&errno))
}

/// What to do about a file that cannot be read.
pub(super) fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        _ if is_passing(error) => "the next attempt may succeed",
        ErrorKind::InvalidData => "save it as UTF-8",
        ErrorKind::IsADirectory => "name a file in it",
        _ => "check that it exists and is readable",
    }
}
