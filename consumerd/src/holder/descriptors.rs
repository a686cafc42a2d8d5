//! How many files the holder may have open. Each program takes two descriptors. An offer that is received when they do not fit
//! is lost, while its program believes that it is read.

use std::os::fd::OwnedFd;

use crate::config::Config;

/// Descriptors that are not for programs: the daemon's own, those of offers under way, and in the worker up to 64 for HTTP
/// connections and up to 64 for control connections. A client who uses all of these must not take descriptors from programs.
const OWN: u64 = 192;
/// Descriptors that must be free before an offer is received: its two, and those that its admission needs for a moment.
pub(super) const TO_RECEIVE: usize = 4;
/// Descriptors that must be free before a connection is accepted, so that its offer can be received afterwards.
pub(super) const TO_ACCEPT: usize = 2 * TO_RECEIVE;

/// The configuration with `max_programs` lowered to what the limit of open files allows. The worker uses it, too: it has the same
/// limit, and as many descriptors.
pub(super) fn within(limit: Option<u64>, config: &Config) -> Config {
    let max_programs = config.max_programs;
    let room = limit.map_or(max_programs, |limit| room_for_programs(limit).min(max_programs));
    if room < max_programs {
        tracing::warn!(
            limit,
            max_programs,
            room,
            "the limit of open files leaves room for fewer programs than max_programs: more are refused; raise it \
             (LimitNOFILE, ulimit -n)"
        );
    }
    Config { max_programs: room, ..config.clone() }
}

fn room_for_programs(limit: u64) -> usize {
    usize::try_from(limit.saturating_sub(OWN) / 2).unwrap_or(usize::MAX).max(1)
}

/// A count of descriptors that were just found to be free. It saves checking each time, which takes two system calls for each
/// descriptor.
#[derive(Debug)]
pub(super) struct Spare {
    known: usize,
    next: usize,
}

impl Spare {
    /// None are known to be free yet. The first check looks for what a single offer needs; each further check looks for more.
    pub(super) fn new() -> Spare {
        Spare { known: 0, next: TO_ACCEPT + TO_RECEIVE }
    }

    /// Whether `count` descriptors are free.
    pub(super) fn has(&mut self, any: &OwnedFd, count: usize) -> bool {
        const MOST: usize = 64;
        if self.known < count {
            let found = [self.next, count].into_iter().find(|count| are_spare(any, *count));
            self.known = found.unwrap_or(0);
            self.next = (self.next * 2).min(MOST);
        }
        self.known >= count
    }

    /// Notes that `count` descriptors may have been used.
    pub(super) fn spend(&mut self, count: usize) {
        self.known = self.known.saturating_sub(count);
    }
}

/// Checks by duplicating `any` whether `count` descriptors are free.
fn are_spare(any: &OwnedFd, count: usize) -> bool {
    (0..count).map(|_| any.try_clone()).collect::<Result<Vec<_>, _>>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn max_programs_is_capped_by_the_descriptor_limit() {
        let config = Config { max_programs: 1024, ..Config::default() };
        for (limit, room) in [(None, 1024), (Some(OWN + 2 * 1024), 1024), (Some(1024), 416), (Some(32), 1)] {
            assert_eq!(within(limit, &config).max_programs, room);
        }
    }
}
