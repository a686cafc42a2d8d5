//! Blocks: the pieces of a commit, one after the other, trace by trace.
//!
//! A block is a row of at most [`BLOCK_BYTES`], unless one piece alone is longer. It begins with the time of its arrival,
//! by which it leaves. Retention passes the blocks in their order: what of a block belongs to traces that went on later is
//! kept in a row of its own until those leave ([`super::expire`]).

use std::ops::ControlFlow;

use super::engine::{Snapshot, Transaction};
use super::{StoreError, frame, keys};

/// Just below the 64 KiB at which the engine would take 128.
pub(super) const BLOCK_BYTES: usize = 65_000;
/// Where the first piece of a block begins.
pub(super) const FIRST: usize = 8;

/// Pieces of one trace that lie together in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) block: u64,
    /// Where the first of them begins.
    pub(super) offset: u32,
    /// Bytes of all of them, with their heads.
    pub(super) length: u32,
}

/// The blocks of one commit, while they are written.
pub(super) struct Writing<'r> {
    rows: &'r mut dyn Transaction,
    number: u64,
    arrival_ms: u64,
    row: Vec<u8>,
    part: Option<Part>,
}

impl<'r> Writing<'r> {
    /// Begins at a block that is not written yet.
    pub(super) fn new(rows: &'r mut dyn Transaction, number: u64, arrival_ms: u64) -> Self {
        let row = Vec::with_capacity(BLOCK_BYTES);
        Writing { rows, number, arrival_ms, row, part: None }
    }

    /// Begins another trace. Returns what was written of the one before since it was last asked.
    pub(super) fn end_part(&mut self) -> Option<Part> {
        self.part.take()
    }

    /// Adds a piece; returns a part that has ended with it, because the next is in another block.
    pub(super) fn add(&mut self, sealed: &[u8]) -> Result<Option<Part>, StoreError> {
        let mut ended = None;
        if self.row.len() > FIRST && self.row.len() + sealed.len() > BLOCK_BYTES {
            ended = self.end_part();
            self.write()?;
        }
        if self.row.is_empty() {
            self.row.extend_from_slice(&self.arrival_ms.to_be_bytes());
        }
        let (block, offset) = (self.number, self.row.len() as u32);
        self.part.get_or_insert(Part { block, offset, length: 0 }).length += sealed.len() as u32;
        self.row.extend_from_slice(sealed);
        Ok(ended)
    }

    fn write(&mut self) -> Result<(), StoreError> {
        if !self.row.is_empty() {
            self.rows.put(&keys::block(self.number), &self.row)?;
            self.number += 1;
            self.row.clear();
        }
        Ok(())
    }

    /// Writes the last block. Returns the number of the next.
    pub(super) fn finish(mut self) -> Result<u64, StoreError> {
        self.write()?;
        Ok(self.number)
    }
}

/// When a block arrived.
pub(super) fn arrival_ms(row: &[u8]) -> u64 {
    keys::read_u64(row, 0).unwrap_or(0)
}

/// What was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// The block as it was written.
    Whole,
    /// What retention left of it.
    Kept,
    /// It has left.
    Nothing,
}

/// Looks at a block, in whatever state it is.
pub(super) fn look(
    rows: &(impl Snapshot + ?Sized),
    number: u64,
    visit: &mut dyn FnMut(&[u8], Found),
) -> Result<Found, StoreError> {
    if rows.look(&keys::block(number), &mut |row| visit(row, Found::Whole))? {
        Ok(Found::Whole)
    } else if rows.look(&keys::kept(number), &mut |row| visit(row, Found::Kept))? {
        Ok(Found::Kept)
    } else {
        Ok(Found::Nothing)
    }
}

/// Visits every part of every block, in order of their numbers; first what retention has passed.
pub(super) fn each(
    rows: &(impl Snapshot + ?Sized),
    visit: &mut dyn FnMut(u64, frame::Part<'_>) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    for kind in [keys::KEPT, keys::BLOCKS] {
        rows.scan(&[kind], &[kind], &mut |key, row| {
            let number = keys::read_u64(key, 1).unwrap_or(0);
            frame::each(row, FIRST).try_for_each(|part| visit(number, part))?;
            Ok(ControlFlow::Continue(()))
        })?;
    }
    Ok(())
}
