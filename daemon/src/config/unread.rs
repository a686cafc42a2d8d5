//! A configuration file that cannot be read: whether a later attempt may succeed, and what to do about it.

use std::io::{self, ErrorKind};

use rustix::io::Errno;

use super::ConfigError;

/// Errors of the system that may pass, such as too many open files.
const PASSING: [Errno; 6] =
    [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::IO, Errno::STALE, Errno::TIMEDOUT];

impl ConfigError {
    /// Whether the error is not about the configuration itself, so that the next start may be able to read it.
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
