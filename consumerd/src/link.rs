//! Messages between holder and worker: SEQPACKET messages with descriptors.
//!
//! Holder to worker: `Hello` (the settings, and whether what is held is kept over a restart; with the descriptors of staging
//! memory, HTTP listener, control socket and rules file), then `Attach` for every held program (with its segment and control
//! page), then `Complete`; later a further `Attach` for each new program. A `Beat` comes regularly, for `/healthz`, because no
//! program is admitted while the holder is stuck. The end of the stream asks the worker to ship what it has and to end.
//!
//! Worker to holder: `Ready` once it has rebuilt its state, and `Release` when a program's descriptors are no longer needed. The
//! worker's heartbeat is in the staging memory.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

mod message;

pub use message::{COMM_BYTES, Message, NAMELESS, Program, shown_name};

/// Longest message.
pub const MAX_MESSAGE_BYTES: usize = 64 << 10;
/// Most descriptors with one message.
const MAX_FDS: usize = 4;

/// Sends one message with its descriptors, whole or not at all.
///
/// # Errors
/// `WouldBlock` when the other side does not read; any other error of the system.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    loop {
        match sendmsg(
            &socket,
            &[IoSlice::new(bytes)],
            &mut control,
            SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
        ) {
            Err(Errno::INTR) => {}
            other => return other.map(drop).map_err(io::Error::from),
        }
    }
}

/// Registers a descriptor with the runtime, to wait until it is readable.
///
/// # Errors
/// When the runtime cannot watch it.
#[allow(deprecated)]
pub fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // The safe constructor is deprecated because a type may close its descriptor while it is watched; one that owns
    // it, and is owned by what watches it, cannot.
    AsyncFd::with_interest(fd, Interest::READABLE)
}

/// Returns when a [watched](watch) timer has expired or a watched eventfd was written, and resets it.
///
/// # Errors
/// Any error of the system; `ECANCELED` for a timer that was cancelled because the clock was set.
pub async fn wait_and_reset(fd: &AsyncFd<OwnedFd>) -> io::Result<()> {
    loop {
        let mut guard = fd.readable().await?;
        let read = rustix::io::read(fd.get_ref(), &mut [0; 8]);
        guard.clear_ready();
        match read {
            Err(Errno::AGAIN) => {}
            other => return Ok(other.map(drop)?),
        }
    }
}

/// A received message.
#[derive(Debug, Default)]
pub struct Received {
    /// Its bytes; empty at the end of the stream.
    pub bytes: Vec<u8>,
    /// Its descriptors.
    pub fds: Vec<OwnedFd>,
    /// It was longer, or had more descriptors, than there was room for.
    pub cut: bool,
}

/// Receives one message of at most `max_bytes`.
///
/// # Errors
/// `WouldBlock` when the socket is non-blocking and nothing is there; any other error of the system.
pub fn receive(socket: impl AsFd, max_bytes: usize) -> io::Result<Received> {
    let mut bytes = vec![0; max_bytes];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    bytes.truncate(message.bytes);
    let mut fds = Vec::new();
    for ancillary in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = ancillary {
            fds.extend(received);
        }
    }
    Ok(Received { bytes, fds, cut: message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn descriptors_travel_beside_a_message() {
        let (a, b) = pair();
        let file = std::fs::File::open("/dev/null").unwrap();
        send(&a, b"hi", &[file.as_fd(), file.as_fd()]).unwrap();
        let received = receive(&b, 16).unwrap();
        assert_eq!((received.bytes.as_slice(), received.fds.len(), received.cut), (&b"hi"[..], 2, false));
    }

    #[test]
    fn a_long_message_is_marked_cut_and_the_end_reads_empty() {
        let (a, b) = pair();
        send(&a, &[1; 40], &[]).unwrap();
        assert!(receive(&b, 16).unwrap().cut);
        drop(a);
        assert!(receive(&b, 16).unwrap().bytes.is_empty());
    }
}
