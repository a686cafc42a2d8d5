//! The socket on which programs offer themselves.
//!
//! An offer is one message, `BLKOFFER` and a version, with the descriptors of segment and control page. It gets no answer.
//! The kernel says which process offers (SO_PEERCRED), never the message.

use std::io::{self, ErrorKind};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use blkin_ringbuf::{Peer, peer_of};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketFlags, SocketType, accept_with, recv};

use super::closer::{Closer, Seen, look};
use super::descriptors::{Spare, TO_ACCEPT, TO_RECEIVE};
use super::held::{Refusal, is_memfd};
use super::local::LocalSocket;
use crate::link::{Program, shown_name};

/// The bytes of an offer of this version.
pub(super) const OFFER: [u8; 16] = *b"BLKOFFER\x01\0\0\0\0\0\0\0";
/// Most connections that wait to be accepted.
pub(super) const BACKLOG: usize = 4096;
/// Most accepted connections that have not sent their message yet.
const MAX_WAITING: usize = 64;
/// Most connections that are accepted at once.
pub(super) const AT_ONCE: usize = 256;
/// Most connections that can be unhandled at one time; the kernel's backlog lets one more in than it is asked to.
pub(super) const MOST_UNHANDLED: u64 = (BACKLOG + 1 + AT_ONCE + MAX_WAITING) as u64;
/// How long an accepted connection may take to send its message.
const PATIENCE: Duration = Duration::from_secs(2);

/// An offer of the right form. Its descriptors are those of memfds.
#[derive(Debug)]
pub(super) struct Offer {
    /// The program that offers itself.
    pub(super) program: Program,
    /// Its segment.
    pub(super) segment: OwnedFd,
    /// Its control page.
    pub(super) control: OwnedFd,
}

/// The socket, and the accepted connections that have not sent their message yet.
#[derive(Debug)]
pub(super) struct Offers {
    socket: LocalSocket,
    closer: Closer,
    waiting: Vec<(OwnedFd, Instant)>,
    has_backlog: bool,
    is_short: bool,
    handled_connections: u64,
}

impl Offers {
    /// Listens at `path`, for every user. A socket on which nobody listens any more is replaced. Connections, and whatever is
    /// sent and is not an offer, are closed by `closer`.
    ///
    /// # Errors
    /// When another daemon listens there, or the path cannot be used.
    pub(super) fn listen(path: &Path, closer: Closer) -> io::Result<Self> {
        let socket = LocalSocket::listen(path, SocketType::SEQPACKET, BACKLOG as i32)?;
        Ok(Self {
            socket,
            closer,
            waiting: Vec::new(),
            has_backlog: false,
            is_short: false,
            handled_connections: 0,
        })
    }

    /// Refuses further connections, so that a program that tries knows that nobody reads it. Offers of programs that have
    /// connected already are still to be taken: closing the socket would drop them, while their programs believe they are read.
    pub(super) fn refuse_more(&mut self) {
        self.has_backlog = true;
        if let Err(e) = self.socket.refuse_others() {
            tracing::debug!("failed to refuse further offers: {e}");
        }
    }

    /// Closes all connections and the socket.
    pub(super) fn end(self) {
        self.waiting.into_iter().for_each(|(connection, _)| self.closer.hang_up(connection));
        self.closer.close_in_thread(self.socket.into_fd());
    }

    /// See [`LocalSocket::is_in_place`].
    pub(super) fn is_in_place(&self) -> bool {
        self.socket.is_in_place()
    }

    /// The socket, to wait on.
    pub(super) fn socket(&self) -> &OwnedFd {
        self.socket.fd()
    }

    /// Whether to look again soon: a connection has not sent its message yet, or more connections may wait.
    pub(super) fn has_waiting(&self) -> bool {
        self.has_backlog || !self.waiting.is_empty()
    }

    /// Whether a connection may be there that was not handled.
    pub(super) fn is_anyone_there(&self) -> bool {
        let mut socket = [PollFd::new(self.socket.fd(), PollFlags::IN)];
        // If the poll fails, there may be one.
        !self.waiting.is_empty() || poll(&mut socket, Some(&Timespec::default())) != Ok(0)
    }

    /// How many connections were handled so far.
    pub(super) fn handled_connections(&self) -> u64 {
        self.handled_connections
    }

    /// Whether offers were left unread for want of file descriptors. They stay in the socket for the next look.
    pub(super) fn is_short(&self) -> bool {
        self.is_short
    }

    /// Takes every offer that is there, at most [`AT_ONCE`] new connections.
    pub(super) fn take(&mut self) -> Vec<Result<Offer, Refusal>> {
        self.is_short = false;
        let mut spare = Spare::new();
        self.accept(&mut spare);
        let mut out = Vec::new();
        for (connection, since) in std::mem::take(&mut self.waiting) {
            if !self.can_receive(&mut spare) {
                self.waiting.push((connection, since));
                continue;
            }
            match self.read(&connection) {
                Ok(None) if since.elapsed() < PATIENCE => self.waiting.push((connection, since)),
                read => {
                    match read {
                        // The connection was closed without a message.
                        Err(error) if error.kind() == ErrorKind::UnexpectedEof => {}
                        read => out.extend(read.unwrap_or(Some(Err(Refusal::Malformed)))),
                    }
                    self.closer.hang_up(connection);
                    self.handled_connections += 1;
                }
            }
            spare.spend(TO_RECEIVE);
        }
        if self.can_receive(&mut spare) {
            // The oldest of those that have sent nothing yet.
            let excess = self.waiting.len().saturating_sub(MAX_WAITING);
            self.waiting.drain(..excess).for_each(|(connection, _)| self.closer.hang_up(connection));
            self.handled_connections += excess as u64;
        }
        out
    }

    /// The offer of a connection, as [`read_offer`] returns it. From a user who blocks the closer nothing is received.
    fn read(&self, connection: &OwnedFd) -> io::Result<Option<Result<Offer, Refusal>>> {
        let who = peer_of(connection)?;
        if self.closer.is_held_up_by(who.uid) {
            return Ok(Some(Err(Refusal::Malformed)));
        }
        read_offer(connection, who, &self.closer)
    }

    /// Whether there are enough descriptors to receive an offer, and anything that is not an offer could be closed.
    fn can_receive(&mut self, spare: &mut Spare) -> bool {
        self.is_short = self.is_short || !spare.has(self.socket.fd(), TO_RECEIVE);
        !self.is_short && !self.closer.is_full()
    }

    fn accept(&mut self, spare: &mut Spare) {
        self.has_backlog = true;
        for _ in 0..AT_ONCE {
            if self.closer.is_full() {
                return;
            }
            if !spare.has(self.socket.fd(), TO_ACCEPT) {
                self.is_short = true;
                return;
            }
            match accept_with(self.socket.fd(), SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(connection) => {
                    self.waiting.push((connection, Instant::now()));
                    spare.spend(1);
                }
                // INVAL: the socket refuses connections by now.
                Err(Errno::AGAIN | Errno::INVAL) => {
                    self.has_backlog = false;
                    return;
                }
                // The connection has gone again, or memory is short: the next look will tell.
                Err(_) => return,
            }
        }
    }
}

/// `None` while the message is still to come. A message that is not an offer stays in the connection: this process would have
/// to close the descriptors of a message that it received.
fn read_offer(
    connection: &OwnedFd,
    who: Peer,
    closer: &Closer,
) -> io::Result<Option<Result<Offer, Refusal>>> {
    let mut bytes = [0; OFFER.len()];
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let seen = match look(connection, &mut bytes, &mut room) {
        Ok(seen) => seen,
        Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
        Err(e) => return Err(e),
    };
    if seen.length == 0 && seen.fds.is_empty() && !seen.is_cut {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    let [segment, control] = match memfds_of_offer(seen, &bytes) {
        Ok(memfds) => memfds,
        Err(foreign) => {
            closer.close(who.uid, foreign);
            return Ok(Some(Err(Refusal::Malformed)));
        }
    };
    // This receives the same descriptors a second time, so closing them here cannot be the last close.
    recv(connection, &mut bytes, RecvFlags::DONTWAIT)?;
    let program = Program { number: 0, uid: who.uid, pid: who.pid, comm: comm(who.pid) };
    Ok(Some(Ok(Offer { program, segment, control })))
}

/// The descriptors of an offer; as an error, those of a message that is not an offer.
fn memfds_of_offer(seen: Seen, bytes: &[u8]) -> Result<[OwnedFd; 2], Vec<OwnedFd>> {
    let is_offer = seen.length == OFFER.len() && bytes == OFFER && !seen.is_cut;
    if !is_offer || !seen.fds.iter().all(is_memfd) {
        return Err(seen.fds);
    }
    seen.fds.try_into()
}

/// A process's name as the kernel knows it; [`NAMELESS`](crate::link::NAMELESS) once it is gone.
pub(super) fn comm(pid: u32) -> String {
    shown_name(&std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holder::local::unconnected;
    use crate::link::send;
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    use rustix::net::{SocketAddrUnix, connect};
    use std::os::fd::AsFd;

    fn offer_from(path: &Path, bytes: &[u8], fds: usize) {
        let socket = unconnected(SocketType::SEQPACKET).unwrap();
        connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        let memfd = memfd_create("x", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        fcntl_add_seals(&memfd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        let fds = vec![memfd.as_fd(); fds];
        send(&socket, bytes, &fds).unwrap();
    }

    #[test]
    fn an_offer_has_kernel_credentials_even_if_its_sender_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let mut offers = Offers::listen(&path, Closer::default()).unwrap();
        offer_from(&path, &OFFER, 2);
        let taken = offers.take();
        let offer = taken[0].as_ref().unwrap();
        assert_eq!(offer.program.pid, std::process::id());
        assert!(!offer.program.comm.is_empty());
    }

    #[test]
    fn offers_connected_before_refuse_more_are_still_taken() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let mut offers = Offers::listen(&path, Closer::default()).unwrap();
        (0..3).for_each(|_| offer_from(&path, &OFFER, 2));
        offers.refuse_more();
        let late = unconnected(SocketType::SEQPACKET).unwrap();
        assert!(connect(&late, &SocketAddrUnix::new(&path).unwrap()).is_err());
        assert!(offers.has_waiting());
        assert_eq!(offers.take().into_iter().filter(Result::is_ok).count(), 3);
        assert!(!offers.has_waiting());
    }

    #[test]
    fn malformed_offers_are_refused_and_valid_ones_taken() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let mut offers = Offers::listen(&path, Closer::default()).unwrap();
        offer_from(&path, b"hello", 2);
        offer_from(&path, &OFFER, 1);
        offer_from(&path, &[7; 100], 2);
        offer_from(&path, &OFFER, 2);
        let taken = offers.take();
        let refused = taken.iter().filter(|t| matches!(t, Err(Refusal::Malformed))).count();
        assert_eq!((taken.len(), refused), (4, 3));
    }
}
