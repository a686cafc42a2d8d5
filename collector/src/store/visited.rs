//! A trace that a look through a window of time came to, and what is known of it before any of it is read.

use std::hash::Hasher;

use super::StoreError;
use super::engine::Snapshot;
use super::head::Extent;
use super::index::View;
use crate::model::TraceId;

/// A trace, as the index found it.
pub struct Visited<'s> {
    /// Its id.
    pub id: TraceId,
    /// Of what is known where it was found.
    pub(super) extent: Extent,
    /// Where that is: the newest part of the index is 0.
    pub(super) age: usize,
    pub(super) rows: &'s dyn Snapshot,
    pub(super) view: &'s View,
}

impl Visited<'_> {
    /// How many bytes its pieces take in the store, as far as is known where it was found: of one that goes on for long the
    /// newest, and not those of others that share its low 64 bits.
    pub fn bytes(&self) -> u64 {
        self.extent.bytes
    }

    /// Tells `hasher` all that decides which pieces the store has of the traces with the low 64 bits of this one: what it was
    /// told the same of twice by one store has the same pieces, unless some were damaged meanwhile. Pieces that come later may be
    /// read already. Returns whether this trace is the only one with these low 64 bits.
    ///
    /// A piece that comes gets a block that is later than all before it, and retention goes on from block to block. So the
    /// last block of a trace tells what has come of it, and how far retention has got, which of it has left.
    ///
    /// # Errors
    /// When the engine fails.
    pub fn tell(&self, hasher: &mut dyn Hasher) -> Result<bool, StoreError> {
        let low = self.id.low();
        if self.view.has_only(self.rows, self.age, low)? {
            self.tell_of(self.id, self.extent, hasher);
            return Ok(true);
        }
        let same_low = self.view.find_low(self.rows, low)?;
        same_low.iter().for_each(|(id, version)| self.tell_of(*id, version.extent(), hasher));
        Ok(same_low.len() == 1)
    }

    fn tell_of(&self, id: TraceId, extent: Extent, hasher: &mut dyn Hasher) {
        let passed = self.view.passed;
        hasher.write_u64(id.low());
        hasher.write_u64(id.high());
        hasher.write_u64(extent.last_block);
        hasher.write_u64(if extent.first_block < passed { passed } else { 0 });
    }
}
