//! The newest part of the index, in memory: what was committed since the last segment was written. A start rebuilds it from the
//! blocks.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use super::block::Part;
use super::facts::Time;
use super::terms::{Wanted, Window};
use crate::model::TraceId;

/// How many postings are sorted together.
const RUN: usize = 32 << 10;
const NONE: u32 = u32::MAX;

/// What one part of the index knows of a trace. The newest version has the time of the whole trace; each version has the places
/// and the terms of its own pieces only.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) time_us: u64,
    /// No span of the trace is longer.
    pub(super) longest_us: u64,
    /// Where its pieces are, in order of arrival.
    pub(super) parts: Vec<Part>,
    /// Whether it goes on with a version in an earlier part of the index.
    pub(super) goes_on: bool,
}

impl Version {
    /// The block of its last piece. Once retention has passed that block, the trace has expired.
    pub(super) fn last_block(&self) -> u64 {
        self.parts.last().map_or(0, |part| part.block)
    }

    /// Where its pieces are, and how much they are.
    pub(super) fn extent(&self) -> Extent {
        Extent::of(&self.parts)
    }
}

/// The first and the last block, and the bytes, of those pieces of a trace that one part of the index knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    /// The block of the first of these pieces.
    pub(super) first_block: u64,
    /// The block of the last of these pieces.
    pub(super) last_block: u64,
    /// Their bytes as stored.
    pub(super) bytes: u64,
}

impl Extent {
    fn of(parts: &[Part]) -> Extent {
        let block = |part: Option<&Part>| part.map_or(0, |part| part.block);
        let bytes = parts.iter().map(|part| u64::from(part.length)).sum();
        Extent { first_block: block(parts.first()), last_block: block(parts.last()), bytes }
    }
}

/// The versions of a trace that go on with each other, put together newest first.
#[derive(Debug, Default)]
pub(super) struct Chain {
    newest: Option<Version>,
    /// The parts of the older versions, newest first.
    earlier: Vec<Vec<Part>>,
}

impl Chain {
    /// Adds the next older version.
    pub(super) fn add(&mut self, version: Version) {
        match &mut self.newest {
            None => self.newest = Some(version),
            Some(newest) => {
                newest.goes_on = version.goes_on;
                self.earlier.push(version.parts);
            }
        }
    }

    /// Whether no older version belongs to it.
    pub(super) fn is_whole(&self) -> bool {
        self.newest.as_ref().is_some_and(|newest| !newest.goes_on)
    }

    /// All versions as one.
    pub(super) fn joined(self) -> Option<Version> {
        let mut newest = self.newest?;
        if !self.earlier.is_empty() {
            let last = std::mem::take(&mut newest.parts);
            newest.parts = self.earlier.into_iter().rev().flatten().chain(last).collect();
        }
        Some(newest)
    }
}

/// Where the earlier pieces of a growing trace are known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Rest {
    /// In the head.
    #[default]
    Here,
    /// In an earlier part of the index.
    Earlier,
    /// Nowhere: there are no earlier pieces, whatever the head knew.
    Nowhere,
}

/// What a commit adds to a trace.
#[derive(Debug, Default)]
pub(super) struct Growth {
    pub(super) rest: Rest,
    /// The time of the new pieces; of all pieces of the trace if the earlier ones are not in the head.
    pub(super) time: Time,
    pub(super) parts: Vec<Part>,
    /// How many pieces came; large ones count for several.
    pub(super) pieces: u64,
}

impl Growth {
    /// Whether the head must know of it. It need not if everything that came was stored already: otherwise pieces that are sent
    /// again and again would fill the head's memory.
    fn is_something(&self) -> bool {
        !self.parts.is_empty()
    }

    /// Notes that a piece came with so many annotations and terms. A head is full after a number of pieces, and its memory
    /// depends mostly on annotations and terms. So a piece with many of them counts for several, even if it is stored already.
    pub(super) fn weigh(&mut self, annotations: usize, terms: usize) {
        const OF_A_PIECE: usize = 32;
        self.pieces += ((annotations + terms) / OF_A_PIECE) as u64;
    }
}

/// What a commit adds to the index.
#[derive(Debug, Default)]
pub(super) struct Learned {
    pub(super) traces: Vec<(TraceId, Growth)>,
    /// Places in `traces`, with the terms of those traces; some perhaps twice.
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
    goes_on: bool,
    /// The number of another trace with the same low 64 bits.
    same_low: u32,
}

/// The index in memory.
#[derive(Debug, Default)]
pub(super) struct Head {
    traces: Vec<Trace>,
    /// For the low 64 bits, the first trace that came with them.
    by_low: HashMap<u64, u32, RandomState>,
    /// Traces that came with the same low 64 bits as an earlier one: few, unless somebody sends them on purpose.
    others: HashMap<TraceId, u32, RandomState>,
    /// The traces that went on with an earlier part of the index when they came, in order.
    went_on: Vec<u32>,
    postings: Postings,
    pieces: u64,
}

impl Head {
    /// How many pieces it knows; large ones count for several.
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

    /// The numbers of all traces with these low 64 bits.
    pub(super) fn with_low(&self, low: u64) -> impl Iterator<Item = u32> {
        let mut next = self.by_low.get(&low).copied().unwrap_or(NONE);
        std::iter::from_fn(move || {
            let number = next;
            next = self.traces.get(number as usize)?.same_low;
            Some(number)
        })
    }

    /// The id and the version of the trace with a number.
    pub(super) fn version(&self, number: u32) -> Option<(TraceId, Version)> {
        let trace = self.traces.get(number as usize)?;
        let (time_us, longest_us) = (trace.time.of_trace_us(), trace.time.longest_possible_us());
        let (parts, goes_on) = (trace.parts.clone(), trace.goes_on);
        Some((trace.id, Version { time_us, longest_us, parts, goes_on }))
    }

    /// The block of the last piece of a trace.
    pub(super) fn last_block(&self, id: TraceId) -> Option<u64> {
        let trace = &self.traces[self.number(id)? as usize];
        trace.parts.last().map(|part| part.block)
    }

    /// Adds what a commit wrote.
    pub(super) fn grow(&mut self, learned: Learned) {
        let grown = learned.traces.into_iter();
        let grown = grown.map(|(id, growth)| growth.is_something().then(|| self.grow_trace(id, growth)));
        let numbers: Vec<Option<u32>> = grown.collect();
        for (at, term) in learned.terms {
            if let Some(&Some(number)) = numbers.get(at as usize) {
                self.postings.add(term, number);
            }
        }
    }

    /// Adds to a trace, which may be new; returns its number.
    fn grow_trace(&mut self, id: TraceId, growth: Growth) -> u32 {
        let number = self.number(id).unwrap_or_else(|| self.begin(id));
        let trace = &mut self.traces[number as usize];
        if growth.rest == Rest::Here {
            trace.time.add(&growth.time);
            trace.parts.extend(growth.parts);
        } else {
            (trace.time, trace.parts) = (growth.time, growth.parts);
            trace.goes_on = growth.rest == Rest::Earlier;
            if trace.goes_on {
                self.went_on.push(number);
            }
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
        self.traces.push(Trace { id, time: Time::default(), parts: Vec::new(), goes_on: false, same_low });
        number
    }

    /// The traces that may be wanted, latest first. Traces from number `known` on are new. Retention has passed the blocks before
    /// `passed`.
    pub(super) fn candidates(
        &self,
        wanted: &Wanted,
        window: &Window,
        known: u32,
        passed: u64,
    ) -> Vec<Candidate> {
        let fits = |number: u32, missing: Vec<u64>| {
            let trace = &self.traces[number as usize];
            let time_us = trace.time.of_trace_us();
            let found =
                window.contains(&time_us) && trace.time.longest_possible_us() >= wanted.least_duration_us;
            let found = found && (trace.goes_on || missing.is_empty());
            // An expired trace must not be found: at its time, others with the same low 64 bits would be answered.
            let found = found && trace.parts.last().is_some_and(|last| last.block >= passed);
            let (extent, is_new) = (Extent::of(&trace.parts), number >= known);
            found.then_some(Candidate { time_us, id: trace.id, extent, is_new, missing })
        };
        let mut found: Vec<Candidate> = match wanted.terms.as_slice() {
            [] => (0..self.traces.len() as u32).filter_map(|number| fits(number, Vec::new())).collect(),
            terms => {
                let numbers = self.postings.with_all_or_some(terms, &self.went_on);
                numbers.into_iter().filter_map(|(number, missing)| fits(number, missing)).collect()
            }
        };
        found.sort_unstable_by_key(|found| std::cmp::Reverse((found.time_us, found.id.low())));
        found
    }

    /// Removes from `missing` the terms that a trace has here.
    pub(super) fn strike(&self, id: TraceId, missing: &mut Vec<u64>) {
        if let Some(number) = self.number(id) {
            missing.retain(|&term| !self.postings.has(term, number));
        }
    }

    /// Visits all terms in order, many at a time, with the numbers of the traces that have them, some perhaps twice.
    pub(super) fn each_postings<E>(
        &self,
        mut visit: impl FnMut(&[(u64, u32)]) -> Result<(), E>,
    ) -> Result<(), E> {
        let newest = sorted(&self.postings.newest);
        let mut left: Vec<&[(u64, u32)]> = self.postings.runs.iter().map(Vec::as_slice).collect();
        left.push(&newest);
        // All runs together are far larger than the processor's caches; their parts of one list are small.
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

/// A trace that a search may want.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) time_us: u64,
    pub(super) id: TraceId,
    pub(super) extent: Extent,
    /// Whether it came after the view of the search was taken.
    pub(super) is_new: bool,
    /// The wanted terms that it does not have here. It goes on with an earlier part of the index, where it may have them.
    pub(super) missing: Vec<u64>,
}

/// Which traces have which terms: sorted runs, and the postings that were added last.
#[derive(Debug, Default)]
struct Postings {
    runs: Vec<Vec<(u64, u32)>>,
    newest: Vec<(u64, u32)>,
}

/// How many lists the highest bits of the terms make. Terms are hashes, so the lists are small and about equally long.
const LISTS: usize = 1024;

fn list_of(term: u64) -> usize {
    (term >> (64 - LISTS.ilog2())) as usize
}

/// The postings in order: a radix sort by the two highest digits of the terms. Few terms are equal in both digits and still
/// differ; and the postings of a common term are in order of their traces already.
fn sorted(postings: &[(u64, u32)]) -> Vec<(u64, u32)> {
    const DIGIT_BITS: u32 = LISTS.ilog2();
    let lower_digit = |term: u64| (term >> (64 - 2 * DIGIT_BITS)) as usize % LISTS;
    let mut in_order = distributed(&distributed(postings, lower_digit), list_of);
    let alike = |left: &(u64, u32), right: &(u64, u32)| (left.0 ^ right.0) >> (64 - 2 * DIGIT_BITS) == 0;
    for alike in in_order.chunk_by_mut(alike) {
        if !alike.is_sorted() {
            alike.sort_unstable();
        }
    }
    in_order
}

/// The postings in order of one digit of their terms. The sort is stable.
fn distributed(postings: &[(u64, u32)], digit: impl Fn(u64) -> usize) -> Vec<(u64, u32)> {
    let mut places = [0_usize; LISTS];
    postings.iter().for_each(|&(term, _)| places[digit(term)] += 1);
    let mut begin = 0;
    for place in &mut places {
        begin += std::mem::replace(place, begin);
    }
    let mut in_order = vec![(0, 0); postings.len()];
    for &posting in postings {
        let place = &mut places[digit(posting.0)];
        in_order[*place] = posting;
        *place += 1;
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

    fn has(&self, term: u64, number: u32) -> bool {
        self.runs.iter().any(|run| run.binary_search(&(term, number)).is_ok())
            || self.newest.contains(&(term, number))
    }

    /// The numbers of the traces that have all terms; and of those among `some` that lack terms, with these terms.
    fn with_all_or_some(&self, terms: &[u64], some: &[u32]) -> Vec<(u32, Vec<u64>)> {
        let having: Vec<(u64, Vec<u32>)> = terms.iter().map(|&term| (term, self.with(term))).collect();
        let lacks = |number: u32| {
            let lacks = move |(_, with): &&(u64, Vec<u32>)| with.binary_search(&number).is_err();
            having.iter().filter(lacks).map(|(term, _)| *term)
        };
        let with_first = having.first().map_or(&[][..], |(_, with)| with);
        let with_all = with_first.iter().filter(|&&number| lacks(number).next().is_none());
        let with_some = some.iter().map(|&number| (number, lacks(number).collect::<Vec<_>>()));
        let with_some = with_some.filter(|(_, missing)| !missing.is_empty());
        with_all.map(|&number| (number, Vec::new())).chain(with_some).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::BuildHasher;

    #[test]
    fn traces_sharing_low_bits_are_found_each_and_together() {
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
    fn a_repeated_piece_adds_no_terms() {
        let mut head = Head::default();
        let learned = |parts: Vec<Part>| Learned {
            traces: vec![(TraceId::new(0, 7).unwrap(), Growth { parts, ..Growth::default() })],
            terms: vec![(0, 1), (0, 2)],
            next_block: 2,
        };
        head.grow(learned(vec![Part { block: 1, offset: 0, length: 1 }]));
        (0..10).for_each(|_| head.grow(learned(Vec::new())));
        assert_eq!((head.traces.len(), head.postings.newest.len()), (1, 2));
    }

    #[test]
    fn no_two_heads_hash_ids_alike() {
        let [one, other] = [Head::default(), Head::default()];
        assert_ne!(one.by_low.hasher().hash_one(7_u64), other.by_low.hasher().hash_one(7_u64));
        assert_ne!(one.others.hasher().hash_one(7_u64), other.others.hasher().hash_one(7_u64));
    }

    #[test]
    fn postings_of_all_runs_are_visited_once_and_in_order() {
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
    fn terms_are_found_in_runs_and_among_the_newest_postings() {
        let mut postings = Postings::default();
        let all = RUN as u32 + 1000;
        (0..all).for_each(|number| postings.add(u64::from(number % 1000) << 40, number));
        assert_eq!((postings.runs.len(), postings.newest.len()), (1, 1000));
        for term in [0_u32, 7, 999] {
            let expected: Vec<u32> = (0..all).filter(|number| number % 1000 == term).collect();
            assert_eq!(postings.with(u64::from(term) << 40), expected);
        }
        assert!(postings.with(1).is_empty());
        let mut head = Head { postings, ..Head::default() };
        let id = TraceId::new(0, 7).unwrap();
        let number = head.begin(id);
        let strikes = |head: &Head| {
            let mut missing = vec![0, 1 << 40, 5];
            head.strike(id, &mut missing);
            missing
        };
        assert_eq!(strikes(&head), [1 << 40, 5], "the trace has the number 0, and its term is in a run");
        head.postings.add(5, number);
        assert_eq!(strikes(&head), [1 << 40]);
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
