//! The store: every piece of a span as it arrived, whole, and indexes to find traces by time, service and name.
//!
//! Nothing is merged here: pieces of one span are put together when a trace is read ([`crate::merge`]). What is
//! stored can be found by: trace id; time, for all traces or those of a service; names. [`keys`] writes the rows down.
//!
//! - [`TraceStore`] holds the logic, over any [`engine::Engine`]: [`disk::Disk`] (durable), [`memory::Memory`] (tests).
//! - [`writer::Writer`] is the one thread that changes a store: it commits the batches that wait together.

pub mod disk;
pub mod engine;
pub mod keys;
pub mod memory;
pub mod writer;

mod commit;
mod damage;
mod expire;
mod frame;
mod growth;
mod names;
mod pieces;
mod read;
mod salvage;
mod summary;

use std::ops::{ControlFlow, RangeInclusive};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

pub use damage::Damage;
pub use expire::Retention;
pub use names::NameKind;
pub use salvage::open;

use crate::ledger::{Count, Ledger};
pub use crate::merge::Piece;
use crate::model::TraceId;
use engine::Engine;

/// Why the store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The store could not be opened.
    #[error(
        "failed to open the store {}: {reason}; check that the folder is writable and no other collector uses it",
        path.display()
    )]
    Open {
        /// The folder or file.
        path: PathBuf,
        /// What the system or the engine said.
        reason: String,
    },
    /// The store was written by another version.
    #[error(
        "failed to use the store: it has format {found}, this collector knows {known}; use its own collector, or another --data-dir"
    )]
    Format {
        /// What the store says.
        found: u8,
        /// What this program knows.
        known: u8,
    },
    /// The key-value library failed.
    #[error("failed to use the store: {0}; check the disk's space and health")]
    Engine(String),
    /// The file's own structure is damaged.
    #[error(
        "failed to use the store: its file is damaged ({0}); the next start sets it aside and keeps what is whole in it"
    )]
    Corrupted(String),
    /// A row is not as this program writes it.
    #[error("failed to read the store: {0} is damaged")]
    Damaged(String),
}

/// What arrived together and is committed together.
#[derive(Debug, Default)]
pub struct Batch {
    /// The pieces to store.
    pub pieces: Vec<Piece>,
    /// What was counted on the way here: received, malformed, sampled out.
    pub ledger: Ledger,
    /// Roughly how much memory the batch takes.
    pub bytes: usize,
}

/// How much an answer may still hold, in bytes as stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    left: usize,
    /// Whether something was left out for lack of room.
    pub exhausted: bool,
}

impl Room {
    /// Room for so many bytes.
    pub fn of(bytes: usize) -> Room {
        Room { left: bytes, exhausted: false }
    }

    /// Takes a part of the room, if there is enough left.
    fn take(&mut self, bytes: usize) -> bool {
        match self.left.checked_sub(bytes) {
            Some(left) if !self.exhausted => {
                self.left = left;
                true
            }
            _ => {
                self.exhausted = true;
                false
            }
        }
    }
}

/// What a store must do. One contract suite (`tests/store_contract.rs`) holds for all of them.
pub trait Store: Send + Sync + 'static {
    /// Stores batches in one transaction. Once this returns, they survive the loss of power, and the ledger counts
    /// them; if it fails, nothing of them is stored or counted.
    ///
    /// # Errors
    /// When the engine fails.
    fn commit(&self, batches: &[Batch], now_ms: u64) -> Result<(), StoreError>;

    /// The ledger as committed.
    ///
    /// # Errors
    /// When the engine fails.
    fn ledger(&self) -> Result<Ledger, StoreError>;

    /// Counts what is in the store by reading every piece: slow, and independent of the ledger. Damaged pieces are not in
    /// it.
    ///
    /// # Errors
    /// When the engine fails.
    fn count(&self) -> Result<Count, StoreError>;

    /// The pieces of a trace in order of arrival; of all traces with the same low 64 bits if not `strict`. What would
    /// take more than `room` stays in the store; `room` shrinks by what was read.
    ///
    /// # Errors
    /// When the engine fails.
    fn trace(&self, id: TraceId, strict: bool, room: &mut Room) -> Result<Vec<Piece>, StoreError>;

    /// Visits the traces whose time (microseconds) is in the window, latest first, until told to stop. With a service,
    /// only traces that it may take part in.
    ///
    /// # Errors
    /// When the engine or the visitor fails.
    fn traces_by_time(
        &self,
        service: Option<&str>,
        window_us: RangeInclusive<u64>,
        visit: &mut dyn FnMut(TraceId) -> Result<ControlFlow<()>, StoreError>,
    ) -> Result<(), StoreError>;

    /// Names of a kind that belong to a service (or tag key), sorted.
    ///
    /// # Errors
    /// When the engine fails.
    fn names(&self, kind: NameKind, of: &str) -> Result<Vec<String>, StoreError>;

    /// What was found damaged so far.
    fn damage(&self) -> &Damage;

    /// Takes one bounded step of retention. Returns whether there is more to do now.
    ///
    /// # Errors
    /// When the engine fails.
    fn expire(&self, retention: &Retention, now_ms: u64) -> Result<bool, StoreError>;
}

/// The store's logic over an engine.
pub struct TraceStore<E> {
    engine: E,
    autocomplete_keys: Vec<String>,
    recent_names: Mutex<names::Recent>,
}

impl<E: Engine> TraceStore<E> {
    /// Uses an engine that holds a store of this format, or nothing yet.
    ///
    /// # Errors
    /// When the engine fails, or its rows are of another format.
    pub fn new(engine: E, autocomplete_keys: Vec<String>) -> Result<Self, StoreError> {
        let mut found = None;
        engine.write(&mut |rows| {
            found = rows.get(keys::VERSION)?;
            match found {
                Some(_) => Ok(()),
                None => rows.put(keys::VERSION, &[keys::FORMAT_VERSION]),
            }
        })?;
        match found.as_deref() {
            None | Some([keys::FORMAT_VERSION]) => {
                Ok(TraceStore { engine, autocomplete_keys, recent_names: Mutex::default() })
            }
            Some(other) => Err(StoreError::Format {
                found: other.first().copied().unwrap_or(0),
                known: keys::FORMAT_VERSION,
            }),
        }
    }
}

impl<E: Engine> TraceStore<E> {
    /// Runs one transaction that may note names.
    fn write(&self, work: NotingWork<'_>) -> Result<(), StoreError> {
        let mut recent = self.recent_names.lock().unwrap_or_else(PoisonError::into_inner);
        let done = self.engine.write(&mut |rows| work(rows, &mut recent));
        if done.is_err() {
            recent.forget();
        }
        done
    }
}

/// The work of a transaction that may note names.
type NotingWork<'a> =
    &'a mut dyn FnMut(&mut dyn engine::Transaction, &mut names::Recent) -> Result<(), StoreError>;

impl<E: Engine> Store for TraceStore<E> {
    fn commit(&self, batches: &[Batch], now_ms: u64) -> Result<(), StoreError> {
        self.write(&mut |rows, recent| commit::commit(rows, batches, &self.autocomplete_keys, recent, now_ms))
    }

    fn ledger(&self) -> Result<Ledger, StoreError> {
        read::ledger(&*self.engine.read()?)
    }

    fn count(&self) -> Result<Count, StoreError> {
        read::count(&*self.engine.read()?, self.engine.damage())
    }

    fn trace(&self, id: TraceId, strict: bool, room: &mut Room) -> Result<Vec<Piece>, StoreError> {
        read::trace(&*self.engine.read()?, id, strict, room, self.engine.damage())
    }

    fn traces_by_time(
        &self,
        service: Option<&str>,
        window_us: RangeInclusive<u64>,
        visit: &mut dyn FnMut(TraceId) -> Result<ControlFlow<()>, StoreError>,
    ) -> Result<(), StoreError> {
        read::traces_by_time(&*self.engine.read()?, service, window_us, visit)
    }

    fn names(&self, kind: NameKind, of: &str) -> Result<Vec<String>, StoreError> {
        names::list(&*self.engine.read()?, kind, of)
    }

    fn damage(&self) -> &Damage {
        self.engine.damage()
    }

    fn expire(&self, retention: &Retention, now_ms: u64) -> Result<bool, StoreError> {
        let mut more = false;
        self.write(&mut |rows, recent| {
            recent.forget();
            more = expire::step(rows, retention, now_ms)?;
            Ok(())
        })?;
        Ok(more)
    }
}
