//! Columns of a segment: bytes in rows of a bounded size, each with a checksum.
//!
//! A damaged segment can be rebuilt from the pieces, but it cannot be used until then: the store reports that it is
//! corrupted, and the next start rebuilds the whole index.

use xxhash_rust::xxh3::xxh3_64;

use super::engine::{Engine, Snapshot};
use super::{Beat, StoreError, check_beat, keys};

/// A chunk is closed once it has so many bytes. With its last entry, its checksum and its key it then nearly always fits into a
/// page of 4 KiB of the engine; one byte more would take a page of 8 KiB.
pub(super) const CHUNK_BYTES: usize = 3900;
/// Bytes of a row of a column that is read as a whole: just below a page of 64 KiB.
const WHOLE_ROW_BYTES: usize = 65_000;
/// About how many bytes one transaction writes; commits of batches wait for it.
const PUT_BYTES: usize = 2 << 20;
const CHECKSUM_BYTES: usize = 8;

/// The columns. The number is part of a key: never reuse one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Column {
    /// Where the chunks of the other columns begin.
    Fences = 1,
    /// The traces, latest first.
    Traces = 2,
    /// The places of traces in that column, by id.
    ById = 3,
    /// The places of traces, by their terms.
    Terms = 4,
    /// The filter that tells which traces are surely not here.
    Filter = 5,
}

/// Writes the rows of one segment, some at a time.
pub(super) struct Writing<'e, E> {
    engine: &'e E,
    /// Called with each transaction.
    beat: Beat<'e>,
    segment: u64,
    rows: Vec<(Vec<u8>, Vec<u8>)>,
    waiting: usize,
    /// Bytes of all rows.
    pub(super) bytes: u64,
}

impl<'e, E: Engine> Writing<'e, E> {
    pub(super) fn new(engine: &'e E, segment: u64, beat: Beat<'e>) -> Self {
        Writing { engine, beat, segment, rows: Vec::new(), waiting: 0, bytes: 0 }
    }

    /// Adds a chunk.
    pub(super) fn put(&mut self, column: Column, chunk: u32, body: &[u8]) -> Result<(), StoreError> {
        let mut row = Vec::with_capacity(CHECKSUM_BYTES + body.len());
        row.extend_from_slice(&xxh3_64(body).to_be_bytes());
        row.extend_from_slice(body);
        self.waiting += row.len();
        self.bytes += row.len() as u64;
        self.rows.push((keys::chunk(self.segment, column as u8, chunk), row));
        if self.waiting >= PUT_BYTES { self.flush() } else { Ok(()) }
    }

    /// Adds a column that is read as a whole.
    pub(super) fn put_whole(&mut self, column: Column, body: &[u8]) -> Result<(), StoreError> {
        let parts = body.chunks(WHOLE_ROW_BYTES).enumerate();
        parts.into_iter().try_for_each(|(chunk, part)| self.put(column, chunk as u32, part))
    }

    /// Commits the rows that wait.
    pub(super) fn flush(&mut self) -> Result<(), StoreError> {
        let rows = std::mem::take(&mut self.rows);
        self.waiting = 0;
        check_beat(self.beat)?;
        self.engine.write(&mut |to| rows.iter().try_for_each(|(key, value)| to.put(key, value)))
    }
}

/// The body of a chunk.
pub(super) fn read(
    rows: &dyn Snapshot,
    segment: u64,
    column: Column,
    chunk: u32,
) -> Result<Vec<u8>, StoreError> {
    let row = rows.get(&keys::chunk(segment, column as u8, chunk))?;
    row.and_then(opened).ok_or_else(|| damaged(segment, column))
}

/// The result of `visit` on the body of a chunk, which is not copied; if `visit` returns none, the chunk counts as damaged.
pub(super) fn look<T>(
    rows: &dyn Snapshot,
    segment: u64,
    column: Column,
    chunk: u32,
    visit: impl FnOnce(&[u8]) -> Option<T>,
) -> Result<T, StoreError> {
    let (mut visit, mut made) = (Some(visit), None);
    rows.look(&keys::chunk(segment, column as u8, chunk), &mut |row| {
        made = body(row).zip(visit.take()).and_then(|(body, visit)| visit(body));
    })?;
    made.ok_or_else(|| damaged(segment, column))
}

/// Reads a column that is read as a whole.
pub(super) fn read_whole(rows: &dyn Snapshot, segment: u64, column: Column) -> Result<Vec<u8>, StoreError> {
    let prefix = keys::column(segment, column as u8);
    let mut whole = Vec::new();
    rows.scan(&prefix, &prefix, &mut |_, row| {
        let body = body(row).ok_or_else(|| damaged(segment, column))?;
        whole.extend_from_slice(body);
        Ok(std::ops::ControlFlow::Continue(()))
    })?;
    Ok(whole)
}

/// The error for a chunk that cannot be read as it was written.
pub(super) fn damaged(segment: u64, column: Column) -> StoreError {
    StoreError::Corrupted(format!("segment {segment} of the store's index, in {column:?}"))
}

fn body(row: &[u8]) -> Option<&[u8]> {
    let (checksum, body) = row.split_first_chunk::<CHECKSUM_BYTES>()?;
    (u64::from_be_bytes(*checksum) == xxh3_64(body)).then_some(body)
}

fn opened(mut row: Vec<u8>) -> Option<Vec<u8>> {
    body(&row)?;
    row.drain(..CHECKSUM_BYTES);
    Some(row)
}
