//! Closes what others sent, without waiting for it.
//!
//! The last close of a file takes as long as whoever made the file likes: of a connection that lingers (SO_LINGER) until its
//! other side reads, of a file in a file system of his own (FUSE) for ever. It need not be a descriptor that was received: a
//! message that nobody received is closed with the connection in which it lies. So threads close both, that nothing waits
//! for, and nobody receives a message of which he would have to close something himself.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use blkin_daemon::Notices;
use rustix::io::retry_on_intr;
use rustix::net::sockopt::{set_socket_passcred, socket_type};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, Shutdown, SocketType, recvmsg,
    shutdown,
};

/// Most threads, each of which may be stuck.
const MAX_THREADS: usize = 8;
/// When so much waits for a thread, no more is to be taken from others.
const MAX_WAITING: usize = 64;

/// A handle on the threads and on what waits for them.
#[derive(Clone, Debug, Default)]
pub struct Closer(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Vec<OwnedFd>>,
    threads: usize,
    notices: Notices,
    has_said_full: bool,
}

impl State {
    /// Says when no more is taken, and when it is again; but not each of many times.
    fn tell(&mut self, is_full: bool) {
        if is_full && !self.has_said_full {
            if self.notices.admit(Instant::now()).is_some() {
                self.has_said_full = true;
                tracing::warn!(
                    "what local users sent to a socket of the daemon cannot be closed, for they hold that up, or send too \
                     much: nobody is heard there until it can be"
                );
            }
        } else if !is_full && std::mem::take(&mut self.has_said_full) {
            tracing::info!("what local users sent can be closed again");
        }
    }
}

impl Closer {
    /// Closes descriptors that came from others.
    pub fn close(&self, foreign: Vec<OwnedFd>) {
        if foreign.is_empty() {
            return;
        }
        let mut state = self.state();
        state.waiting.push_back(foreign);
        self.staff(&mut state);
    }

    /// Closes a connection: here, if nothing is left in it that its other side sent.
    pub fn hang_up(&self, connection: OwnedFd) {
        if !is_drained(&connection) {
            self.close(vec![connection]);
        }
    }

    /// Whether so much cannot be closed that no more is to be taken from others.
    pub fn is_full(&self) -> bool {
        let mut state = self.state();
        // Those that could not be started before.
        self.staff(&mut state);
        let is_full = state.waiting.len() >= MAX_WAITING;
        state.tell(is_full);
        is_full
    }

    fn staff(&self, state: &mut State) {
        if !state.waiting.is_empty() && state.threads < MAX_THREADS && self.start_thread().is_ok() {
            state.threads += 1;
        }
    }

    fn start_thread(&self) -> io::Result<()> {
        let closer = self.clone();
        let work = move || {
            while let Some(foreign) = closer.next() {
                drop(foreign);
            }
        };
        thread::Builder::new().name("blkin-closer".into()).spawn(work).map(drop)
    }

    /// What a thread is to close next; without it, the thread ends.
    fn next(&self) -> Option<Vec<OwnedFd>> {
        let mut state = self.state();
        let next = state.waiting.pop_front();
        if next.is_none() {
            state.threads -= 1;
        }
        next
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether nothing lies in a connection of a local socket, nor ever will.
fn is_drained(connection: &OwnedFd) -> bool {
    // From here on nothing more comes.
    if shutdown(connection, Shutdown::Read).is_err() {
        return false;
    }
    // A message may be empty, and descriptors lie in the next: one that comes with its sender differs from the end.
    let has_messages = socket_type(connection) != Ok(SocketType::STREAM);
    if has_messages && set_socket_passcred(connection, true).is_err() {
        return false;
    }
    look(connection, &mut [0], &mut []).is_ok_and(|seen| seen.length == 0 && !seen.is_cut)
}

/// What lies in a connection, and stays there.
#[derive(Debug)]
pub struct Seen {
    /// So many bytes, of one message; none at the end of the stream.
    pub length: usize,
    /// Descriptors beside them.
    pub fds: Vec<OwnedFd>,
    /// There is no room for all of its bytes or descriptors.
    pub is_cut: bool,
}

/// Looks at what lies in a connection. Without `room` for descriptors, nothing that is foreign gets into this process.
///
/// # Errors
/// `WouldBlock` when nothing is there; whatever else the system says.
pub fn look(socket: impl AsFd, bytes: &mut [u8], room: &mut [MaybeUninit<u8>]) -> io::Result<Seen> {
    let mut control = RecvAncillaryBuffer::new(room);
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let message = retry_on_intr(|| recvmsg(&socket, &mut [IoSliceMut::new(bytes)], &mut control, flags))?;
    let fds = control.drain().filter_map(|ancillary| match ancillary {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    Ok(Seen {
        length: message.bytes,
        fds: fds.flatten().collect(),
        is_cut: message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::send;
    use rustix::net::{AddressFamily, SocketFlags, socketpair};

    fn pair(kind: SocketType) -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn a_connection_is_drained_when_nothing_is_left_in_it() {
        for kind in [SocketType::SEQPACKET, SocketType::STREAM] {
            let (ours, theirs) = pair(kind);
            assert!(is_drained(&ours), "{kind:?}");
            assert!(send(&theirs, b"late", &[]).is_err(), "{kind:?}");
            let (ours, theirs) = pair(kind);
            drop(theirs);
            assert!(is_drained(&ours), "{kind:?}");
            let (ours, theirs) = pair(kind);
            send(&theirs, b"x", &[]).unwrap();
            assert!(!is_drained(&ours), "{kind:?}");
            drop(theirs);
            assert!(!is_drained(&ours), "{kind:?}");
        }
    }

    #[test]
    fn what_lies_behind_an_empty_message_is_seen() {
        let (ours, theirs) = pair(SocketType::SEQPACKET);
        send(&theirs, b"", &[]).unwrap();
        send(&theirs, b"", &[theirs.as_fd()]).unwrap();
        assert!(!is_drained(&ours));
    }

    #[test]
    fn what_is_looked_at_stays_and_its_descriptors_are_no_ones_without_room() {
        let (ours, theirs) = pair(SocketType::STREAM);
        send(&theirs, b"one", &[]).unwrap();
        send(&theirs, b"two", &[theirs.as_fd()]).unwrap();
        for _ in 0..2 {
            let seen = look(&ours, &mut [0; 16], &mut []).unwrap();
            assert_eq!((seen.length, seen.fds.len(), seen.is_cut), (6, 0, true));
        }
    }
}
