//! Segments: parts of the index on disk, which never change. What they hold, latest trace first:
//!
//! ```text
//! column   a chunk of it
//! Traces   (!time:delta low:u64 high:u64 longest count (block:delta offset length)*)*   each trace at its place
//! ById     (low:u64 high place)*                                      in the order of low, high
//! Terms    (term:u64 count place:delta*)*                             in the order of term, place
//! Filter   words:u64*                                                 read as a whole; see filter.rs
//! Fences   where each chunk of Traces, ById and Terms begins          read as a whole
//! ```
//!
//! A number without a size is a varint; a delta is the difference to the one before it in the chunk (times fall, so that
//! theirs is how much; a block's is to the one before it of its trace). Fences and filter are in memory while the segment
//! is in use, so that each look reads one chunk.

use super::block::Part;
use super::chunks::{self, Column, damaged};
use super::engine::Snapshot;
use super::filter::Filter;
use super::head::Version;
use super::manifest::Entry;
use super::{Beat, StoreError, go_on, varint};
use crate::model::TraceId;

/// Where the chunks of a segment begin.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Fences {
    /// Place and time of the first trace.
    pub(super) traces: Vec<(u64, u64)>,
    /// The low 64 bits of the first trace, and nothing.
    pub(super) ids: Vec<(u64, u64)>,
    /// The first term, and its first place.
    pub(super) terms: Vec<(u64, u64)>,
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
        bytes
    }

    fn decode(mut bytes: &[u8]) -> Option<Fences> {
        let mut next = || -> Option<Vec<(u64, u64)>> {
            let count = varint::take(&mut bytes)?;
            (0..count).map(|_| varint::take_u64(&mut bytes).zip(varint::take(&mut bytes))).collect()
        };
        let fences = Fences { traces: next()?, ids: next()?, terms: next()? };
        bytes.is_empty().then_some(fences)
    }
}

/// A segment in use.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) entry: Entry,
    pub(super) fences: Fences,
    pub(super) filter: Filter,
}

/// A trace as a segment knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) id: TraceId,
    pub(super) version: Version,
}

/// Appends a record to a chunk. `before` is the time of the record before it there.
pub(super) fn put_record(record: &Record, before: Option<u64>, bytes: &mut Vec<u8>) {
    let Version { time_us, longest_us, parts } = &record.version;
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

fn take_record(before: Option<u64>, bytes: &mut &[u8]) -> Option<Record> {
    let time = varint::take(bytes)?;
    let time_us = before.map_or(time, |before| before.wrapping_sub(time));
    let (low, high) = (varint::take_u64(bytes)?, varint::take_u64(bytes)?);
    let longest_us = varint::take(bytes)?;
    let count = varint::take(bytes)?;
    let mut block = 0_u64;
    let mut part = || {
        block = block.checked_add(varint::take(bytes)?)?;
        let offset = u32::try_from(varint::take(bytes)?).ok()?;
        Some(Part { block, offset, length: u32::try_from(varint::take(bytes)?).ok()? })
    };
    let parts = (0..count).map(|_| part()).collect::<Option<_>>()?;
    Some(Record { id: TraceId::new(high, low)?, version: Version { time_us, longest_us, parts } })
}

impl Segment {
    /// Reads what stays in memory of a segment.
    pub(super) fn open(rows: &dyn Snapshot, entry: Entry) -> Result<Segment, StoreError> {
        let fences = Fences::decode(&chunks::read_whole(rows, entry.id, Column::Fences)?);
        let fences = fences.ok_or_else(|| damaged(entry.id, Column::Fences))?;
        let words = chunks::read_whole(rows, entry.id, Column::Filter)?;
        let words = words.as_chunks().0.iter().map(|word| u64::from_be_bytes(*word)).collect();
        let filter = Filter::of_words(words).filter(|filter| filter.is_for(entry.traces as usize));
        let filter = filter.ok_or_else(|| damaged(entry.id, Column::Filter))?;
        Ok(Segment { entry, fences, filter })
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
        while !rest.is_empty() {
            let record = take_record(before, &mut rest).ok_or_else(|| self.damaged(Column::Traces))?;
            before = Some(record.version.time_us);
            records.push(record);
        }
        Ok(records)
    }

    /// The traces that have these low 64 bits.
    pub(super) fn with_low(&self, rows: &dyn Snapshot, low: u64) -> Result<Vec<Record>, StoreError> {
        self.places(rows, low)?.into_iter().map(|(_, place)| self.record(rows, place)).collect()
    }

    fn record(&self, rows: &dyn Snapshot, place: u64) -> Result<Record, StoreError> {
        let chunk = self.fences.traces.partition_point(|&(first, _)| first <= place).checked_sub(1);
        let chunk = chunk.ok_or_else(|| self.damaged(Column::Fences))?;
        let at = place - self.fences.traces[chunk].0;
        let record = self.records(rows, chunk)?.into_iter().nth(at as usize);
        record.ok_or_else(|| self.damaged(Column::ById))
    }

    /// The one trace of this id.
    pub(super) fn find(&self, rows: &dyn Snapshot, id: TraceId) -> Result<Option<Version>, StoreError> {
        let places = self.places(rows, id.low())?;
        let place = places.into_iter().find(|&(high, _)| high == id.high());
        place.map(|(_, place)| self.record(rows, place).map(|record| record.version)).transpose()
    }

    /// For each trace with these low 64 bits the high ones, and its place.
    fn places(&self, rows: &dyn Snapshot, low: u64) -> Result<Vec<(u64, u64)>, StoreError> {
        let mut places = Vec::new();
        if !self.filter.may_hold(low) {
            return Ok(places);
        }
        let first = self.fences.ids.partition_point(|&(first, _)| first < low).saturating_sub(1);
        let last = self.fences.ids.partition_point(|&(first, _)| first <= low);
        for chunk in first..last {
            let body = self.chunk(rows, Column::ById, chunk)?;
            let mut rest = body.as_slice();
            while !rest.is_empty() {
                let (of, high, place) = take_id(&mut rest).ok_or_else(|| self.damaged(Column::ById))?;
                if of == low {
                    places.push((high, place));
                }
            }
        }
        Ok(places)
    }

    /// The place of the first trace that is not later than a time.
    pub(super) fn first_not_after(&self, rows: &dyn Snapshot, time_us: u64) -> Result<u64, StoreError> {
        let after = self.fences.traces.partition_point(|&(_, first)| first > time_us);
        let Some(chunk) = after.checked_sub(1) else { return Ok(0) };
        let later = self.records(rows, chunk)?.partition_point(|record| record.version.time_us > time_us);
        Ok(self.fences.traces[chunk].0 + later as u64)
    }

    /// The places of traces that have a term, from the chunk on that holds `place` or what comes next.
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
        Ok(places)
    }

    /// The chunk that holds a term at a place, if any does.
    pub(super) fn chunk_with(&self, term: u64, place: u64) -> usize {
        self.fences.terms.partition_point(|&fence| fence <= (term, place)).saturating_sub(1)
    }
}

/// The terms of a segment, one after the other, each with some of its places: those that stand together in a chunk.
pub(super) struct Runs<'s> {
    segment: &'s Segment,
    rows: &'s dyn Snapshot,
    next_chunk: usize,
    body: Vec<u8>,
    at: usize,
    /// The term that was read last; none before the first and after the last.
    pub(super) term: Option<u64>,
    /// Its places, in order.
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
            go_on(beat)?;
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
    varint::put(places.len() as u64, bytes);
    let mut before = 0;
    for &place in places {
        varint::put(place - before, bytes);
        before = place;
    }
}

/// Passes a term with each of its places; returns it.
fn take_run(bytes: &mut &[u8], mut put: impl FnMut(u64, u64)) -> Option<u64> {
    let term = varint::take_u64(bytes)?;
    let mut place = 0_u64;
    for _ in 0..varint::take(bytes)? {
        place = place.checked_add(varint::take(bytes)?)?;
        put(term, place);
    }
    Some(term)
}
