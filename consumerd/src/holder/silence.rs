//! How long the worker has shown no sign of life, not counting time in which it could not have shown one.

use std::mem::replace;
use std::time::Duration;

use super::worker_process::BEAT_EVERY;

/// The holder checks its worker at least every [`BEAT_EVERY`]. If it comes later than this, it stood still itself, probably with
/// the whole machine, and the worker had no chance to beat either.
const LATE_AFTER: Duration = BEAT_EVERY.saturating_mul(2);

/// What the holder knows of one worker's heartbeat. Times are those of [`monotonic_ms`](crate::staging::log::monotonic_ms).
#[derive(Debug)]
pub(super) struct Silence {
    /// Silence before this time does not count.
    since_ms: u64,
    /// When the holder looked last.
    looked_ms: u64,
}

impl Silence {
    /// For a worker that is started at `now_ms`.
    pub(super) fn new(now_ms: u64) -> Self {
        Self { since_ms: now_ms, looked_ms: now_ms }
    }

    /// How long the silence has lasted when the holder looks at `now_ms` and the last beat in memory is from `beaten_ms`, which
    /// may be the previous worker's. The silence begins anew when the holder was late.
    pub(super) fn at(&mut self, now_ms: u64, beaten_ms: u64) -> Duration {
        let looked_ms = replace(&mut self.looked_ms, now_ms);
        if Duration::from_millis(now_ms.saturating_sub(looked_ms)) > LATE_AFTER {
            self.since_ms = now_ms;
        }
        Duration::from_millis(now_ms.saturating_sub(beaten_ms.max(self.since_ms)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY_MS: u64 = BEAT_EVERY.as_millis() as u64;
    const STANDSTILL_MS: u64 = 46_622;

    fn ms(silence: Duration) -> u64 {
        silence.as_millis() as u64
    }

    #[test]
    fn silence_counts_from_the_last_beat_of_this_worker() {
        let mut silence = Silence::new(1000);
        assert_eq!(ms(silence.at(1100, 900)), 100, "a beat from before the start is another worker's");
        assert_eq!(ms(silence.at(1500, 1200)), 300);
        assert_eq!(ms(silence.at(1600, 1600)), 0);
    }

    #[test]
    fn silence_keeps_growing_while_the_holder_looks_on_time() {
        let mut silence = Silence::new(0);
        for look in 1..=100 {
            assert_eq!(ms(silence.at(look * EVERY_MS, 0)), look * EVERY_MS);
        }
    }

    #[test]
    fn silence_restarts_after_the_holder_stood_still() {
        let mut silence = Silence::new(0);
        assert_eq!(ms(silence.at(EVERY_MS, EVERY_MS)), 0);
        let woken = EVERY_MS + STANDSTILL_MS;
        assert_eq!(ms(silence.at(woken, EVERY_MS)), 0);
        assert_eq!(ms(silence.at(woken + EVERY_MS, EVERY_MS)), EVERY_MS, "silence starts from zero again");
        assert_eq!(ms(silence.at(woken + 2 * EVERY_MS, woken + 2 * EVERY_MS - 10)), 10);
    }

    #[test]
    fn silence_continues_if_the_holder_is_slightly_late() {
        let mut silence = Silence::new(0);
        let late = LATE_AFTER.as_millis() as u64;
        assert_eq!(ms(silence.at(late, 0)), late);
        assert_eq!(ms(silence.at(2 * late, 0)), 2 * late);
        assert_eq!(ms(silence.at(3 * late + 1, 0)), 0);
    }
}
