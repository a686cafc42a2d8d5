//! What the store needs from a key-value library: ordered keys, snapshots, and one durable writer at a time.

use std::ops::ControlFlow;

use super::{Damage, StoreError};

/// Called with each row's key and value; `Break` ends the scan.
pub type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>, StoreError>;

/// The rows as they were when the snapshot was taken.
pub trait Snapshot {
    /// Shows the value of one key without copying it; returns whether there is one.
    ///
    /// # Errors
    /// When the engine fails.
    fn look(&self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool, StoreError>;

    /// The value of one key.
    ///
    /// # Errors
    /// When the engine fails.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let mut value = None;
        self.look(key, &mut |found| value = Some(found.to_vec()))?;
        Ok(value)
    }

    /// Visits the rows whose keys are at least `from` and start with `prefix`, in order.
    ///
    /// # Errors
    /// When the engine or the visitor fails.
    fn scan(&self, prefix: &[u8], from: &[u8], visit: Visit<'_>) -> Result<(), StoreError>;
}

/// A snapshot that can be changed; it sees its own changes.
pub trait Transaction: Snapshot {
    /// Sets a row.
    ///
    /// # Errors
    /// When the engine fails.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError>;

    /// Removes a row, if it is there.
    ///
    /// # Errors
    /// When the engine fails.
    fn delete(&mut self, key: &[u8]) -> Result<(), StoreError>;
}

/// The work of one transaction.
pub type Work<'a> = &'a mut dyn FnMut(&mut dyn Transaction) -> Result<(), StoreError>;

/// An ordered key-value store.
pub trait Engine: Send + Sync + 'static {
    /// Takes a snapshot.
    ///
    /// # Errors
    /// When the engine fails.
    fn read(&self) -> Result<Box<dyn Snapshot + '_>, StoreError>;

    /// Runs `work` and commits what it did; once this returns `Ok`, it survives the loss of power. When `work` fails,
    /// nothing of it is kept.
    ///
    /// # Errors
    /// When the work, or the commit, fails.
    fn write(&self, work: Work<'_>) -> Result<(), StoreError>;

    /// Whether its content was found damaged before it was opened. Then nothing is trusted that can be rebuilt.
    fn was_suspect(&self) -> bool;

    /// Makes the next start check everything. The thread that writes must then end, so that there is a next start.
    fn distrust(&self);

    /// Counts of what was found damaged so far.
    fn damage(&self) -> &Damage;
}
