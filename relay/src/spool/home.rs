//! The spool's folder while the relay runs: only this relay uses it, and what somebody removes from it is created again.
//!
//! A user whose relay is refused because of `lock` may be tempted to remove that file. So each segment is locked as well: two
//! relays that append to the same segment would overwrite entries that each has answered with `OK`.
//!
//! A file that was removed, or whose folder was, can still be written, and is gone once it is closed. So each commit checks that
//! its segment can be found at its path, and each write of the positions checks the same for their file. What upstreams have not
//! received yet of removed segments is sent from the open files. If the relay stops before, the next start counts that as
//! `damaged`, since later segments tell how much came before them.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use super::Spool;
use super::checkpoint::{Checkpoint, Positions};
use super::damaged_folder::DAMAGED;
use super::files::{naming, take_alone};

/// The path of the file of positions.
pub(super) fn positions_path(folder: &Path) -> PathBuf {
    folder.join("positions")
}

/// The spool's folder, locked as long as this lives.
#[derive(Debug)]
pub(super) struct Home {
    lock: File,
}

impl Home {
    /// Creates the folder if it is missing, and locks it.
    ///
    /// # Errors
    /// When it cannot be created, or another relay uses it.
    pub(super) fn take(folder: &Path) -> io::Result<Home> {
        let (damaged, lock) = (folder.join(DAMAGED), folder.join("lock"));
        fs::create_dir_all(&damaged).map_err(naming(&damaged))?;
        let lock = File::create(&lock).map_err(naming(&lock))?;
        take_alone(&lock)?;
        Ok(Home { lock })
    }

    /// Locks the folder again if it was created again: that is another folder, which nobody has locked.
    fn keep(&mut self, folder: &Path) -> io::Result<()> {
        if must_lie_at(&self.lock, &folder.join("lock")).is_err() {
            *self = Home::take(folder)?;
        }
        fs::create_dir_all(folder.join(DAMAGED))
    }
}

/// Checks that an open file is the one that is found at this path.
///
/// # Errors
/// When there is another file, or none.
pub(super) fn must_lie_at(file: &File, path: &Path) -> io::Result<()> {
    let (open, found) = (file.metadata()?, fs::metadata(path)?);
    if (open.dev(), open.ino()) == (found.dev(), found.ino()) {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::NotFound, format!("{} is a different file now", path.display())))
}

impl Spool {
    /// Creates what is missing of the folder, and a segment for new entries. Only the thread that appends calls it.
    pub(super) fn go_on_in_new_files(&self) -> io::Result<()> {
        self.keep_home()?;
        self.roll()?;
        tracing::warn!(
            folder = %self.folder.display(),
            "files of the spool were removed while the relay runs: it continues in new ones; what upstreams have not received \
             yet of the removed files is sent while the relay runs, and lost when it stops"
        );
        Ok(())
    }

    /// Writes the positions where the next start looks for them.
    pub(super) fn write_at_home(&self, positions: &mut Positions, checkpoint: &Checkpoint) -> io::Result<()> {
        let path = positions_path(&self.folder);
        if must_lie_at(positions.file(), &path).is_err() {
            self.keep_home()?;
            positions.move_to(&path)?;
        }
        positions.write(checkpoint)
    }

    fn keep_home(&self) -> io::Result<()> {
        self.home.lock().unwrap_or_else(PoisonError::into_inner).keep(&self.folder)
    }
}
