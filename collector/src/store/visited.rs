//! A trace that a search through a window of time has found, and what is known of it before any of it is read.

use std::hash::Hasher;

use super::StoreError;
use super::engine::Snapshot;
use super::head::Extent;
use super::index::View;
use crate::model::TraceId;

/// A trace as the index yields it.
pub struct Visited<'s> {
    /// Its id.
    pub id: TraceId,
    /// Its extent, as far as the part of the index knows in which it was found.
    pub(super) extent: Extent,
    /// The number of that part of the index; the newest is 0.
    pub(super) age: usize,
    pub(super) rows: &'s dyn Snapshot,
    pub(super) view: &'s View,
}

impl Visited<'_> {
    /// How many bytes its pieces take in the store, as far as the part of the index knows in which it was found. For a trace
    /// that goes on for long, these are the newest pieces. Traces that share its low 64 bits are not counted.
    pub fn bytes(&self) -> u64 {
        self.extent.bytes
    }

    /// Hashes everything that decides which pieces the store has of the traces with the low 64 bits of this one. If one store
    /// hashes the same twice, these traces have the same pieces, unless some were damaged meanwhile. Pieces that arrive later
    /// may be read already. Returns whether this trace is the only one with these low 64 bits.
    ///
    /// A new piece gets a later block than all pieces before it, and retention advances from block to block. So the last block
    /// of a trace shows which of its pieces have arrived, and the position of retention shows which of them have expired.
    ///
    /// # Errors
    /// When the engine fails.
    pub fn hash_state(&self, hasher: &mut dyn Hasher) -> Result<bool, StoreError> {
        let low = self.id.low();
        if self.view.has_only(self.rows, self.age, low)? {
            self.hash_state_of(self.id, self.extent, hasher);
            return Ok(true);
        }
        let same_low = self.view.find_low(self.rows, low)?;
        same_low.iter().for_each(|(id, version)| self.hash_state_of(*id, version.extent(), hasher));
        Ok(same_low.len() == 1)
    }

    fn hash_state_of(&self, id: TraceId, extent: Extent, hasher: &mut dyn Hasher) {
        let passed = self.view.passed;
        hasher.write_u64(id.low());
        hasher.write_u64(id.high());
        hasher.write_u64(extent.last_block);
        hasher.write_u64(if extent.first_block < passed { passed } else { 0 });
    }
}
