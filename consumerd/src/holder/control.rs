//! The control socket and the file of the rules that are made there. The holder only opens them, so that neither goes
//! away with a worker; the worker reads what is asked.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, fstat, ftruncate, open};
use rustix::net::SocketType;

use super::closer::Closer;
use super::local::LocalSocket;
use crate::config::rules_beside;
use crate::settings::file::FILE_BYTES;

const BACKLOG: i32 = 128;

/// Both.
#[derive(Debug)]
pub(super) struct Control {
    socket: LocalSocket,
    rules: OwnedFd,
}

impl Control {
    /// Listens at `path`; the rules lie beside it, and end with `.rules`.
    ///
    /// # Errors
    /// When another daemon listens there, or the path cannot be used.
    pub(super) fn listen(path: &Path) -> io::Result<Self> {
        // The socket first: whoever listens has the file for himself.
        let socket = LocalSocket::listen(path, SocketType::STREAM, BACKLOG)?;
        Ok(Self { socket, rules: rules_file(&rules_beside(path))? })
    }

    /// The socket and the file, for a worker.
    pub(super) fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.socket.fd().as_fd(), self.rules.as_fd()]
    }

    /// Lets go of both.
    pub(super) fn end(self, closer: &Closer) {
        closer.close(vec![self.socket.into_fd()]);
    }
}

/// Opens the file, or makes it; whoever may write its folder cannot make the daemon write elsewhere.
fn rules_file(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = open(path, flags, Mode::RUSR | Mode::WUSR)?;
    let stat = fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_nlink != 1 {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "the rules beside it are no file of their own",
        ));
    }
    if stat.st_size != FILE_BYTES as i64 {
        ftruncate(&file, FILE_BYTES)?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_stay_when_the_socket_goes() {
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
    fn a_link_in_the_place_of_the_rules_is_not_followed() {
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
