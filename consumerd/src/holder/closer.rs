//! Closes descriptors that local users sent, without letting the daemon wait for the close.
//!
//! The user who made a file decides how long its close takes: a connection that lingers (SO_LINGER) waits until its other
//! side reads, and a file in the user's own file system (FUSE) may wait for ever. This concerns unread messages, too: closing
//! a connection closes the descriptors in the messages that lie in it. So
//!
//! - no other code receives a message if it would then have to close descriptors itself, and a connection with unread messages
//!   is closed by the end of a thread, because a close at a thread's end waits for nothing ([`HangUp`]);
//! - descriptors that had to be received to be examined are closed by threads that nothing waits for. While a user blocks
//!   several such closes, nothing more is received from that user.

use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use blkin_daemon::Notices;
use blkin_ringbuf::HangUp;
use rustix::io::retry_on_intr;
use rustix::net::sockopt::{set_socket_passcred, socket_type};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, Shutdown, SocketType, recvmsg,
    shutdown,
};

/// Most threads that close received descriptors, each of which may be stuck.
const MAX_THREADS: usize = 16;
/// Received messages of one user that may be stuck, or wait for a thread, before nothing more is received from that user.
const MAX_OF_USER: usize = 4;
/// Received messages that may wait for a thread before nothing more is accepted from anybody.
const MAX_WAITING: usize = 64;
/// Connections that may wait to be closed before nothing more is accepted from anybody.
const MAX_CONNECTIONS: usize = 256;

/// A handle on the closing threads and on what waits for them.
#[derive(Clone, Debug)]
pub struct Closer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    /// `None` if no file descriptor was left for it: then a connection may block the thread that closes it.
    hang_up: Mutex<Option<HangUp>>,
}

#[derive(Debug, Default)]
struct State {
    /// The descriptors of each received message, and the user who sent it.
    received: VecDeque<(u32, Vec<OwnedFd>)>,
    /// How many messages of each user wait or are being closed.
    by_uid: HashMap<u32, usize>,
    threads: usize,
    /// Connections with unread messages.
    connections: VecDeque<OwnedFd>,
    /// A thread closes the connections.
    is_hanging_up: bool,
    notices: Notices,
    of_users: Notices,
    has_said_full: bool,
}

impl State {
    /// Logs when nothing more is accepted, and when it is again, but at a limited rate.
    fn tell(&mut self, is_full: bool) {
        if is_full && !self.has_said_full {
            if self.notices.admit(Instant::now()).is_some() {
                self.has_said_full = true;
                tracing::warn!(
                    "what local users sent to the daemon's sockets cannot be closed: they block the close, or send too \
                     much; the daemon accepts nothing there until it can close that"
                );
            }
        } else if !is_full && std::mem::take(&mut self.has_said_full) {
            tracing::info!("what local users sent can be closed again");
        }
    }

    fn tell_of_user(&mut self, uid: u32) {
        if let Some(held_back) = self.of_users.admit(Instant::now()) {
            tracing::warn!(
                uid,
                held_back,
                "descriptors that a user sent to a socket of the daemon cannot be closed, because he blocks the close: no \
                 program of this user is admitted until they are closed"
            );
        }
    }

    fn closed_one_of(&mut self, uid: u32) {
        if let Some(many) = self.by_uid.get_mut(&uid) {
            *many -= 1;
            if *many == 0 {
                self.by_uid.remove(&uid);
            }
        }
    }
}

impl Default for Closer {
    fn default() -> Self {
        Self(Arc::new(Inner { state: Mutex::default(), hang_up: Mutex::new(HangUp::new().ok()) }))
    }
}

impl Closer {
    /// Closes descriptors that came from a user.
    pub fn close(&self, uid: u32, foreign: Vec<OwnedFd>) {
        if foreign.is_empty() {
            return;
        }
        let mut state = self.state();
        *state.by_uid.entry(uid).or_default() += 1;
        state.received.push_back((uid, foreign));
        self.start_missing_threads(&mut state);
    }

    /// Closes a connection: at once if it holds no unread message, otherwise in a thread.
    pub fn hang_up(&self, connection: OwnedFd) {
        if !is_drained(&connection) {
            self.close_in_thread(connection);
        }
    }

    /// Closes a socket in a thread, whatever lies unread in it.
    pub fn close_in_thread(&self, socket: OwnedFd) {
        let mut state = self.state();
        state.connections.push_back(socket);
        self.start_missing_threads(&mut state);
    }

    /// Whether a user blocks so many closes that nothing more is to be received from him; his connections are to be closed.
    pub fn is_held_up_by(&self, uid: u32) -> bool {
        let mut state = self.state();
        self.start_missing_threads(&mut state);
        let is_held_up = state.by_uid.get(&uid).is_some_and(|many| *many >= MAX_OF_USER);
        if is_held_up {
            state.tell_of_user(uid);
        }
        is_held_up
    }

    /// Whether so much waits to be closed that nothing more is to be accepted from anybody.
    pub fn is_full(&self) -> bool {
        let mut state = self.state();
        // Starts the threads that could not be started before.
        self.start_missing_threads(&mut state);
        let is_full = state.received.len() >= MAX_WAITING || state.connections.len() >= MAX_CONNECTIONS;
        state.tell(is_full);
        is_full
    }

    fn start_missing_threads(&self, state: &mut State) {
        if !state.received.is_empty()
            && state.threads < MAX_THREADS
            && self.start_thread(Self::close_received).is_ok()
        {
            state.threads += 1;
        }
        if !state.connections.is_empty() && !state.is_hanging_up {
            state.is_hanging_up = self.start_thread(Self::hang_up_all).is_ok();
        }
    }

    fn start_thread(&self, work: fn(&Self)) -> io::Result<()> {
        let closer = self.clone();
        thread::Builder::new().name("blkin-closer".into()).spawn(move || work(&closer)).map(drop)
    }

    /// Closes received descriptors until none are left.
    fn close_received(&self) {
        while let Some((uid, foreign)) = self.next_received() {
            drop(foreign);
            self.state().closed_one_of(uid);
        }
    }

    /// What a thread is to close next; at `None` the thread ends.
    fn next_received(&self) -> Option<(u32, Vec<OwnedFd>)> {
        let mut state = self.state();
        let next = state.received.pop_front();
        if next.is_none() {
            state.threads -= 1;
        }
        next
    }

    /// Closes connections until none are left.
    fn hang_up_all(&self) {
        let mut hang_up = self.0.hang_up.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(connection) = self.next_connection() {
            match &mut *hang_up {
                // If this fails, the close may block this thread.
                Some(hang_up) => drop(hang_up.close(connection)),
                None => drop(connection),
            }
        }
    }

    fn next_connection(&self) -> Option<OwnedFd> {
        let mut state = self.state();
        let next = state.connections.pop_front();
        state.is_hanging_up = next.is_some();
        next
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a connection of a local socket holds no unread message, nor ever will.
fn is_drained(connection: &OwnedFd) -> bool {
    // From here on nothing more comes.
    if shutdown(connection, Shutdown::Read).is_err() {
        return false;
    }
    // An empty message may hide descriptors in the message behind it. With the sender's credentials beside it, an empty message
    // differs from the end of the stream.
    let has_messages = socket_type(connection) != Ok(SocketType::STREAM);
    if has_messages && set_socket_passcred(connection, true).is_err() {
        return false;
    }
    look(connection, &mut [0], &mut []).is_ok_and(|seen| seen.length == 0 && !seen.is_cut)
}

/// The next unread message of a connection, which stays in the connection.
#[derive(Debug)]
pub struct Seen {
    /// Number of bytes; 0 at the end of the stream.
    pub length: usize,
    /// Descriptors that came with the bytes.
    pub fds: Vec<OwnedFd>,
    /// There was not enough room for all of the bytes or descriptors.
    pub is_cut: bool,
}

/// Looks at the next unread message of a connection. Without `room` for descriptors, none of them gets into this process.
///
/// # Errors
/// `WouldBlock` when there is no message; any other error of the system.
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
    use rustix::net::sockopt::set_socket_linger;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use rustix::net::{AddressFamily, SocketFlags, socketpair};

    fn pair(kind: SocketType) -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap()
    }

    /// A connection whose close waits until its other side is gone, and that other side.
    fn lingering() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let mut connection = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let other = listener.accept().unwrap().0;
        connection.set_nonblocking(true).unwrap();
        while connection.write(&[0; 64 << 10]).is_ok() {}
        set_socket_linger(&connection, Some(Duration::from_secs(600))).unwrap();
        (connection.into(), other)
    }

    fn wait_until(is_so: impl Fn() -> bool) {
        let due = Instant::now() + Duration::from_secs(30);
        while !is_so() {
            assert!(Instant::now() < due);
            thread::yield_now();
        }
    }

    #[test]
    fn blocked_closes_count_against_their_user_until_closed() {
        let closer = Closer::default();
        let mut others = Vec::new();
        for _ in 0..MAX_OF_USER {
            assert!(!closer.is_held_up_by(1000));
            let (connection, other) = lingering();
            closer.close(1000, vec![connection]);
            others.push(other);
        }
        assert!(closer.is_held_up_by(1000) && !closer.is_held_up_by(1001) && !closer.is_full());
        let (ours, theirs) = pair(SocketType::STREAM);
        closer.close(1001, vec![ours]);
        assert_eq!(rustix::io::read(theirs, &mut [0; 1]), Ok(0), "the descriptor of another user is closed");
        drop(others);
        wait_until(|| !closer.is_held_up_by(1000));
        wait_until(|| closer.state().by_uid.is_empty());
    }

    #[test]
    fn the_closer_is_full_while_many_users_block_closes() {
        let closer = Closer::default();
        let mut others = Vec::new();
        for uid in 0..(MAX_THREADS + MAX_WAITING) as u32 {
            assert!(!closer.is_full(), "{uid}");
            let (connection, other) = lingering();
            closer.close(uid, vec![connection]);
            wait_until(|| closer.state().received.len() <= (uid as usize).saturating_sub(MAX_THREADS - 1));
            others.push(other);
        }
        assert!(closer.is_full());
        drop(others);
        wait_until(|| !closer.is_full());
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
    fn a_message_behind_an_empty_one_is_seen() {
        let (ours, theirs) = pair(SocketType::SEQPACKET);
        send(&theirs, b"", &[]).unwrap();
        send(&theirs, b"", &[theirs.as_fd()]).unwrap();
        assert!(!is_drained(&ours));
    }

    #[test]
    fn peeking_without_room_for_descriptors_consumes_nothing() {
        let (ours, theirs) = pair(SocketType::STREAM);
        send(&theirs, b"one", &[]).unwrap();
        send(&theirs, b"two", &[theirs.as_fd()]).unwrap();
        for _ in 0..2 {
            let seen = look(&ours, &mut [0; 16], &mut []).unwrap();
            assert_eq!((seen.length, seen.fds.len(), seen.is_cut), (6, 0, true));
        }
    }
}
