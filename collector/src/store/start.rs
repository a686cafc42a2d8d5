//! Opens a store: the index consists of its segments, and of what the blocks after them contain. An index that cannot be read, or
//! that belongs to a file that was found damaged, is rebuilt from all blocks.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use super::block::{self, Part};
use super::commit::{ALL, Stored, number, stored};
use super::engine::{Engine, Snapshot};
use super::head::{Growth, Learned, Rest};
use super::index::{Index, View};
use super::manifest::Manifest;
use super::segment::Segment;
use super::{Batch, StoreError, TO_THE_END, TraceStore, build, frame, keys};
use crate::model::TraceId;

/// Blocks that are indexed at a time.
const BLOCKS_AT_ONCE: usize = 32;

/// Reads the index from the rows of an engine; an index that was found damaged is discarded. A head is full after so many pieces.
pub(super) fn open_index<E: Engine>(engine: &E, full: u64) -> Result<Index, StoreError> {
    let opened = if engine.was_suspect() { None } else { read_index(&*engine.read()?)? };
    let (manifest, segments) = match opened {
        Some(opened) => opened,
        None => {
            tracing::warn!("rebuilding the store's index");
            put_off(engine.write(&mut |rows| rows.delete(keys::MANIFEST)))?;
            Default::default()
        }
    };
    remove_unknown(engine, &manifest)?;
    Ok(Index::new(manifest, segments, full))
}

/// The manifest, and the segments that it names.
type Opened = (Manifest, Vec<Arc<Segment>>);

/// Reads the manifest and opens its segments; none if they are damaged.
fn read_index(rows: &dyn Snapshot) -> Result<Option<Opened>, StoreError> {
    let opened = Manifest::read(rows).and_then(|manifest| {
        let open = |entry: &_| Segment::open(rows, *entry).map(Arc::new);
        let segments = manifest.segments.iter().map(open).collect::<Result<_, _>>()?;
        Ok((manifest, segments))
    });
    match opened {
        Ok(opened) => Ok(Some(opened)),
        Err(StoreError::Corrupted(reason)) => {
            tracing::error!("failed to read {reason}");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Removes the rows of segments whose writing or removal was not finished.
fn remove_unknown<E: Engine>(engine: &E, manifest: &Manifest) -> Result<(), StoreError> {
    let known: HashSet<u64> = manifest.segments.iter().map(|entry| entry.id).collect();
    let mut from = Some(0);
    while let Some(start) = from.take() {
        let mut found = None;
        engine.read()?.scan(&[keys::CHUNKS], &keys::segment(start), &mut |key, _| {
            found = keys::read_u64(key, 1);
            Ok(ControlFlow::Break(()))
        })?;
        if let Some(id) = found {
            if !known.contains(&id) {
                put_off(build::remove(engine, id))?;
            }
            from = id.checked_add(1);
        }
    }
    Ok(())
}

impl<E: Engine> TraceStore<E> {
    /// Indexes the blocks that are not indexed yet, and notes how far retention has got.
    pub(super) fn replay(&self) -> Result<(), StoreError> {
        let indexed = self.index.end();
        let numbers = block_numbers(&*self.engine.read()?, indexed)?;
        for some in numbers.chunks(BLOCKS_AT_ONCE) {
            let next_block = some.last().map_or(indexed, |last| last + 1);
            let learned = self.learned_of(some, next_block)?;
            self.index.grow(learned);
            if self.index.wanted_upkeep() {
                put_off(self.keep_up(TO_THE_END))?;
            }
        }
        let rows = self.engine.read()?;
        let next_block = number(&*rows, keys::NEXT_BLOCK)?;
        self.index.grow(Learned { next_block, ..Learned::default() });
        self.index.set_passed(number(&*rows, keys::CURSOR)?);
        if self.index.is_overfull() {
            let traces = self.index.size().traces_in_memory;
            tracing::error!(
                traces,
                "the index of all these traces is in memory, and nothing is stored until the disk takes it: make room on the \
                 disk, or give the collector the memory"
            );
        }
        if numbers.len() > BLOCKS_AT_ONCE {
            tracing::info!(blocks = numbers.len(), "indexed the blocks after the index's last segment");
        }
        Ok(())
    }

    fn learned_of(&self, numbers: &[u64], next_block: u64) -> Result<Learned, StoreError> {
        let view = self.index.view();
        let rows = self.engine.read()?;
        let mut places: HashMap<TraceId, usize> = HashMap::new();
        let mut learned = Learned { next_block, ..Learned::default() };
        for &number in numbers {
            let (pieces, parts) = self.pieces_of(&*rows, number)?;
            for (piece, part) in pieces.parts().zip(parts) {
                let id = piece.entry.trace;
                let next = learned.traces.len();
                let place = *places.entry(id).or_insert(next);
                if place == next {
                    learned.traces.push((id, self.first_growth(&*rows, &view, id)?));
                }
                let growth = &mut learned.traces[place].1;
                growth.pieces += 1;
                growth.weigh(piece.entry.annotations as usize, piece.terms.len());
                growth.time.add(&piece.entry.time);
                add_part(&mut growth.parts, part);
                learned.terms.extend(piece.terms.iter().map(|&term| (place as u32, term)));
            }
        }
        Ok(learned)
    }

    /// The pieces of a block, and where each is.
    fn pieces_of(&self, rows: &dyn Snapshot, block: u64) -> Result<(Batch, Vec<Part>), StoreError> {
        let mut pieces = Batch::default();
        let mut parts = Vec::new();
        block::look(rows, block, &mut |row, _| {
            for part in frame::each(row, block::FIRST) {
                if part.body.is_some_and(|body| pieces.push_stored(body)) {
                    parts.push(Part { block, offset: part.offset as u32, length: part.sealed.len() as u32 });
                } else {
                    self.engine.damage().tell_of_piece(None, block);
                }
            }
        })?;
        Ok((pieces, parts))
    }

    fn first_growth(&self, rows: &dyn Snapshot, view: &View, id: TraceId) -> Result<Growth, StoreError> {
        if self.index.grows(id) {
            // An expired trace in a head is not part of a trace that came later with the same id.
            let has_left = view.last_block(rows, id)?.is_some_and(|last| last < view.passed);
            let rest = if has_left { Rest::Nowhere } else { Rest::Here };
            return Ok(Growth { rest, ..Growth::default() });
        }
        // Retention may have passed everything that the segments know of a trace that goes on in these blocks. If none of that is
        // left, the trace had expired before it came again.
        let stored = match view.find_any(rows, id)? {
            None => None,
            Some(version) => Some(stored(rows, id, &version, self.engine.damage(), TO_THE_END)?),
        };
        Ok(match stored.filter(|stored| !stored.pieces.is_empty()) {
            None => Growth { rest: Rest::Nowhere, ..Growth::default() },
            Some(Stored { time, .. }) => Growth { rest: Rest::Earlier, time, ..Growth::default() },
        })
    }
}

/// Ignores that a start could not write because its disk is full or fails: it is written later, or by the next start. Pieces are
/// found without it.
fn put_off(done: Result<(), StoreError>) -> Result<(), StoreError> {
    match done {
        Err(error @ (StoreError::Engine(_) | StoreError::Full | StoreError::Closed)) => {
            tracing::error!("postponed work on the index: {error}");
            Ok(())
        }
        done => done,
    }
}

/// Adds a part; adjacent parts become one.
fn add_part(parts: &mut Vec<Part>, part: Part) {
    match parts.last_mut() {
        Some(last) if last.block == part.block && last.offset + last.length == part.offset => {
            last.length += part.length;
        }
        _ => parts.push(part),
    }
}

/// The numbers of the blocks from `from` on, in order: first those that retention has passed.
fn block_numbers(rows: &dyn Snapshot, from: u64) -> Result<Vec<u64>, StoreError> {
    let mut numbers = Vec::new();
    for first in [keys::kept(from), keys::block(from)] {
        rows.scan(&first[..1], &first, &mut |key, _| {
            numbers.extend(keys::read_u64(key, 1));
            Ok(ALL)
        })?;
    }
    Ok(numbers)
}
