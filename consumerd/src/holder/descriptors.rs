//! How many files the holder may have open. Each program takes two: an offer that is received when there is no room for them is
//! lost, and its program believes that it is read.

use std::os::fd::OwnedFd;

use crate::config::Config;

/// Descriptors that are not for programs: the daemon's own, and those of connections and offers under way.
const OWN: u64 = 128;
/// Descriptors that must be free before an offer is received: its two, and those that taking it in needs for a moment.
pub(super) const TO_RECEIVE: usize = 4;
/// Before a connection is accepted: so many that its offer can be received.
pub(super) const TO_ACCEPT: usize = 2 * TO_RECEIVE;

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

/// Whether so many descriptors are free.
pub(super) fn are_spare(any: &OwnedFd, count: usize) -> bool {
    (0..count).map(|_| any.try_clone()).collect::<Result<Vec<_>, _>>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_get_what_the_limit_leaves_and_no_more_than_was_asked_for() {
        let config = Config { max_programs: 1024, ..Config::default() };
        for (limit, room) in [(None, 1024), (Some(OWN + 2 * 1024), 1024), (Some(1024), 448), (Some(32), 1)] {
            assert_eq!(within(limit, &config).max_programs, room);
        }
    }
}
