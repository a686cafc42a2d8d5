//! The spool's files: whose they are, and which one an error is about.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;

/// Says which file could not be had: a folder holds several.
pub(super) fn naming(path: &Path) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Locks a file as long as it is open.
///
/// # Errors
/// When another relay has it, or the file system has no locks.
pub(super) fn take_alone(file: &File) -> io::Result<()> {
    file.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => io::Error::other("another relay uses it; give each its own spool_dir"),
        TryLockError::Error(error) => error,
    })
}

/// Makes what was written of a file durable.
///
/// # Errors
/// When the disk does not take it. The system tells that once, and not again.
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

    /// Has the disk not take what it is told of segments by this thread the next few times.
    pub(in super::super) fn fail_syncs(times: u32) {
        FAILING_SYNCS.set(times);
    }

    pub(super) fn check_sync() -> io::Result<()> {
        let Some(left) = FAILING_SYNCS.get().checked_sub(1) else { return Ok(()) };
        FAILING_SYNCS.set(left);
        Err(Errno::IO.into())
    }

    /// Has the disk take nothing more from this thread, or take it again.
    pub(in super::super) fn set_full(is_full: bool) {
        IS_FULL.set(is_full);
    }

    pub(in super::super) fn check_room() -> io::Result<()> {
        if IS_FULL.get() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}
