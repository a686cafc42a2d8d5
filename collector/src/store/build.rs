//! Writing segments: of the head, and of several segments one that takes their place.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use super::chunks::{CHUNK_BYTES, Column, Writing};
use super::engine::{Engine, Snapshot};
use super::filter::Filter;
use super::head::Head;
use super::manifest::Entry;
use super::segment::{Fences, Record, Runs, Segment, put_id, put_record, put_run};
use super::{Beat, StoreError, go_on, keys};
use crate::model::TraceId;

/// A segment that is being written: first its traces, latest first, then its terms in their order.
struct Builder<'e, E> {
    rows: Writing<'e, E>,
    entry: Entry,
    fences: Fences,
    ids: Vec<(TraceId, u64)>,
    chunk: Vec<u8>,
    /// Time of the trace before.
    before: Option<u64>,
}

impl<'e, E: Engine> Builder<'e, E> {
    fn new(engine: &'e E, id: u64, level: u64, beat: Beat<'e>) -> Self {
        let entry =
            Entry { id, level, traces: 0, last_block: 0, latest_us: 0, earliest_us: u64::MAX, bytes: 0 };
        Builder {
            rows: Writing::new(engine, id, beat),
            entry,
            fences: Fences::default(),
            ids: Vec::new(),
            chunk: Vec::with_capacity(2 * CHUNK_BYTES),
            before: None,
        }
    }

    /// Adds a trace, which is not later than the one before. Returns its place.
    fn trace(&mut self, record: &Record) -> Result<u64, StoreError> {
        let place = self.entry.traces;
        let time_us = record.version.time_us;
        if self.chunk.is_empty() {
            self.fences.traces.push((place, time_us));
        }
        put_record(record, self.before, &mut self.chunk);
        self.before = Some(time_us);
        self.ids.push((record.id, place));
        self.entry.traces += 1;
        self.entry.last_block = self.entry.last_block.max(record.version.last_block());
        self.entry.latest_us = self.entry.latest_us.max(time_us);
        self.entry.earliest_us = self.entry.earliest_us.min(time_us);
        if self.chunk.len() >= CHUNK_BYTES {
            self.end_chunk(Column::Traces)?;
            self.before = None;
        }
        Ok(place)
    }

    fn end_chunk(&mut self, column: Column) -> Result<(), StoreError> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        let fences = match column {
            Column::Traces => &self.fences.traces,
            Column::ById => &self.fences.ids,
            _ => &self.fences.terms,
        };
        self.rows.put(column, fences.len() as u32 - 1, &self.chunk)?;
        self.chunk.clear();
        Ok(())
    }

    /// Ends the traces; returns the filter over them.
    fn end_traces(&mut self) -> Result<Filter, StoreError> {
        self.end_chunk(Column::Traces)?;
        let mut ids = std::mem::take(&mut self.ids);
        ids.sort_unstable_by_key(|(id, _)| (id.low(), id.high()));
        let mut filter = Filter::for_traces(ids.len());
        for (id, place) in ids {
            filter.insert(id.low());
            if self.chunk.is_empty() {
                self.fences.ids.push((id.low(), id.high()));
            }
            put_id(id, place, &mut self.chunk);
            if self.chunk.len() >= CHUNK_BYTES {
                self.end_chunk(Column::ById)?;
            }
        }
        self.end_chunk(Column::ById)?;
        Ok(filter)
    }

    /// Adds the places of a term, in order.
    fn term(&mut self, term: u64, mut places: &[u64]) -> Result<(), StoreError> {
        // A place takes at most five bytes of a chunk: there are fewer than 2^35 traces.
        const MOST_PLACES: usize = CHUNK_BYTES / 5;
        while let Some(&first) = places.first() {
            let (now, later) = places.split_at(places.len().min(MOST_PLACES));
            if self.chunk.is_empty() {
                self.fences.terms.push((term, first));
            }
            put_run(term, now, &mut self.chunk);
            // A run that goes on does so at the beginning of a chunk, where the fences find it.
            if self.chunk.len() >= CHUNK_BYTES || !later.is_empty() {
                self.end_chunk(Column::Terms)?;
            }
            places = later;
        }
        Ok(())
    }

    fn finish(mut self, filter: Filter) -> Result<Segment, StoreError> {
        self.end_chunk(Column::Terms)?;
        let words: Vec<u8> = filter.words().iter().flat_map(|word| word.to_be_bytes()).collect();
        self.rows.put_whole(Column::Filter, &words)?;
        self.rows.put_whole(Column::Fences, &self.fences.encode())?;
        self.rows.flush()?;
        let entry = Entry { bytes: self.rows.bytes, ..self.entry };
        Ok(Segment { entry, fences: self.fences, filter })
    }
}

/// Writes a segment of a head.
pub(super) fn of_head<E: Engine>(
    engine: &E,
    id: u64,
    head: &Head,
    beat: Beat<'_>,
) -> Result<Segment, StoreError> {
    let mut builder = Builder::new(engine, id, 0, beat);
    let mut order: Vec<u32> = (0..head.traces().len() as u32).collect();
    let time = |number: &u32| head.traces()[*number as usize].time.of_trace_us();
    order.sort_by_cached_key(|number| Reverse(time(number)));
    let mut places = vec![0; order.len()];
    for number in order {
        if let Some((id, version)) = head.version(number) {
            places[number as usize] = builder.trace(&Record { id, version })?;
        }
    }
    let filter = builder.end_traces()?;
    terms_of_head(&mut builder, head, &places)?;
    builder.finish(filter)
}

fn terms_of_head<E: Engine>(
    builder: &mut Builder<'_, E>,
    head: &Head,
    places: &[u64],
) -> Result<(), StoreError> {
    let mut together = Vec::new();
    head.each_postings(|postings| {
        for same in postings.chunk_by(|left, right| left.0 == right.0) {
            together.clear();
            together.extend(same.iter().map(|&(_, number)| places[number as usize]));
            // The stable sort here and below, because it makes use of what is in order already.
            together.sort();
            together.dedup();
            builder.term(same[0].0, &together)?;
        }
        Ok(())
    })
}

/// Writes a segment of several, oldest first. What is forgotten, or has a newer version among them, is left out.
pub(super) fn of_segments<E: Engine>(
    engine: &E,
    rows: &dyn Snapshot,
    id: u64,
    merged: &[&Segment],
    forgotten: u64,
    beat: Beat<'_>,
) -> Result<Segment, StoreError> {
    let level = merged.iter().map(|segment| segment.entry.level).max().unwrap_or(0) + 1;
    let mut builder = Builder::new(engine, id, level, beat);
    let mut places: Vec<Vec<u64>> =
        merged.iter().map(|segment| Vec::with_capacity(segment.entry.traces as usize)).collect();
    let mut sources: Vec<_> = merged.iter().map(|segment| Records::new(segment, rows)).collect();
    let mut latest = BinaryHeap::new();
    for (at, source) in sources.iter_mut().enumerate() {
        latest.extend(source.next(beat)?.map(|record| Latest { record, at }));
    }
    while let Some(Latest { record, at }) = latest.pop() {
        let is_forgotten = record.version.last_block() < forgotten;
        let place = if is_forgotten || is_older(rows, &merged[at + 1..], record.id)? {
            LEFT_OUT
        } else {
            builder.trace(&record)?
        };
        places[at].push(place);
        latest.extend(sources[at].next(beat)?.map(|record| Latest { record, at }));
    }
    let filter = builder.end_traces()?;
    merge_terms(&mut builder, rows, merged, &places, beat)?;
    builder.finish(filter)
}

const LEFT_OUT: u64 = u64::MAX;

fn is_older(rows: &dyn Snapshot, newer: &[&Segment], id: TraceId) -> Result<bool, StoreError> {
    for segment in newer {
        if segment.find(rows, id)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A record of one of several segments; the greatest is the latest.
struct Latest {
    record: Record,
    at: usize,
}

impl Latest {
    fn key(&self) -> (u64, usize) {
        (self.record.version.time_us, self.at)
    }
}

impl Ord for Latest {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for Latest {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Latest {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Latest {}

/// The records of a segment, one after the other.
struct Records<'s> {
    segment: &'s Segment,
    rows: &'s dyn Snapshot,
    chunk: usize,
    now: std::vec::IntoIter<Record>,
}

impl<'s> Records<'s> {
    fn new(segment: &'s Segment, rows: &'s dyn Snapshot) -> Self {
        Records { segment, rows, chunk: 0, now: Vec::new().into_iter() }
    }

    fn next(&mut self, beat: Beat<'_>) -> Result<Option<Record>, StoreError> {
        if let Some(record) = self.now.next() {
            return Ok(Some(record));
        }
        if self.chunk == self.segment.fences.traces.len() {
            return Ok(None);
        }
        go_on(beat)?;
        self.now = self.segment.records(self.rows, self.chunk)?.into_iter();
        self.chunk += 1;
        Ok(self.now.next())
    }
}

fn merge_terms<E: Engine>(
    builder: &mut Builder<'_, E>,
    rows: &dyn Snapshot,
    merged: &[&Segment],
    places: &[Vec<u64>],
    beat: Beat<'_>,
) -> Result<(), StoreError> {
    let mut sources: Vec<Runs<'_>> = merged.iter().map(|segment| Runs::new(segment, rows)).collect();
    sources.iter_mut().try_for_each(|source| source.advance(beat))?;
    let first = sources.iter().enumerate().filter_map(|(at, source)| Some(Reverse((source.term?, at))));
    let mut least: BinaryHeap<_> = first.collect();
    let mut together = Vec::new();
    while let Some(&Reverse((term, _))) = least.peek() {
        together.clear();
        // Many places of a term are several runs, also of one source.
        while let Some(mut next) = least.peek_mut().filter(|next| next.0.0 == term) {
            let at = next.0.1;
            let (source, places) = (&mut sources[at], &places[at]);
            let now = source.places.iter().filter_map(|&place| places.get(place as usize));
            together.extend(now.filter(|&&place| place != LEFT_OUT));
            source.advance(beat)?;
            match source.term {
                Some(term) => next.0.0 = term,
                None => drop(PeekMut::pop(next)),
            }
        }
        together.sort();
        builder.term(term, &together)?;
    }
    Ok(())
}

/// Removes the rows of a segment.
pub(super) fn remove<E: Engine>(engine: &E, id: u64) -> Result<(), StoreError> {
    const ROWS_AT_ONCE: usize = 1000;
    let prefix = keys::segment(id);
    loop {
        let mut found = Vec::new();
        engine.read()?.scan(&prefix, &prefix, &mut |key, _| {
            found.push(key.to_vec());
            let go_on = found.len() < ROWS_AT_ONCE;
            Ok(if go_on { std::ops::ControlFlow::Continue(()) } else { std::ops::ControlFlow::Break(()) })
        })?;
        if found.is_empty() {
            return Ok(());
        }
        engine.write(&mut |rows| found.iter().try_for_each(|key| rows.delete(key)))?;
    }
}
