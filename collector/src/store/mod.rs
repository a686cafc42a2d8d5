//! The store: every piece of a span as it arrived, whole, and an index to find traces by.
//!
//! Nothing is merged here: pieces of one span are put together when a trace is read ([`crate::merge`]). [`keys`] describes the
//! rows. The reasons for this design are in docs/adr/0010-index-apart-from-pieces.md.
//!
//! | step | module |
//! |---|---|
//! | arriving spans become a [`Batch`]: their bytes in stored form, and what is needed to find them | `batch`, `compact`, `facts`, `terms`, `pieces`, `secret` |
//! | one thread commits all waiting batches together | [`writer`], `queue`, `commit_delay`, `retention_clock` |
//! | duplicates are left out; the rest goes into blocks, with names in rows of their own | `commit`, `stored_stamps`, `block`, `frame`, `names` |
//! | the index learns where the pieces are, at first in memory | `index`, `head` |
//! | another thread turns that memory into segments, and merges segments | [`indexer`], `upkeep`, `build`, `segment`, `chunks`, `filter`, `manifest` |
//! | traces are found by id, or by time and terms, and read | `index`, `search`, `visited`, `shared`, `read`, `outline`, `held` |
//! | traces that are too old or take too much room are removed | `expire` |
//! | a start reads the index, and rebuilds what is missing of it | `start`, `salvage` |
//!
//! [`TraceStore`] does all this over any [`engine::Engine`]: [`disk::Disk`] (durable), [`memory::Memory`] (tests).

pub mod disk;
pub mod engine;
pub mod indexer;
pub mod keys;
pub mod memory;
pub mod writer;

mod batch;
mod block;
mod build;
mod chunks;
mod commit;
mod commit_delay;
mod compact;
mod damage;
mod expire;
mod facts;
mod fair_lock;
mod filter;
mod format;
mod frame;
mod head;
mod held;
mod index;
mod manifest;
mod names;
mod outline;
mod page_cache;
mod pieces;
mod queue;
mod read;
mod retention_clock;
mod salvage;
mod search;
mod secret;
mod segment;
mod shared;
mod start;
mod stored_stamps;
mod terms;
mod upkeep;
mod varint;
mod visited;

use std::ops::{ControlFlow, RangeInclusive};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use batch::Batch;
pub use damage::Damage;
pub use expire::Retention;
pub use held::Pieces;
pub use names::NameKind;
pub(crate) use pieces::Stored;
pub use salvage::open;
pub use terms::Wanted;
pub use visited::Visited;

use blkin_daemon::{Cause, Standing};
use xxhash_rust::xxh3::xxh3_64;

use crate::ledger::{Count, Ledger};
pub use crate::merge::Piece;
use crate::model::TraceId;
use engine::Engine;

/// Why the store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The store could not be opened.
    #[error(
        "failed to open the store {}; check that it can be written and no other collector uses it: {reason}",
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
        "failed to use the store: it has format {found}, this collector knows {known}; use the version that wrote it, or another \
         --data-dir"
    )]
    Format {
        /// The version of the store's format.
        found: u8,
        /// The version that this program writes.
        known: u8,
    },
    /// The key-value library failed.
    #[error("failed to use the store: {0}; check the disk's space and health")]
    Engine(String),
    /// The file was closed since it was last used, after a disk error.
    #[error("failed to use the store: its file was closed after a disk error; send or ask again")]
    Closed,
    /// The disk is full, or the user's quota is used up.
    #[error(
        "failed to write to the store: its disk is full, or its user's quota is used up; make room, and it goes on by itself"
    )]
    Full,
    /// The file's own structure is damaged.
    #[error(
        "failed to use the store: its file is damaged ({0}); the next start sets it aside and recovers what is whole in it"
    )]
    Corrupted(String),
    /// The path of the store's file leads to another file, or to none.
    #[error(
        "failed to write to the store: {} was moved, replaced or removed while it was open; the next start uses what is \
         there then",
        path.display()
    )]
    Elsewhere {
        /// Where the file was.
        path: PathBuf,
    },
    /// A row is not as this program writes it.
    #[error("failed to read damaged data in the store: {0}")]
    Damaged(String),
    /// Long work was ended by its [`Beat`].
    #[error("stopped in the middle of work on the index; the next start takes it up again")]
    Ended,
}

impl StoreError {
    /// The cause under which the disk's state reports it.
    fn cause_of_trouble(&self) -> Cause {
        if matches!(self, StoreError::Full) { Cause::DiskFull } else { Cause::Failed }
    }

    /// Whether only a restart can help; the collector's supervisor makes one.
    fn wants_new_start(&self) -> bool {
        matches!(self, StoreError::Corrupted(_) | StoreError::Elsewhere { .. })
    }
}

/// The state of the disk, as the writer of this name sees it.
fn with_disk(name: &str) -> Arc<Standing> {
    Arc::new(Standing::new(name, "disk", &[Cause::DiskFull, Cause::Failed]))
}

/// Long work calls this now and then: a call shows that the work goes on, and `Break` ends the work.
pub type Beat<'b> = &'b dyn Fn() -> ControlFlow<()>;

/// The beat of work that nobody ends.
pub const TO_THE_END: Beat<'static> = &|| ControlFlow::Continue(());

fn check_beat(beat: Beat<'_>) -> Result<(), StoreError> {
    if beat().is_break() { Err(StoreError::Ended) } else { Ok(()) }
}

/// How many bytes an answer may still hold: about as many as its pieces had when they arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    left: usize,
    /// Whether something was left out for lack of room.
    pub exhausted: bool,
}

impl Room {
    /// A room of so many bytes.
    pub fn of(bytes: usize) -> Room {
        Room { left: bytes, exhausted: false }
    }

    /// Whether there is room for at least so many bytes.
    pub fn is_for(&self, bytes: usize) -> bool {
        !self.exhausted && self.left >= bytes
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

/// What a store must do. One contract suite (`tests/store_contract/`) holds for all stores.
pub trait Store: Send + Sync + 'static {
    /// Stores batches in one transaction. Once this returns, they survive the loss of power, and the ledger counts
    /// them; if it fails, nothing of them is stored or counted. It may have to wait for the index, and to read much of traces
    /// that go on; meanwhile it calls `beat`.
    ///
    /// # Errors
    /// When the engine fails, or `beat` ends it.
    fn commit_beating(&self, batches: &[Batch], now_ms: u64, beat: Beat<'_>) -> Result<(), StoreError>;

    /// The same without a beat.
    ///
    /// # Errors
    /// When the engine fails.
    fn commit(&self, batches: &[Batch], now_ms: u64) -> Result<(), StoreError> {
        self.commit_beating(batches, now_ms, TO_THE_END)
    }

    /// Tries whether a commit of so many bytes would succeed: writes as many meaningless bytes, as durably as a commit, and
    /// removes them.
    ///
    /// # Errors
    /// When the engine fails.
    fn try_out(&self, bytes: usize) -> Result<(), StoreError>;

    /// The ledger as committed.
    ///
    /// # Errors
    /// When the engine fails.
    fn ledger(&self) -> Result<Ledger, StoreError>;

    /// Counts what is in the store by reading every piece: slow, and independent of the ledger. Damaged pieces do not
    /// count.
    ///
    /// # Errors
    /// When the engine fails.
    fn count(&self) -> Result<Count, StoreError>;

    /// Adds the pieces of a trace to `pieces` in order of arrival; of all traces with the same low 64 bits if not `strict`.
    /// Pieces for which `room` is too small are left out; `room` shrinks by what was read.
    ///
    /// # Errors
    /// When the engine fails.
    fn read_trace(
        &self,
        id: TraceId,
        strict: bool,
        room: &mut Room,
        pieces: &mut Pieces,
    ) -> Result<(), StoreError>;

    /// The same, but each piece has texts of its own.
    ///
    /// # Errors
    /// As [`Store::read_trace`].
    fn trace(&self, id: TraceId, strict: bool, room: &mut Room) -> Result<Vec<Piece>, StoreError> {
        let mut pieces = Pieces::default();
        self.read_trace(id, strict, room, &mut pieces)?;
        Ok(pieces.each().filter_map(|(_, piece)| piece.into_piece()).collect())
    }

    /// Visits the traces whose time (microseconds) is in the window and that may be wanted, latest first, until `visit`
    /// stops it or time runs out. Every wanted trace is among them. If several traces count as one, those without a time
    /// come last.
    ///
    /// # Errors
    /// When the engine or the visitor fails.
    fn traces_by_time(
        &self,
        wanted: &Wanted,
        window_us: RangeInclusive<u64>,
        visit: &mut dyn FnMut(&Visited<'_>) -> Result<ControlFlow<()>, StoreError>,
    ) -> Result<(), StoreError>;

    /// Names of a kind that belong to a service (or tag key), sorted.
    ///
    /// # Errors
    /// When the engine fails.
    fn names(&self, kind: NameKind, of: &str) -> Result<Vec<String>, StoreError>;

    /// When the newest stored piece arrived, by the clock of that time, in milliseconds since 1970; 0 if there is none.
    ///
    /// # Errors
    /// When the engine fails.
    fn newest_arrival_ms(&self) -> Result<u64, StoreError>;

    /// Counts of what was found damaged so far.
    fn damage(&self) -> &Damage;

    /// Takes one bounded step of retention. Returns whether there is more to do now.
    ///
    /// # Errors
    /// When the engine fails.
    fn expire(&self, retention: &Retention, now_ms: u64) -> Result<bool, StoreError>;

    /// Does all the work on the index that there is at the moment.
    ///
    /// # Errors
    /// When the engine fails, or `beat` ends it; unfinished work is begun again the next time.
    fn upkeep(&self, beat: Beat<'_>) -> Result<(), StoreError>;

    /// The bell that rings when there is work on the index.
    fn bell(&self) -> &indexer::Bell;

    /// How large the index is.
    fn index_size(&self) -> IndexSize;
}

/// How large the index is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IndexSize {
    /// Segments on disk.
    pub segments: u64,
    /// Bytes of these segments.
    pub bytes: u64,
    /// Traces that are indexed in memory.
    pub traces_in_memory: u64,
    /// Whether the index in memory is over its limit, as after a start that could write no segments. Then nothing is stored until
    /// the disk takes it as segments.
    pub is_overfull: bool,
}

/// The store's logic over an engine.
pub struct TraceStore<E> {
    engine: E,
    index: index::Index,
    commit_cache: Mutex<commit::CommitCache>,
    bell: indexer::Bell,
}

impl<E: Engine> TraceStore<E> {
    /// Uses an engine that holds a store of this format, or nothing yet.
    ///
    /// # Errors
    /// When the engine fails, or its rows are of another format.
    pub fn new(engine: E) -> Result<Self, StoreError> {
        const PIECES_IN_MEMORY: u64 = 200_000;
        TraceStore::with_small_segments(engine, PIECES_IN_MEMORY)
    }

    /// As [`TraceStore::new`], but with a segment for so many pieces. Tests use few, to get many segments without a large store.
    ///
    /// # Errors
    /// As [`TraceStore::new`].
    pub fn with_small_segments(engine: E, pieces: u64) -> Result<Self, StoreError> {
        format::settle(&engine)?;
        let index = start::open_index(&engine, pieces)?;
        let store =
            TraceStore { engine, index, commit_cache: Mutex::default(), bell: indexer::Bell::default() };
        store.distrust_if_damaged(store.replay())?;
        Ok(store)
    }

    /// Makes the next upkeep turn the index in memory into a segment, however small it is.
    pub fn freeze(&self) {
        let mut cache = self.commit_cache();
        self.index.freeze();
        cache.stamps.begin_head();
    }

    fn commit_cache(&self) -> MutexGuard<'_, commit::CommitCache> {
        self.commit_cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works on the index until it can take more, if it has fallen too far behind.
    fn make_room(&self, beat: Beat<'_>) -> Result<(), StoreError> {
        if self.index.is_overfull() { self.upkeep(beat) } else { Ok(()) }
    }

    /// Commits batches and, in the same transaction, what `also` does after they are stored.
    fn commit_and(
        &self,
        batches: &[Batch],
        now_ms: u64,
        beat: Beat<'_>,
        also: &mut dyn FnMut(&mut dyn engine::Transaction) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        check_beat(beat)?;
        self.make_room(beat)?;
        let mut cache = self.commit_cache();
        self.settle(&mut cache)?;
        let view = self.index.view();
        let mut learned = head::Learned::default();
        let done = self.engine.write(&mut |rows| {
            let (index, damage, cache) = (&self.index, self.engine.damage(), &mut *cache);
            let mut context = commit::CommitContext { index, view: &view, damage, cache, now_ms, beat };
            learned = commit::commit(rows, batches, &mut context)?;
            also(rows)
        });
        match done {
            Ok(()) => {
                cache.last_blocks = learned.next_block.saturating_sub(self.index.end());
                self.index.grow(learned);
            }
            Err(_) => cache.forget_after_failure(),
        }
        if self.index.wanted_upkeep() {
            cache.stamps.begin_head();
            self.bell.ring();
        }
        self.distrust_if_damaged(done)
    }

    /// Finds out whether a transaction that failed was stored all the same: a disk error may come after it was durable.
    fn settle(&self, cache: &mut commit::CommitCache) -> Result<(), StoreError> {
        if cache.in_doubt {
            // Only once the engine can be written to again: until then every further batch would be in doubt too.
            self.distrust_if_damaged(self.engine.write(&mut |_| Ok(())).and_then(|()| self.replay()))?;
            cache.in_doubt = false;
        }
        Ok(())
    }

    /// If an operation found damage, makes the next start check everything and rebuild the index.
    fn distrust_if_damaged<T>(&self, done: Result<T, StoreError>) -> Result<T, StoreError> {
        if matches!(done, Err(StoreError::Corrupted(_))) {
            self.engine.distrust();
        }
        done
    }
}

/// At least so many bytes that no file system can compress.
fn filler(bytes: usize) -> Vec<u8> {
    (0..=bytes as u64 / 8).flat_map(|number| xxh3_64(&number.to_be_bytes()).to_be_bytes()).collect()
}

impl<E: Engine> Store for TraceStore<E> {
    fn commit_beating(&self, batches: &[Batch], now_ms: u64, beat: Beat<'_>) -> Result<(), StoreError> {
        self.commit_and(batches, now_ms, beat, &mut |_| Ok(()))
    }

    fn try_out(&self, bytes: usize) -> Result<(), StoreError> {
        self.make_room(TO_THE_END)?;
        self.settle(&mut self.commit_cache())?;
        let filler = filler(bytes);
        self.distrust_if_damaged(self.engine.write(&mut |rows| rows.put(keys::TRIAL, &filler)))?;
        self.distrust_if_damaged(self.engine.write(&mut |rows| rows.delete(keys::TRIAL)))
    }

    fn ledger(&self) -> Result<Ledger, StoreError> {
        read::ledger(&*self.engine.read()?)
    }

    fn count(&self) -> Result<Count, StoreError> {
        read::count(&*self.engine.read()?, self.engine.damage())
    }

    fn read_trace(
        &self,
        id: TraceId,
        strict: bool,
        room: &mut Room,
        pieces: &mut Pieces,
    ) -> Result<(), StoreError> {
        let view = self.index.view();
        let rows = self.engine.read()?;
        self.distrust_if_damaged(read::trace(&*rows, &view, (id, strict), room, self.engine.damage(), pieces))
    }

    fn traces_by_time(
        &self,
        wanted: &Wanted,
        window_us: RangeInclusive<u64>,
        visit: &mut dyn FnMut(&Visited<'_>) -> Result<ControlFlow<()>, StoreError>,
    ) -> Result<(), StoreError> {
        let view = self.index.view();
        self.distrust_if_damaged(search::traces_by_time(
            &*self.engine.read()?,
            &view,
            wanted,
            &window_us,
            visit,
        ))
    }

    fn names(&self, kind: NameKind, of: &str) -> Result<Vec<String>, StoreError> {
        names::list(&*self.engine.read()?, kind, of)
    }

    fn newest_arrival_ms(&self) -> Result<u64, StoreError> {
        read::newest_arrival_ms(&*self.engine.read()?)
    }

    fn damage(&self) -> &Damage {
        self.engine.damage()
    }

    fn expire(&self, retention: &Retention, now_ms: u64) -> Result<bool, StoreError> {
        let mut cache = self.commit_cache();
        self.settle(&mut cache)?;
        let view = self.index.view();
        let mut passed = None;
        let done = self.engine.write(&mut |rows| {
            passed = expire::step(rows, &view, retention, now_ms, &mut cache)?;
            Ok(())
        });
        if done.is_err() {
            cache.forget_after_failure();
        }
        self.distrust_if_damaged(done)?;
        if let Some(passed) = &passed {
            cache.stamps.forget_removed(passed);
            self.index.set_passed(passed.end);
        }
        Ok(passed.is_some())
    }

    fn upkeep(&self, beat: Beat<'_>) -> Result<(), StoreError> {
        self.distrust_if_damaged(self.keep_up(beat))
    }

    fn bell(&self) -> &indexer::Bell {
        &self.bell
    }

    fn index_size(&self) -> IndexSize {
        self.index.size()
    }
}
