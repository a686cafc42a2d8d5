//! The socket on which programs offer themselves.
//!
//! An offer is one message, `BLKOFFER` and a version, with the descriptors of segment and control page; nothing is
//! answered. Who offers is what the kernel says (SO_PEERCRED), never the message.

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with,
};

use super::held::Refusal;
use crate::link::{COMM_BYTES, Program, receive};

/// What an offer of this version says.
pub(super) const OFFER: [u8; 16] = *b"BLKOFFER\x01\0\0\0\0\0\0\0";
/// Connections of which the message is still to come: most, and for how long.
const MAX_WAITING: usize = 64;
const PATIENCE: Duration = Duration::from_secs(2);

/// An offer that has the right shape.
#[derive(Debug)]
pub(super) struct Offer {
    /// Who offers.
    pub(super) program: Program,
    /// Its segment.
    pub(super) segment: OwnedFd,
    /// Its control page.
    pub(super) control: OwnedFd,
}

/// The socket and the connections that have not said anything yet.
#[derive(Debug)]
pub(super) struct Offers {
    socket: OwnedFd,
    path: PathBuf,
    waiting: Vec<(OwnedFd, Instant)>,
    has_backlog: bool,
}

impl Offers {
    /// Listens at `path`, for everybody. A socket that nobody listens on any more is replaced.
    ///
    /// # Errors
    /// When another daemon listens there, or the path cannot be used.
    pub(super) fn listen(path: &Path) -> io::Result<Self> {
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder)?;
        }
        let address = SocketAddrUnix::new(path)?;
        remove_stale(path, &address)?;
        let socket = seqpacket()?;
        bind(&socket, &address)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
        listen(&socket, 4096)?;
        Ok(Self { socket, path: path.into(), waiting: Vec::new(), has_backlog: false })
    }

    /// The socket, to wait on.
    pub(super) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Whether to look again soon: a connection is there whose message is not, or more connections are.
    pub(super) fn has_waiting(&self) -> bool {
        self.has_backlog || !self.waiting.is_empty()
    }

    /// Takes every offer that is there, at most `most` new connections.
    pub(super) fn take(&mut self, most: usize) -> Vec<Result<Offer, Refusal>> {
        self.has_backlog = true;
        for _ in 0..most {
            match accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(connection) => self.waiting.push((connection, Instant::now())),
                Err(_) => {
                    self.has_backlog = false;
                    break;
                }
            }
        }
        let mut out = Vec::new();
        self.waiting.retain(|(connection, since)| match read_offer(connection) {
            Ok(Some(offer)) => {
                out.push(offer);
                false
            }
            Ok(None) => since.elapsed() < PATIENCE,
            Err(_) => false,
        });
        let excess = self.waiting.len().saturating_sub(MAX_WAITING);
        self.waiting.drain(..excess);
        out
    }
}

impl Drop for Offers {
    fn drop(&mut self) {
        // Nobody is harmed by a socket file that stays: the next daemon replaces it.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn seqpacket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

fn remove_stale(path: &Path, address: &SocketAddrUnix) -> io::Result<()> {
    let Ok(metadata) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        return Err(io::Error::new(ErrorKind::AlreadyExists, "there is a file which is no socket"));
    }
    match connect(seqpacket()?, address) {
        Err(rustix::io::Errno::CONNREFUSED) => std::fs::remove_file(path),
        _ => Err(io::Error::new(ErrorKind::AddrInUse, "another daemon listens there")),
    }
}

/// `None` while the message is still to come.
fn read_offer(connection: &OwnedFd) -> io::Result<Option<Result<Offer, Refusal>>> {
    let received = match receive(connection, OFFER.len()) {
        Ok(received) => received,
        Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
        Err(e) => return Err(e),
    };
    if received.bytes.is_empty() && received.fds.is_empty() {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    let Ok([segment, control]) = <[OwnedFd; 2]>::try_from(received.fds) else {
        return Ok(Some(Err(Refusal::Malformed)));
    };
    if received.bytes != OFFER || received.cut {
        return Ok(Some(Err(Refusal::Malformed)));
    }
    let who = socket_peercred(connection)?;
    let pid = who.pid.as_raw_nonzero().get().unsigned_abs();
    let program = Program { number: 0, uid: who.uid.as_raw(), pid, comm: comm(pid) };
    Ok(Some(Ok(Offer { program, segment, control })))
}

/// A process's name as the kernel knows it; "?" once it is gone.
pub(super) fn comm(pid: u32) -> String {
    let bytes = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(COMM_BYTES)]).trim_end().to_owned();
    let clean: String =
        text.chars().map(|c| if c.is_control() || c == '\u{fffd}' { '?' } else { c }).collect();
    if clean.is_empty() { "?".into() } else { clean }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::send;
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::os::fd::AsFd;

    fn offer_from(path: &Path, bytes: &[u8], fds: usize) {
        let socket = seqpacket().unwrap();
        connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        let memfd = memfd_create("x", MemfdFlags::CLOEXEC).unwrap();
        let fds = vec![memfd.as_fd(); fds];
        send(&socket, bytes, &fds).unwrap();
    }

    #[test]
    fn an_offer_is_taken_with_the_kernels_word_even_when_the_sender_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let mut offers = Offers::listen(&path).unwrap();
        offer_from(&path, &OFFER, 2);
        let taken = offers.take(10);
        let offer = taken[0].as_ref().unwrap();
        assert_eq!(offer.program.pid, std::process::id());
        assert!(!offer.program.comm.is_empty());
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o666);
    }

    #[test]
    fn other_messages_are_refused_and_do_not_disturb() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let mut offers = Offers::listen(&path).unwrap();
        offer_from(&path, b"hello", 2);
        offer_from(&path, &OFFER, 1);
        offer_from(&path, &[7; 100], 2);
        offer_from(&path, &OFFER, 2);
        let taken = offers.take(10);
        let refused = taken.iter().filter(|t| matches!(t, Err(Refusal::Malformed))).count();
        assert_eq!((taken.len(), refused), (4, 3));
    }

    #[test]
    fn a_live_socket_is_not_taken_over_but_a_stale_one_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let first = Offers::listen(&path).unwrap();
        assert!(Offers::listen(&path).is_err());
        let stale = seqpacket().unwrap();
        drop(first);
        bind(&stale, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        drop(stale);
        assert!(Offers::listen(&path).is_ok());
    }
}
