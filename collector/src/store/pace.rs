//! The time by which retention goes: the clock's, but never further ahead than real time has passed.
//!
//! A clock that jumps ahead (a wrong time server, a typo) makes everything in the store look too old, and one sweep would
//! remove it all for good. So retention does not believe a jump: it goes on at the pace of real time, and says so, until the
//! clock is back or the collector is started anew by somebody who has seen that the new time is the right one. A clock that
//! goes back removes nothing, and is believed.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::writer::now_ms;

/// So far the clock may be set ahead between two sweeps, as a time server does at times.
const BELIEVED_MS: u64 = 60_000;

/// Retention's time.
#[derive(Debug)]
pub(super) struct Pace {
    time_ms: u64,
    real_ms: u64,
    /// The clock is further ahead than what is believed, and that was said.
    is_held: bool,
}

impl Pace {
    /// Begins with what the clock says now.
    pub(super) fn start() -> Pace {
        Pace { time_ms: now_ms(), real_ms: real_ms(), is_held: false }
    }

    /// Milliseconds since 1970.
    pub(super) fn now_ms(&mut self) -> u64 {
        self.at(now_ms(), real_ms())
    }

    fn at(&mut self, clock_ms: u64, real_ms: u64) -> u64 {
        let expected = self.time_ms + real_ms.saturating_sub(self.real_ms);
        let ahead = clock_ms.saturating_sub(expected);
        let was_held = std::mem::replace(&mut self.is_held, ahead > BELIEVED_MS);
        self.time_ms = if self.is_held { expected } else { clock_ms };
        self.real_ms = real_ms;
        match (was_held, self.is_held) {
            (false, true) => tracing::error!(
                "the clock jumped ahead by {:?}: nothing expires because of that until it is back; if the new time is \
                 right, start the collector anew",
                Duration::from_millis(ahead)
            ),
            (true, false) => tracing::info!("the clock is back: retention goes by it again"),
            _ => {}
        }
        self.time_ms
    }
}

/// Milliseconds of real time since some moment, also of those for which the machine was suspended.
fn real_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec.unsigned_abs() * 1_000 + now.tv_nsec.unsigned_abs() / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_MS: u64 = 86_400_000;

    fn pace() -> Pace {
        Pace { time_ms: 1_000 * DAY_MS, real_ms: 7, is_held: false }
    }

    #[test]
    fn it_goes_with_a_clock_that_is_set_a_little_or_back() {
        let mut pace = pace();
        for (clock_ms, real_ms) in [
            (1_000 * DAY_MS + 500, 507),
            (1_000 * DAY_MS + 30_500, 507),
            (990 * DAY_MS, 1_507),
            (990 * DAY_MS + DAY_MS, 1_507 + DAY_MS),
        ] {
            assert_eq!(pace.at(clock_ms, real_ms), clock_ms);
        }
    }

    #[test]
    fn a_jump_ahead_is_not_believed_until_the_clock_is_back() {
        let mut pace = pace();
        for passed in [1_000, 60_000, DAY_MS] {
            assert_eq!(pace.at(1_400 * DAY_MS + passed, 7 + passed), 1_000 * DAY_MS + passed);
            assert!(pace.is_held);
        }
        assert_eq!(pace.at(1_001 * DAY_MS + 20, 7 + DAY_MS + 10), 1_001 * DAY_MS + 20);
        assert!(!pace.is_held);
    }

    #[test]
    fn it_begins_with_the_clock_and_goes_on_with_it() {
        let mut pace = Pace::start();
        let before = now_ms();
        let now = pace.now_ms();
        assert!((before..=now_ms()).contains(&now), "{now}");
    }
}
