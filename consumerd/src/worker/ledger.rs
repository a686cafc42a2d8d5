//! The ledger: what was drained, what became of it, and which staged frames still wait for which sinks.
//!
//! Every figure is kept twice: as it is now (`/metrics`), and of retired frames only (the checkpoint). A new worker begins
//! with the checkpoint's figures, and counts the staged frames again. Annotations that `/metrics` has shown as settled by
//! then stay settled, although they are shipped again: see [`shown_ahead`].

mod shown_ahead;

use std::collections::VecDeque;

use crate::sinks::queue::{ByOutcome, Outcome};
use crate::staging::{ProgramState, SinkState};
use shown_ahead::ShownAhead;

/// Figures of one program's drained records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrainFigures {
    /// Records copied out of its rings.
    pub drained: u64,
    /// Records that passed validation.
    pub valid: u64,
    /// Records that failed validation.
    pub invalid: u64,
    /// Records that were reserved and never committed.
    pub torn: u64,
}

impl DrainFigures {
    /// Adds the figures of another program or frame.
    pub fn add(&mut self, other: Self) {
        self.drained += other.drained;
        self.valid += other.valid;
        self.invalid += other.invalid;
        self.torn += other.torn;
    }
}

impl ProgramState {
    /// What became of the program's retired frames.
    pub(super) fn figures(&self) -> DrainFigures {
        let Self { drained, valid, invalid, torn, .. } = *self;
        DrainFigures { drained, valid, invalid, torn }
    }
}

/// Name of the stand-in when no sink is configured: then all that is drained is lost, and counted as lost.
pub const NO_SINK: &str = "none";

/// Figures of one sink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SinkFigures {
    /// Annotations given to the sink.
    pub valid: u64,
    /// Acknowledged by the other side.
    pub acked: u64,
    /// Lost because its queue was full.
    pub queue_full: u64,
    /// Lost because staging needed the room.
    pub spool_evicted: u64,
    /// Lost because the other side refused them.
    pub rejected: u64,
    /// Lost because there is no sink at all (see [`NO_SINK`]), or because this one was configured only after they were settled.
    pub no_sink: u64,
    /// Given and not settled; counted up and down as it happens, not computed.
    pub in_flight: u64,
}

impl SinkFigures {
    fn count(&mut self, outcome: Outcome, annotations: u64) {
        let figure = match outcome {
            Outcome::Acked => &mut self.acked,
            Outcome::QueueFull => &mut self.queue_full,
            Outcome::SpoolEvicted => &mut self.spool_evicted,
            Outcome::Rejected => &mut self.rejected,
        };
        *figure += annotations;
    }

    /// The settled annotations by outcome.
    pub(super) fn settled(&self) -> ByOutcome {
        [self.acked, self.queue_full, self.spool_evicted, self.rejected]
    }

    /// The figures that a frame adds to a sink, or to [`NO_SINK`] if `is_shipped` is false.
    fn given(valid: u64, is_shipped: bool) -> Self {
        let (in_flight, no_sink) = if is_shipped { (valid, 0) } else { (0, valid) };
        Self { valid, in_flight, no_sink, ..Self::default() }
    }

    /// Causes of loss with their figures. [`NO_SINK`] has only `no_sink`, which a real sink has only if it was added later.
    pub fn lost(&self, sink: &str) -> Vec<(&'static str, u64)> {
        match sink {
            NO_SINK => vec![("no_sink", self.no_sink)],
            _ => {
                let mut causes = vec![
                    ("queue_full", self.queue_full),
                    ("spool_evicted", self.spool_evicted),
                    ("rejected", self.rejected),
                ];
                causes.extend((self.no_sink > 0).then_some(("no_sink", self.no_sink)));
                causes
            }
        }
    }

    /// Whether valid = acked + in_flight + lost.
    pub fn balances(&self) -> bool {
        let lost = self.queue_full + self.spool_evicted + self.rejected + self.no_sink;
        self.valid == self.acked + self.in_flight + lost
    }
}

#[derive(Debug)]
struct OpenFrame {
    program: u64,
    figures: DrainFigures,
    sinks: Vec<SinkFigures>,
}

/// A frame that is retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetiredFrame {
    /// Its program.
    pub program: u64,
    /// Its figures.
    pub figures: DrainFigures,
}

/// The figures of all open frames and sinks.
#[derive(Debug)]
pub struct Ledger {
    first: u64,
    frames: VecDeque<OpenFrame>,
    /// Names of the sinks; never empty.
    names: Vec<&'static str>,
    now: Vec<SinkFigures>,
    retired: Vec<SinkFigures>,
    /// For each sink, the part of `in_flight` in `now` that has been shown as settled before.
    shown_ahead: Vec<ShownAhead>,
}

impl Ledger {
    /// Continues from a checkpoint; `first` is the number of the first frame that is not retired. A daemon that continues where
    /// another stopped may have other sinks: a new sink gets only the frames that are not retired.
    pub fn new(mut names: Vec<&'static str>, saved: &[SinkState], first: u64) -> Self {
        if names.is_empty() {
            names.push(NO_SINK);
        }
        let before = saved.first().map_or(0, |sink| restored(sink).valid);
        let of = |name: &&'static str| saved.iter().find(|sink| sink.name == *name).map(restored);
        let added = || SinkFigures { valid: before, no_sink: before, ..SinkFigures::default() };
        let retired: Vec<_> = names.iter().map(|name| of(name).unwrap_or_else(added)).collect();
        tell_removed(&names, saved);
        let shown_ahead = vec![ShownAhead::default(); names.len()];
        Self { first, frames: VecDeque::new(), names, now: retired.clone(), retired, shown_ahead }
    }

    /// Applies what the last worker has shown of each sink as settled, after all staged frames were counted again.
    pub(super) fn goes_on_from(&mut self, shown: impl Fn(&str) -> ByOutcome) {
        for ((name, now), shown_ahead) in self.names.iter().zip(&self.now).zip(&mut self.shown_ahead) {
            *shown_ahead = ShownAhead::of(shown(name), now);
        }
    }

    /// Counts a staged frame: its valid annotations are now given to every sink.
    pub fn open_frame(&mut self, program: u64, figures: DrainFigures) {
        let given = SinkFigures::given(figures.valid, self.names != [NO_SINK]);
        for now in &mut self.now {
            now.valid += given.valid;
            now.in_flight += given.in_flight;
            now.no_sink += given.no_sink;
        }
        self.frames.push_back(OpenFrame { program, figures, sinks: vec![given; self.names.len()] });
    }

    /// Counts annotations of a frame that one sink has settled.
    pub fn settle(&mut self, sink: usize, frame: u64, annotations: u32, outcome: Outcome) {
        let annotations = u64::from(annotations);
        let index = frame.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        let open = index.and_then(|index| self.frames.get_mut(index));
        let Some(of_frame) = open.and_then(|open| open.sinks.get_mut(sink)) else { return };
        // A frame should never be settled twice; if it is, the sums must still be right.
        let annotations = annotations.min(of_frame.in_flight);
        let now = &mut self.now[sink];
        for (outcome, annotations) in self.shown_ahead[sink].take(outcome, annotations, now.in_flight) {
            of_frame.count(outcome, annotations);
            now.count(outcome, annotations);
        }
        of_frame.in_flight -= annotations;
        now.in_flight -= annotations;
    }

    /// Notes that a sink has read a frame again, and found `valid` annotations. If the program has spoilt its table of names since,
    /// there are fewer than before: the missing ones are counted as lost, because nothing else would settle them.
    pub fn note_read_again(&mut self, sink: usize, frame: u64, valid: u64) {
        let open = frame.checked_sub(self.first).and_then(|index| self.frames.get(index as usize));
        let missing = open.map_or(0, |open| open.figures.valid.saturating_sub(valid));
        self.settle(sink, frame, u32::try_from(missing).unwrap_or(u32::MAX), Outcome::SpoolEvicted);
    }

    /// Takes the oldest frame out if every sink has settled it.
    pub fn retire_first(&mut self) -> Option<RetiredFrame> {
        let is_settled = |frame: &OpenFrame| frame.sinks.iter().all(|sink| sink.in_flight == 0);
        if !self.frames.front().is_some_and(is_settled) {
            return None;
        }
        let frame = self.frames.pop_front()?;
        self.first += 1;
        for (sum, of_frame) in self.retired.iter_mut().zip(&frame.sinks) {
            sum.valid += of_frame.valid;
            sum.acked += of_frame.acked;
            sum.queue_full += of_frame.queue_full;
            sum.spool_evicted += of_frame.spool_evicted;
            sum.rejected += of_frame.rejected;
            sum.no_sink += of_frame.no_sink;
        }
        Some(RetiredFrame { program: frame.program, figures: frame.figures })
    }

    /// Number of the oldest frame that is not retired; that of the next frame if none is open.
    pub fn first_frame(&self) -> u64 {
        self.first
    }

    /// The first frame, of a program that satisfies `is_of`, with annotations in flight.
    pub fn first_in_flight(&self, is_of: impl Fn(u64) -> bool) -> Option<u64> {
        let waits = |frame: &OpenFrame| frame.sinks.iter().any(|sink| sink.in_flight > 0);
        let index = self.frames.iter().position(|frame| waits(frame) && is_of(frame.program))?;
        Some(self.first + index as u64)
    }

    /// Number that the next frame gets.
    pub fn next_frame(&self) -> u64 {
        self.first + self.frames.len() as u64
    }

    /// Frames that are not retired.
    pub fn open_frames(&self) -> usize {
        self.frames.len()
    }

    /// Each sink's figures as they are now.
    pub fn sinks(&self) -> impl Iterator<Item = (&'static str, SinkFigures)> + '_ {
        let figures =
            self.now.iter().zip(&self.shown_ahead).map(|(now, shown_ahead)| shown_ahead.added_to(*now));
        self.names.iter().copied().zip(figures)
    }

    /// Whether every sink has settled all that it was given, including what it was given again after a restart.
    pub fn is_settled(&self) -> bool {
        self.now.iter().all(|now| now.in_flight == 0)
    }

    /// Each sink's figures of retired frames.
    pub fn checkpoint(&self) -> Vec<SinkState> {
        let state = |(name, figures): (&&'static str, &SinkFigures)| SinkState {
            name: (*name).to_owned(),
            acked: figures.acked,
            queue_full: figures.queue_full,
            spool_evicted: figures.spool_evicted,
            rejected: figures.rejected,
            no_sink: figures.no_sink,
        };
        self.names.iter().zip(&self.retired).map(state).collect()
    }
}

fn restored(s: &SinkState) -> SinkFigures {
    SinkFigures {
        valid: s.acked + s.queue_full + s.spool_evicted + s.rejected + s.no_sink,
        acked: s.acked,
        queue_full: s.queue_full,
        spool_evicted: s.spool_evicted,
        rejected: s.rejected,
        no_sink: s.no_sink,
        in_flight: 0,
    }
}

/// Logs the sinks of an earlier daemon that are no longer configured: what was in flight to them is not counted any more.
fn tell_removed(names: &[&'static str], saved: &[SinkState]) {
    let removed = saved.iter().filter(|sink| sink.name != NO_SINK && !names.contains(&sink.name.as_str()));
    for SinkState { name, acked, .. } in removed {
        tracing::warn!(
            sink = name,
            acked,
            "the sink is no longer configured: what it had not shipped is given up"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn figures(valid: u64) -> DrainFigures {
        DrainFigures { drained: valid + 1, valid, invalid: 1, torn: 0 }
    }

    #[test]
    fn without_a_sink_annotations_count_as_lost_across_restarts() {
        let mut ledger = Ledger::new(Vec::new(), &[], 0);
        ledger.open_frame(1, figures(3));
        let lost = |ledger: &Ledger| {
            let (name, figures) = ledger.sinks().next().unwrap();
            assert!(figures.balances() && figures.valid == figures.no_sink && name == NO_SINK);
            figures.lost(name)
        };
        assert_eq!(lost(&ledger), [("no_sink", 3)]);
        assert_eq!(ledger.retire_first(), Some(RetiredFrame { program: 1, figures: figures(3) }));
        let mut next = Ledger::new(Vec::new(), &ledger.checkpoint(), 1);
        next.open_frame(1, figures(4));
        assert_eq!(lost(&next), [("no_sink", 7)]);
    }

    #[test]
    fn an_added_sink_counts_settled_annotations_as_lost() {
        let mut ledger = Ledger::new(vec!["a"], &[], 0);
        ledger.open_frame(1, figures(3));
        ledger.settle(0, 0, 3, Outcome::Acked);
        ledger.retire_first();
        let mut next = Ledger::new(vec!["b", "a"], &ledger.checkpoint(), 1);
        next.open_frame(1, figures(4));
        let figures: Vec<_> =
            next.sinks().map(|(_, sink)| (sink.valid, sink.acked, sink.in_flight)).collect();
        assert_eq!(figures, [(7, 0, 4), (7, 3, 4)]);
        let causes: Vec<_> = next.sinks().map(|(name, sink)| sink.lost(name).last().copied()).collect();
        assert_eq!(causes, [Some(("no_sink", 3)), Some(("rejected", 0))]);
        assert!(next.sinks().all(|(_, sink)| sink.balances()));
    }

    #[test]
    fn a_frame_retires_when_every_sink_has_settled_it() {
        let mut ledger = Ledger::new(vec!["a", "b"], &[], 0);
        ledger.open_frame(1, figures(3));
        ledger.settle(0, 0, 3, Outcome::Acked);
        ledger.settle(1, 0, 2, Outcome::Acked);
        assert_eq!(ledger.retire_first(), None);
        ledger.settle(1, 0, 1, Outcome::QueueFull);
        assert_eq!(ledger.retire_first(), Some(RetiredFrame { program: 1, figures: figures(3) }));
        assert_eq!((ledger.checkpoint()[1].acked, ledger.checkpoint()[1].queue_full), (2, 1));
    }

    #[test]
    fn frames_retire_in_their_order_and_empty_ones_at_once() {
        let mut ledger = Ledger::new(vec!["a"], &[], 7);
        ledger.open_frame(1, figures(1));
        ledger.open_frame(1, figures(0));
        ledger.settle(0, 8, 5, Outcome::Acked);
        assert_eq!(ledger.retire_first(), None);
        ledger.settle(0, 7, 1, Outcome::Acked);
        assert!(ledger.retire_first().is_some() && ledger.retire_first().is_some());
        assert_eq!((ledger.first_frame(), ledger.open_frames()), (9, 0));
    }

    #[test]
    fn an_uncounted_annotation_breaks_the_balance() {
        let mut ledger = Ledger::new(vec!["a"], &[], 0);
        ledger.open_frame(1, figures(3));
        ledger.settle(0, 0, 2, Outcome::Acked);
        let (_, mut sink) = ledger.sinks().next().unwrap();
        assert!(sink.balances());
        sink.in_flight -= 1;
        assert!(!sink.balances());
    }

    proptest! {
        #[test]
        fn the_ledger_balances_after_any_steps_and_a_restart(
            steps in proptest::collection::vec((0_u8..3, 0_u64..20, 0_u32..5, 0_usize..2), 1..200),
        ) {
            let outcomes = [Outcome::Acked, Outcome::QueueFull, Outcome::SpoolEvicted, Outcome::Rejected];
            let mut ledger = Ledger::new(vec!["a", "b"], &[], 0);
            for (number, (what, frame, count, sink)) in steps.iter().enumerate() {
                match what {
                    0 => ledger.open_frame(1, figures(u64::from(*count))),
                    1 => ledger.settle(*sink, *frame, *count, outcomes[number % 4]),
                    _ => drop(ledger.retire_first()),
                }
                prop_assert!(ledger.sinks().all(|(_, sink)| sink.balances()));
            }
            let mut restarted = Ledger::new(vec!["a", "b"], &ledger.checkpoint(), ledger.first_frame());
            for frame in &ledger.frames {
                restarted.open_frame(frame.program, frame.figures);
            }
            let totals = |l: &Ledger| l.sinks().map(|(_, sink)| sink.valid).collect::<Vec<_>>();
            prop_assert_eq!(totals(&restarted), totals(&ledger));
            prop_assert!(restarted.sinks().all(|(_, sink)| sink.balances()));
        }
    }
}
