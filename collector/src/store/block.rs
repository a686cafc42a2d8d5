//! Blocks: the pieces of a commit, one after the other, trace by trace.
//!
//! A block is a row of at most [`BLOCK_BYTES`], unless one piece alone is longer. It begins with its time of arrival, which
//! decides when it expires. Retention passes the blocks in order. Pieces of a passed block whose traces went on later are
//! kept in a row of their own until those traces expire ([`super::expire`]).

use std::ops::ControlFlow;

use super::engine::{Snapshot, Transaction};
use super::{StoreError, frame, keys};

/// Just below 64 KiB; for that much the engine would take 128 KiB.
pub(super) const BLOCK_BYTES: usize = 65_000;
/// Where the first piece of a block begins.
pub(super) const FIRST: usize = 8;

/// Pieces of one trace that lie together in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) block: u64,
    /// Where the first of these pieces begins.
    pub(super) offset: u32,
    /// Bytes of all these pieces, with their heads.
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
    /// Begins with the block of this number, which is not written yet.
    pub(super) fn new(rows: &'r mut dyn Transaction, number: u64, arrival_ms: u64) -> Self {
        let row = Vec::with_capacity(BLOCK_BYTES);
        Writing { rows, number, arrival_ms, row, part: None }
    }

    /// Ends the current part, because another trace follows. Returns it, if pieces were added since the last part ended.
    pub(super) fn end_part(&mut self) -> Option<Part> {
        self.part.take()
    }

    /// Adds a piece. If it does not fit, writes the block first and returns the part that ended with that block.
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

/// The state in which a block was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// The block as it was written.
    Whole,
    /// The rest that retention kept of it.
    Kept,
    /// It is gone.
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

/// Visits every piece of every block: first the blocks that retention has passed, then the others, each in order of number.
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
