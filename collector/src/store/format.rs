//! The format of the rows: a new store gets this program's format, and an earlier format is upgraded to it.

use super::engine::{Engine, Transaction};
use super::{StoreError, keys};

/// The formats before this one. In the first, the rows that each commit changes have other names. In the first two, pieces are
/// not compact; such pieces can still be read. In all three, each segment knows the whole of a trace that goes on, which this
/// format still allows.
const RENAMED_SINCE: u8 = 3;
const COMPACT_SINCE: u8 = 4;
const DELTAS_SINCE: u8 = 5;

/// The earlier names of the rows that each commit changes. By these names they lay in three pages, far apart from each other.
const RENAMED: [(&[u8], &[u8]); 3] =
    [(b"L", keys::LEDGER), (b"B", keys::PAYLOAD_BYTES), (b"Q", keys::NEXT_BLOCK)];

/// Makes sure that the engine's rows have this program's format.
///
/// # Errors
/// When the engine fails, or its rows have an unknown format.
pub(super) fn settle<E: Engine>(engine: &E) -> Result<(), StoreError> {
    if engine.read()?.get(keys::VERSION)?.as_deref() == Some(&[keys::FORMAT_VERSION]) {
        return Ok(());
    }
    engine.write(&mut |rows| match rows.get(keys::VERSION)?.as_deref() {
        None => rows.put(keys::VERSION, &[keys::FORMAT_VERSION]),
        Some([before @ (RENAMED_SINCE | COMPACT_SINCE | DELTAS_SINCE)]) => upgrade(rows, *before),
        Some(other) => {
            let found = other.first().copied().unwrap_or(0);
            Err(StoreError::Format { found, known: keys::FORMAT_VERSION })
        }
    })
}

fn upgrade(rows: &mut dyn Transaction, from: u8) -> Result<(), StoreError> {
    if from == RENAMED_SINCE {
        rename(rows)?;
    }
    tracing::info!(from, to = keys::FORMAT_VERSION, "upgraded the store's format");
    rows.put(keys::VERSION, &[keys::FORMAT_VERSION])
}

fn rename(rows: &mut dyn Transaction) -> Result<(), StoreError> {
    for (before, now) in RENAMED {
        if let Some(row) = rows.get(before)? {
            rows.put(now, &row)?;
            rows.delete(before)?;
        }
    }
    Ok(())
}
