//! A program's whole ledger as `/metrics` shows it, and the sums over programs that have ended.

use blkin_ringbuf::ProgramCounters;

use super::ledger::DrainFigures;
use crate::staging::DepartedTotals;
use crate::staging::checkpoint::DEPARTED_FIGURES;

/// Largest tolerated difference between a program's figures: losses that its threads were about to count when it was killed, or
/// records written between two reads of its figures. A larger difference is an error.
const MOST_BROKEN_OFF: u64 = 1000;

/// A program's whole ledger at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// What the program counted itself.
    pub counters: ProgramCounters,
    /// Records that another daemon had drained before this one attached.
    pub drained_before: u64,
    /// Records drained by another daemon that ended before it knew what became of them.
    pub unsettled: u64,
    /// Records that wait in the rings.
    pub pending: u64,
    /// Records that were in the rings of an ended flight recorder when it was given up.
    pub released: u64,
    /// What was drained, and what became of it.
    pub drain: DrainFigures,
}

impl Totals {
    /// What is known of a program whose segment cannot be read any more.
    pub(super) fn of_unreadable(drained_before: u64, unsettled: u64, drain: DrainFigures) -> Self {
        Self { drained_before, unsettled, drain, ..Self::default() }.without_its_word()
    }

    /// What is known of the program without its own counters.
    pub(super) fn without_its_word(self) -> Self {
        let seen = Self { counters: ProgramCounters::default(), pending: 0, ..self };
        let committed = seen.accounted();
        let counters = ProgramCounters { attempted: committed, committed, ..ProgramCounters::default() };
        Self { counters, ..seen }
    }

    /// For a program that has ended: removes attempts whose writers were killed between the two steps of counting a loss. These
    /// attempts got no place in a ring, so they count as never begun, like other attempts that a kill interrupts.
    pub(super) fn without_broken_off(self) -> Self {
        let told = self.counters.committed.wrapping_add(self.counters.lost());
        let broken_off = self.counters.attempted.wrapping_sub(told);
        if broken_off > MOST_BROKEN_OFF {
            return self;
        }
        Self { counters: ProgramCounters { attempted: told, ..self.counters }, ..self }
    }

    /// Whether no figures contradict each other. If they do, the program or a fault has spoilt its memory.
    pub(super) fn is_sound(&self) -> bool {
        self.counters.add_up() && self.balances()
    }

    /// Like [`is_sound`](Self::is_sound), for a program that may be recording, so that not all figures are of the same moment.
    pub(super) fn is_nearly_sound(&self) -> bool {
        let is_near = |a: u64, b: u64| a.wrapping_sub(b).cast_signed().unsigned_abs() <= MOST_BROKEN_OFF;
        let told = self.counters.committed.wrapping_add(self.counters.lost());
        is_near(self.counters.attempted, told)
            && is_near(self.counters.committed, self.accounted().wrapping_add(self.pending))
    }

    /// Whether committed = drained + pending + torn + overwritten + released, where drained includes what an earlier daemon had
    /// drained, settled or not; and drained = valid + invalid.
    pub fn balances(&self) -> bool {
        self.counters.committed == self.accounted().wrapping_add(self.pending)
            && self.drain.drained == self.drain.valid + self.drain.invalid
    }

    /// Adds the figures to the sums of programs that have ended. Records left in the rings for ever count as torn. Figures that
    /// contradict each other must come [without the program's own](Self::without_its_word), or they would spoil the sums for good.
    pub(super) fn fold_into(&self, departed: &mut DepartedTotals) {
        let torn = self.drain.torn.wrapping_add(self.pending);
        let whole = Self { pending: 0, drain: DrainFigures { torn, ..self.drain }, ..*self };
        add_words(departed, whole.words());
    }

    /// The sum with another program's.
    pub(super) fn plus(&self, other: &Self) -> Self {
        let mut sums = DepartedTotals(self.words());
        add_words(&mut sums, other.words());
        Self { pending: self.pending.wrapping_add(other.pending), ..Self::of_departed(&sums) }
    }

    fn accounted(&self) -> u64 {
        let before = self.drained_before.wrapping_add(self.unsettled);
        let drained = before.wrapping_add(self.drain.drained);
        let left = self.counters.overwritten.wrapping_add(self.released);
        drained.wrapping_add(self.drain.torn).wrapping_add(left)
    }

    /// Totals from the sums of ended programs, of which nothing is pending.
    pub(super) fn of_departed(departed: &DepartedTotals) -> Self {
        let mut totals = Self::default();
        totals.figures().into_iter().zip(departed.0).for_each(|(figure, departed)| *figure = departed);
        totals
    }

    fn words(mut self) -> [u64; DEPARTED_FIGURES] {
        self.figures().map(|figure| *figure)
    }

    /// The figures that are kept of ended programs, in the order of checkpoints.
    fn figures(&mut self) -> [&mut u64; DEPARTED_FIGURES] {
        let Self { counters: c, drained_before, unsettled, pending: _, released, drain: d } = self;
        [
            &mut c.attempted,
            &mut c.committed,
            &mut c.full,
            &mut c.no_segment,
            &mut c.too_large,
            &mut c.starting,
            &mut c.stalled,
            &mut c.truncated,
            &mut c.not_interned,
            &mut c.overwritten,
            drained_before,
            unsettled,
            &mut d.drained,
            &mut d.valid,
            &mut d.invalid,
            &mut d.torn,
            released,
        ]
    }
}

/// Adds with wrapping, because programs may claim any figures.
fn add_words(sums: &mut DepartedTotals, figures: [u64; DEPARTED_FIGURES]) {
    for (sum, figure) in sums.0.iter_mut().zip(figures) {
        *sum = sum.wrapping_add(figure);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn balanced() -> Totals {
        Totals {
            counters: ProgramCounters {
                attempted: 26,
                committed: 24,
                full: 2,
                overwritten: 4,
                ..ProgramCounters::default()
            },
            drained_before: 1,
            unsettled: 7,
            pending: 2,
            released: 3,
            drain: DrainFigures { drained: 6, valid: 5, invalid: 1, torn: 1 },
        }
    }

    #[test]
    fn each_uncounted_record_breaks_the_balance() {
        assert!(balanced().balances());
        let changes: [fn(&mut Totals); 9] = [
            |t| t.counters.committed += 1,
            |t| t.counters.overwritten -= 1,
            |t| t.drained_before -= 1,
            |t| t.unsettled -= 1,
            |t| t.pending -= 1,
            |t| t.released -= 1,
            |t| t.drain.drained -= 1,
            |t| t.drain.valid -= 1,
            |t| t.drain.torn -= 1,
        ];
        for change in changes {
            let mut totals = balanced();
            change(&mut totals);
            assert!(!totals.balances(), "{totals:?}");
        }
    }

    #[test]
    fn departed_programs_keep_their_sums() {
        let mut departed = DepartedTotals::default();
        let one = Totals { pending: 0, drain: DrainFigures { torn: 3, ..balanced().drain }, ..balanced() };
        one.fold_into(&mut departed);
        one.fold_into(&mut departed);
        let sum = Totals::of_departed(&departed);
        assert_eq!((sum.counters.attempted, sum.drain.torn), (52, 6));
        assert!(sum.balances());
    }

    #[test]
    fn records_left_in_a_departed_programs_rings_count_as_torn() {
        let mut departed = DepartedTotals::default();
        balanced().fold_into(&mut departed);
        let sum = Totals::of_departed(&departed);
        assert!(sum.balances(), "{sum:?}");
        assert_eq!(sum.drain.torn, 3);
    }

    #[test]
    fn attempts_broken_off_by_a_kill_are_removed_if_few() {
        let mut killed = balanced();
        killed.counters.attempted += 3;
        assert!(!killed.is_sound());
        assert_eq!(killed.without_broken_off(), balanced());
        assert_eq!(balanced().without_broken_off(), balanced());
        for spoilt in [balanced().counters.attempted + (1 << 20), balanced().counters.attempted - 1] {
            killed.counters.attempted = spoilt;
            assert_eq!(killed.without_broken_off(), killed);
        }
    }

    #[test]
    fn contradictory_counters_are_replaced_by_what_was_seen() {
        assert!(balanced().is_sound());
        let spoilt: [fn(&mut Totals); 3] = [
            |t| t.counters.attempted ^= 1 << 55,
            |t| t.counters.full = u64::MAX,
            // A ring that claims more records than it may hold.
            |t| (t.counters.attempted, t.counters.committed) = (26 + (1 << 27), 24 + (1 << 27)),
        ];
        for spoil in spoilt {
            let mut totals = balanced();
            spoil(&mut totals);
            assert!(!totals.is_sound(), "{totals:?}");
            let seen = totals.without_its_word();
            assert!(seen.is_sound(), "{seen:?}");
            assert_eq!((seen.counters.attempted, seen.counters.full), (18, 0));
            assert_eq!((seen.drain, seen.released), (totals.drain, totals.released));
        }
    }

    #[test]
    fn an_unreadable_program_keeps_its_known_figures() {
        let mut departed = DepartedTotals::default();
        Totals::of_unreadable(4, 2, balanced().drain).fold_into(&mut departed);
        let sum = Totals::of_departed(&departed);
        assert!(sum.balances());
        assert_eq!((sum.counters.committed, sum.drain.drained), (13, 6));
        assert_eq!((sum.drained_before, sum.unsettled), (4, 2));
    }
}
