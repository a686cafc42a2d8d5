//! How many files a daemon may have open. Connections must leave some descriptors free: a daemon that has none left for its
//! own files can neither store what it receives nor log why.

use anyhow::ensure;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that every daemon needs: its listeners, runtime, log and configuration, and a few HTTP clients.
const OWN: u64 = 64;

/// Fewest descriptors with which a daemon can do anything useful.
const LEAST: u64 = 64;

/// Checks that a daemon can work within this limit. With fewer descriptors it would fail or panic somewhere in the middle.
///
/// # Errors
/// When it cannot: names the limit, and the least that is needed.
pub fn suffice(limit: Option<u64>) -> anyhow::Result<()> {
    let limit = limit.unwrap_or(u64::MAX);
    ensure!(
        limit >= LEAST,
        "the limit of open files is {limit}, and the daemon needs {LEAST} or more; raise it (LimitNOFILE, ulimit -n)"
    );
    Ok(())
}

/// Raises the soft limit to the hard one, since the usual soft limit of 1024 is meant for programs that use select. Returns
/// the limit afterwards, if there is one.
pub fn raise_limit() -> Option<u64> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    if let Err(e) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!("failed to raise the limit on open files: {e}");
    }
    getrlimit(Resource::Nofile).current
}

/// How many of the configured `connections` fit under `limit`, if the daemon needs `beside` descriptors in addition to those
/// of every daemon. At least one; the log says so if there is room for fewer than configured.
pub fn room_for(connections: usize, beside: u64, limit: Option<u64>) -> usize {
    let Some(limit) = limit else { return connections };
    let room = usize::try_from(limit.saturating_sub(OWN + beside)).unwrap_or(usize::MAX).max(1);
    if room < connections {
        tracing::warn!(
            limit,
            connections,
            room,
            "the limit on open files leaves room for fewer connections than are configured: any further ones are refused; \
             raise it (LimitNOFILE, ulimit -n)"
        );
    }
    room.min(connections)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_limit_below_the_minimum_is_an_error() {
        for limit in [None, Some(LEAST)] {
            suffice(limit).unwrap();
        }
        let told = suffice(Some(LEAST - 1)).unwrap_err().to_string();
        assert!(told.contains("is 63, and the daemon needs 64 or more; raise it"), "{told}");
    }

    #[test]
    fn connection_limit_respects_the_open_file_limit() {
        assert_eq!(room_for(1024, 10, None), 1024);
        assert_eq!(room_for(1024, 10, Some(OWN + 10 + 1024)), 1024);
        assert_eq!(room_for(1024, 10, Some(OWN + 10 + 100)), 100);
        assert_eq!(room_for(1024, 10, Some(20)), 1);
    }

    #[test]
    fn open_file_limit_is_raised_to_the_hard_limit() {
        let raised = raise_limit();
        assert_eq!(raised, getrlimit(Resource::Nofile).maximum);
    }
}
