//! A listening socket in the file system, open to every local user.

use std::fs::Metadata;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, chmod, fstat, open};
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, shutdown,
    socket_with,
};

use super::place_lock::PlaceLock;

/// The socket; its file is removed with it.
#[derive(Debug)]
pub(super) struct LocalSocket {
    /// Dropped before the socket: as long as the socket is open, no other file can get the inode number.
    file: SocketFile,
    socket: OwnedFd,
}

/// The socket's file, with its path and identity; `None` once this daemon has removed it.
#[derive(Debug)]
struct SocketFile(Option<(PathBuf, Identity)>);

/// Device and inode.
type Identity = (u64, u64);

impl LocalSocket {
    /// Listens at `path`, for every user, and creates the folder. A socket on which nobody listens any more is replaced.
    ///
    /// # Errors
    /// When another daemon listens there, or the path cannot be used.
    pub(super) fn listen(path: &Path, kind: SocketType, backlog: i32) -> io::Result<Self> {
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            make_folder(folder)?;
        }
        let address = SocketAddrUnix::new(path)?;
        // One daemon at a time may examine, remove and replace a stale socket. Besides, a socket that is bound and does not
        // listen yet would look stale to another daemon.
        let _lock = PlaceLock::take(path)?;
        remove_stale(path, &address, kind)?;
        let socket = unconnected(kind)?;
        bind(&socket, &address)?;
        let identity = open_to_all(path)?;
        listen(&socket, backlog)?;
        Ok(Self { file: SocketFile(Some((path.into(), identity))), socket })
    }

    /// Refuses all connections from now on. Connections that were not accepted yet can still be; closing the socket instead
    /// would drop those that came after the last look.
    pub(super) fn refuse_others(&mut self) -> io::Result<()> {
        self.file.remove();
        Ok(shutdown(&self.socket, Shutdown::Read)?)
    }

    /// Whether the socket's file is still at its path. An error other than "not found" does not prove the contrary.
    pub(super) fn is_in_place(&self) -> bool {
        self.file.is_in_place()
    }

    /// The socket's descriptor, which is non-blocking.
    pub(super) fn fd(&self) -> &OwnedFd {
        &self.socket
    }

    /// The descriptor, without the file, to be closed: that drops whatever lies in connections that were not accepted.
    pub(super) fn into_fd(self) -> OwnedFd {
        self.socket
    }
}

impl SocketFile {
    /// Removes the file, at most once: the next daemon may listen at the path afterwards, or already does if somebody else
    /// removed the file.
    fn remove(&mut self) {
        let Some((path, own)) = self.0.take() else { return };
        if path.symlink_metadata().is_ok_and(|found| identity(&found) == own) {
            // A file that stays does no harm: the next daemon replaces it.
            let _ = std::fs::remove_file(path);
        }
    }

    fn is_in_place(&self) -> bool {
        let Some((path, own)) = &self.0 else { return true };
        match path.symlink_metadata() {
            Ok(found) => identity(&found) == *own,
            Err(error) => error.kind() != ErrorKind::NotFound,
        }
    }
}

fn identity(found: &Metadata) -> Identity {
    (found.dev(), found.ino())
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Creates the folder. Its errors name the folder, because the caller only knows the socket; for a file in the folder's place
/// the system would only say that it exists.
fn make_folder(folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder).map_err(|error| {
        let path = folder.display();
        let what = match error.kind() {
            ErrorKind::AlreadyExists => format!("{path} exists, but is not a folder"),
            _ => format!("failed to create the folder {path}: {error}"),
        };
        io::Error::new(error.kind(), what)
    })
}

/// Lets every user connect, and returns the file's identity. Another user who may write the folder cannot make a daemon run
/// by root change the mode of another file: whatever took the socket's place meanwhile is left alone.
fn open_to_all(path: &Path) -> io::Result<Identity> {
    let found = open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let stat = fstat(&found)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket || stat.st_nlink != 1 {
        return Err(io::Error::other("another file took the place of the socket"));
    }
    let itself = format!("/proc/self/fd/{}", found.as_raw_fd());
    chmod(itself, Mode::from_raw_mode(0o666))?;
    Ok((stat.st_dev, stat.st_ino))
}

pub(super) fn unconnected(kind: SocketType) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, kind, flags, None)?)
}

fn remove_stale(path: &Path, address: &SocketAddrUnix, kind: SocketType) -> io::Result<()> {
    let Ok(metadata) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        return Err(io::Error::new(ErrorKind::AlreadyExists, "a file that is not a socket is there"));
    }
    match connect(unconnected(kind)?, address) {
        Err(rustix::io::Errno::CONNREFUSED) => std::fs::remove_file(path),
        _ => Err(io::Error::new(ErrorKind::AddrInUse, "another daemon listens there")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use rustix::io::Errno;
    use rustix::net::accept;

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
            leave_stale(&path, kind);
            assert!(LocalSocket::listen(&path, kind, 8).is_ok());
        }
    }

    fn leave_stale(path: &Path, kind: SocketType) {
        bind(unconnected(kind).unwrap(), &SocketAddrUnix::new(path).unwrap()).unwrap();
    }

    #[test]
    fn a_stale_socket_stays_while_another_daemon_replaces_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        leave_stale(&path, SocketType::STREAM);
        let other = PlaceLock::take(&path).unwrap();
        let error = LocalSocket::listen(&path, SocketType::STREAM, 8).unwrap_err();
        assert!(error.kind() == ErrorKind::AddrInUse && path.exists(), "{error}");
        drop(other);
        LocalSocket::listen(&path, SocketType::STREAM, 8).unwrap();
    }

    #[test]
    fn only_one_of_several_daemons_replaces_a_stale_socket() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        for _ in 0..100 {
            leave_stale(&path, SocketType::STREAM);
            let start = std::sync::Barrier::new(4);
            let listen = || {
                start.wait();
                LocalSocket::listen(&path, SocketType::STREAM, 8).ok()
            };
            let listening: Vec<_> = std::thread::scope(|scope| {
                let all = [(); 4].map(|()| scope.spawn(listen));
                all.into_iter().filter_map(|one| one.join().unwrap()).collect()
            });
            assert!(listening.len() == 1 && listening[0].is_in_place(), "{listening:?}");
            let names: Vec<_> =
                folder.path().read_dir().unwrap().map(|file| file.unwrap().file_name()).collect();
            assert_eq!(names, ["s"]);
        }
    }

    #[test]
    fn a_moved_or_replaced_socket_is_not_in_place() {
        let folder = tempfile::tempdir().unwrap();
        let [path, aside] = ["s", "aside"].map(|name| folder.path().join(name));
        let first = LocalSocket::listen(&path, SocketType::STREAM, 8).unwrap();
        assert!(first.is_in_place());
        std::fs::rename(&path, &aside).unwrap();
        assert!(!first.is_in_place());
        let second = LocalSocket::listen(&path, SocketType::STREAM, 8).unwrap();
        assert!(second.is_in_place() && !first.is_in_place());
        std::fs::rename(&aside, &path).unwrap();
        assert!(first.is_in_place() && !second.is_in_place());
    }

    #[test]
    fn a_client_connected_before_refuse_others_is_accepted() {
        for kind in [SocketType::SEQPACKET, SocketType::STREAM] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("s");
            let mut listening = LocalSocket::listen(&path, kind, 8).unwrap();
            // A second name, for a client that had looked up the file already.
            let other = folder.path().join("other");
            std::fs::hard_link(&path, &other).unwrap();
            let connected = unconnected(kind).unwrap();
            connect(&connected, &SocketAddrUnix::new(&path).unwrap()).unwrap();
            listening.refuse_others().unwrap();
            let late = connect(unconnected(kind).unwrap(), &SocketAddrUnix::new(&other).unwrap());
            assert_eq!(late, Err(Errno::CONNREFUSED));
            assert!(accept(listening.fd()).is_ok());
            assert_eq!(accept(listening.fd()).err(), Some(Errno::AGAIN));
        }
    }

    #[test]
    fn a_socket_bound_after_refuse_others_outlives_the_old_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let mut first = LocalSocket::listen(&path, SocketType::STREAM, 8).unwrap();
        first.refuse_others().unwrap();
        let _next = LocalSocket::listen(&path, SocketType::STREAM, 8).unwrap();
        drop(first);
        assert!(path.exists());
    }

    /// Once somebody has removed a socket's file, another daemon may use its path.
    #[test]
    fn a_socket_that_replaced_a_removed_one_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let first = LocalSocket::listen(&path, SocketType::STREAM, 8).unwrap();
        std::fs::remove_file(&path).unwrap();
        let _next = LocalSocket::listen(&path, SocketType::STREAM, 8).unwrap();
        drop(first);
        assert!(path.exists());
    }

    #[test]
    fn opening_to_all_refuses_symbolic_and_hard_links() {
        let folder = tempfile::tempdir().unwrap();
        let [socket, link, second] = ["socket", "link", "second"].map(|name| folder.path().join(name));
        let _listening = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&socket, &link).unwrap();
        assert!(open_to_all(&link).is_err());
        std::fs::hard_link(&socket, &second).unwrap();
        assert!(open_to_all(&second).is_err());
        assert_eq!(socket.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::remove_file(&second).unwrap();
        open_to_all(&socket).unwrap();
        assert_eq!(socket.metadata().unwrap().permissions().mode() & 0o777, 0o666);
    }

    #[test]
    fn a_file_at_the_path_of_the_folder_is_named_in_the_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("run");
        std::fs::write(&file, "").unwrap();
        let error = LocalSocket::listen(&file.join("s"), SocketType::STREAM, 8).unwrap_err();
        assert_eq!(error.to_string(), format!("{} exists, but is not a folder", file.display()));
    }

    #[test]
    fn a_file_that_is_not_a_socket_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        std::fs::write(&path, "mine").unwrap();
        assert!(LocalSocket::listen(&path, SocketType::STREAM, 8).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
    }
}
