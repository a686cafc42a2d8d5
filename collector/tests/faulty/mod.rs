//! An engine whose rows outlive a store, whose transactions fail on demand, and which counts their cost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use blkin_collector::store::engine::{Engine, Snapshot, Transaction, Visit, Work};
use blkin_collector::store::memory::Memory;
use blkin_collector::store::{Damage, StoreError};

/// Rows that outlive a store, and an engine that fails on demand.
#[derive(Clone, Default)]
pub(crate) struct Faulty {
    rows: Arc<Memory>,
    /// Which transaction from now on fails before it is durable; 0 for none.
    pub(crate) fails_before: Arc<AtomicU64>,
    /// The same, but the transaction fails after it is durable.
    pub(crate) fails_after: Arc<AtomicU64>,
    /// Whether the disk is full.
    pub(crate) is_full: Arc<AtomicBool>,
    /// How many rows of pieces transactions have read.
    pub(crate) blocks_seen: Arc<AtomicU64>,
    /// How many bytes of segments transactions have read.
    pub(crate) index_seen: Arc<AtomicU64>,
    /// How many bytes of segments transactions have written.
    pub(crate) index_bytes: Arc<AtomicU64>,
}

/// A transaction that counts the rows of pieces and the bytes of segments that it reads and writes.
struct Counted<'t>(&'t mut dyn Transaction, &'t Faulty);

impl Snapshot for Counted<'_> {
    fn look(&self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool, StoreError> {
        if matches!(key.first(), Some(b'D' | b'K')) {
            self.1.blocks_seen.fetch_add(1, Ordering::AcqRel);
        }
        let of_index = key.first() == Some(&b'X');
        self.0.look(key, &mut |row| {
            let seen = if of_index { row.len() as u64 } else { 0 };
            self.1.index_seen.fetch_add(seen, Ordering::AcqRel);
            visit(row);
        })
    }
    fn scan(&self, prefix: &[u8], from: &[u8], visit: Visit<'_>) -> Result<(), StoreError> {
        self.0.scan(prefix, from, visit)
    }
}

impl Transaction for Counted<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        if key.first() == Some(&b'X') {
            self.1.index_bytes.fetch_add(value.len() as u64, Ordering::AcqRel);
        }
        self.0.put(key, value)
    }
    fn delete(&mut self, key: &[u8]) -> Result<(), StoreError> {
        self.0.delete(key)
    }
}

fn is_due(counter: &AtomicU64) -> bool {
    counter.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1)) == Ok(1)
}

fn failed() -> StoreError {
    StoreError::Engine("no space left, says this test".to_owned())
}

impl Engine for Faulty {
    fn read(&self) -> Result<Box<dyn Snapshot + '_>, StoreError> {
        self.rows.read()
    }
    fn write(&self, work: Work<'_>) -> Result<(), StoreError> {
        if self.is_full.load(Ordering::Acquire) {
            return Err(StoreError::Full);
        }
        if is_due(&self.fails_before) {
            return Err(failed());
        }
        self.rows.write(&mut |rows| work(&mut Counted(rows, self)))?;
        if is_due(&self.fails_after) { Err(failed()) } else { Ok(()) }
    }
    fn was_suspect(&self) -> bool {
        false
    }
    fn distrust(&self) {}
    fn damage(&self) -> &Damage {
        self.rows.damage()
    }
}
