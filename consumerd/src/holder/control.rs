//! The control socket, and the file of the rules that are made there. The holder only opens them, so that both outlive
//! the worker; the worker reads the requests.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, fstat, ftruncate, open};
use rustix::net::SocketType;

use super::closer::Closer;
use super::local::LocalSocket;
use crate::config::rules_beside;
use crate::settings::file::FILE_BYTES;

const BACKLOG: i32 = 128;

/// The control socket and the rules file.
#[derive(Debug)]
pub(super) struct Control {
    socket: LocalSocket,
    rules: OwnedFd,
}

impl Control {
    /// Listens at `path`; the rules file lies beside it, and its name ends with `.rules`.
    ///
    /// # Errors
    /// When another daemon listens there, or the path cannot be used.
    pub(super) fn listen(path: &Path) -> io::Result<Self> {
        // The socket first: only the daemon that listens there may use the file.
        let socket = LocalSocket::listen(path, SocketType::STREAM, BACKLOG)?;
        Ok(Self { socket, rules: rules_file(&rules_beside(path))? })
    }

    /// The socket and the file, for a worker.
    pub(super) fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.socket.fd().as_fd(), self.rules.as_fd()]
    }

    /// See [`LocalSocket::is_in_place`].
    pub(super) fn is_in_place(&self) -> bool {
        self.socket.is_in_place()
    }

    /// Closes both.
    pub(super) fn end(self, closer: &Closer) {
        closer.close_in_thread(self.socket.into_fd());
    }
}

/// Opens or creates the rules file. A user who may write its folder cannot redirect the daemon's writes to another file.
fn rules_file(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = open(path, flags, Mode::RUSR | Mode::WUSR).map_err(|error| unusable(path, error.into()))?;
    let stat = fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_nlink != 1 {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "the rules file beside it is not a regular file, or has several links",
        ));
    }
    if stat.st_size != FILE_BYTES as i64 {
        ftruncate(&file, FILE_BYTES)?;
    }
    Ok(file)
}

/// Names the rules file in the error, because the caller only knows the socket, and its owner if permission was denied.
fn unusable(path: &Path, error: io::Error) -> io::Error {
    let owner = (error.kind() == io::ErrorKind::PermissionDenied)
        .then(|| path.symlink_metadata().ok())
        .flatten()
        .map_or_else(String::new, |file| format!(", which belongs to user {}", file.uid()));
    io::Error::new(error.kind(), format!("{}{owner}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unusable_rules_file_is_named_with_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.rules");
        let told = |error: io::ErrorKind| unusable(&path, error.into()).to_string();
        assert_eq!(told(io::ErrorKind::PermissionDenied), format!("{}: permission denied", path.display()));
        std::fs::write(&path, "").unwrap();
        let own = rustix::process::getuid().as_raw();
        let expected = format!("{}, which belongs to user {own}: permission denied", path.display());
        assert_eq!(told(io::ErrorKind::PermissionDenied), expected);
        assert_eq!(told(io::ErrorKind::NotFound), format!("{}: entity not found", path.display()));
    }

    #[test]
    fn the_rules_file_outlives_the_control_socket() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        let rules = folder.path().join("control.rules");
        let control = Control::listen(&path).unwrap();
        assert!(path.exists());
        assert_eq!(rules.metadata().unwrap().len(), FILE_BYTES);
        rustix::io::pwrite(control.fds()[1], b"mark", 0).unwrap();
        drop(control);
        assert!(!path.exists());
        Control::listen(&path).unwrap();
        assert_eq!(&std::fs::read(&rules).unwrap()[..4], b"mark");
    }

    #[test]
    fn a_link_at_the_path_of_the_rules_file_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("precious");
        std::fs::write(&target, "precious").unwrap();
        let rules = folder.path().join("control.rules");
        for link in
            [std::os::unix::fs::symlink, |from, to| std::fs::hard_link(from, to)] as [fn(_, _) -> _; 2]
        {
            link(target.clone(), rules.clone()).unwrap();
            assert!(Control::listen(&folder.path().join("control.sock")).is_err());
            assert_eq!(std::fs::read_to_string(&target).unwrap(), "precious");
            std::fs::remove_file(&rules).unwrap();
        }
    }
}
