//! Sweeps over all rings of a program. A sweep is over once each ring was drained up to where its head stood when the ring
//! was first looked at in that sweep. So a ring that never runs empty does not hold up a sweep.
//!
//! Once a sweep is over that began after an annotation's place was reserved, everything that was committed before that
//! annotation, in whatever ring, has been copied. So before it copies anything, a round looks twice where the heads of all
//! programs' rings stand, and copies up to where they stood at the second look. What was reserved before the first look only
//! waits for this round, and its spans leave with it. The little that came between the looks waits for the next round.
//!
//! A round that drained every ring as far as it saw is a whole sweep by itself, even if an earlier sweep ended in its midst.
//! Otherwise, after a round once met a writer between reservation and commit, sweeps would end in the midst of rounds ever
//! after.

use std::time::Duration;

/// A ring that waits at the same hole (a place reserved and not committed) for this long counts as empty: its writer was stopped
/// or killed there.
const HOLE_PATIENCE: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// Where the head stood at the first look of this sweep, if there was one.
    target: u64,
    /// The hole at which the ring waits, and since when.
    hole: Option<(u64, Duration)>,
    /// Where the head stood at the first look of this round.
    ahead: u64,
}

/// The sweeps that must be over before the annotations of a ring may leave.
#[derive(Clone, Copy, Debug)]
pub(super) struct Awaited {
    ahead: u64,
    after_first: u64,
    later: u64,
}

impl Awaited {
    /// The sweep for an annotation at `grain`.
    pub(super) fn of(self, grain: u64) -> u64 {
        if grain < self.ahead { self.after_first } else { self.later }
    }
}

/// The sweeps of one program.
#[derive(Debug)]
pub(super) struct Sweeps {
    current: u64,
    /// No ring was looked at since the current sweep began.
    is_fresh: bool,
    slots: Vec<Slot>,
    /// The slots, a bit each, that were looked at in this sweep.
    seen: u64,
    /// The slots that were drained up to their targets in this sweep.
    swept: u64,
    /// The slots that were drained in this round as far as it saw.
    drained: u64,
    /// The first sweep that lies entirely after the last [`Sweeps::look_ahead`].
    after_first: u64,
}

impl Sweeps {
    pub(super) fn new(slots: usize) -> Self {
        Self {
            current: 0,
            is_fresh: true,
            slots: vec![Slot::default(); slots],
            seen: 0,
            swept: 0,
            drained: 0,
            after_first: 0,
        }
    }

    /// Notes where the heads of the given slots stand. Called for all programs before any other look of a round.
    pub(super) fn look_ahead(&mut self, heads: impl Iterator<Item = (usize, u64)>) {
        self.after_first = self.next_whole();
        self.drained = 0;
        heads.for_each(|(slot, head)| self.slots[slot].ahead = head);
    }

    /// The sweeps for which annotations of a ring have to wait that were copied in this round.
    pub(super) fn awaited(&self, slot: usize) -> Awaited {
        let ahead = self.slots.get(slot).map_or(0, |slot| slot.ahead);
        Awaited { ahead, after_first: self.after_first, later: self.next_whole() }
    }

    /// Number of the first sweep that lies entirely in the future.
    fn next_whole(&self) -> u64 {
        self.current + u64::from(!self.is_fresh)
    }

    /// Whether the sweep of this number is over.
    pub(super) fn is_past(&self, sweep: u64) -> bool {
        self.current > sweep
    }

    /// Notes that these slots, a bit each, have no ring yet that anybody could have written.
    pub(super) fn note_unopened(&mut self, slots: u64) {
        self.is_fresh = false;
        self.sweep(slots, slots);
    }

    /// Notes that a ring was drained up to `grain`, and that its head stood at `head` before that.
    pub(super) fn note(&mut self, slot: usize, grain: u64, head: u64, is_at_hole: bool, now: Duration) {
        self.is_fresh = false;
        let state = &mut self.slots[slot];
        // The head goes back only in a ring that contradicts itself, which is not read any more.
        let target = if self.seen & 1 << slot == 0 { head } else { state.target.min(head) };
        state.target = target;
        self.seen |= 1 << slot;
        let is_patience_over = if is_at_hole {
            match state.hole {
                Some((at, since)) if at == grain => now.saturating_sub(since) >= HOLE_PATIENCE,
                _ => {
                    state.hole = Some((grain, now));
                    false
                }
            }
        } else {
            state.hole = None;
            false
        };
        let bit_if = |is_reached: bool| u64::from(is_reached || is_patience_over) << slot;
        self.sweep(bit_if(grain >= target), bit_if(grain >= head));
    }

    /// Notes slots that were drained up to their targets, and slots that were drained as far as the round saw.
    fn sweep(&mut self, swept: u64, drained: u64) {
        self.swept |= swept;
        self.drained |= drained;
        if self.is_all(self.drained) {
            // The sweep is over for which everything waits that the round saw, and so is one that was under way.
            self.current = self.current.max(self.after_first);
            self.drained = 0;
            self.begin_next();
        } else if self.is_all(self.swept) {
            self.begin_next();
        }
    }

    fn is_all(&self, slots: u64) -> bool {
        slots.count_ones() as usize >= self.slots.len()
    }

    fn begin_next(&mut self) {
        self.current += 1;
        self.is_fresh = true;
        (self.seen, self.swept) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_sweep_is_over_when_each_ring_was_drained_to_its_head() {
        let mut sweeps = Sweeps::new(2);
        sweeps.note(0, 1, 1, false, MS);
        sweeps.note(0, 1, 1, false, MS);
        assert!(!sweeps.is_past(0));
        sweeps.note(1, 1, 3, false, MS);
        assert!(!sweeps.is_past(0));
        sweeps.note(1, 3, 3, false, MS);
        assert!(sweeps.is_past(0));
    }

    #[test]
    fn records_copied_during_a_sweep_wait_for_the_next_one() {
        let mut sweeps = Sweeps::new(2);
        assert_eq!(sweeps.next_whole(), 0);
        sweeps.note(0, 1, 1, false, MS);
        assert_eq!(sweeps.next_whole(), 1, "the first ring may have new records since");
        sweeps.note(1, 3, 3, false, MS);
        assert_eq!(sweeps.next_whole(), 1, "the next sweep has not begun yet");
        assert!(!sweeps.is_past(1));
        sweeps.note(0, 1, 1, false, MS);
        sweeps.note(1, 3, 3, false, MS);
        assert!(sweeps.is_past(1));
    }

    #[test]
    fn records_seen_by_a_look_ahead_wait_for_one_round_only() {
        let mut sweeps = Sweeps::new(2);
        sweeps.look_ahead([(0, 3), (1, 1)].into_iter());
        sweeps.note(0, 5, 5, false, MS);
        sweeps.note(1, 1, 1, false, MS);
        let awaited = sweeps.awaited(0);
        assert!(sweeps.is_past(awaited.of(2)));
        assert!(!sweeps.is_past(awaited.of(3)), "the record came after the look ahead");
        assert!(!sweeps.is_past(sweeps.awaited(1).of(1)));
    }

    #[test]
    fn a_look_ahead_during_a_sweep_waits_for_the_next_sweep() {
        let mut sweeps = Sweeps::new(2);
        sweeps.note(0, 1, 1, false, MS);
        sweeps.look_ahead([(0, 1), (1, 4)].into_iter());
        sweeps.note(1, 4, 4, false, MS);
        let awaited = sweeps.awaited(1).of(3);
        assert!(!sweeps.is_past(awaited), "the other ring was looked at before");
        sweeps.note(0, 2, 2, false, MS);
        sweeps.note(1, 4, 4, false, MS);
        assert!(sweeps.is_past(awaited));
    }

    /// A round meets a writer between reservation and commit now and then; otherwise spans would leave a round later ever after.
    #[test]
    fn a_complete_round_is_a_sweep_even_after_a_partial_one() {
        let mut sweeps = Sweeps::new(3);
        sweeps.look_ahead([(0, 2), (1, 1)].into_iter());
        sweeps.note_unopened(0b100);
        sweeps.note(0, 1, 2, true, MS);
        sweeps.note(1, 1, 1, false, MS);
        assert!(!sweeps.is_past(0), "a writer has not committed yet");
        for round in 2..4 {
            sweeps.look_ahead([(0, 2), (1, round)].into_iter());
            sweeps.note_unopened(0b100);
            sweeps.note(0, 2, 2, false, MS);
            assert!(!sweeps.is_past(sweeps.awaited(1).of(round - 1)), "the other ring may have more");
            sweeps.note(1, round, round, false, MS);
            let awaited = sweeps.awaited(1);
            assert!(sweeps.is_past(awaited.of(round - 1)), "in round {round}");
            assert!(!sweeps.is_past(awaited.of(round)));
        }
    }

    #[test]
    fn a_ring_that_never_runs_empty_does_not_delay_a_sweep() {
        let mut sweeps = Sweeps::new(1);
        sweeps.note(0, 10, 25, false, MS);
        sweeps.note(0, 20, 35, false, MS);
        assert!(!sweeps.is_past(0));
        sweeps.note(0, 30, 45, false, MS);
        assert!(sweeps.is_past(0));
    }

    #[test]
    fn a_ring_whose_head_goes_back_does_not_delay_a_sweep() {
        let mut sweeps = Sweeps::new(1);
        sweeps.note(0, 10, 25, false, MS);
        sweeps.note(0, 10, 10, false, MS);
        assert!(sweeps.is_past(0));
    }

    #[test]
    fn unopened_slots_are_part_of_each_sweep() {
        let mut sweeps = Sweeps::new(3);
        sweeps.note_unopened(0b101);
        assert_eq!(sweeps.next_whole(), 1, "one of them may have been opened since");
        sweeps.note(1, 1, 1, false, MS);
        assert!(sweeps.is_past(0));
        sweeps.note_unopened(0b001);
        sweeps.note(1, 1, 1, false, MS);
        assert!(!sweeps.is_past(1), "the last has been opened, and was not looked at");
        sweeps.note(2, 0, 4, false, MS);
        assert!(!sweeps.is_past(1));
        sweeps.note(2, 4, 4, false, MS);
        assert!(sweeps.is_past(1));
    }

    #[test]
    fn a_hole_delays_a_sweep_only_for_a_while() {
        let mut sweeps = Sweeps::new(1);
        sweeps.note(0, 5, 9, true, MS);
        sweeps.note(0, 5, 9, true, 50 * MS);
        assert!(!sweeps.is_past(0));
        sweeps.note(0, 6, 9, true, 120 * MS);
        assert!(!sweeps.is_past(0));
        sweeps.note(0, 6, 9, true, 230 * MS);
        assert!(sweeps.is_past(0));
    }
}
