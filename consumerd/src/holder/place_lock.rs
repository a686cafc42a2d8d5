//! A lock on a path in the file system, held while a daemon examines the file there, removes it and creates its own.

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, lstat, open};
use rustix::io::Errno;

/// The lock (flock) of a file beside the path; the file is removed with the lock. Locking the folder would need no such file,
/// but everybody who may read the folder could lock it.
#[derive(Debug)]
pub(super) struct PlaceLock {
    path: PathBuf,
    _file: OwnedFd,
}

impl PlaceLock {
    /// Locks `path`, by a file with the same name and `.lock` appended.
    ///
    /// # Errors
    /// [`ErrorKind::AddrInUse`] while another daemon has the lock; any error of creating the file.
    pub(super) fn take(path: &Path) -> io::Result<Self> {
        let mut name = path.as_os_str().to_owned();
        name.push(".lock");
        let path = PathBuf::from(name);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let unusable = |error: Errno| {
            let error = io::Error::from(error);
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        };
        let file = open(&path, flags, Mode::RUSR | Mode::WUSR).map_err(unusable)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Err(is_taken()),
            locked => locked.map_err(unusable)?,
        }
        // The daemon that had the lock before may have removed the file opened here, and a third may have created another since.
        let own = fstat(&file).map_err(unusable)?;
        match lstat(&path) {
            Ok(found) if (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino) => {
                Ok(Self { path, _file: file })
            }
            _ => Err(is_taken()),
        }
    }
}

fn is_taken() -> io::Error {
    io::Error::new(ErrorKind::AddrInUse, "another daemon is about to listen there")
}

impl Drop for PlaceLock {
    /// Removes the file while it is locked, because only then it is certainly this daemon's.
    fn drop(&mut self) {
        // A file that stays does no harm: the next daemon locks it.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_holds_the_lock_and_its_file_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let first = PlaceLock::take(&path).unwrap();
        assert_eq!(PlaceLock::take(&path).unwrap_err().kind(), ErrorKind::AddrInUse);
        drop(first);
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
        // A daemon that was killed left it behind.
        std::fs::write(folder.path().join("s.lock"), "").unwrap();
        PlaceLock::take(&path).unwrap();
    }

    #[test]
    fn a_link_at_the_lock_path_is_not_followed_but_named() {
        let folder = tempfile::tempdir().unwrap();
        let [path, lock, target] = ["s", "s.lock", "target"].map(|name| folder.path().join(name));
        std::os::unix::fs::symlink(&target, &lock).unwrap();
        let error = PlaceLock::take(&path).unwrap_err().to_string();
        assert!(error.starts_with(&lock.display().to_string()) && !target.exists(), "{error}");
    }
}
