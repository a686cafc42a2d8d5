//! Closing connections that may contain anything, without waiting for what they contain.
//!
//! What lies unread in a local socket is closed with it, by the thread that closes it last. That may wait, if the sender arranged
//! it so: a connection that lingers (SO_LINGER) waits until its other side has read. The kernel lets no ending thread wait
//! (`PF_EXITING` in `inet_release`, net/ipv4/af_inet.c). So the connection is closed last by a thread that has it in a descriptor
//! table of its own, and ends.

use std::ffi::c_uint;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::mpsc::{self, RecvError, SyncSender};
use std::thread;

use rustix::io::{DupFlags, dup3};

/// Name of the threads.
const NAME: &str = "blkin-hang-up";
/// The threads do next to nothing.
const STACK_BYTES: usize = 64 << 10;

/// Hangs up, one connection at a time.
#[derive(Debug)]
pub struct HangUp {
    nothing: File,
    /// A descriptor before all those that come later from others: a thread takes along the descriptors up to this one.
    place: OwnedFd,
}

impl HangUp {
    /// Must be called before anything foreign is opened.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub fn new() -> io::Result<Self> {
        let nothing = File::open("/dev/null")?;
        let place = nothing.as_fd().try_clone_to_owned()?;
        Ok(Self { nothing, place })
    }

    /// Closes a connection without waiting for what lies in it. No other descriptor of this process may refer to it.
    ///
    /// # Errors
    /// When no such thread can be had (before Linux 5.9, or for lack of memory): the connection, which is still open.
    pub fn close(&mut self, connection: OwnedFd) -> Result<(), OwnedFd> {
        let put = dup3(&connection, &mut self.place, DupFlags::CLOEXEC);
        let ending = put.map_err(io::Error::from).and_then(|()| Ending::with_all_before(self.end()));
        let Ok(ending) = ending else {
            self.clear();
            return Err(connection);
        };
        // The thread has the connection, too: closing either of these descriptors is not the last close.
        drop(connection);
        self.clear();
        drop(ending);
        Ok(())
    }

    /// The first descriptor that no thread takes along.
    fn end(&self) -> c_uint {
        self.place.as_raw_fd().cast_unsigned() + 1
    }

    fn clear(&mut self) {
        // Both are open, so this cannot fail.
        let _ = dup3(&self.nothing, &mut self.place, DupFlags::CLOEXEC);
    }
}

/// A thread that has a descriptor table of its own, and ends when this is dropped.
struct Ending(#[expect(dead_code, reason = "the thread waits until it is gone")] SyncSender<()>);

impl Ending {
    /// Takes along the descriptors before `end`.
    fn with_all_before(end: c_uint) -> io::Result<Self> {
        let (to_end, told_to_end) = mpsc::sync_channel(0);
        let (to_say, said) = mpsc::sync_channel(1);
        let work = move || {
            let _ = to_say.send(leave_table(end));
            let _ = told_to_end.recv();
        };
        thread::Builder::new().name(NAME.into()).stack_size(STACK_BYTES).spawn(work)?;
        said.recv().map_err(|RecvError| io::ErrorKind::BrokenPipe)??;
        Ok(Self(to_end))
    }
}

/// Gives this thread a table of descriptors of its own, with those before `end`.
fn leave_table(end: c_uint) -> io::Result<()> {
    // SAFETY: no address is passed on (invariant 10), and this thread uses no descriptor from here on (invariant 12).
    let done = unsafe { libc::syscall(libc::SYS_close_range, end, c_uint::MAX, libc::CLOSE_RANGE_UNSHARE) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::path::Path;
    use std::time::{Duration, Instant};

    use rustix::net::sockopt::set_socket_linger;
    use rustix::net::{
        AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
        sendmsg, socketpair,
    };

    use super::*;

    /// A connection that contains another one, which lingers with data that its other side, also returned, does not read.
    fn connection_with_a_lingering_one() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let mut lingering = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let unread = listener.accept().unwrap().0;
        lingering.set_nonblocking(true).unwrap();
        while lingering.write(&[0; 64 << 10]).is_ok() {}
        set_socket_linger(&lingering, Some(Duration::from_secs(600))).unwrap();
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let mut room = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = SendAncillaryBuffer::new(&mut room);
        let fds = [lingering.as_fd()];
        assert!(beside.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(&theirs, &[io::IoSlice::new(b"x")], &mut beside, SendFlags::empty()).unwrap();
        (ours, unread)
    }

    fn is_hanging_up() -> bool {
        let tasks = Path::new("/proc/self/task").read_dir().unwrap().flatten();
        tasks
            .filter_map(|task| std::fs::read(task.path().join("comm")).ok())
            .any(|comm| comm.trim_ascii() == NAME.as_bytes())
    }

    #[test]
    fn closing_does_not_wait_for_a_lingering_socket_inside() {
        let mut hang_up = HangUp::new().unwrap();
        let (connection, unread) = connection_with_a_lingering_one();
        let number = connection.as_raw_fd();
        hang_up.close(connection).unwrap();
        assert!(rustix::fs::readlink(format!("/proc/self/fd/{number}"), Vec::new()).is_err());
        let due = Instant::now() + Duration::from_secs(10);
        while is_hanging_up() {
            assert!(Instant::now() < due, "the closing thread waits for the lingering socket");
            thread::yield_now();
        }
        drop(unread);
    }
}
