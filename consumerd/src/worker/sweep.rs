//! Rounds over all rings of a program: a sweep is over once each ring was seen empty after the sweep began.
//!
//! An annotation seen in sweep `n` has nothing committed before it in any other ring once sweep `n + 1` is over.

use std::time::Duration;

/// A ring that waits behind the same hole for this long is taken as empty: its writer was stopped or killed there.
const HOLE_PATIENCE: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    swept: bool,
    hole: Option<(u64, Duration)>,
}

/// The sweeps of one program.
#[derive(Debug)]
pub(super) struct Sweeps {
    current: u64,
    slots: Vec<Slot>,
    left: usize,
}

impl Sweeps {
    pub(super) fn new(slots: usize) -> Self {
        Self { current: 0, slots: vec![Slot::default(); slots], left: slots }
    }

    /// Number of the sweep that is under way.
    pub(super) fn current(&self) -> u64 {
        self.current
    }

    /// Whether every ring has been drained past what was seen in `sweep`.
    pub(super) fn is_past(&self, sweep: u64) -> bool {
        self.current >= sweep + 2
    }

    /// A ring was drained up to `grain`; `is_empty` says that nothing more was there.
    pub(super) fn note(&mut self, slot: usize, grain: u64, is_empty: bool, is_at_hole: bool, now: Duration) {
        let state = &mut self.slots[slot];
        let waited = if is_at_hole {
            match state.hole {
                Some((at, since)) if at == grain => now.saturating_sub(since) >= HOLE_PATIENCE,
                _ => {
                    state.hole = Some((grain, now));
                    false
                }
            }
        } else {
            state.hole = None;
            is_empty
        };
        if waited && !state.swept {
            state.swept = true;
            self.left -= 1;
            if self.left == 0 {
                self.begin_next();
            }
        }
    }

    fn begin_next(&mut self) {
        self.current += 1;
        self.left = self.slots.len();
        self.slots.iter_mut().for_each(|slot| slot.swept = false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_sweep_is_over_when_each_ring_was_seen_empty() {
        let mut sweeps = Sweeps::new(2);
        sweeps.note(0, 1, true, false, MS);
        sweeps.note(0, 1, true, false, MS);
        assert_eq!(sweeps.current(), 0);
        sweeps.note(1, 1, false, false, MS);
        assert_eq!(sweeps.current(), 0);
        sweeps.note(1, 1, true, false, MS);
        assert_eq!(sweeps.current(), 1);
        assert!(!sweeps.is_past(0));
        sweeps.note(0, 1, true, false, MS);
        sweeps.note(1, 1, true, false, MS);
        assert!(sweeps.is_past(0));
    }

    #[test]
    fn a_hole_holds_a_sweep_up_only_for_a_while() {
        let mut sweeps = Sweeps::new(1);
        sweeps.note(0, 5, false, true, MS);
        sweeps.note(0, 5, false, true, 50 * MS);
        assert_eq!(sweeps.current(), 0);
        sweeps.note(0, 6, false, true, 120 * MS);
        assert_eq!(sweeps.current(), 0);
        sweeps.note(0, 6, false, true, 230 * MS);
        assert_eq!(sweeps.current(), 1);
    }
}
