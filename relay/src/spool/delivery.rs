//! The spool as an upstream sees it: batches to send, and their outcome.

use std::io;

use blkin_scribe::Doorbell;

use super::checkpoint::Position;
use super::layout::SEGMENT_HEADER_BYTES;
use super::segment::{BadPlace, Record, Segment};
use super::{Spool, State, Upstream};
use crate::ledger::{Count, Loss};

/// Records for an upstream, in order.
#[derive(Debug)]
pub struct Batch {
    segment: u64,
    bytes: Vec<u8>,
    pub(super) records: Vec<Record>,
    end: Position,
}

impl Batch {
    /// The count of the records' entries and annotations.
    pub fn count(&self) -> Count {
        self.records.iter().fold(Count::default(), |sum, record| sum + record.header.count)
    }

    /// The payload of each record.
    pub fn payloads(&self) -> impl Iterator<Item = &[u8]> {
        self.records.iter().map(|record| &self.bytes[record.payload.clone()])
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there are no records, because what lay there cannot be read.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Roughly the memory that the batch takes.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Where the next batch begins.
    pub fn end(&self) -> Position {
        self.end
    }

    fn start_of(&self, record: &Record) -> Position {
        Position { segment: self.segment, offset: record.start, before: record.header.before }
    }

    fn end_of(&self, record: &Record) -> Position {
        let before = record.header.before + record.header.count;
        Position { segment: self.segment, offset: record.end, before }
    }
}

impl Upstream {
    /// Moves on to `position`; the records in between were not read and count as lost. Returns their count.
    pub(super) fn lose_until(&mut self, position: Position, cause: Loss) -> Count {
        let lost = position.before - self.position.before;
        self.delivered.in_flight -= lost;
        self.delivered.lost[cause as usize] += lost;
        self.position = position;
        lost
    }
}

impl State {
    /// The first record of the segment at `index`.
    pub(super) fn start_of(&self, index: usize) -> Position {
        let segment = &self.segments[index];
        Position { segment: segment.number, offset: SEGMENT_HEADER_BYTES as u64, before: segment.before }
    }

    /// The index of the segment of a position; if that segment is gone, of the next one.
    fn index_of(&self, position: &Position) -> usize {
        let later = self.segments.partition_point(|segment| segment.number < position.segment);
        later.min(self.segments.len() - 1)
    }

    /// The count of all records before a place, if that place is the end of its segment.
    fn before_end(&self, segment: u64, offset: u64) -> Option<Count> {
        let index = self.segments.binary_search_by_key(&segment, |segment| segment.number).ok()?;
        let next = self.segments.get(index + 1);
        let before = next.map_or(self.arrived.accepted, |next| next.before);
        (offset >= self.segments[index].length).then_some(before)
    }

    /// Where reading continues from a position: at the end of a segment, or in one that is gone, at the next segment.
    fn reading_place(&self, position: Position) -> (usize, Position) {
        let mut index = self.index_of(&position);
        let mut place = position;
        if self.segments[index].number != position.segment {
            place = self.start_of(index);
        }
        while place.offset >= self.segments[index].length && index + 1 < self.segments.len() {
            index += 1;
            place = self.start_of(index);
        }
        (index, place)
    }

    /// Moves positions from the end of a segment to the beginning of the next one, so that the segment can be removed.
    pub(super) fn step_over_ends(&mut self) {
        for upstream in 0..self.upstreams.len() {
            let (_, place) = self.reading_place(self.upstreams[upstream].position);
            if place != self.upstreams[upstream].position {
                self.upstreams[upstream].lose_until(place, Loss::Damaged);
            }
        }
    }
}

impl Spool {
    /// The number of an upstream.
    pub fn upstream(&self, name: &str) -> Option<usize> {
        self.lock().upstreams.iter().position(|upstream| upstream.name == name)
    }

    /// Whether an upstream has everything.
    pub fn is_drained(&self, upstream: usize) -> bool {
        self.lock().upstreams[upstream].delivered.in_flight == Count::default()
    }

    /// The bell that rings when there may be more for an upstream.
    pub fn bell(&self, upstream: usize) -> &Doorbell {
        &self.bells[upstream]
    }

    /// The next records for an upstream: at least one, and otherwise at most `max_bytes` and `max_entries`; none if there are no
    /// more. They begin at `read`, the end of an earlier batch that is not settled yet, or else with the first record that is
    /// not settled. A place that cannot be read is skipped as damaged only if the disk works otherwise: the positions have to
    /// be written durably first.
    ///
    /// # Errors
    /// When the spool cannot be read, or, before skipping a bad place, the positions cannot be written.
    pub fn next_batch(
        &self,
        upstream: usize,
        read: Option<Position>,
        max_bytes: usize,
        max_entries: u64,
        bad_place: BadPlace,
    ) -> io::Result<Option<Batch>> {
        if bad_place == BadPlace::IsZeros {
            self.write_positions()?;
        }
        let Some((segment, place)) = self.next_place(upstream, read) else { return Ok(None) };
        let chunk = segment.read(place.offset, max_bytes, max_entries, bad_place)?;
        if let Some(damage) = &chunk.damage {
            self.set_aside(&segment, damage.clone());
        }
        // For damage up to the end of a segment, the count is known here; for any other, the next record tells it.
        let before = chunk.after().or_else(|| self.lock().before_end(segment.number, chunk.end));
        let before = before.unwrap_or(place.before);
        let end = Position { segment: segment.number, offset: chunk.end, before };
        Ok(Some(Batch { segment: segment.number, bytes: chunk.bytes, records: chunk.records, end }))
    }

    fn next_place(&self, upstream: usize, read: Option<Position>) -> Option<(Segment, Position)> {
        let mut state = self.lock();
        state.step_over_ends();
        let settled = state.upstreams[upstream].position;
        let from = read.filter(|read| settled.is_before(read)).unwrap_or(settled);
        let (index, place) = state.reading_place(from);
        place.is_before(&state.end()).then(|| (state.segments[index].clone(), place))
    }

    /// Whether a batch no longer concerns an upstream: its records are settled, or were evicted.
    pub fn has_passed(&self, upstream: usize, batch: &Batch) -> bool {
        !self.lock().upstreams[upstream].position.is_before(&batch.end)
    }

    /// Counts the outcome of one record of a batch: the upstream has it, except for what it has `rejected` for good. A record
    /// that was evicted meanwhile stays counted as evicted.
    pub fn settle_record(&self, upstream: usize, batch: &Batch, record: usize, rejected: Count) {
        let mut state = self.lock();
        settle_one(&mut state.upstreams[upstream], batch, &batch.records[record], rejected);
        state.dirty = true;
    }

    /// Counts every record of a batch as acknowledged, and moves the position behind the batch.
    pub fn settle(&self, upstream: usize, batch: &Batch) {
        let mut state = self.lock();
        let one = &mut state.upstreams[upstream];
        for record in &batch.records {
            settle_one(one, batch, record, Count::default());
        }
        state.pass(upstream, batch);
    }

    /// Moves the position behind a batch whose records were all settled.
    pub fn pass(&self, upstream: usize, batch: &Batch) {
        self.lock().pass(upstream, batch);
    }
}

impl State {
    fn pass(&mut self, upstream: usize, batch: &Batch) {
        let one = &mut self.upstreams[upstream];
        if one.position.is_before(&batch.end) {
            one.lose_until(batch.end, Loss::Damaged);
        }
        self.dirty = true;
    }
}

fn settle_one(upstream: &mut Upstream, batch: &Batch, record: &Record, rejected: Count) {
    let start = batch.start_of(record);
    if start.is_before(&upstream.position) {
        return;
    }
    // Records before this one that were not read.
    upstream.lose_until(start, Loss::Damaged);
    upstream.position = batch.end_of(record);
    // Another configuration may count annotations differently from when the record was spooled.
    let (whole, rejected) = (record.header.count, rejected.within(record.header.count));
    upstream.delivered.in_flight -= whole;
    upstream.delivered.acked += whole - rejected;
    upstream.delivered.lost[Loss::Rejected as usize] += rejected;
}
