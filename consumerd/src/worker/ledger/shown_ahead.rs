//! Annotations that an earlier worker has shown as settled, in frames that were not retired: they are shipped again. Their counters
//! must not go back, because Prometheus would take that for a reset, and count everything since the start again.
//!
//! Nobody knows any more which annotations these were. An annotation that is settled with the same outcome as some of them is taken
//! for one of them. Once everything in flight was shown before, an annotation counts as one of them whatever its outcome is now: it
//! was settled then, so it has arrived, or its loss has been reported.

use super::SinkFigures;
use crate::sinks::queue::{ByOutcome, Outcome};

/// The annotations of one sink that were shown as settled, by outcome; never more than the sink has in flight.
#[derive(Clone, Debug, Default)]
pub(super) struct ShownAhead(ByOutcome);

impl ShownAhead {
    /// From what was shown, and what is counted now.
    pub(super) fn of(shown: ByOutcome, now: &SinkFigures) -> Self {
        let (mut ahead, mut in_flight) = (ByOutcome::default(), now.in_flight);
        for ((ahead, shown), counted) in ahead.iter_mut().zip(shown).zip(now.settled()) {
            *ahead = shown.saturating_sub(counted).min(in_flight);
            in_flight -= *ahead;
        }
        Self(ahead)
    }

    /// The outcomes as which newly settled annotations count, when `in_flight` are in flight.
    pub(super) fn take(
        &mut self,
        outcome: Outcome,
        annotations: u64,
        in_flight: u64,
    ) -> impl Iterator<Item = (Outcome, u64)> + use<> {
        let (mut counts, mut rest) = (ByOutcome::default(), annotations);
        let unseen = in_flight - self.0.iter().sum::<u64>();
        let again = rest.min(self.0[outcome as usize]);
        self.0[outcome as usize] -= again;
        rest -= again;
        let anew = rest.min(unseen);
        rest -= anew;
        counts[outcome as usize] = again + anew;
        for (count, ahead) in counts.iter_mut().zip(&mut self.0) {
            let other = rest.min(*ahead);
            *ahead -= other;
            *count += other;
            rest -= other;
        }
        Outcome::ALL.into_iter().zip(counts)
    }

    /// The figures to show, given those that are counted.
    pub(super) fn added_to(&self, mut now: SinkFigures) -> SinkFigures {
        for (outcome, ahead) in Outcome::ALL.into_iter().zip(self.0) {
            now.in_flight -= ahead;
            now.count(outcome, ahead);
        }
        now
    }
}

#[cfg(test)]
mod tests {
    use super::super::{DrainFigures, Ledger};
    use super::*;
    use crate::staging::SinkState;
    use proptest::prelude::*;

    const NAMES: [&str; 2] = ["a", "b"];

    fn open(ledger: &mut Ledger, valid: u64) {
        ledger.open_frame(1, DrainFigures { drained: valid, valid, ..DrainFigures::default() });
    }

    /// A worker, and what outlives it.
    struct Lives {
        ledger: Ledger,
        frames: Vec<u64>,
        checkpoint: (Vec<SinkState>, u64),
        shown: [ByOutcome; 2],
    }

    impl Lives {
        fn new() -> Self {
            let (ledger, checkpoint) = (Ledger::new(NAMES.into(), &[], 0), (Vec::new(), 0));
            Self { ledger, frames: Vec::new(), checkpoint, shown: [ByOutcome::default(); 2] }
        }

        fn settled(&self) -> [ByOutcome; 2] {
            let figures: Vec<_> = self.ledger.sinks().map(|(_, sink)| sink.settled()).collect();
            figures.try_into().unwrap()
        }

        fn open(&mut self, valid: u64) {
            open(&mut self.ledger, valid);
            self.frames.push(valid);
        }

        fn restart(&mut self) {
            let (saved, first) = &self.checkpoint;
            self.ledger = Ledger::new(NAMES.into(), saved, *first);
            self.frames[*first as usize..].iter().for_each(|valid| open(&mut self.ledger, *valid));
            let shown = self.shown;
            self.ledger.goes_on_from(|name| shown[NAMES.iter().position(|known| *known == name).unwrap()]);
        }
    }

    #[test]
    fn annotations_shown_as_shipped_stay_so_after_a_restart() {
        let mut lives = Lives::new();
        lives.open(5);
        lives.ledger.settle(0, 0, 3, Outcome::Acked);
        lives.shown = lives.settled();
        lives.restart();
        assert_eq!(lives.settled()[0], [3, 0, 0, 0]);
        lives.ledger.settle(0, 0, 1, Outcome::Acked);
        lives.ledger.settle(0, 0, 2, Outcome::Rejected);
        assert_eq!(lives.settled()[0], [3, 0, 0, 2], "two annotations were never shown as shipped");
        lives.ledger.settle(0, 0, 2, Outcome::SpoolEvicted);
        assert_eq!(lives.settled()[0], [3, 0, 0, 2], "these were shown as shipped before the restart");
    }

    #[test]
    fn shown_figures_beyond_the_reopened_frames_do_not_count() {
        let mut lives = Lives::new();
        lives.open(5);
        lives.shown[0] = [7, 0, 1, 0];
        lives.restart();
        let (_, sink) = lives.ledger.sinks().next().unwrap();
        assert!(sink.balances() && sink.in_flight == 0 && sink.settled() == [5, 0, 0, 0], "{sink:?}");
    }

    proptest! {
        #[test]
        fn no_figure_decreases_and_the_ledger_balances_across_kills(
            steps in proptest::collection::vec((0_u8..8, 0_u64..20, 0_u64..5, 0_usize..2, 0_usize..4), 1..200),
        ) {
            let mut lives = Lives::new();
            for (what, frame, count, sink, outcome) in steps {
                match what {
                    0 => lives.open(count),
                    1..4 => lives.ledger.settle(sink, frame, count as u32, Outcome::ALL[outcome]),
                    4 => drop(lives.ledger.retire_first()),
                    5 => lives.checkpoint = (lives.ledger.checkpoint(), lives.ledger.first_frame()),
                    6 => lives.shown = lives.settled(),
                    _ => lives.restart(),
                }
                prop_assert!(lives.ledger.sinks().all(|(_, sink)| sink.balances()));
                let figures = lives.settled().concat().into_iter().zip(lives.shown.concat());
                prop_assert!(figures.into_iter().all(|(now, shown)| now >= shown));
            }
            lives.restart();
            for sink in 0..2 {
                (0..200).for_each(|frame| lives.ledger.settle(sink, frame, u32::MAX, Outcome::Acked));
            }
            prop_assert!(lives.ledger.is_settled());
            let all: u64 = lives.frames.iter().sum();
            prop_assert!(lives.settled().iter().all(|figures| figures.iter().sum::<u64>() == all));
        }
    }
}
