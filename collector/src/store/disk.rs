//! The durable engine: one redb file. Why redb: docs/adr/0001-store.md.

mod library;
mod opening;
mod overlay;
mod retry;
mod rows;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;

use blkin_daemon::Cause;
use redb::{Database, ReadableDatabase, TableDefinition, TableError};

use self::library::OwnCode;
pub(super) use self::opening::is_lost;
use self::opening::{
    beside, file_at, keep_names, open_checked, open_error, open_file, open_to_read, remove_mark, set_aside,
    silently, takes_nothing, try_disk, unreadable,
};
use self::retry::Retry;
use self::rows::{Reader, Rows, commit};

use super::engine::{Engine, Snapshot, Work};
use super::fair_lock::FairLock;
use super::page_cache::PageCache;
use super::writer::now_ms;
use super::{Damage, StoreError, TO_THE_END};

const ROWS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("rows");

/// Name of the store's file in the data folder.
pub const FILE_NAME: &str = "traces.redb";
/// The ending of a file that was set aside as damaged, followed by the time; and its ending once everything that is whole in
/// it has been stored again.
pub(super) const DAMAGED: &str = ".damaged-";
pub(super) const SALVAGED: &str = ".salvaged-";
/// The ending of a mark beside the file, which makes the next start check the file from end to end.
const SUSPECT: &str = ".suspect";
/// The ending of a file that is beside it for a moment, to test whether the disk takes writes.
const TRIAL: &str = ".trial";

/// Rows in a redb file.
pub struct Disk {
    path: PathBuf,
    /// The identity of the file that was opened at the path: device and inode number.
    file: (u64, u64),
    cache_bytes: usize,
    page_cache: PageCache,
    /// None after a failure, until the next reader or writer opens the file again: after a disk error redb refuses everything,
    /// even when there is space again.
    database: RwLock<Option<Open>>,
    /// How often the file was opened again.
    openings: AtomicU64,
    /// When the file may be written to again after such a failure.
    retry: Mutex<Retry>,
    /// Held by the thread that writes; others get it in the order in which they came.
    write_lock: FairLock,
    /// Whether the file was found damaged since it was opened.
    suspect: AtomicBool,
    /// Whether an earlier process found it damaged.
    was_suspect: bool,
    damage: Damage,
}

/// The open file.
struct Open {
    /// The number of this opening.
    number: u64,
    opened: Opened,
}

impl Open {
    fn database(&self) -> &Database {
        let (Opened::Whole(database) | Opened::ToRead(database)) = &self.opened;
        database
    }
}

/// How the file is open.
enum Opened {
    /// For reading and writing.
    Whole(Database),
    /// For reading only: the disk takes no writes at all, not even those that opening makes.
    ToRead(Database),
}

/// Opens the file for reading only; none if it is damaged, or another process has it open.
fn opened_to_read(path: &Path, cache_bytes: usize) -> Option<Opened> {
    let opened = open_to_read(path, cache_bytes).inspect_err(|error| tracing::debug!("{error}"));
    opened.ok().map(Opened::ToRead)
}

impl Disk {
    /// Opens the store in `folder`, which is created if it is missing. Only one process can have it open. A file whose
    /// structure is damaged is set aside, and a new one begun. Pages of `cache_bytes` are kept in memory, and about as much of
    /// the file in the system's page cache. If the disk takes no writes, the file is opened for reading, and written to later.
    ///
    /// # Errors
    /// When the folder or the file cannot be used, or another process has it open.
    pub fn open(folder: &Path, cache_bytes: usize) -> Result<Self, StoreError> {
        let path = folder.join(FILE_NAME);
        fs::create_dir_all(folder)
            .map_err(|e| StoreError::Open { path: folder.to_path_buf(), reason: e.to_string() })?;
        let was_suspect = beside(&path, SUSPECT).exists();
        let found = file_at(&path).ok();
        let mut retry = Retry::default();
        let database = match open_checked(&path, cache_bytes) {
            Err(StoreError::Corrupted(reason)) => {
                set_aside(&path, &reason)?;
                Opened::Whole(open_file(&path, cache_bytes, silently)?)
            }
            Err(error) if found.is_some() && takes_nothing(&path) => {
                retry.failed(&error);
                opened_to_read(&path, cache_bytes).inspect(|_| retry.note_read_only()).ok_or(error)?
            }
            opened => Opened::Whole(opened?),
        };
        let page_cache = PageCache::of(&path, cache_bytes as u64)?;
        let file = file_at(&path).map_err(|error| open_error(&path, &error))?;
        if found != Some(file) {
            keep_names(folder).map_err(|error| open_error(folder, &error))?;
        }
        let database = RwLock::new(Some(Open { number: 0, opened: database }));
        let suspect = AtomicBool::new(false);
        let retry = Mutex::new(retry);
        let (openings, write_lock, damage) = Default::default();
        let disk = Disk {
            path,
            file,
            cache_bytes,
            page_cache,
            database,
            openings,
            retry,
            write_lock,
            suspect,
            was_suspect,
            damage,
        };
        // Creates the table, so that reading never fails because it is missing. If it exists, nothing is written, so that a
        // full disk does not prevent reading.
        if !disk.has_table()? {
            disk.write(&mut |_| Ok(()))?;
        }
        Ok(disk)
    }

    fn has_table(&self) -> Result<bool, StoreError> {
        let open = |database: &Database| match database.begin_read().map_err(reading)?.open_table(ROWS) {
            Ok(_) => Ok(true),
            Err(TableError::TableDoesNotExist(_)) => Ok(false),
            Err(error) => Err(reading(error)),
        };
        self.with(|_, database| self.guarded(|_| open(database)))
    }

    fn opened(&self) -> RwLockReadGuard<'_, Option<Open>> {
        self.database.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn opened_mut(&self) -> RwLockWriteGuard<'_, Option<Open>> {
        self.database.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The open file, which stays open as long as the guard lives; opens it if it is closed.
    fn reopened(&self) -> Result<RwLockReadGuard<'_, Option<Open>>, StoreError> {
        // Tries the read lock first: waiting for the write lock would hold up all readers until another thread's commit is over.
        let open = self.opened();
        if open.is_some() {
            return Ok(open);
        }
        drop(open);
        let mut open = self.opened_mut();
        if open.is_none() {
            let opened = self.open_again()?;
            let number = self.openings.fetch_add(1, Ordering::Relaxed) + 1;
            *open = Some(Open { number, opened });
        }
        Ok(RwLockWriteGuard::downgrade(open))
    }

    /// Closes the file if it still has this opening.
    fn close(&self, number: u64) {
        self.opened_mut().take_if(|open| open.number == number);
    }

    fn open_again(&self) -> Result<Opened, StoreError> {
        self.check_place()?;
        let begun = Instant::now();
        let opened = match open_file(&self.path, self.cache_bytes, silently) {
            Ok(database) => {
                tracing::debug!("opened the store again");
                Ok(Opened::Whole(database))
            }
            Err(error) => {
                self.retry().failed(&error);
                let is_damaged = matches!(error, StoreError::Corrupted(_));
                let to_read = if is_damaged { None } else { opened_to_read(&self.path, self.cache_bytes) };
                to_read.inspect(|_| self.retry().note_read_only()).ok_or(error)
            }
        };
        self.retry().opened(begun, Instant::now());
        opened
    }

    /// Closes a file that is open for reading only, once its disk takes writes. The disk is tested with another file first,
    /// because opening a large file takes long.
    fn close_if_to_read(&self) -> Result<(), StoreError> {
        let to_read = |open: &Open| matches!(open.opened, Opened::ToRead(_)).then_some(open.number);
        let Some(number) = self.opened().as_ref().and_then(to_read) else { return Ok(()) };
        let begun = Instant::now();
        let tried = try_disk(&self.path);
        self.retry().opened(begun, Instant::now());
        tried.inspect_err(|error| self.retry().failed(error))?;
        self.close(number);
        Ok(())
    }

    /// Fails if the path now leads to another file or to none. Whatever is written to a removed file is lost once it is closed,
    /// and opening the path again would make a new file without anything that was stored.
    fn check_place(&self) -> Result<(), StoreError> {
        let is_elsewhere = match file_at(&self.path) {
            Ok(file) => file != self.file,
            Err(error) => matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory),
        };
        if is_elsewhere { Err(StoreError::Elsewhere { path: self.path.clone() }) } else { Ok(()) }
    }

    fn may_write(&self) -> Result<(), StoreError> {
        let retry = self.retry();
        if retry.may_write(Instant::now()) { Ok(()) } else { Err(retry.refusal()) }
    }

    fn retry(&self) -> MutexGuard<'_, Retry> {
        self.retry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, work: impl FnOnce(u64, &Database) -> Result<T, StoreError>) -> Result<T, StoreError> {
        match &*self.reopened()? {
            Some(open) => work(open.number, open.database()),
            None => Err(StoreError::Closed),
        }
    }

    /// Works with a file that is open for writing, and closes it if its disk fails.
    fn with_whole<T>(&self, work: impl FnOnce(&Database) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let (number, done) = match &*self.opened() {
            Some(Open { number, opened: Opened::Whole(database) }) => (*number, work(database)),
            _ => return Err(self.retry().refusal()),
        };
        self.close_after(number, done)
    }

    /// Closes the file, if it still has this opening, after an error that makes it unusable as it is open.
    fn close_after<T>(&self, number: u64, done: Result<T, StoreError>) -> Result<T, StoreError> {
        if let Err(error) = &done
            && is_of_disk(error)
        {
            self.retry().failed(error);
            self.close(number);
        }
        done
    }

    /// Closes the file, if it still has this opening, so that the next reader opens it again. A damaged file is not opened again;
    /// that is left to the next start.
    fn close_to_renew(&self, number: u64) -> Result<(), StoreError> {
        if self.suspect.load(Ordering::Acquire) {
            return Err(StoreError::Closed);
        }
        self.close(number);
        Ok(())
    }

    /// A snapshot of the rows as they are now.
    fn rows(&self) -> Result<Rc<Rows>, StoreError> {
        let table =
            |database: &Database| database.begin_read().map_err(reading)?.open_table(ROWS).map_err(reading);
        loop {
            let (opening, table) =
                self.with(|number, database| Ok((number, self.guarded(|_| table(database)))))?;
            match table {
                Err(StoreError::Closed) => self.close_to_renew(opening)?,
                table => {
                    let table = self.close_after(opening, table)?;
                    return Ok(Rc::new(Rows { table, opening }));
                }
            }
        }
    }
}

impl Disk {
    /// Removes the mark that makes a start check the file, because everything that could be recovered has been recovered.
    ///
    /// # Errors
    /// When the system cannot remove it.
    pub fn trust(&self) -> Result<(), StoreError> {
        remove_mark(&self.path)
    }

    fn mark(&self) {
        if !self.suspect.swap(true, Ordering::AcqRel)
            && let Err(error) = fs::write(beside(&self.path, SUSPECT), b"")
        {
            tracing::error!("failed to note that the store is damaged: {error}");
        }
    }

    /// Works with the file, and marks it if it turns out to be damaged.
    fn guarded<T>(&self, work: impl FnOnce(&OwnCode) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let done = library::call(work);
        if matches!(done, Err(StoreError::Corrupted(_))) {
            self.mark();
        }
        done
    }
}

/// The error of an operation that only reads: if the disk fails to return data, the data is lost.
fn reading(error: impl Into<redb::Error>) -> StoreError {
    match error.into() {
        redb::Error::Io(error) if is_lost(&error) => unreadable(&error),
        other => engine(other),
    }
}

fn engine(error: impl Into<redb::Error>) -> StoreError {
    match error.into() {
        redb::Error::Corrupted(reason) => StoreError::Corrupted(reason),
        redb::Error::PreviousIo | redb::Error::DatabaseClosed => StoreError::Closed,
        redb::Error::Io(error) if Cause::of_write(&error) == Cause::DiskFull => StoreError::Full,
        other => StoreError::Engine(other.to_string()),
    }
}

/// Whether the file is unusable as it is open.
fn is_of_disk(error: &StoreError) -> bool {
    matches!(error, StoreError::Engine(_) | StoreError::Full | StoreError::Closed)
}

impl Engine for Disk {
    fn read(&self) -> Result<Box<dyn Snapshot + '_>, StoreError> {
        Ok(Box::new(Reader::of(self)?))
    }

    fn write(&self, work: Work<'_>) -> Result<(), StoreError> {
        if self.suspect.load(Ordering::Acquire) {
            return Err(StoreError::Corrupted("as an earlier access found".to_owned()));
        }
        let _turn = self.write_lock.take(TO_THE_END)?;
        self.check_place()?;
        // Checked even if the file is closed: an attempt to open it that failed took as long, and is as likely to fail again.
        self.may_write()?;
        self.close_if_to_read()?;
        drop(self.reopened()?);
        self.may_write()?;
        let written = self.with_whole(|database| self.guarded(|own| commit(database, work, own)))?;
        self.retry().wrote();
        self.page_cache.wrote(written);
        Ok(())
    }

    fn was_suspect(&self) -> bool {
        self.was_suspect
    }

    fn distrust(&self) {
        self.mark();
    }

    fn damage(&self) -> &Damage {
        &self.damage
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use redb::{DatabaseError, StorageError};
    use rustix::io::Errno;

    use super::opening::opening_failed;
    use super::*;

    #[test]
    fn a_full_disk_is_distinguished_from_a_failing_one() {
        let writing = |errno: Errno| engine(redb::Error::Io(errno.into()));
        let opening = |errno: Errno| {
            opening_failed(Path::new("/none"), DatabaseError::Storage(StorageError::Io(errno.into())))
        };
        for (errno, is_full) in [(Errno::NOSPC, true), (Errno::DQUOT, true), (Errno::IO, false)] {
            for error in [writing(errno), opening(errno)] {
                assert_eq!(matches!(error, StoreError::Full), is_full, "{errno}");
                let mut retry = Retry::default();
                retry.failed(&error);
                retry.failed(&StoreError::Closed);
                let refusal = retry.refusal();
                assert_eq!(matches!(refusal, StoreError::Full), is_full, "{errno}");
                assert!(is_full || refusal.to_string().contains(&errno.to_string()), "{refusal}");
            }
        }
    }

    #[test]
    fn a_failed_reopening_is_not_repeated_for_a_while() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Disk::open(folder.path(), 1 << 20).unwrap();
        let put = || disk.write(&mut |rows| rows.put(b"a", b"value"));
        let is_open = || disk.database.read().unwrap().is_some();
        *disk.database.write().unwrap() = None;
        let other = Database::open(&disk.path).unwrap();
        assert!(matches!(put(), Err(StoreError::Open { .. })));
        drop(other);
        let not_before = disk.retry().not_before.replace(Instant::now() + Duration::from_secs(3600));
        assert!(not_before.is_some());
        assert!(put().unwrap_err().to_string().contains("already open") && !is_open());
        disk.retry().not_before = None;
        // The next write opens the file, even if it is refused itself.
        let _refused = put();
        assert!(is_open());
    }

    #[test]
    fn an_io_error_is_damage_in_reads_but_not_in_writes() {
        let eio = || redb::Error::Io(Errno::IO.into());
        assert!(matches!(reading(eio()), StoreError::Corrupted(_)));
        assert!(matches!(engine(eio()), StoreError::Engine(_)));
        let no_room = redb::Error::Io(Errno::NOSPC.into());
        assert!(matches!(reading(no_room), StoreError::Full));
    }

    #[test]
    fn a_removed_or_replaced_file_refuses_writes_until_it_is_back() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Disk::open(folder.path(), 1 << 20).unwrap();
        let (path, aside) = (folder.path().join(FILE_NAME), folder.path().join("aside"));
        let put = |key: &[u8]| disk.write(&mut |rows| rows.put(key, b"value"));
        put(b"a").unwrap();
        fs::rename(&path, &aside).unwrap();
        assert!(matches!(put(b"b"), Err(StoreError::Elsewhere { .. })));
        assert!(!path.exists(), "no new file is made");
        fs::copy(&aside, &path).unwrap();
        assert!(matches!(put(b"b"), Err(StoreError::Elsewhere { .. })));
        let has = |key: &[u8]| disk.read().map(|rows| rows.look(key, &mut |_| {}).unwrap());
        assert!(has(b"a").unwrap());
        *disk.database.write().unwrap() = None;
        assert!(matches!(has(b"a"), Err(StoreError::Elsewhere { .. })), "a copy is not opened in its place");
        fs::rename(&aside, &path).unwrap();
        assert!(has(b"a").unwrap());
    }
}
