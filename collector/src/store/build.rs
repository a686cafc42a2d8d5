//! Writes segments: from a head, or from several segments one that takes their place.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use super::chunks::{CHUNK_BYTES, Column, Writing, damaged};
use super::engine::{Engine, Snapshot};
use super::filter::Filter;
use super::head::{Chain, Head, Version};
use super::manifest::Entry;
use super::segment::{Fences, Record, Runs, Segment, put_id, put_record, put_run};
use super::shared::SharedLows;
use super::{Beat, StoreError, check_beat, keys};
use crate::model::TraceId;

/// A segment that is being written: first its traces, latest first, then its terms in their order.
struct Builder<'e, E> {
    rows: Writing<'e, E>,
    entry: Entry,
    fences: Fences,
    ids: Vec<(TraceId, u64)>,
    chunk: Vec<u8>,
    /// Time of the trace before, within the chunk.
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

    /// Adds a trace, which must not be later than the one before. Returns its place.
    fn trace(&mut self, record: &Record) -> Result<u64, StoreError> {
        let place = self.entry.traces;
        let time_us = record.version.time_us;
        if self.chunk.is_empty() {
            self.fences.traces.push((place, time_us));
        }
        put_record(record, self.before, &mut self.chunk);
        self.before = Some(time_us);
        if record.version.goes_on {
            self.fences.goes_on.push(place);
        }
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
            // If a run is split, its next part begins a chunk, where the fences find it.
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
        Ok(Segment { entry, fences: self.fences, filter, shared: SharedLows::default() })
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
            // The stable sort, here and below, because it profits from runs that are in order already.
            together.sort();
            together.dedup();
            builder.term(same[0].0, &together)?;
        }
        Ok(())
    })
}

/// Segments that become one.
pub(super) struct Merging<'s> {
    /// These segments, which are adjacent, oldest first.
    pub(super) merged: &'s [&'s Segment],
    /// All newer segments, oldest first.
    pub(super) newer: &'s [Arc<Segment>],
    /// Traces that end before this block are forgotten.
    pub(super) forgotten: u64,
    /// The level of the new segment.
    pub(super) level: u64,
    /// The last block of the new segment, or a later one: once retention has passed it, the segment is examined again.
    pub(super) last_block: u64,
}

/// Writes one segment from several. Their entries for the same trace become one; forgotten traces are left out.
pub(super) fn of_segments<E: Engine>(
    engine: &E,
    rows: &dyn Snapshot,
    id: u64,
    merging: &Merging<'_>,
    beat: Beat<'_>,
) -> Result<Segment, StoreError> {
    let merged = merging.merged;
    let mut builder = Builder::new(engine, id, merging.level, beat);
    let mut joining = Joining { rows, merging, joined: HashMap::new(), older: Vec::new() };
    let mut places: Vec<Vec<u64>> =
        merged.iter().map(|segment| Vec::with_capacity(segment.entry.traces as usize)).collect();
    let mut sources: Vec<_> = merged.iter().map(|segment| Records::new(segment, rows)).collect();
    let mut latest = BinaryHeap::new();
    for (at, source) in sources.iter_mut().enumerate() {
        latest.extend(source.next(beat)?.map(|record| Latest { record, at }));
    }
    while let Some(Latest { record, at }) = latest.pop() {
        let place = match joining.whole(record, at, places[at].len())? {
            None => LEFT_OUT,
            Some((from, record)) => {
                let place = builder.trace(&record)?;
                if from < at {
                    joining.joined.insert(record.id, (from, place));
                }
                place
            }
        };
        places[at].push(place);
        latest.extend(sources[at].next(beat)?.map(|record| Latest { record, at }));
    }
    joining.settle(&mut places);
    let filter = builder.end_traces()?;
    merge_terms(&mut builder, rows, merged, &places, beat)?;
    builder.entry.last_block = merging.last_block;
    builder.finish(filter)
}

const LEFT_OUT: u64 = u64::MAX;

/// Joins the versions of traces that go on from one segment to the next.
struct Joining<'s> {
    rows: &'s dyn Snapshot,
    merging: &'s Merging<'s>,
    /// For each joined trace, the oldest segment with a part of it, and the place of the whole trace.
    joined: HashMap<TraceId, (usize, u64)>,
    /// Traces that a newer segment knows too: the older segment, and the number of the trace there.
    older: Vec<(TraceId, usize, usize)>,
}

impl Joining<'_> {
    /// A trace with everything that is known of it up to a segment, and the oldest segment that knows it. None if a newer one of
    /// the merged segments knows it, or if all of it is forgotten.
    fn whole(
        &mut self,
        record: Record,
        at: usize,
        number: usize,
    ) -> Result<Option<(usize, Record)>, StoreError> {
        let Record { id, version } = record;
        let merged = self.merging.merged;
        for newer in &merged[at + 1..] {
            if newer.place(self.rows, id)?.is_some() {
                self.older.push((id, at, number));
                return Ok(None);
            }
        }
        let Merging { newer, forgotten, .. } = *self.merging;
        if version.last_block() < forgotten && !goes_on_after(self.rows, newer, id, forgotten)? {
            return Ok(None);
        }
        let (mut chain, mut from) = (Chain::default(), at);
        chain.add(version);
        while from > 0 && !chain.is_whole() {
            let Some(earlier) = self.earlier(id, from)? else { break };
            from = earlier.0;
            chain.add(earlier.1);
        }
        let version = chain.joined().filter(|version| version.parts.is_sorted_by_key(|part| part.block));
        let version = version.ok_or_else(|| damaged(merged[from].entry.id, Column::Traces))?;
        Ok(Some((from, Record { id, version })))
    }

    /// The version of a trace in the newest segment before number `before` that knows the trace.
    fn earlier(&self, id: TraceId, before: usize) -> Result<Option<(usize, Version)>, StoreError> {
        for at in (0..before).rev() {
            if let Some(version) = self.merging.merged[at].find(self.rows, id)? {
                return Ok(Some((at, version)));
            }
        }
        Ok(None)
    }

    /// Gives the older parts of joined traces the place of the whole trace, so that their terms count for it.
    fn settle(&self, places: &mut [Vec<u64>]) {
        for (id, at, number) in &self.older {
            if let Some((_, place)) = self.joined.get(id).filter(|(from, _)| at >= from) {
                places[*at][*number] = *place;
            }
        }
    }
}

/// Whether the newest of these segments that knows a trace has a block of it that is not forgotten.
fn goes_on_after(
    rows: &dyn Snapshot,
    newer: &[Arc<Segment>],
    id: TraceId,
    forgotten: u64,
) -> Result<bool, StoreError> {
    for segment in newer.iter().rev() {
        if let Some(version) = segment.find(rows, id)? {
            return Ok(version.last_block() >= forgotten);
        }
    }
    Ok(false)
}

/// Whether a segment whose blocks are all forgotten is still needed: whether one of its traces goes on in newer segments, in a
/// block that is not forgotten.
pub(super) fn is_needed(
    rows: &dyn Snapshot,
    segment: &Segment,
    newer: &[Arc<Segment>],
    forgotten: u64,
    beat: Beat<'_>,
) -> Result<bool, StoreError> {
    for one in newer {
        for id in one.that_go_on(rows, beat)? {
            check_beat(beat)?;
            if segment.place(rows, id)?.is_some() && goes_on_after(rows, newer, id, forgotten)? {
                return Ok(true);
            }
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
        check_beat(beat)?;
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
        // A term with many places has several runs, even in one source.
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
        together.dedup();
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
