//! An engine in memory, for tests: nothing outlives the process.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::{Arc, Mutex, PoisonError};

use super::engine::{Engine, Snapshot, Transaction, Visit, Work};
use super::{Damage, StoreError};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// Rows in memory.
#[derive(Default)]
pub struct Memory {
    rows: Mutex<Arc<Rows>>,
    damage: Damage,
}

impl Memory {
    fn current(&self) -> Arc<Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Engine for Memory {
    fn read(&self) -> Result<Box<dyn Snapshot + '_>, StoreError> {
        Ok(Box::new(Copy(self.current())))
    }

    fn write(&self, work: Work<'_>) -> Result<(), StoreError> {
        let mut copy = Copy(self.current());
        work(&mut copy)?;
        *self.rows.lock().unwrap_or_else(PoisonError::into_inner) = copy.0;
        Ok(())
    }

    fn was_suspect(&self) -> bool {
        false
    }

    fn distrust(&self) {}

    fn damage(&self) -> &Damage {
        &self.damage
    }
}

struct Copy(Arc<Rows>);

impl Snapshot for Copy {
    fn look(&self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool, StoreError> {
        let value = self.0.get(key);
        value.into_iter().for_each(|value| visit(value));
        Ok(value.is_some())
    }

    fn scan(&self, prefix: &[u8], from: &[u8], visit: Visit<'_>) -> Result<(), StoreError> {
        let start = from.max(prefix);
        for (key, value) in self.0.range::<[u8], _>((Bound::Included(start), Bound::Unbounded)) {
            if !key.starts_with(prefix) || visit(key, value)? == ControlFlow::Break(()) {
                break;
            }
        }
        Ok(())
    }
}

impl Transaction for Copy {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        Arc::make_mut(&mut self.0).insert(key.to_vec(), value.to_vec());
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), StoreError> {
        Arc::make_mut(&mut self.0).remove(key);
        Ok(())
    }
}
