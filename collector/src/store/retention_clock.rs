//! The time that retention uses: the clock's, but it never advances by more than the real time that has passed.
//!
//! A clock that jumps ahead (a wrong time server, a typo) makes everything in the store look too old, and one sweep would
//! remove it all for good. So retention does not believe a jump at once: it goes on at the pace of real time, and says so. Once
//! this has lasted as long as traces are kept, everything from before the jump has expired by itself, and everything since has
//! the new time: then the jump is believed. A clock that is set back removes nothing, and is believed at once.
//!
//! A machine without a battery-backed clock may get the right time only after the collector has started. Such a clock is
//! recognised because it is behind the latest arrival in the store: once it no longer is, it is believed as at a start.

use std::fmt;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::writer::now_ms;

/// The clock may be set ahead by this much between two sweeps, as a time server does at times.
const BELIEVED_MS: u64 = 60_000;

/// Retention's time.
#[derive(Debug)]
pub(super) struct RetentionClock {
    time_ms: u64,
    real_ms: u64,
    /// When the newest piece arrived that was in the store at the start.
    newest_ms: u64,
    /// The jump ahead that is not believed yet.
    jump: Option<Jump>,
}

/// A jump ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Jump {
    since_real_ms: u64,
    ahead_ms: u64,
}

/// Why the clock is not believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doubt {
    /// It jumped ahead by so many milliseconds.
    Ahead(u64),
    /// It has been behind what is stored since the start, by so many milliseconds.
    Behind(u64),
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Doubt::Ahead(ms) => write!(
                f,
                "the clock jumped ahead by {:?}: retention ignores the jump and counts the time that really passes, until \
                 the clock is set back or retention_hours have passed; if the new time is right, restart the collector, \
                 which then uses it at once",
                Duration::from_millis(ms)
            ),
            Doubt::Behind(ms) => write!(
                f,
                "the clock is {:?} behind the latest arrival in the store: spans that arrived after the clock's time do not \
                 expire by age until the clock is set right or, if an earlier clock was wrong, until it reaches their times",
                Duration::from_millis(ms)
            ),
        }
    }
}

impl RetentionClock {
    /// Begins with the clock's time; `newest_ms` is when the newest stored piece arrived.
    pub(super) fn start(newest_ms: u64) -> RetentionClock {
        RetentionClock { time_ms: now_ms(), real_ms: real_ms(), newest_ms, jump: None }
    }

    /// Retention's time in milliseconds since 1970; traces are kept for `max_age_ms`.
    pub(super) fn now_ms(&mut self, max_age_ms: u64) -> u64 {
        self.at(now_ms(), real_ms(), max_age_ms)
    }

    fn at(&mut self, clock_ms: u64, real_ms: u64, max_age_ms: u64) -> u64 {
        let expected = self.time_ms + real_ms.saturating_sub(self.real_ms);
        let ahead_ms = clock_ms.saturating_sub(expected);
        // Pieces that arrived between two jumps carry the time of the first jump, so the second has its own wait.
        let same = self.jump.filter(|jump| ahead_ms <= jump.ahead_ms + BELIEVED_MS);
        let jump = same.unwrap_or(Jump { since_real_ms: real_ms, ahead_ms });
        let has_waited = max_age_ms != 0 && real_ms - jump.since_real_ms >= max_age_ms;
        let is_set_right = expected < self.newest_ms && clock_ms >= self.newest_ms;
        let is_held = ahead_ms > BELIEVED_MS && !has_waited && !is_set_right;
        self.jump = is_held.then_some(jump);
        self.time_ms = if is_held { expected } else { clock_ms };
        self.real_ms = real_ms;
        self.time_ms
    }

    /// Why the clock was not believed when the time was last asked for; none if it was.
    pub(super) fn doubt(&self) -> Option<Doubt> {
        let behind_ms = self.newest_ms.saturating_sub(self.time_ms);
        let behind = (behind_ms > BELIEVED_MS).then_some(Doubt::Behind(behind_ms));
        self.jump.map(|jump| Doubt::Ahead(jump.ahead_ms)).or(behind)
    }
}

/// Milliseconds of real time since some moment, including the time for which the machine was suspended.
fn real_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec.unsigned_abs() * 1_000 + now.tv_nsec.unsigned_abs() / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_MS: u64 = 86_400_000;
    const MAX_AGE_MS: u64 = 7 * DAY_MS;

    /// Begun when the clock said `day`; the newest piece in the store is of `newest_day`.
    fn begun(day: u64, newest_day: u64) -> RetentionClock {
        RetentionClock { time_ms: day * DAY_MS, real_ms: 7, newest_ms: newest_day * DAY_MS, jump: None }
    }

    #[test]
    fn the_retention_clock_follows_small_clock_changes_and_steps_back() {
        let mut clock = begun(1_000, 1_000);
        for (clock_ms, real_ms) in [
            (1_000 * DAY_MS + 500, 507),
            (1_000 * DAY_MS + 30_500, 507),
            (1_000 * DAY_MS - 20_000, 1_507),
            (1_001 * DAY_MS - 20_000, 1_507 + DAY_MS),
        ] {
            assert_eq!(clock.at(clock_ms, real_ms, MAX_AGE_MS), clock_ms);
            assert_eq!(clock.doubt(), None);
        }
        assert_eq!(clock.at(990 * DAY_MS, 1_507 + DAY_MS, MAX_AGE_MS), 990 * DAY_MS);
    }

    #[test]
    fn a_jump_of_the_clock_is_distrusted_until_it_is_undone() {
        let mut clock = begun(1_000, 999);
        for passed in [1_000, 60_000, DAY_MS] {
            assert_eq!(clock.at(1_400 * DAY_MS + passed, 7 + passed, MAX_AGE_MS), 1_000 * DAY_MS + passed);
            assert_eq!(clock.doubt(), Some(Doubt::Ahead(400 * DAY_MS)));
        }
        assert_eq!(clock.at(1_001 * DAY_MS + 20, 7 + DAY_MS + 10, MAX_AGE_MS), 1_001 * DAY_MS + 20);
        assert_eq!(clock.doubt(), None);
    }

    #[test]
    fn a_jump_of_the_clock_is_accepted_after_the_maximum_age() {
        let mut clock = begun(1_000, 999);
        let jumped = |clock: &mut RetentionClock, days: u64, passed: u64| {
            clock.at((1_000 + days) * DAY_MS + passed, 7 + passed, MAX_AGE_MS)
        };
        assert_eq!(jumped(&mut clock, 400, 0), 1_000 * DAY_MS);
        assert_eq!(jumped(&mut clock, 400, DAY_MS), 1_001 * DAY_MS);
        // A second jump: pieces that arrived between the two must be kept just as long.
        assert_eq!(jumped(&mut clock, 800, 2 * DAY_MS), 1_002 * DAY_MS);
        assert_eq!(jumped(&mut clock, 800, 2 * DAY_MS + MAX_AGE_MS - 1), 1_002 * DAY_MS + MAX_AGE_MS - 1);
        assert!(clock.doubt().is_some());
        assert_eq!(jumped(&mut clock, 800, 2 * DAY_MS + MAX_AGE_MS), 1_802 * DAY_MS + MAX_AGE_MS);
        assert_eq!(clock.doubt(), None);
    }

    #[test]
    fn without_a_maximum_age_a_clock_jump_is_never_accepted() {
        let mut clock = begun(1_000, 999);
        assert_eq!(clock.at(1_400 * DAY_MS, 7, 0), 1_000 * DAY_MS);
        assert_eq!(clock.at(1_500 * DAY_MS, 7 + 100 * DAY_MS, 0), 1_100 * DAY_MS);
    }

    #[test]
    fn a_clock_behind_the_store_is_trusted_once_set_right() {
        let mut clock = begun(1, 1_000);
        assert_eq!(clock.at(DAY_MS + 10, 17, MAX_AGE_MS), DAY_MS + 10);
        assert_eq!(clock.doubt(), Some(Doubt::Behind(999 * DAY_MS - 10)));
        assert_eq!(clock.at(900 * DAY_MS, 27, MAX_AGE_MS), DAY_MS + 20, "still behind");
        assert_eq!(clock.doubt(), Some(Doubt::Ahead(899 * DAY_MS - 20)));
        assert_eq!(clock.at(1_003 * DAY_MS, 37, MAX_AGE_MS), 1_003 * DAY_MS);
        assert_eq!(clock.doubt(), None);
        assert_eq!(
            clock.at(1_400 * DAY_MS, 47, MAX_AGE_MS),
            1_003 * DAY_MS + 10,
            "a further jump is distrusted like any other"
        );
    }

    #[test]
    fn the_retention_clock_starts_at_the_clocks_time() {
        let mut clock = RetentionClock::start(0);
        let before = now_ms();
        let now = clock.now_ms(MAX_AGE_MS);
        assert!((before..=now_ms()).contains(&now), "{now}");
    }
}
