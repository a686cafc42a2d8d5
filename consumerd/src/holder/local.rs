//! A listening socket in the file system, for every local user.

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

/// The socket; its file goes with it.
#[derive(Debug)]
pub(super) struct LocalSocket {
    socket: OwnedFd,
    path: PathBuf,
}

impl LocalSocket {
    /// Listens at `path`, for everybody; makes its folder. A socket that nobody listens on any more is replaced.
    ///
    /// # Errors
    /// When another daemon listens there, or the path cannot be used.
    pub(super) fn listen(path: &Path, kind: SocketType, backlog: i32) -> io::Result<Self> {
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder)?;
        }
        let address = SocketAddrUnix::new(path)?;
        remove_stale(path, &address, kind)?;
        let socket = unconnected(kind)?;
        bind(&socket, &address)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
        listen(&socket, backlog)?;
        Ok(Self { socket, path: path.into() })
    }

    /// Its descriptor, which does not block.
    pub(super) fn fd(&self) -> &OwnedFd {
        &self.socket
    }
}

impl Drop for LocalSocket {
    fn drop(&mut self) {
        // Nobody is harmed by a socket file that stays: the next daemon replaces it.
        let _ = std::fs::remove_file(&self.path);
    }
}

pub(super) fn unconnected(kind: SocketType) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, kind, flags, None)?)
}

fn remove_stale(path: &Path, address: &SocketAddrUnix, kind: SocketType) -> io::Result<()> {
    let Ok(metadata) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        return Err(io::Error::new(ErrorKind::AlreadyExists, "there is a file which is no socket"));
    }
    match connect(unconnected(kind)?, address) {
        Err(rustix::io::Errno::CONNREFUSED) => std::fs::remove_file(path),
        _ => Err(io::Error::new(ErrorKind::AddrInUse, "another daemon listens there")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_live_socket_is_not_taken_over_but_a_stale_one_is() {
        for kind in [SocketType::SEQPACKET, SocketType::STREAM] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("s");
            let first = LocalSocket::listen(&path, kind, 8).unwrap();
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o666);
            assert!(LocalSocket::listen(&path, kind, 8).is_err());
            drop(first);
            assert!(!path.exists());
            let stale = unconnected(kind).unwrap();
            bind(&stale, &SocketAddrUnix::new(&path).unwrap()).unwrap();
            drop(stale);
            assert!(LocalSocket::listen(&path, kind, 8).is_ok());
        }
    }

    #[test]
    fn a_file_that_is_no_socket_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        std::fs::write(&path, "mine").unwrap();
        assert!(LocalSocket::listen(&path, SocketType::STREAM, 8).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
    }
}
