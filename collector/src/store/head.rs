//! The newest part of the index, in memory: what was committed since the last segment was written. A start makes it again
//! from the blocks.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use super::block::Part;
use super::facts::Time;
use super::terms::{Wanted, Window};
use crate::model::TraceId;

/// Postings that are sorted together.
const RUN: usize = 32 << 10;
const NONE: u32 = u32::MAX;

/// Where a trace is, as far as the index knows it at one place: its newest version is all that counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) time_us: u64,
    /// No span of it is longer.
    pub(super) longest_us: u64,
    /// In order of arrival.
    pub(super) parts: Vec<Part>,
}

impl Version {
    /// The block that got its last piece. Once retention has passed that, the trace has left.
    pub(super) fn last_block(&self) -> u64 {
        self.parts.last().map_or(0, |part| part.block)
    }
}

/// What a commit adds to a trace.
#[derive(Debug, Default)]
pub(super) struct Growth {
    /// Whether this is all there is of it, whatever the head knew.
    pub(super) anew: bool,
    pub(super) time: Time,
    pub(super) parts: Vec<Part>,
    pub(super) pieces: u64,
}

/// What a commit adds to the index.
#[derive(Debug, Default)]
pub(super) struct Learned {
    pub(super) traces: Vec<(TraceId, Growth)>,
    /// Places in `traces`, with what those traces have; some perhaps twice.
    pub(super) terms: Vec<(u32, u64)>,
    /// The first block that was not written yet.
    pub(super) next_block: u64,
}

/// A trace in the head.
#[derive(Debug)]
pub(super) struct Trace {
    pub(super) id: TraceId,
    pub(super) time: Time,
    pub(super) parts: Vec<Part>,
    /// Another trace with the same low 64 bits.
    same_low: u32,
}

/// The index in memory.
#[derive(Debug, Default)]
pub(super) struct Head {
    traces: Vec<Trace>,
    /// The first trace with these low 64 bits.
    by_low: HashMap<u64, u32, RandomState>,
    /// Those that came with the same low 64 bits as one before: few, unless somebody means harm.
    others: HashMap<TraceId, u32, RandomState>,
    postings: Postings,
    pieces: u64,
}

impl Head {
    /// How many pieces it knows.
    pub(super) fn pieces(&self) -> u64 {
        self.pieces
    }

    /// The traces, each at its number.
    pub(super) fn traces(&self) -> &[Trace] {
        &self.traces
    }

    /// The number of a trace.
    pub(super) fn number(&self, id: TraceId) -> Option<u32> {
        let first = *self.by_low.get(&id.low())?;
        if self.traces[first as usize].id == id { Some(first) } else { self.others.get(&id).copied() }
    }

    /// The numbers of the traces with these low 64 bits.
    pub(super) fn with_low(&self, low: u64) -> impl Iterator<Item = u32> {
        let mut next = self.by_low.get(&low).copied().unwrap_or(NONE);
        std::iter::from_fn(move || {
            let number = next;
            next = self.traces.get(number as usize)?.same_low;
            Some(number)
        })
    }

    /// What is known of the trace of a number.
    pub(super) fn version(&self, number: u32) -> Option<(TraceId, Version)> {
        let trace = self.traces.get(number as usize)?;
        let (time_us, longest_us) = (trace.time.of_trace_us(), trace.time.longest_possible_us());
        Some((trace.id, Version { time_us, longest_us, parts: trace.parts.clone() }))
    }

    /// The block that got the last piece of a trace.
    pub(super) fn last_block(&self, id: TraceId) -> Option<u64> {
        let trace = &self.traces[self.number(id)? as usize];
        trace.parts.last().map(|part| part.block)
    }

    /// Adds what was committed.
    pub(super) fn grow(&mut self, learned: Learned) {
        let grown = learned.traces.into_iter().map(|(id, growth)| self.grow_trace(id, growth));
        let numbers: Vec<u32> = grown.collect();
        for (at, term) in learned.terms {
            if let Some(&number) = numbers.get(at as usize) {
                self.postings.add(term, number);
            }
        }
    }

    /// Adds to a trace, or begins it; returns its number.
    fn grow_trace(&mut self, id: TraceId, growth: Growth) -> u32 {
        let number = self.number(id).unwrap_or_else(|| self.begin(id));
        let trace = &mut self.traces[number as usize];
        if growth.anew {
            (trace.time, trace.parts) = (growth.time, growth.parts);
        } else {
            trace.time.add(&growth.time);
            trace.parts.extend(growth.parts);
        }
        self.pieces += growth.pieces;
        number
    }

    fn begin(&mut self, id: TraceId) -> u32 {
        let number = self.traces.len() as u32;
        let first = *self.by_low.entry(id.low()).or_insert(number);
        let same_low = match self.traces.get_mut(first as usize) {
            Some(first) => {
                self.others.insert(id, number);
                std::mem::replace(&mut first.same_low, number)
            }
            None => NONE,
        };
        self.traces.push(Trace { id, time: Time::default(), parts: Vec::new(), same_low });
        number
    }

    /// The traces that may be wanted, latest first, each with its time.
    pub(super) fn candidates(&self, wanted: &Wanted, window: &Window) -> Vec<(u64, TraceId)> {
        let fits = |trace: &Trace| {
            let time = trace.time.of_trace_us();
            let found =
                window.contains(&time) && trace.time.longest_possible_us() >= wanted.least_duration_us;
            found.then_some((time, trace.id))
        };
        let mut found: Vec<(u64, TraceId)> = match self.postings.with_all(&wanted.terms) {
            None => self.traces.iter().filter_map(fits).collect(),
            Some(numbers) => {
                numbers.iter().filter_map(|&number| fits(&self.traces[number as usize])).collect()
            }
        };
        found.sort_unstable_by_key(|&(time, id)| std::cmp::Reverse((time, id.low())));
        found
    }

    /// Visits all terms in order, with the numbers of traces that have them, some of them twice; many terms at a time.
    pub(super) fn each_postings<E>(
        &self,
        mut visit: impl FnMut(&[(u64, u32)]) -> Result<(), E>,
    ) -> Result<(), E> {
        let newest = sorted(&self.postings.newest);
        let mut left: Vec<&[(u64, u32)]> = self.postings.runs.iter().map(Vec::as_slice).collect();
        left.push(&newest);
        // What all runs have is much more than what a processor caches; what they have of a list is little.
        let mut together = Vec::new();
        for list in 0..LISTS {
            together.clear();
            for run in &mut left {
                let ends = run.iter().position(|&(term, _)| list_of(term) > list).unwrap_or(run.len());
                let (now, later) = run.split_at(ends);
                together.extend_from_slice(now);
                *run = later;
            }
            together.sort_unstable();
            visit(&together)?;
        }
        Ok(())
    }
}

/// Which traces have which terms: sorted runs, and what was added last.
#[derive(Debug, Default)]
struct Postings {
    runs: Vec<Vec<(u64, u32)>>,
    newest: Vec<(u64, u32)>,
}

/// Terms are hashes, so that their highest bits put them into as many small lists of about one length.
const LISTS: usize = 1024;

fn list_of(term: u64) -> usize {
    (term >> (64 - LISTS.ilog2())) as usize
}

/// The same in order. What many traces have is in order of the traces already.
fn sorted(postings: &[(u64, u32)]) -> Vec<(u64, u32)> {
    let mut ends = [0_usize; LISTS];
    postings.iter().for_each(|&(term, _)| ends[list_of(term)] += 1);
    let mut begin = 0;
    for end in &mut ends {
        begin += std::mem::replace(end, begin);
    }
    let mut in_order = vec![(0, 0); postings.len()];
    for &posting in postings {
        let place = &mut ends[list_of(posting.0)];
        in_order[*place] = posting;
        *place += 1;
    }
    let mut begin = 0;
    for end in ends {
        in_order[begin..end].sort_unstable();
        begin = end;
    }
    in_order
}

impl Postings {
    fn add(&mut self, term: u64, number: u32) {
        self.newest.push((term, number));
        if self.newest.len() == RUN {
            let mut run = sorted(&self.newest);
            self.newest.clear();
            run.dedup();
            run.shrink_to_fit();
            self.runs.push(run);
        }
    }

    /// The numbers of traces that have a term, in order.
    fn with(&self, term: u64) -> Vec<u32> {
        let mut numbers: Vec<u32> = Vec::new();
        for run in &self.runs {
            let begin = run.partition_point(|&(of, _)| of < term);
            numbers.extend(run[begin..].iter().take_while(|&&(of, _)| of == term).map(|&(_, number)| number));
        }
        numbers.extend(self.newest.iter().filter(|&&(of, _)| of == term).map(|&(_, number)| number));
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    /// The numbers of traces that have all terms; none if none is asked for.
    fn with_all(&self, terms: &[u64]) -> Option<Vec<u32>> {
        let (first, others) = terms.split_first()?;
        let mut numbers = self.with(*first);
        for &term in others {
            let also = self.with(term);
            numbers.retain(|number| also.binary_search(number).is_ok());
        }
        Some(numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::BuildHasher;

    #[test]
    fn traces_that_differ_in_their_high_bits_alone_are_each_found_and_together() {
        let mut head = Head::default();
        let id = |high, low| TraceId::new(high, low).unwrap();
        let ids = [id(0, 7), id(1, 7), id(0, 8), id(2, 7)];
        let numbers: Vec<u32> = ids.iter().map(|&id| head.begin(id)).collect();
        assert_eq!(numbers, [0, 1, 2, 3]);
        assert!(ids.iter().zip(numbers).all(|(&id, number)| head.number(id) == Some(number)));
        assert_eq!((head.number(id(3, 7)), head.number(id(1, 8)), head.number(id(0, 9))), (None, None, None));
        let mut same: Vec<u32> = head.with_low(7).collect();
        same.sort_unstable();
        assert_eq!(same, [0, 1, 3]);
        assert_eq!(head.with_low(8).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn no_two_heads_hash_ids_alike() {
        let [one, other] = [Head::default(), Head::default()];
        assert_ne!(one.by_low.hasher().hash_one(7_u64), other.by_low.hasher().hash_one(7_u64));
        assert_ne!(one.others.hasher().hash_one(7_u64), other.others.hasher().hash_one(7_u64));
    }

    #[test]
    fn postings_of_all_runs_are_visited_once_and_in_order_whatever_run_they_are_in() {
        let mut postings = Postings::default();
        let scattered = |n: u32| u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let all = 2 * RUN as u32 + 1000;
        let mut expected: Vec<(u64, u32)> = (0..all).map(|n| (scattered(n % 20_000), n)).collect();
        expected.extend([(0, 1), (u64::MAX, 2), (1 << 54, 3)]);
        expected.iter().for_each(|&(term, number)| postings.add(term, number));
        assert_eq!(postings.runs.len(), 2);
        let head = Head { postings, ..Head::default() };
        let mut visited: Vec<(u64, u32)> = Vec::new();
        let visit = |postings: &[(u64, u32)]| {
            visited.extend_from_slice(postings);
            Ok::<_, ()>(())
        };
        head.each_postings(visit).unwrap();
        expected.sort_unstable();
        assert_eq!(visited, expected);
    }

    #[test]
    fn postings_are_sorted_whatever_bits_their_terms_begin_with() {
        let scattered = (0..5000_u32).map(|n| (u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15), n % 7));
        let edges = [0, 1, u64::MAX, u64::MAX - 1, 1 << 54, (1 << 54) - 1].map(|term| (term, 3));
        let common = (0..500).rev().map(|n| (1 << 60, n));
        let postings: Vec<(u64, u32)> = scattered.chain(edges).chain(common).collect();
        let mut expected = postings.clone();
        expected.sort_unstable();
        assert_eq!(sorted(&postings), expected);
        assert!(sorted(&[]).is_empty());
    }
}
