//! How many files the holder may have open. Each program takes two: an offer that is received when there is no room for them is
//! lost, and its program believes that it is read.

use std::os::fd::OwnedFd;

/// Descriptors that are not for programs: the daemon's own, and those of connections and offers under way.
const OWN: u64 = 128;
/// Descriptors that must be free before an offer is received: its two, and those that taking it in needs for a moment.
pub(super) const TO_RECEIVE: usize = 4;
/// Before a connection is accepted: so many that its offer can be received.
pub(super) const TO_ACCEPT: usize = 2 * TO_RECEIVE;

/// How many programs can be held at a time where so many were asked for. The worker has the same limit, and as many
/// descriptors.
pub(super) fn room_for(max_programs: usize, limit: Option<u64>) -> usize {
    let Some(limit) = limit else { return max_programs };
    let room = usize::try_from(limit.saturating_sub(OWN) / 2).unwrap_or(usize::MAX).max(1);
    if room < max_programs {
        tracing::warn!(
            limit,
            max_programs,
            room,
            "the limit of open files leaves room for fewer programs than max_programs: more are refused; raise it \
             (LimitNOFILE, ulimit -n)"
        );
    }
    room.min(max_programs)
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
        assert_eq!(room_for(1024, None), 1024);
        assert_eq!(room_for(1024, Some(OWN + 2 * 1024)), 1024);
        assert_eq!(room_for(1024, Some(1024)), 448);
        assert_eq!(room_for(1024, Some(32)), 1);
    }
}
