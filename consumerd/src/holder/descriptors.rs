//! How many files the holder may have open. Each program takes two: an offer that is received when there is no room for them is
//! lost, and its program believes that it is read.

use std::os::fd::OwnedFd;

use anyhow::ensure;

use crate::config::Config;

/// Descriptors that are not for programs: the daemon's own, those of offers under way, and in the worker those of HTTP connections
/// and of who asks it, of which there may be 64 each. Who holds all of these must not keep it from a program's.
const OWN: u64 = 192;
/// With fewer neither holder nor worker would get far enough to take a program in.
const LEAST: u64 = 64;
/// Descriptors that must be free before an offer is received: its two, and those that taking it in needs for a moment.
pub(super) const TO_RECEIVE: usize = 4;
/// Before a connection is accepted: so many that its offer can be received.
pub(super) const TO_ACCEPT: usize = 2 * TO_RECEIVE;

/// Whether the daemon can work within this limit.
///
/// # Errors
/// When it cannot: tells the limit, and what it has to be.
pub(super) fn suffice(limit: Option<u64>) -> anyhow::Result<()> {
    let limit = limit.unwrap_or(u64::MAX);
    ensure!(
        limit >= LEAST,
        "the limit of open files is {limit}, and the daemon needs {LEAST} or more; raise it (LimitNOFILE, ulimit -n)"
    );
    Ok(())
}

/// The configuration with no more programs than can be held at a time. It is the worker's, too, which has the same limit and as
/// many descriptors.
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

/// Descriptors of which it is known for a moment that they are free: to find out takes two system calls for each.
#[derive(Debug)]
pub(super) struct Spare {
    known: usize,
    next: usize,
}

impl Spare {
    /// Nothing is known yet. An offer alone needs no more than are looked for first; of many each look is for more.
    pub(super) fn new() -> Spare {
        Spare { known: 0, next: TO_ACCEPT + TO_RECEIVE }
    }

    /// Whether so many are free.
    pub(super) fn has(&mut self, any: &OwnedFd, count: usize) -> bool {
        const MOST: usize = 64;
        if self.known < count {
            let found = [self.next, count].into_iter().find(|count| are_spare(any, *count));
            self.known = found.unwrap_or(0);
            self.next = (self.next * 2).min(MOST);
        }
        self.known >= count
    }

    /// So many may have been taken since.
    pub(super) fn spend(&mut self, count: usize) {
        self.known = self.known.saturating_sub(count);
    }
}

/// Whether so many descriptors are free.
fn are_spare(any: &OwnedFd, count: usize) -> bool {
    (0..count).map(|_| any.try_clone()).collect::<Result<Vec<_>, _>>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_within_which_nothing_works_does_not_suffice() {
        for limit in [None, Some(LEAST)] {
            suffice(limit).unwrap();
        }
        let told = suffice(Some(LEAST - 1)).unwrap_err().to_string();
        assert!(told.contains("is 63, and the daemon needs 64 or more; raise it"), "{told}");
    }

    #[test]
    fn programs_get_what_the_limit_leaves_and_no_more_than_was_asked_for() {
        let config = Config { max_programs: 1024, ..Config::default() };
        for (limit, room) in [(None, 1024), (Some(OWN + 2 * 1024), 1024), (Some(1024), 416), (Some(32), 1)] {
            assert_eq!(within(limit, &config).max_programs, room);
        }
    }
}
