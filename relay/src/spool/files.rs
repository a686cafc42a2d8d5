//! The spool's files: locking them, syncing them, and naming the file that an error is about.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;

/// Adds the path to an error, since a folder holds several files.
pub(super) fn naming(path: &Path) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Locks a file as long as it is open.
///
/// # Errors
/// When another relay has locked it, or the file system has no locks.
pub(super) fn take_alone(file: &File) -> io::Result<()> {
    file.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => io::Error::other("another relay uses it; give each its own spool_dir"),
        TryLockError::Error(error) => error,
    })
}

/// Makes what was written to a file durable.
///
/// # Errors
/// When the disk refuses. The system reports that once, and not again.
pub(super) fn make_durable(file: &File) -> io::Result<()> {
    #[cfg(test)]
    tests::check_sync()?;
    file.sync_data()
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::Cell;

    use rustix::io::Errno;

    use super::*;

    thread_local! {
        static IS_FULL: Cell<bool> = Cell::default();
        static FAILING_SYNCS: Cell<u32> = Cell::default();
    }

    /// Makes the next `times` syncs of segments by this thread fail.
    pub(in super::super) fn fail_syncs(times: u32) {
        FAILING_SYNCS.set(times);
    }

    pub(super) fn check_sync() -> io::Result<()> {
        let Some(left) = FAILING_SYNCS.get().checked_sub(1) else { return Ok(()) };
        FAILING_SYNCS.set(left);
        Err(Errno::IO.into())
    }

    /// Makes the disk look full to this thread, or not.
    pub(in super::super) fn set_full(is_full: bool) {
        IS_FULL.set(is_full);
    }

    pub(in super::super) fn check_room() -> io::Result<()> {
        if IS_FULL.get() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}
