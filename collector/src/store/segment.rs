//! Segments: parts of the index on disk, which never change. Their columns, with the latest trace first:
//!
//! ```text
//! column   content of a chunk
//! Traces   (!time:delta low:u64 high:u64 longest count (block:delta offset length)*)*   each trace at its place
//! ById     (low:u64 high place)*                                      in the order of low, high
//! Terms    (term:u64 count place:delta*)*                             in the order of term, place
//! Filter   words:u64*                                                 read as a whole; see filter.rs
//! Fences   where each chunk of Traces, ById and Terms begins          read as a whole
//!          then (place:delta)* of the traces that go on with an earlier segment
//! ```
//!
//! For a trace that goes on with an earlier segment, the time and the longest span cover all its pieces, including those in
//! earlier segments; parts and terms cover only its pieces here.
//!
//! A number without a size is a varint. A delta is the difference to the number before it in the chunk. Times fall, so their
//! delta is how much they fall; the delta of a block is to the block before it of the same trace. Fences and filter are in memory
//! while the segment is in use, so each lookup reads one chunk.

use std::cmp::Ordering;
use std::ops::Range;

use super::block::Part;
use super::chunks::{self, Column, damaged};
use super::engine::Snapshot;
use super::filter::Filter;
use super::head::Version;
use super::manifest::Entry;
use super::shared::SharedLows;
use super::{Beat, StoreError, check_beat, varint};
use crate::model::TraceId;

/// Where the chunks of a segment begin, and which of its traces go on with an earlier segment.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Fences {
    /// Place and time of the first trace.
    pub(super) traces: Vec<(u64, u64)>,
    /// The id of the first trace: its low 64 bits, then the high ones. Before format 5 the high ones were always written as 0.
    pub(super) ids: Vec<(u64, u64)>,
    /// The first term, and its first place.
    pub(super) terms: Vec<(u64, u64)>,
    /// The places of traces that go on with an earlier segment, in order. Before format 6 there were no such traces.
    pub(super) goes_on: Vec<u64>,
}

impl Fences {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for fences in [&self.traces, &self.ids, &self.terms] {
            varint::put(fences.len() as u64, &mut bytes);
            for (first, second) in fences {
                bytes.extend_from_slice(&first.to_be_bytes());
                varint::put(*second, &mut bytes);
            }
        }
        put_places(&self.goes_on, &mut bytes);
        bytes
    }

    fn decode(mut bytes: &[u8]) -> Option<Fences> {
        let mut next = || -> Option<Vec<(u64, u64)>> {
            let count = varint::take(&mut bytes)?;
            (0..count).map(|_| varint::take_u64(&mut bytes).zip(varint::take(&mut bytes))).collect()
        };
        let mut fences = Fences { traces: next()?, ids: next()?, terms: next()?, goes_on: Vec::new() };
        if !bytes.is_empty() {
            take_places(&mut bytes, |place| fences.goes_on.push(place))?;
        }
        bytes.is_empty().then_some(fences)
    }

    /// The chunks of `ById` that may have ids with these low 64 bits.
    fn with_low(&self, low: u64) -> Range<usize> {
        let first = self.ids.partition_point(|&(first, _)| first < low);
        first.saturating_sub(1)..self.ids.partition_point(|&(first, _)| first <= low)
    }

    /// The chunks of `ById` that may have this id. It is one chunk, however many ids share the low 64 bits, unless the fences do
    /// not show where these ids begin.
    fn with_id(&self, id: TraceId) -> Range<usize> {
        let end = self.ids.partition_point(|&first| first <= (id.low(), id.high()));
        let known = self.ids[..end].last().is_none_or(|&first| first != (id.low(), 0));
        let begin = if known { end.saturating_sub(1) } else { self.with_low(id.low()).start };
        begin..end
    }

    /// Whether these can be the fences of so many traces; lookups rely on their order.
    fn are_of(&self, traces: u64) -> bool {
        let by_first = |fences: &[(u64, u64)]| fences.is_sorted_by_key(|&(first, _)| first);
        let places_exist = self.traces.last().is_none_or(|&(place, _)| place < traces);
        let goes_on = self.goes_on.is_sorted() && self.goes_on.last().is_none_or(|&place| place < traces);
        by_first(&self.traces) && self.ids.is_sorted() && self.terms.is_sorted() && places_exist && goes_on
    }
}

/// A segment in use.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) entry: Entry,
    pub(super) fences: Fences,
    pub(super) filter: Filter,
    pub(super) shared: SharedLows,
}

/// A trace as a segment knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) id: TraceId,
    pub(super) version: Version,
}

/// Appends a record to a chunk. `before` is the time of the record before it in the chunk.
pub(super) fn put_record(record: &Record, before: Option<u64>, bytes: &mut Vec<u8>) {
    let Version { time_us, longest_us, parts, .. } = &record.version;
    varint::put(before.map_or(*time_us, |before| before.wrapping_sub(*time_us)), bytes);
    bytes.extend_from_slice(&record.id.low().to_be_bytes());
    bytes.extend_from_slice(&record.id.high().to_be_bytes());
    varint::put(*longest_us, bytes);
    varint::put(parts.len() as u64, bytes);
    let mut block = 0;
    for part in parts {
        varint::put(part.block - block, bytes);
        varint::put(u64::from(part.offset), bytes);
        varint::put(u64::from(part.length), bytes);
        block = part.block;
    }
}

/// A record without its parts: time, low and high half of the id, longest span, number of parts.
fn take_head(before: Option<u64>, bytes: &mut &[u8]) -> Option<(u64, u64, u64, u64, u64)> {
    let time = varint::take(bytes)?;
    let time_us = before.map_or(time, |before| before.wrapping_sub(time));
    let (low, high) = (varint::take_u64(bytes)?, varint::take_u64(bytes)?);
    Some((time_us, low, high, varint::take(bytes)?, varint::take(bytes)?))
}

/// Passes a record; returns its time.
fn skip_record(before: Option<u64>, bytes: &mut &[u8]) -> Option<u64> {
    let (time_us, .., parts) = take_head(before, bytes)?;
    for _ in 0..parts {
        for _of_part in 0..3 {
            varint::take(bytes)?;
        }
    }
    Some(time_us)
}

fn take_record(before: Option<u64>, bytes: &mut &[u8]) -> Option<Record> {
    let (time_us, low, high, longest_us, count) = take_head(before, bytes)?;
    let mut block = 0_u64;
    let mut part = || {
        block = block.checked_add(varint::take(bytes)?)?;
        let offset = u32::try_from(varint::take(bytes)?).ok()?;
        let length = u32::try_from(varint::take(bytes)?).ok()?;
        offset.checked_add(length).map(|_end| Part { block, offset, length })
    };
    let parts = (0..count).map(|_| part()).collect::<Option<_>>()?;
    let version = Version { time_us, longest_us, parts, goes_on: false };
    Some(Record { id: TraceId::new(high, low)?, version })
}

impl Segment {
    /// Opens a segment: reads the fences and the filter, which stay in memory.
    pub(super) fn open(rows: &dyn Snapshot, entry: Entry) -> Result<Segment, StoreError> {
        let fences = Fences::decode(&chunks::read_whole(rows, entry.id, Column::Fences)?);
        let fences = fences.filter(|fences| fences.are_of(entry.traces));
        let fences = fences.ok_or_else(|| damaged(entry.id, Column::Fences))?;
        let words = chunks::read_whole(rows, entry.id, Column::Filter)?;
        let words = words.as_chunks().0.iter().map(|word| u64::from_be_bytes(*word)).collect();
        let filter = Filter::of_words(words).filter(|filter| filter.is_for(entry.traces as usize));
        let filter = filter.ok_or_else(|| damaged(entry.id, Column::Filter))?;
        Ok(Segment { entry, fences, filter, shared: SharedLows::default() })
    }

    fn chunk(&self, rows: &dyn Snapshot, column: Column, chunk: usize) -> Result<Vec<u8>, StoreError> {
        chunks::read(rows, self.entry.id, column, chunk as u32)
    }

    fn damaged(&self, column: Column) -> StoreError {
        damaged(self.entry.id, column)
    }

    /// The records of one chunk.
    pub(super) fn records(&self, rows: &dyn Snapshot, chunk: usize) -> Result<Vec<Record>, StoreError> {
        let body = self.chunk(rows, Column::Traces, chunk)?;
        let mut rest = body.as_slice();
        let (mut records, mut before) = (Vec::new(), None);
        let first = self.fences.traces.get(chunk).map_or(0, |&(first, _)| first);
        while !rest.is_empty() {
            let mut record = take_record(before, &mut rest)
                .filter(|record| self.may_hold(record))
                .ok_or_else(|| self.damaged(Column::Traces))?;
            record.version.goes_on = self.goes_on(first + records.len() as u64);
            before = Some(record.version.time_us);
            records.push(record);
        }
        Ok(records)
    }

    /// The records of the traces with these low 64 bits.
    pub(super) fn with_low(&self, rows: &dyn Snapshot, low: u64) -> Result<Vec<Record>, StoreError> {
        let places = self.places(rows, low, self.fences.with_low(low))?;
        let found = places.into_iter().map(|(high, place)| {
            let id = TraceId::new(high, low).ok_or_else(|| self.damaged(Column::ById))?;
            self.record(rows, id, place)
        });
        found.collect()
    }

    /// The record of a trace at a place. If another trace is there, the segment is damaged.
    fn record(&self, rows: &dyn Snapshot, id: TraceId, place: u64) -> Result<Record, StoreError> {
        let chunk = self.fences.traces.partition_point(|&(first, _)| first <= place).checked_sub(1);
        let chunk = chunk.ok_or_else(|| self.damaged(Column::Fences))?;
        let at = place - self.fences.traces[chunk].0;
        chunks::look(rows, self.entry.id, Column::Traces, chunk as u32, |body| {
            let (mut rest, mut before) = (body, None);
            for _ in 0..at {
                before = Some(skip_record(before, &mut rest)?);
            }
            let record = take_record(before, &mut rest)?;
            let mut record = Some(record).filter(|record| record.id == id && self.may_hold(record))?;
            record.version.goes_on = self.goes_on(place);
            Some(record)
        })
    }

    /// The traces that go on with an earlier segment.
    pub(super) fn that_go_on(&self, rows: &dyn Snapshot, beat: Beat<'_>) -> Result<Vec<TraceId>, StoreError> {
        let mut ids = Vec::with_capacity(self.fences.goes_on.len());
        let mut places = self.fences.goes_on.as_slice();
        for (chunk, &(first, _)) in self.fences.traces.iter().enumerate() {
            let end = self.fences.traces.get(chunk + 1).map_or(u64::MAX, |&(next, _)| next);
            let (now, later) = places.split_at(places.partition_point(|&place| place < end));
            places = later;
            if !now.is_empty() {
                check_beat(beat)?;
                let records = self.records(rows, chunk)?;
                let record = |place: &u64| records.get(usize::try_from(place.checked_sub(first)?).ok()?);
                ids.extend(now.iter().filter_map(record).map(|record| record.id));
            }
        }
        Ok(ids)
    }

    /// Whether the trace at a place goes on with an earlier segment.
    fn goes_on(&self, place: u64) -> bool {
        self.fences.goes_on.binary_search(&place).is_ok()
    }

    /// Whether a record can be in this segment: none has a block after the segment's last one. So a trace that goes on in a later
    /// part of the index always has later blocks there.
    fn may_hold(&self, record: &Record) -> bool {
        record.version.last_block() <= self.entry.last_block
    }

    /// What the segment knows of a trace.
    pub(super) fn find(&self, rows: &dyn Snapshot, id: TraceId) -> Result<Option<Version>, StoreError> {
        let place = self.place(rows, id)?;
        place.map(|place| self.record(rows, id, place).map(|record| record.version)).transpose()
    }

    /// The place of a trace.
    pub(super) fn place(&self, rows: &dyn Snapshot, id: TraceId) -> Result<Option<u64>, StoreError> {
        let places = self.places(rows, id.low(), self.fences.with_id(id))?;
        Ok(places.into_iter().find(|&(high, _)| high == id.high()).map(|(_, place)| place))
    }

    /// Visits the low 64 bits of each trace, in order.
    pub(super) fn each_low(&self, rows: &dyn Snapshot, visit: &mut dyn FnMut(u64)) -> Result<(), StoreError> {
        for chunk in 0..self.fences.ids.len() {
            chunks::look(rows, self.entry.id, Column::ById, chunk as u32, |mut rest| {
                while !rest.is_empty() {
                    let (low, ..) = take_id(&mut rest)?;
                    visit(low);
                }
                Some(())
            })?;
        }
        Ok(())
    }

    /// For each trace in these chunks that has these low 64 bits, its high bits and its place.
    fn places(
        &self,
        rows: &dyn Snapshot,
        low: u64,
        chunks: Range<usize>,
    ) -> Result<Vec<(u64, u64)>, StoreError> {
        let mut places = Vec::new();
        if !self.filter.may_hold(low) {
            return Ok(places);
        }
        for chunk in chunks {
            chunks::look(rows, self.entry.id, Column::ById, chunk as u32, |mut rest| {
                while !rest.is_empty() {
                    let (of, high, place) = take_id(&mut rest)?;
                    match of.cmp(&low) {
                        Ordering::Less => {}
                        Ordering::Equal => places.push((high, place)),
                        Ordering::Greater => break,
                    }
                }
                Some(())
            })?;
        }
        Ok(places)
    }

    /// The first place, from `place` on, of a trace that goes on with an earlier segment.
    pub(super) fn next_that_goes_on(&self, place: u64) -> Option<u64> {
        self.fences.goes_on.get(self.fences.goes_on.partition_point(|&before| before < place)).copied()
    }

    /// The place of the first trace that is not later than a time.
    pub(super) fn first_not_after(&self, rows: &dyn Snapshot, time_us: u64) -> Result<u64, StoreError> {
        let after = self.fences.traces.partition_point(|&(_, first)| first > time_us);
        let Some(chunk) = after.checked_sub(1) else { return Ok(0) };
        let later = self.records(rows, chunk)?.partition_point(|record| record.version.time_us > time_us);
        Ok(self.fences.traces[chunk].0 + later as u64)
    }

    /// The places in one chunk of traces that have a term, in order.
    pub(super) fn places_with(
        &self,
        rows: &dyn Snapshot,
        term: u64,
        chunk: usize,
    ) -> Result<Vec<u64>, StoreError> {
        let body = self.chunk(rows, Column::Terms, chunk)?;
        let mut rest = body.as_slice();
        let mut places = Vec::new();
        while !rest.is_empty() {
            let put = |of, place| {
                if of == term {
                    places.push(place);
                }
            };
            take_run(&mut rest, put).ok_or_else(|| self.damaged(Column::Terms))?;
        }
        // If places went back, a search might never end.
        if places.is_sorted() { Ok(places) } else { Err(self.damaged(Column::Terms)) }
    }

    /// The chunk that has a term at a place, if any chunk has it.
    pub(super) fn chunk_with(&self, term: u64, place: u64) -> usize {
        self.fences.terms.partition_point(|&fence| fence <= (term, place)).saturating_sub(1)
    }
}

/// The terms of a segment, one after the other. A term comes once for each chunk that has it, with its places in that chunk.
pub(super) struct Runs<'s> {
    segment: &'s Segment,
    rows: &'s dyn Snapshot,
    next_chunk: usize,
    body: Vec<u8>,
    at: usize,
    /// The term that was read last; none before the first and after the last.
    pub(super) term: Option<u64>,
    /// The places of that term in the chunk, in order.
    pub(super) places: Vec<u64>,
}

impl<'s> Runs<'s> {
    pub(super) fn new(segment: &'s Segment, rows: &'s dyn Snapshot) -> Self {
        Runs { segment, rows, next_chunk: 0, body: Vec::new(), at: 0, term: None, places: Vec::new() }
    }

    /// Reads the next term. `beat` is called with each chunk.
    pub(super) fn advance(&mut self, beat: Beat<'_>) -> Result<(), StoreError> {
        self.term = None;
        self.places.clear();
        while self.at == self.body.len() {
            if self.next_chunk == self.segment.fences.terms.len() {
                return Ok(());
            }
            check_beat(beat)?;
            self.body = self.segment.chunk(self.rows, Column::Terms, self.next_chunk)?;
            (self.next_chunk, self.at) = (self.next_chunk + 1, 0);
        }
        let mut rest = &self.body[self.at..];
        let term = take_run(&mut rest, |_, place| self.places.push(place));
        self.term = Some(term.ok_or_else(|| self.segment.damaged(Column::Terms))?);
        self.at = self.body.len() - rest.len();
        Ok(())
    }
}

/// Appends the place of a trace to a chunk.
pub(super) fn put_id(id: TraceId, place: u64, bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(&id.low().to_be_bytes());
    varint::put(id.high(), bytes);
    varint::put(place, bytes);
}

fn take_id(bytes: &mut &[u8]) -> Option<(u64, u64, u64)> {
    Some((varint::take_u64(bytes)?, varint::take(bytes)?, varint::take(bytes)?))
}

/// Appends a term with some of its places to a chunk.
pub(super) fn put_run(term: u64, places: &[u64], bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(&term.to_be_bytes());
    put_places(places, bytes);
}

fn put_places(places: &[u64], bytes: &mut Vec<u8>) {
    varint::put(places.len() as u64, bytes);
    let mut before = 0;
    for &place in places {
        varint::put(place - before, bytes);
        before = place;
    }
}

/// Reads a term, and calls `put` with it and each of its places; returns the term.
fn take_run(bytes: &mut &[u8], mut put: impl FnMut(u64, u64)) -> Option<u64> {
    let term = varint::take_u64(bytes)?;
    take_places(bytes, |place| put(term, place))?;
    Some(term)
}

fn take_places(bytes: &mut &[u8], mut put: impl FnMut(u64)) -> Option<()> {
    let mut place = 0_u64;
    for _ in 0..varint::take(bytes)? {
        place = place.checked_add(varint::take(bytes)?)?;
        put(place);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::super::TO_THE_END;
    use std::cell::Cell;
    use std::ops::ControlFlow;
    use std::sync::Arc;

    use super::super::build::is_needed;
    use super::super::engine::{Engine, Visit};
    use super::super::memory::Memory;
    use super::*;

    #[test]
    fn fences_out_of_order_or_range_are_rejected() {
        let traces = vec![(0, 9), (2, 5)];
        let fences =
            Fences { traces, ids: vec![(1, 0), (1, 0)], terms: vec![(1, 2), (1, 3)], goes_on: vec![0, 2] };
        let fences = Fences::decode(&fences.encode()).unwrap();
        assert!(fences.are_of(3) && !fences.are_of(2));
        let fallen = |change: fn(&mut Fences)| {
            let mut fences = Fences::decode(&fences.encode()).unwrap();
            change(&mut fences);
            !fences.are_of(3)
        };
        assert!(fallen(|fences| fences.traces.reverse()));
        assert!(fallen(|fences| fences.ids.push((0, 0))));
        assert!(fallen(|fences| fences.terms.reverse()));
        assert!(fallen(|fences| fences.goes_on.reverse()));
        assert!(fallen(|fences| fences.goes_on.push(3)));
    }

    #[test]
    fn a_part_ending_beyond_any_block_is_rejected() {
        let record = |length| {
            let parts = vec![Part { block: 1, offset: 10, length }];
            let version = Version { time_us: 1, longest_us: 2, parts, goes_on: false };
            Record { id: TraceId::new(0, 1).unwrap(), version }
        };
        let again = |record: &Record| {
            let mut bytes = Vec::new();
            put_record(record, None, &mut bytes);
            take_record(None, &mut bytes.as_slice())
        };
        assert_eq!(again(&record(u32::MAX - 10)), Some(record(u32::MAX - 10)));
        assert_eq!(again(&record(u32::MAX - 9)), None);
    }

    fn segment(last_block: u64) -> Segment {
        let entry = Entry { id: 1, level: 0, traces: 4, last_block, latest_us: 0, earliest_us: 0, bytes: 0 };
        Segment {
            entry,
            fences: Fences::default(),
            filter: Filter::for_traces(4),
            shared: SharedLows::default(),
        }
    }

    #[test]
    fn a_trace_in_a_block_after_its_segments_last_is_rejected() {
        let parts = vec![Part { block: 5, offset: 0, length: 1 }];
        let version = Version { time_us: 1, longest_us: 2, parts, goes_on: false };
        let record = Record { id: TraceId::new(0, 1).unwrap(), version };
        let mut body = Vec::new();
        put_record(&record, None, &mut body);
        let engine = Memory::default();
        let mut writing = chunks::Writing::new(&engine, 1, TO_THE_END);
        writing.put(Column::Traces, 0, &body).unwrap();
        writing.flush().unwrap();
        let rows = engine.read().unwrap();
        assert_eq!(segment(5).records(&*rows, 0).unwrap(), [record]);
        assert!(matches!(segment(4).records(&*rows, 0), Err(StoreError::Corrupted(_))));
    }

    #[test]
    fn places_of_other_traces_are_rejected_and_reading_beats() {
        let [one, other] = [1, 2].map(|low| TraceId::new(0, low).unwrap());
        let version = Version { time_us: 1, longest_us: 2, parts: Vec::new(), goes_on: false };
        let (mut traces, mut ids) = (Vec::new(), Vec::new());
        put_record(&Record { id: one, version }, None, &mut traces);
        [one, other].iter().for_each(|&id| put_id(id, 0, &mut ids));
        let engine = Memory::default();
        let mut writing = chunks::Writing::new(&engine, 1, TO_THE_END);
        writing.put(Column::Traces, 0, &traces).unwrap();
        writing.put(Column::ById, 0, &ids).unwrap();
        writing.flush().unwrap();
        let rows = engine.read().unwrap();
        let mut segment = segment(5);
        (segment.fences.traces, segment.fences.ids) = (vec![(0, 1)], vec![(1, 0)]);
        segment.fences.goes_on = vec![0];
        [one, other].iter().for_each(|id| segment.filter.insert(id.low()));
        assert!(segment.find(&*rows, one).unwrap().is_some());
        assert!(matches!(segment.find(&*rows, other), Err(StoreError::Corrupted(_))));
        assert!(matches!(segment.with_low(&*rows, 2), Err(StoreError::Corrupted(_))));
        assert_eq!(segment.that_go_on(&*rows, TO_THE_END).unwrap(), [one]);
        let ended = segment.that_go_on(&*rows, &|| ControlFlow::Break(()));
        assert!(matches!(ended, Err(StoreError::Ended)));
        // One beat for the chunk, and one for the trace.
        let beats = Cell::new(0);
        let count = || {
            beats.set(beats.get() + 1);
            ControlFlow::Continue(())
        };
        let segment = Arc::new(segment);
        assert!(is_needed(&*rows, &segment, std::slice::from_ref(&segment), 0, &count).unwrap());
        assert_eq!(beats.get(), 2);
    }

    /// A snapshot that counts lookups of rows.
    struct Counting<'s>(Box<dyn Snapshot + 's>, Cell<usize>);

    impl Snapshot for Counting<'_> {
        fn look(&self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool, StoreError> {
            self.1.set(self.1.get() + 1);
            self.0.look(key, visit)
        }

        fn scan(&self, prefix: &[u8], from: &[u8], visit: Visit<'_>) -> Result<(), StoreError> {
            self.0.scan(prefix, from, visit)
        }
    }

    #[test]
    fn one_lookup_finds_a_trace_among_many_sharing_its_low_bits() {
        const LOW: u64 = 7;
        let ids: Vec<TraceId> =
            [(1, 3), (0, LOW), (1, LOW), (2, LOW), (4, LOW), (5, LOW), (6, LOW), (8, LOW), (2, 9)]
                .map(|(high, low)| TraceId::new(high, low).unwrap())
                .to_vec();
        let engine = Memory::default();
        let mut writing = chunks::Writing::new(&engine, 1, TO_THE_END);
        let mut fences = Fences { traces: vec![(0, 0)], ..Fences::default() };
        let mut records = Vec::new();
        for (chunk, ids) in ids.chunks(2).enumerate() {
            fences.ids.push((ids[0].low(), ids[0].high()));
            let mut body = Vec::new();
            for (number, &id) in ids.iter().enumerate() {
                put_id(id, (2 * chunk + number) as u64, &mut body);
                let version = Version { time_us: 0, longest_us: 0, parts: Vec::new(), goes_on: false };
                put_record(&Record { id, version }, (!records.is_empty()).then_some(0), &mut records);
            }
            writing.put(Column::ById, chunk as u32, &body).unwrap();
        }
        writing.put(Column::Traces, 0, &records).unwrap();
        writing.flush().unwrap();
        let mut segment = segment(5);
        ids.iter().for_each(|id| segment.filter.insert(id.low()));
        segment.fences = fences;
        let most_looks = |segment: &Segment, id| {
            let rows = Counting(engine.read().unwrap(), Cell::new(0));
            (segment.find(&rows, id).unwrap().is_some(), rows.1.get())
        };
        // One lookup for the ids, and one for the trace.
        assert!(ids.iter().all(|&id| most_looks(&segment, id) == (true, 2)));
        let others = [(3, LOW), (7, LOW), (9, LOW)].map(|(high, low)| TraceId::new(high, low).unwrap());
        assert!(others.iter().all(|&id| most_looks(&segment, id) == (false, 1)));
        segment.fences.ids.iter_mut().for_each(|fence| fence.1 = 0);
        assert!(ids.iter().all(|&id| most_looks(&segment, id).0));
        assert!(others.iter().all(|&id| !most_looks(&segment, id).0));
    }

    #[test]
    fn descending_places_of_a_term_are_rejected() {
        let engine = Memory::default();
        let mut writing = chunks::Writing::new(&engine, 1, TO_THE_END);
        for (chunk, runs) in [[[1, 2], [2, 3]], [[2, 3], [1, 2]]].iter().enumerate() {
            let mut body = Vec::new();
            runs.iter().for_each(|places| put_run(7, places, &mut body));
            writing.put(Column::Terms, chunk as u32, &body).unwrap();
        }
        writing.flush().unwrap();
        let rows = engine.read().unwrap();
        assert_eq!(segment(0).places_with(&*rows, 7, 0).unwrap(), [1, 2, 2, 3]);
        assert!(matches!(segment(0).places_with(&*rows, 7, 1), Err(StoreError::Corrupted(_))));
    }
}
