//! What holder and worker say to each other: SEQPACKET messages, descriptors beside them.
//!
//! Holder to worker: `Hello` (settings, and whether what is held is kept over a restart; staging memory, HTTP listener,
//! control socket and file of rules), then `Attach` for
//! every program that is held (segment and control page), then `Complete`; later a further `Attach` for each new program,
//! and all the time a `Beat` now and then, for `/healthz`: while the holder is stuck no program is taken in. The end of the
//! stream asks the worker to ship what it has and to end. Worker to holder: `Ready` once it has rebuilt its state,
//! `Release` when a program's descriptors are no longer needed; its own heartbeat is in the staging memory.

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

/// Longest message.
pub const MAX_MESSAGE_BYTES: usize = 64 << 10;
/// Most descriptors beside one message.
const MAX_FDS: usize = 4;
/// Bytes of a program's name as the kernel knows it.
pub const COMM_BYTES: usize = 16;

/// Shown of a process that nothing is known of any more.
pub const NAMELESS: &str = "?";

/// The name of a process as it is shown, of its bytes: up to a zero, and without the line's end behind it. Of what is neither
/// letter nor number, only ASCII is shown: nothing that drives a terminal, or is there to reorder a line.
pub fn shown_name(bytes: &[u8]) -> String {
    let bytes = &bytes[..bytes.len().min(COMM_BYTES)];
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    let is_shown = |c: char| c.is_alphanumeric() || c.is_ascii_graphic() || c == ' ';
    let shown = |c: char| if is_shown(c) { c } else { '?' };
    let clean: String = String::from_utf8_lossy(text).trim_end().chars().map(shown).collect();
    if clean.is_empty() { NAMELESS.into() } else { clean }
}

/// A program as the kernel describes it; nothing here is the program's own word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The holder's number, never used twice.
    pub number: u64,
    /// User.
    pub uid: u32,
    /// Process.
    pub pid: u32,
    /// First 15 bytes of its name.
    pub comm: String,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The settings and whether what is held is kept over a restart, as JSON.
    Hello(Vec<u8>),
    /// A program.
    Attach(Program),
    /// Every program that was held when the worker started has been named.
    Complete,
    /// The holder is alive.
    Beat,
    /// The worker has rebuilt its state.
    Ready,
    /// The descriptors of this program are no longer needed.
    Release(u64),
}

impl Message {
    /// One byte that names it, then its content.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Hello(json) => [b"H", json.as_slice()].concat(),
            Self::Attach(program) => encode_attach(program),
            Self::Complete => b"C".to_vec(),
            Self::Beat => b"B".to_vec(),
            Self::Ready => b"R".to_vec(),
            Self::Release(number) => [b"X".as_slice(), &number.to_le_bytes()].concat(),
        }
    }

    /// The other way round; `None` when the bytes are no message.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (tag, rest) = bytes.split_first()?;
        match (tag, rest.len()) {
            (b'H', _) => Some(Self::Hello(rest.to_vec())),
            (b'A', _) => decode_attach(rest).map(Self::Attach),
            (b'C', 0) => Some(Self::Complete),
            (b'B', 0) => Some(Self::Beat),
            (b'R', 0) => Some(Self::Ready),
            (b'X', 8) => Some(Self::Release(u64::from_le_bytes(rest.try_into().ok()?))),
            _ => None,
        }
    }
}

fn encode_attach(program: &Program) -> Vec<u8> {
    let mut out = b"A".to_vec();
    out.extend_from_slice(&program.number.to_le_bytes());
    out.extend_from_slice(&program.uid.to_le_bytes());
    out.extend_from_slice(&program.pid.to_le_bytes());
    out.extend_from_slice(program.comm.as_bytes());
    out
}

fn decode_attach(rest: &[u8]) -> Option<Program> {
    let (number, rest) = rest.split_first_chunk::<8>()?;
    let (uid, rest) = rest.split_first_chunk::<4>()?;
    let (pid, comm) = rest.split_first_chunk::<4>()?;
    Some(Program {
        number: u64::from_le_bytes(*number),
        uid: u32::from_le_bytes(*uid),
        pid: u32::from_le_bytes(*pid),
        comm: String::from_utf8(comm.to_vec()).ok()?,
    })
}

/// Sends one message and the descriptors beside it, whole or not at all.
///
/// # Errors
/// `WouldBlock` when the other side does not read; whatever else the system says.
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

/// Waits for a descriptor within the runtime.
///
/// # Errors
/// When the runtime cannot watch it.
#[allow(deprecated)]
pub fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // The safe constructor is deprecated because a type may close its descriptor while it is watched; one that owns
    // it, and is owned by what watches it, cannot.
    AsyncFd::with_interest(fd, Interest::READABLE)
}

/// Comes back when a timer or an eventfd that is [watched](watch) has something to tell, and takes it.
///
/// # Errors
/// Whatever the system says; of a timer that is cancelled with the clock, `ECANCELED`.
pub async fn told(fd: &AsyncFd<OwnedFd>) -> io::Result<()> {
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

/// One message as it came.
#[derive(Debug, Default)]
pub struct Received {
    /// Its bytes; none at the end of the stream.
    pub bytes: Vec<u8>,
    /// Descriptors beside it.
    pub fds: Vec<OwnedFd>,
    /// It was longer, or had more descriptors, than a message may.
    pub cut: bool,
}

/// Receives one message of at most `max_bytes`.
///
/// # Errors
/// `WouldBlock` when the socket does not block and nothing is there; whatever else the system says.
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
    fn every_message_reads_back_and_nothing_else_does() {
        let program = Program { number: 7, uid: 1000, pid: 42, comm: "osd".into() };
        let all = [
            Message::Hello(b"{}".to_vec()),
            Message::Attach(program),
            Message::Complete,
            Message::Beat,
            Message::Ready,
            Message::Release(9),
        ];
        for message in all {
            assert_eq!(Message::decode(&message.encode()), Some(message));
        }
        for bad in [&b""[..], b"Z", b"X123", b"Rx", b"A12"] {
            assert_eq!(Message::decode(bad), None);
        }
    }

    #[test]
    fn a_name_is_shown_on_one_line_and_a_missing_one_as_such() {
        for (bytes, shown) in [
            (&b"ceph-osd\n"[..], "ceph-osd"),
            (b"osd\0\0\0\0", "osd"),
            (b"a\nb\x1b\xff\n", "a?b??"),
            ("größe (1)".as_bytes(), "größe (1)"),
            ("a\u{202e}b\u{2028}".as_bytes(), "a?b"),
            (b"0123456789abcdefgh", "0123456789abcdef"),
            (b"", NAMELESS),
            (&[0; 16], NAMELESS),
            (b"\n", NAMELESS),
        ] {
            assert_eq!(shown_name(bytes), shown, "{bytes:?}");
        }
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
    fn a_message_that_is_too_long_is_marked_and_the_end_is_empty() {
        let (a, b) = pair();
        send(&a, &[1; 40], &[]).unwrap();
        assert!(receive(&b, 16).unwrap().cut);
        drop(a);
        assert!(receive(&b, 16).unwrap().bytes.is_empty());
    }
}
