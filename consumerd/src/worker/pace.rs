//! How long the worker pauses between two looks at the rings.
//!
//! A look has a fixed price, whether it finds one record or a thousand: a wake-up, a few system calls, and for each program a
//! frame, a clock reading and an update of its control page. So rings that fill slowly are looked at less often, but often enough
//! that no ring comes near to being full, and that live viewers see annotations in time. While the worker pauses for longer than
//! the shortest time, programs wake it if they write more than before.

use std::time::Duration;

use super::engine::Progress;

/// The longest pause while there is something in the rings, as a multiple of the shortest. Live views are delayed by as much.
const LONGEST_BUSY: u32 = 8;
/// How full a look should find a ring at most if programs go on as before, in 1024ths: a sixteenth. Programs wake the worker at
/// three eighths.
const AIMED_FILL: u64 = 64;

/// Pauses between rounds.
#[derive(Debug)]
pub(super) struct Pace {
    shortest: Duration,
    longest_idle: Duration,
    pause: Duration,
}

impl Pace {
    pub(super) fn new(shortest: Duration, longest_idle: Duration) -> Self {
        Self { shortest, longest_idle, pause: shortest }
    }

    /// Sets the pause after a round that found `progress` and began `since` after the round before. While there is nothing, the
    /// pause grows step by step. Where programs cannot wake the worker, the pause stays short while there is something.
    pub(super) fn after(&mut self, progress: Progress, since: Duration, is_woken: bool) {
        self.pause = if progress.has_more {
            self.shortest
        } else if progress.holds_back {
            // Programs that are held back would wake the worker in vain, so no program is asked to.
            self.shortest
        } else if progress.drained {
            let longest = if is_woken { LONGEST_BUSY * self.shortest } else { self.shortest };
            let longest = longest.min(self.longest_idle);
            // After a longer time, all of it may have come at the end.
            let aimed = since.min(longest) * AIMED_FILL as u32 / progress.fill.clamp(1, 1024) as u32;
            aimed.clamp(self.shortest, longest)
        } else {
            (self.pause * 2).min(self.longest_idle)
        };
    }

    /// The pause to make now.
    pub(super) fn pause(&self) -> Duration {
        self.pause
    }

    /// Makes the next pause the shortest, because something is expected.
    pub(super) fn quicken(&mut self) {
        self.pause = self.shortest;
    }

    /// Whether programs ought to be able to end the pause.
    pub(super) fn is_long(&self) -> bool {
        self.pause > self.shortest
    }

    /// Whether the pause has grown to its full length.
    pub(super) fn is_longest(&self) -> bool {
        self.pause >= self.longest_idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn found(fill: u64) -> Progress {
        Progress { drained: true, fill, ..Progress::default() }
    }

    fn after(pace: &mut Pace, progress: Progress, since: Duration) -> Duration {
        pace.after(progress, since, true);
        pace.pause()
    }

    /// How often, in a second, a ring of 16384 grains is looked at that fills at this rate.
    fn looks(rate: u64) -> u32 {
        let mut pace = Pace::new(MS, 200 * MS);
        let (mut time, mut looks, mut pause) = (Duration::ZERO, 0, MS);
        while time < 1000 * MS {
            (time, looks) = (time + pause, looks + 1);
            let waiting = rate * pause.as_nanos() as u64 / 1_000_000_000;
            pause = after(&mut pace, found(waiting * 1024 / 16384), pause);
        }
        looks
    }

    #[test]
    fn rings_that_fill_slowly_are_looked_at_an_eighth_as_often() {
        assert!(looks(12_000) <= 130 && looks(100_000) <= 130);
        assert!((200..1000).contains(&looks(500_000)));
        assert_eq!(looks(10_000_000), 1000);
    }

    #[test]
    fn pauses_are_set_to_find_a_sixteenth_of_a_ring_filled() {
        let mut pace = Pace::new(MS, 200 * MS);
        let pause = after(&mut pace, found(128), 4 * MS);
        assert_eq!(pause, 2 * MS);
        assert_eq!(after(&mut pace, found(AIMED_FILL), pause), 2 * MS);
        assert_eq!(after(&mut pace, found(1024), pause), MS);
        assert!(!pace.is_long());
    }

    #[test]
    fn idle_pauses_double_and_expected_records_shorten_them() {
        let mut pace = Pace::new(MS, 200 * MS);
        let idle = [(); 9].map(|()| after(&mut pace, Progress::default(), MS).as_millis());
        assert_eq!(idle, [2, 4, 8, 16, 32, 64, 128, 200, 200]);
        assert!(pace.is_longest() && pace.is_long());
        assert_eq!(after(&mut pace, found(1), 200 * MS), 8 * MS, "the pause before does not matter");
        assert_eq!(
            after(&mut pace, found(1024), 200 * MS),
            MS,
            "a full ring may be part of a continuing burst"
        );
        pace.quicken();
        assert_eq!(after(&mut pace, Progress::default(), MS), 2 * MS);
    }

    #[test]
    fn without_wakeups_the_pause_stays_shortest_while_busy() {
        let mut pace = Pace::new(MS, 200 * MS);
        pace.after(found(1), 4 * MS, false);
        assert_eq!(pace.pause(), MS);
        pace.after(Progress::default(), MS, false);
        assert_eq!(pace.pause(), 2 * MS);
    }

    /// Otherwise a program whose ring holds more than a round may copy would call again and again, although the worker is awake.
    #[test]
    fn no_wakeup_is_requested_if_more_is_left_to_copy() {
        let mut pace = Pace::new(MS, 200 * MS);
        pace.after(Progress { has_more: true, ..found(16) }, 4 * MS, true);
        assert!(!pace.is_long());
    }

    #[test]
    fn no_busy_pause_is_longer_than_the_longest_idle_one() {
        let mut pace = Pace::new(3 * MS, 5 * MS);
        assert_eq!(after(&mut pace, found(1), 3 * MS), 5 * MS);
    }
}
