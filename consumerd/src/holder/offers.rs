//! The socket on which programs offer themselves.
//!
//! An offer is one message, `BLKOFFER` and a version, with the descriptors of segment and control page; nothing is
//! answered. Who offers is what the kernel says (SO_PEERCRED), never the message.

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

/// What an offer of this version says.
pub(super) const OFFER: [u8; 16] = *b"BLKOFFER\x01\0\0\0\0\0\0\0";
/// Most connections that nobody has taken yet.
pub(super) const BACKLOG: usize = 4096;
/// Connections of which the message is still to come: most, and for how long.
const MAX_WAITING: usize = 64;
/// Connections that are taken at once.
pub(super) const AT_ONCE: usize = 256;
/// Most connections at a time that are not dealt with yet; the kernel lets one more in than it is asked to.
pub(super) const MOST_UNDEALT: u64 = (BACKLOG + 1 + AT_ONCE + MAX_WAITING) as u64;
const PATIENCE: Duration = Duration::from_secs(2);

/// An offer that has the right shape. Its descriptors are those of memfds.
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
    socket: LocalSocket,
    closer: Closer,
    waiting: Vec<(OwnedFd, Instant)>,
    has_backlog: bool,
    is_short: bool,
    dealt: u64,
}

impl Offers {
    /// Listens at `path`, for everybody. A socket that nobody listens on any more is replaced. What comes there and is of
    /// no use is for `closer`.
    ///
    /// # Errors
    /// When another daemon listens there, or the path cannot be used.
    pub(super) fn listen(path: &Path, closer: Closer) -> io::Result<Self> {
        let socket = LocalSocket::listen(path, SocketType::SEQPACKET, BACKLOG as i32)?;
        Ok(Self { socket, closer, waiting: Vec::new(), has_backlog: false, is_short: false, dealt: 0 })
    }

    /// Lets nobody connect any more: who tries knows that nobody reads it. Who had connected is still to be taken; closing
    /// the socket would drop an offer of which its program believes that it was heard.
    pub(super) fn refuse_more(&mut self) {
        self.has_backlog = true;
        if let Err(e) = self.socket.refuse_others() {
            tracing::debug!("failed to refuse further offers: {e}");
        }
    }

    /// Listens no longer.
    pub(super) fn end(self) {
        self.waiting.into_iter().for_each(|(connection, _)| self.closer.hang_up(connection));
        self.closer.let_go(self.socket.into_fd());
    }

    /// See [`LocalSocket::is_in_place`].
    pub(super) fn is_in_place(&self) -> bool {
        self.socket.is_in_place()
    }

    /// The socket, to wait on.
    pub(super) fn socket(&self) -> &OwnedFd {
        self.socket.fd()
    }

    /// Whether to look again soon: a connection is there whose message is not, or more connections are.
    pub(super) fn has_waiting(&self) -> bool {
        self.has_backlog || !self.waiting.is_empty()
    }

    /// Whether a connection is there that was not dealt with.
    pub(super) fn is_anyone_there(&self) -> bool {
        let mut socket = [PollFd::new(self.socket.fd(), PollFlags::IN)];
        // A look that failed tells nothing.
        !self.waiting.is_empty() || poll(&mut socket, Some(&Timespec::default())) != Ok(0)
    }

    /// How many connections were dealt with so far.
    pub(super) fn dealt(&self) -> u64 {
        self.dealt
    }

    /// Whether offers had to stay where they are, for want of descriptors. They are looked for again.
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
                        // Whoever came has said nothing.
                        Err(error) if error.kind() == ErrorKind::UnexpectedEof => {}
                        read => out.extend(read.unwrap_or(Some(Err(Refusal::Malformed)))),
                    }
                    self.closer.hang_up(connection);
                    self.dealt += 1;
                }
            }
            spare.spend(TO_RECEIVE);
        }
        if self.can_receive(&mut spare) {
            // Of these nobody has said anything.
            let excess = self.waiting.len().saturating_sub(MAX_WAITING);
            self.waiting.drain(..excess).for_each(|(connection, _)| self.closer.hang_up(connection));
            self.dealt += excess as u64;
        }
        out
    }

    /// The offer of a connection, as [`read_offer`] has it; of one whose user holds up the closer nothing is received.
    fn read(&self, connection: &OwnedFd) -> io::Result<Option<Result<Offer, Refusal>>> {
        let who = peer_of(connection)?;
        if self.closer.is_held_up_by(who.uid) {
            return Ok(Some(Err(Refusal::Malformed)));
        }
        read_offer(connection, who, &self.closer)
    }

    /// Whether an offer would not be lost for want of descriptors, and what is none could be closed.
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
                // The latter of a socket to which nobody can connect any more.
                Err(Errno::AGAIN | Errno::INVAL) => {
                    self.has_backlog = false;
                    return;
                }
                // One that has gone again, or want of memory: the next look tells.
                Err(_) => return,
            }
        }
    }
}

/// `None` while the message is still to come. One that is no offer stays in the connection: to receive it is to close what
/// came beside it.
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
    // These are its descriptors once more, and none of them the last.
    recv(connection, &mut bytes, RecvFlags::DONTWAIT)?;
    let program = Program { number: 0, uid: who.uid, pid: who.pid, comm: comm(who.pid) };
    Ok(Some(Ok(Offer { program, segment, control })))
}

/// The descriptors of an offer, or those of what is none.
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
    fn an_offer_is_taken_with_the_kernels_word_even_when_the_sender_is_gone() {
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
    fn who_had_connected_is_taken_when_nobody_else_is_let_in_any_more() {
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
    fn other_messages_are_refused_and_do_not_disturb() {
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
