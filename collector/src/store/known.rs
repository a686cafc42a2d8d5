//! What of the traces that grow is stored already, so that it is not stored again. A cache: what is not in it is read.
//!
//! Whatever came with one commit is compared with that commit alone, which is little and fits into the processor's caches.
//! Only once a trace comes again are its stamps needed, and until then they lie one after the other: nearly all traces
//! come once, and a place of its own in a large table for each of their pieces would cost a miss each.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use foldhash::fast::RandomState;

use super::batch::{Batch, Part};
use super::expire::Passed;
use crate::model::TraceId;

/// What stands for a piece as a whole, or for one of its annotations.
type Stamp = u128;

/// Traces, and the stamps of what is stored of them.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Each trace, with where in `once` its stamps are, unless they are in `again`.
    traces: HashMap<TraceId, Range<usize>, RandomState>,
    /// Stamps of traces that came with one commit.
    once: Vec<Stamp>,
    /// Stamps of traces that came again.
    again: HashSet<Stamp, RandomState>,
    /// Stamps of the traces that came with this commit for the first time; and in their order, with the traces' places.
    now: HashSet<Stamp, RandomState>,
    in_order: Vec<(usize, Stamp)>,
}

/// How much of a piece is new.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum New {
    All,
    Nothing,
    /// Of the annotations that have an identity, in their order, those that are.
    Some(Vec<bool>),
}

/// What a commit finds a trace to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// Nothing is stored of it.
    Fresh,
    /// All that is stored of it is remembered.
    GoesOn,
}

impl Known {
    /// What is remembered of a trace that it has no rows of is worse than nothing.
    pub(super) fn forget(&mut self) {
        self.traces.clear();
        self.once.clear();
        self.again.clear();
        self.now.clear();
        self.in_order.clear();
    }

    /// Follows what retention has removed: who leaves is met again as if never seen. What of them is among `again` is not
    /// known apart, but nearly all that leave came long before what is remembered here.
    pub(super) fn follow(&mut self, passed: &Passed) {
        if passed.left_unread || passed.left.iter().any(|trace| self.traces.contains_key(trace)) {
            self.forget();
        }
    }

    /// Begins a trace in a commit. Returns whether nothing is remembered of it; from now on all of it is.
    pub(super) fn begin(&mut self, trace: TraceId) -> bool {
        let mut is_new = false;
        let stamps = self.traces.entry(trace).or_insert_with(|| {
            is_new = true;
            0..0
        });
        self.again.extend(&self.once[std::mem::take(stamps)]);
        is_new
    }

    /// Remembers what is stored of traces that go on.
    pub(super) fn remember(&mut self, stored: &Batch) {
        for part in stored.parts() {
            self.again.extend(part.entry.whole);
            self.again.extend(part.identities);
        }
    }

    /// How much is new of a piece of the trace at a place of the commit; from now on nothing of it is.
    pub(super) fn new_part(&mut self, part: &Part<'_>, standing: Standing, place: usize) -> New {
        if part.entry.whole.is_some_and(|whole| !self.insert(whole, standing, place)) {
            return New::Nothing;
        }
        let mut known = 0;
        let mut note = |identity: &Stamp| {
            let is_new = self.insert(*identity, standing, place);
            known += usize::from(!is_new);
            is_new
        };
        let is_new: Vec<bool> = part.identities.iter().map(&mut note).collect();
        match known {
            0 => New::All,
            // A piece of which only tags or annotations without identity are left has something new.
            _ if known == part.entry.annotations as usize => New::Nothing,
            _ => New::Some(is_new),
        }
    }

    fn insert(&mut self, stamp: Stamp, standing: Standing, place: usize) -> bool {
        match standing {
            Standing::GoesOn => self.again.insert(stamp),
            Standing::Fresh => {
                let is_new = self.now.insert(stamp);
                if is_new {
                    self.in_order.push((place, stamp));
                }
                is_new
            }
        }
    }

    /// Ends a commit, whose traces have these ids.
    pub(super) fn end(&mut self, trace_at: impl Fn(usize) -> TraceId) {
        self.now.clear();
        self.in_order.sort_by_key(|(place, _)| *place);
        for of_trace in self.in_order.chunk_by(|left, right| left.0 == right.0) {
            let begin = self.once.len();
            self.once.extend(of_trace.iter().map(|(_, stamp)| *stamp));
            self.traces.insert(trace_at(of_trace[0].0), begin..self.once.len());
        }
        self.in_order.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::merge::Piece;
    use blkin_thrift::Span;
    use std::hash::BuildHasher;

    fn pieces(of: &[(i64, i64)]) -> Batch {
        let mut batch = Batch::default();
        for &(trace_id, id) in of {
            batch.push(&Piece::V1(Span { trace_id, id, ..Span::default() }));
        }
        batch
    }

    /// Commits pieces of traces, each of which stands at the place of its number; returns which of them are new.
    fn commit(known: &mut Known, of: &[(i64, i64)]) -> Vec<bool> {
        let trace_at = |place| TraceId::new(0, place as u64).unwrap();
        let mut standings: HashMap<usize, Standing> = HashMap::new();
        let pieces = pieces(of);
        let is_new = pieces.parts().map(|part| {
            let place = part.entry.trace.low() as usize;
            let standing = *standings.entry(place).or_insert_with(|| {
                if known.begin(trace_at(place)) { Standing::Fresh } else { Standing::GoesOn }
            });
            known.new_part(&part, standing, place) == New::All
        });
        let is_new = is_new.collect();
        known.end(trace_at);
        is_new
    }

    /// With the high half of an id that is the first word of the fixed seed, its low half counts no more.
    #[test]
    fn trace_ids_that_a_fixed_hash_takes_for_one_another_are_told_apart() {
        const WORD: u64 = 0xc0ac_29b7_c97c_50dd;
        let hashes = |hasher: &dyn Fn(TraceId) -> u64| {
            (0..100).map(|low| hasher(TraceId::new(WORD, low).unwrap())).collect::<HashSet<u64>>().len()
        };
        let fixed = foldhash::fast::FixedState::default();
        assert_eq!(hashes(&|id| fixed.hash_one(id)), 1);
        let known = Known::default();
        assert!(hashes(&|id| known.traces.hasher().hash_one(id)) > 90);
    }

    #[test]
    fn no_two_stores_hash_alike_what_senders_choose() {
        let [one, other] = [Known::default(), Known::default()];
        let of_traces = |known: &Known| known.traces.hasher().hash_one(7);
        let of_stamps = |known: &Known| [&known.again, &known.now].map(|set| set.hasher().hash_one(7));
        assert!(of_traces(&one) != of_traces(&other) && of_stamps(&one) != of_stamps(&other));
    }

    #[test]
    fn a_piece_is_new_once_whatever_else_comes_with_it_or_between() {
        let mut known = Known::default();
        assert_eq!(commit(&mut known, &[(1, 1), (2, 1), (1, 2), (1, 1)]), [true, true, true, false]);
        assert_eq!(commit(&mut known, &[(3, 1)]), [true]);
        assert_eq!(commit(&mut known, &[(1, 2), (1, 3), (1, 1), (1, 3)]), [false, true, false, false]);
        assert_eq!(commit(&mut known, &[(1, 3), (2, 2), (2, 1), (3, 1)]), [false, true, false, false]);
        known.forget();
        assert_eq!(commit(&mut known, &[(1, 1), (3, 1)]), [true, true]);
    }
}
