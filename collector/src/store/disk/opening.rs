//! Opens the store's file, tests its disk, and sets a damaged file aside.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use blkin_daemon::{Cause, page_cache};
use redb::{Builder, Database, DatabaseError, StorageError};
use rustix::io::Errno;

use super::overlay::Overlay;
use super::{DAMAGED, SUSPECT, StoreError, TRIAL, library, now_ms};

/// The path of a file beside the store's.
pub(super) fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

pub(super) fn file_at(path: &Path) -> io::Result<(u64, u64)> {
    path.metadata().map(|found| (found.dev(), found.ino()))
}

/// Makes the names of the files in a folder survive the loss of power: syncing a file does not sync its name.
pub(super) fn keep_names(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

pub(super) fn open_error(path: &Path, reason: &impl ToString) -> StoreError {
    StoreError::Open { path: path.to_path_buf(), reason: reason.to_string() }
}

/// Reports the progress, in percent, of the check of a file that was not closed cleanly: the file is read from end to end.
type Tell = fn(u32);

/// For a file that was open just now: the trouble of its disk has been logged already.
pub(super) fn silently(_: u32) {}

fn loudly(percent: u32) {
    tracing::info!(percent, "checking the store's file, which was not closed cleanly");
}

pub(super) fn open_file(path: &Path, cache_bytes: usize, tell: Tell) -> Result<Database, StoreError> {
    open_by(path, cache_bytes, tell, |builder| builder.create(path))
}

/// Opens a file whose disk takes no writes, so that everything in it can be read.
pub(super) fn open_to_read(path: &Path, cache_bytes: usize) -> Result<Database, StoreError> {
    open_by(path, cache_bytes, silently, |builder| builder.create_with_backend(Overlay::open(path)?))
}

fn open_by(
    path: &Path,
    cache_bytes: usize,
    tell: Tell,
    open: impl FnOnce(&Builder) -> Result<Database, DatabaseError>,
) -> Result<Database, StoreError> {
    let mut builder = Database::builder();
    builder.set_cache_size(cache_bytes);
    builder.set_repair_callback(move |repair| tell((repair.progress() * 100.0) as u32));
    page_cache::forget(path);
    library::call(|_| open(&builder).map_err(|error| opening_failed(path, error)))
}

/// Tests whether the disk of the store's file takes writes, with another file beside it.
pub(super) fn try_disk(path: &Path) -> Result<(), StoreError> {
    write_trial(path).map_err(|error| opening_failed(path, DatabaseError::Storage(StorageError::Io(error))))
}

/// Whether the disk takes no writes, although this process has the permission to write.
pub(super) fn takes_nothing(path: &Path) -> bool {
    write_trial(path).is_err_and(|error| error.kind() != ErrorKind::PermissionDenied)
}

fn write_trial(path: &Path) -> io::Result<()> {
    let trial = beside(path, TRIAL);
    let mut file = File::create(&trial)?;
    let written = file.write_all(&[0; 4096]).and_then(|()| file.sync_data());
    let removed = fs::remove_file(&trial);
    written.and(removed)
}

pub(super) fn opening_failed(path: &Path, error: DatabaseError) -> StoreError {
    match error {
        DatabaseError::Storage(StorageError::Corrupted(reason)) => StoreError::Corrupted(reason),
        DatabaseError::Storage(StorageError::Io(error))
            if matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::UnexpectedEof) =>
        {
            StoreError::Corrupted(error.to_string())
        }
        DatabaseError::Storage(StorageError::Io(error)) if Cause::of_write(&error) == Cause::DiskFull => {
            StoreError::Full
        }
        DatabaseError::Storage(StorageError::Io(error)) if has_unreadable(path) => unreadable(&error),
        other => open_error(path, &other),
    }
}

/// Whether the error says that the disk has lost data, as a bad sector does.
pub(in crate::store) fn is_lost(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::IO)
}

/// An unreadable part of the file counts as damage, as if it were overwritten; the rest of the file is not affected.
pub(super) fn unreadable(error: &io::Error) -> StoreError {
    StoreError::Corrupted(format!("a part of it cannot be read: {error}"))
}

/// Whether some part of a file cannot be read. A file that cannot be written to has the same error, but is not damaged.
fn has_unreadable(path: &Path) -> bool {
    let mut part = vec![0; 1 << 20];
    let Ok(mut file) = File::open(path) else { return false };
    loop {
        match file.read(&mut part) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return is_lost(&error),
        }
    }
}

/// Opens a file, and checks the whole of it if it was found damaged before.
pub(super) fn open_checked(path: &Path, cache_bytes: usize) -> Result<Database, StoreError> {
    let mut database = open_file(path, cache_bytes, loudly)?;
    if beside(path, SUSPECT).exists() {
        let checked = library::call(|_| {
            database.check_integrity().map_err(|error| StoreError::Corrupted(error.to_string()))
        });
        checked?;
    }
    Ok(database)
}

/// Gives a file another name, by which [`crate::store::salvage`] finds it.
pub(super) fn set_aside(path: &Path, reason: &str) -> Result<(), StoreError> {
    let aside = beside(path, &format!("{DAMAGED}{}", now_ms()));
    fs::rename(path, &aside).map_err(|error| open_error(path, &error))?;
    tracing::error!(file = %aside.display(), "set aside the store's file, which is damaged: {reason}");
    Ok(())
}

pub(super) fn remove_mark(path: &Path) -> Result<(), StoreError> {
    let mark = beside(path, SUSPECT);
    // On a read-only file system, even removing a file that does not exist fails.
    if mark.exists() { fs::remove_file(mark).map_err(|error| open_error(path, &error)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_part_of_a_file_is_found() {
        // Reading an unmapped address from this file fails with EIO.
        assert!(has_unreadable(Path::new("/proc/self/mem")));
        let readable = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        assert!(!has_unreadable(&readable) && !has_unreadable(&readable.join("none")));
    }
}
