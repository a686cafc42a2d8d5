//! Closes what others sent, without waiting for it.
//!
//! A close takes as long as whoever made the file likes: of a connection that lingers (SO_LINGER) until its other side
//! reads, of a file in a file system of his own (FUSE) for ever. It need not be a descriptor that was received: a message that
//! nobody received is closed with the connection in which it lies. So
//!
//! - nobody receives a message of which he would have to close something himself, and a connection in which something lies is
//!   closed by a thread that ends, for that waits for nothing ([`HangUp`]);
//! - what had to be received to be looked at is closed by threads that nothing waits for. Of a user who holds up
//!   some, nothing is received any more.

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

/// Most threads that close what was received, each of which may be stuck.
const MAX_THREADS: usize = 16;
/// So much of one user may be stuck, or wait for a thread, before no more is received from him.
const MAX_OF_USER: usize = 4;
/// When so much that was received waits for a thread,
const MAX_WAITING: usize = 64;
/// or so many connections, no more is to be taken from anybody.
const MAX_CONNECTIONS: usize = 256;

/// A handle on the threads and on what waits for them.
#[derive(Clone, Debug)]
pub struct Closer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    /// Nothing if there was no descriptor left: then a connection holds up the thread that closes it.
    hang_up: Mutex<Option<HangUp>>,
}

#[derive(Debug, Default)]
struct State {
    /// What was received, and from which user.
    received: VecDeque<(u32, Vec<OwnedFd>)>,
    /// How much of each user waits or is being closed.
    by_uid: HashMap<u32, usize>,
    threads: usize,
    /// Connections in which something lies.
    connections: VecDeque<OwnedFd>,
    /// A thread hangs them up.
    is_hanging_up: bool,
    notices: Notices,
    of_users: Notices,
    has_said_full: bool,
}

impl State {
    /// Says when no more is taken, and when it is again; but not each of many times.
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
        self.staff(&mut state);
    }

    /// Closes a connection: here, if nothing is left in it that its other side sent.
    pub fn hang_up(&self, connection: OwnedFd) {
        if !is_drained(&connection) {
            self.let_go(connection);
        }
    }

    /// Closes a socket, whatever others left in it.
    pub fn let_go(&self, socket: OwnedFd) {
        let mut state = self.state();
        state.connections.push_back(socket);
        self.staff(&mut state);
    }

    /// Whether a user holds up so much that no more is to be received from him: his connections are to be hung up.
    pub fn is_held_up_by(&self, uid: u32) -> bool {
        let mut state = self.state();
        self.staff(&mut state);
        let is_held_up = state.by_uid.get(&uid).is_some_and(|many| *many >= MAX_OF_USER);
        if is_held_up {
            state.tell_of_user(uid);
        }
        is_held_up
    }

    /// Whether so much cannot be closed that no more is to be taken from others.
    pub fn is_full(&self) -> bool {
        let mut state = self.state();
        // Those that could not be started before.
        self.staff(&mut state);
        let is_full = state.received.len() >= MAX_WAITING || state.connections.len() >= MAX_CONNECTIONS;
        state.tell(is_full);
        is_full
    }

    fn staff(&self, state: &mut State) {
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

    /// As long as there is something.
    fn close_received(&self) {
        while let Some((uid, foreign)) = self.next_received() {
            drop(foreign);
            self.state().closed_one_of(uid);
        }
    }

    /// What a thread is to close next; without it, the thread ends.
    fn next_received(&self) -> Option<(u32, Vec<OwnedFd>)> {
        let mut state = self.state();
        let next = state.received.pop_front();
        if next.is_none() {
            state.threads -= 1;
        }
        next
    }

    /// As long as there are some.
    fn hang_up_all(&self) {
        let mut hang_up = self.0.hang_up.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(connection) = self.next_connection() {
            match &mut *hang_up {
                // Where that cannot be done, this thread may be stuck with it.
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
    use rustix::net::sockopt::set_socket_linger;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use rustix::net::{AddressFamily, SocketFlags, socketpair};

    fn pair(kind: SocketType) -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap()
    }

    /// A connection that waits, when it is closed, until its other side is gone, which comes beside it.
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
    fn nothing_more_is_received_from_a_user_who_holds_up_what_he_sent_until_it_can_be_closed() {
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
        assert_eq!(rustix::io::read(theirs, &mut [0; 1]), Ok(0), "closed");
        drop(others);
        wait_until(|| !closer.is_held_up_by(1000));
        wait_until(|| closer.state().by_uid.is_empty());
    }

    #[test]
    fn when_many_users_hold_up_what_they_sent_nobody_is_heard_until_it_can_be_closed() {
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
