//! What one transaction adds to one trace: its rows are read once and written once.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::engine::{Snapshot, Transaction};
use super::pieces::{Facts, Identity};
use super::summary::Summary;
use super::{Piece, StoreError, frame, keys, read};
use crate::model::TraceId;

const MINUTE_MS: u64 = 60_000;
/// A row of pieces ends with the piece that reaches this length.
const ROW_BYTES: usize = 64 << 10;
/// So many whole pieces of a trace are listed in one row, which is read and written as one; each further one has a row of
/// its own.
const MAX_LISTED: usize = 256;

/// A trace while a transaction adds to it.
pub(super) struct Growth {
    /// None as long as nothing of it is stored: then no row of it needs to be looked for.
    before: Option<Summary>,
    after: Summary,
    whole: Whole,
    identities: Identities,
    /// Pieces that wait for their row.
    pieces: Vec<u8>,
    bytes: u64,
}

impl Growth {
    /// A trace as it is stored.
    pub(super) fn of(rows: &dyn Transaction, trace: TraceId) -> Result<Growth, StoreError> {
        let before = read::summary(rows, trace)?;
        let listed = match before {
            Some(_) => rows.get(&keys::listed(trace))?.unwrap_or_default(),
            None => Vec::new(),
        };
        Ok(Growth {
            after: before.clone().unwrap_or_default(),
            whole: Whole::read(&listed),
            identities: Identities { blocks: HashMap::new(), of_new_trace: before.is_none() },
            pieces: Vec::new(),
            bytes: 0,
            before,
        })
    }

    /// What of a piece is not in the store yet, and notes it as stored; none if all of it is. `encoded` is the piece.
    pub(super) fn new_part<'p>(
        &mut self,
        rows: &mut dyn Transaction,
        trace: TraceId,
        piece: &'p Piece,
        encoded: &[u8],
    ) -> Result<Option<Cow<'p, Piece>>, StoreError> {
        if !piece.is_identified() && !self.whole.insert(rows, trace, keys::content_hash(encoded))? {
            return Ok(None);
        }
        if !piece.has_identities() {
            return Ok(Some(Cow::Borrowed(piece)));
        }
        let mut new = piece.clone();
        let trimmed = new.trim(&mut |identity| self.identities.insert(rows, trace, identity))?;
        let nothing_new = trimmed > 0 && new.annotation_count() == 0;
        Ok((!nothing_new).then_some(if trimmed == 0 { Cow::Borrowed(piece) } else { Cow::Owned(new) }))
    }

    /// Adds a piece that is new.
    pub(super) fn add(
        &mut self,
        rows: &mut dyn Transaction,
        trace: TraceId,
        encoded: &[u8],
        facts: &Facts,
        next_number: &mut u64,
    ) -> Result<(), StoreError> {
        let begin = self.pieces.len();
        frame::seal_into(encoded, &mut self.pieces);
        self.bytes += (self.pieces.len() - begin) as u64;
        self.after.pieces += 1;
        self.after.learn(facts);
        if self.pieces.len() >= ROW_BYTES {
            self.write_pieces(rows, trace, next_number)?;
        }
        Ok(())
    }

    fn write_pieces(
        &mut self,
        rows: &mut dyn Transaction,
        trace: TraceId,
        next_number: &mut u64,
    ) -> Result<(), StoreError> {
        rows.put(&keys::pieces(trace, *next_number), &self.pieces)?;
        *next_number += 1;
        self.pieces.clear();
        Ok(())
    }

    /// Writes every row that changes; returns the bytes of the pieces that were added.
    pub(super) fn write(
        mut self,
        rows: &mut dyn Transaction,
        trace: TraceId,
        next_number: &mut u64,
        now_ms: u64,
    ) -> Result<u64, StoreError> {
        self.identities.write(rows)?;
        if self.bytes == 0 {
            return Ok(0);
        }
        if !self.pieces.is_empty() {
            self.write_pieces(rows, trace, next_number)?;
        }
        self.whole.write(rows, trace)?;
        self.after.bytes += self.bytes;
        self.after.arrival = now_ms / MINUTE_MS + 1;
        self.index(rows, trace)?;
        rows.put(&keys::summary(trace), &self.after.encode())?;
        Ok(self.bytes)
    }

    /// Brings the indexes up to date.
    fn index(&self, rows: &mut dyn Transaction, trace: TraceId) -> Result<(), StoreError> {
        let unknown = Summary::default();
        let (before, after) = (self.before.as_ref().unwrap_or(&unknown), &self.after);
        let moved = before.time_us != after.time_us;
        if moved && before.time_us != 0 {
            for service in before.services_and_any() {
                rows.delete(&keys::by_time(service, before.time_us, trace))?;
            }
        }
        if after.time_us != 0 {
            let is_new = |service: &u64| moved || !before.services_and_any().any(|known| known == *service);
            for service in after.services_and_any().filter(is_new) {
                rows.put(&keys::by_time(service, after.time_us, trace), &[])?;
            }
        }
        if before.arrival != after.arrival {
            if before.arrival != 0 {
                rows.delete(&keys::by_arrival(before.arrival, trace))?;
            }
            rows.put(&keys::by_arrival(after.arrival, trace), &[])?;
        }
        Ok(())
    }
}

/// The whole pieces of a trace that are stored.
struct Whole {
    /// Sorted.
    listed: Vec<u128>,
    changed: bool,
}

impl Whole {
    fn read(row: &[u8]) -> Whole {
        let hash = |bytes: &[u8]| bytes.iter().fold(0, |hash, &byte| hash << 8 | u128::from(byte));
        Whole { listed: row.chunks_exact(16).map(hash).collect(), changed: false }
    }

    /// Returns whether the piece is new.
    fn insert(&mut self, rows: &mut dyn Transaction, trace: TraceId, hash: u128) -> Result<bool, StoreError> {
        let Err(at) = self.listed.binary_search(&hash) else { return Ok(false) };
        if self.listed.len() < MAX_LISTED {
            self.listed.insert(at, hash);
            self.changed = true;
            return Ok(true);
        }
        let key = keys::content(trace, hash);
        if rows.get(&key)?.is_some() {
            return Ok(false);
        }
        rows.put(&key, &[])?;
        Ok(true)
    }

    fn write(&self, rows: &mut dyn Transaction, trace: TraceId) -> Result<(), StoreError> {
        if !self.changed {
            return Ok(());
        }
        let row: Vec<u8> = self.listed.iter().flat_map(|hash| hash.to_be_bytes()).collect();
        rows.put(&keys::listed(trace), &row)
    }
}

/// Rows of identities that are touched: sorted offsets within a block of positions.
struct Identities {
    blocks: HashMap<Vec<u8>, Block>,
    of_new_trace: bool,
}

#[derive(Default)]
struct Block {
    offsets: Vec<u16>,
    changed: bool,
}

impl Identities {
    /// Returns whether the identity was there already.
    fn insert(
        &mut self,
        rows: &dyn Snapshot,
        trace: TraceId,
        (source, position): Identity,
    ) -> Result<bool, StoreError> {
        let (key, offset) = keys::identity(trace, source, position);
        let block = match self.blocks.entry(key) {
            Entry::Occupied(block) => block.into_mut(),
            Entry::Vacant(place) => {
                let row = if self.of_new_trace { None } else { rows.get(place.key())? }.unwrap_or_default();
                let offsets = row.chunks_exact(2).map(|b| u16::from_be_bytes([b[0], b[1]])).collect();
                place.insert(Block { offsets, changed: false })
            }
        };
        match block.offsets.binary_search(&offset) {
            Ok(_) => Ok(true),
            Err(at) => {
                block.offsets.insert(at, offset);
                block.changed = true;
                Ok(false)
            }
        }
    }

    fn write(&self, rows: &mut dyn Transaction) -> Result<(), StoreError> {
        for (key, block) in self.blocks.iter().filter(|(_, block)| block.changed) {
            let row: Vec<u8> = block.offsets.iter().flat_map(|offset| offset.to_be_bytes()).collect();
            rows.put(key, &row)?;
        }
        Ok(())
    }
}
