//! What the library tells people: one line on standard error, each kind at most once per process.

use std::fmt::{self, Write};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat, major, minor};
use rustix::io::{Errno, write};
use rustix::net::sockopt::socket_domain;
use rustix::net::{AddressFamily, SendFlags, SocketAddrAny, SocketAddrUnix, getpeername, getsockname, send};
use rustix::stdio::stderr;

use crate::unsignalled::Unsignalled;

/// A line that is said at most once.
pub(crate) struct OnceLine(AtomicBool);

impl OnceLine {
    /// Not yet said.
    pub(crate) const fn new() -> OnceLine {
        OnceLine(AtomicBool::new(false))
    }

    /// Writes `blkin: ` and the message to standard error, whole, the first time. Async-signal-safe. A standard error that
    /// is closed or full, that nobody reads any more, or that is something else by now, is ignored.
    pub(crate) fn say(&self, message: fmt::Arguments<'_>) {
        if self.0.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut line = Line { bytes: [0; 512], used: 0 };
        let written = line.write_str("blkin: ").and_then(|()| line.write_fmt(message));
        if written.is_err() {
            line.used = line.bytes.len() - 1;
        }
        line.bytes[line.used] = b'\n';
        put(&line.bytes[..=line.used]);
    }
}

/// Writes to standard error, if it takes that at once.
fn put(line: &[u8]) {
    let _unsignalled = Unsignalled::new();
    match place(stderr()) {
        Some(Place::Socket) => {
            let _ = send(stderr(), line, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
        Some(Place::File) if takes_at_once(stderr()) => {
            let _ = write(stderr(), line);
        }
        _ => {}
    }
}

/// Where lines for people go.
enum Place {
    /// As that of systemd's journal.
    Socket,
    /// A terminal, a pipe or a log.
    File,
}

/// What is open there, if lines for people may go to it. In a program that closed its standard error, whatever it opens next
/// gets that number, and a line there would be damage: in a disk, a connection to another machine, an eventfd, or a file that
/// it reads too. A log is a file that it only writes.
fn place(fd: BorrowedFd<'_>) -> Option<Place> {
    let stat = fstat(fd).ok()?;
    let is_for_people = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Socket => return is_log(fd, JOURNAL).then_some(Place::Socket),
        FileType::Fifo => true,
        FileType::CharacterDevice => is_terminal(major(stat.st_rdev), minor(stat.st_rdev)),
        FileType::RegularFile => fcntl_getfl(fd).is_ok_and(|flags| flags & OFlags::ACCMODE == OFlags::WRONLY),
        _ => false,
    };
    is_for_people.then_some(Place::File)
}

/// Prefix of the names of the sockets by which systemd's journals take standard errors.
const JOURNAL: &[u8] = b"/run/systemd/journal";

/// Whether a socket is one of a pair, as whoever started the program may have made it, or leads to a journal. A socket with a
/// name on either side is that of a service: the program has called the service, or is the service.
fn is_log(fd: BorrowedFd<'_>, journal: &[u8]) -> bool {
    const NAMELESS: usize = size_of::<libc::sa_family_t>();
    let length = |address: &SocketAddrAny| address.addr_len() as usize;
    if socket_domain(fd) != Ok(AddressFamily::UNIX)
        || !getsockname(fd).is_ok_and(|own| length(&own) == NAMELESS)
    {
        return false;
    }
    let Ok(Some(peer)) = getpeername(fd) else { return false };
    let leads_to_journal =
        |peer: SocketAddrUnix| peer.path_bytes().is_some_and(|path| path.starts_with(journal));
    match length(&peer) {
        NAMELESS => true,
        // A name of the greatest length has no 0 at its end, which rustix insists on.
        length => {
            length < size_of::<libc::sockaddr_un>()
                && SocketAddrUnix::try_from(peer).is_ok_and(leads_to_journal)
        }
    }
}

/// Consoles, serial lines and the lines of terminal emulators, by the kernel's list of devices (admin-guide/devices.txt). Not
/// the emulator's own side (`/dev/ptmx`): what is written there counts as typed, for example into a shell.
fn is_terminal(major: u32, minor: u32) -> bool {
    matches!((major, minor), (4 | 136..=143 | 204 | 229, _) | (5, 0 | 1))
}

/// Whether a line can be written now: a full pipe, or a stopped terminal, would hold the program up.
fn takes_at_once(fd: BorrowedFd<'_>) -> bool {
    const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut ready = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
    poll(&mut ready, Some(&AT_ONCE)) == Ok(1) && ready[0].revents().contains(PollFlags::OUT)
}

/// Why a system call failed. `Errno` itself would have libc describe it in allocated memory: a signal handler may have
/// interrupted the allocator, and a program that has no memory left would end there.
pub(crate) struct Reason(pub(crate) Errno);

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self.0 {
            Errno::ACCESS => "permission denied",
            Errno::AGAIN => "over the limit of locked memory",
            Errno::FBIG => "larger than a file may be",
            // Mostly from the seal against future writers (`F_SEAL_FUTURE_WRITE`).
            Errno::INVAL => "not supported by this kernel: Linux 5.1 or later is needed",
            Errno::MFILE => "too many open files",
            Errno::NFILE => "too many open files in the system",
            Errno::NOMEM => "out of memory",
            Errno::NOSPC => "no space left",
            Errno::NOSYS => "no such system call",
            Errno::PERM => "not permitted",
            _ => return write!(f, "error {}", self.0.raw_os_error()),
        };
        f.write_str(words)
    }
}

/// Room for one line on the stack, with space left for the line feed.
struct Line {
    bytes: [u8; 512],
    used: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.len() - 1 - self.used;
        let taken = text.len().min(room);
        self.bytes[self.used..self.used + taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.used += taken;
        if taken < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paired_socket_or_one_to_the_journal_counts_as_a_log() {
        use std::os::fd::AsFd;
        use std::os::unix::net::{UnixListener, UnixStream};

        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path();
        let journal = folder.as_os_str().as_encoded_bytes();
        let (one, _other) = UnixStream::pair().expect("a pair");
        assert!(is_log(one.as_fd(), JOURNAL));
        // Up to the longest name that an address holds.
        let longest = "x".repeat(106 - journal.len());
        for name in ["stdout", &longest] {
            let listener = UnixListener::bind(folder.join(name)).expect("the socket can be bound");
            let caller = UnixStream::connect(folder.join(name)).expect("the socket can be connected to");
            let (called, _) = listener.accept().expect("the connection is accepted");
            assert!(!is_log(caller.as_fd(), JOURNAL));
            assert_eq!(is_log(caller.as_fd(), journal), name == "stdout");
            assert!(!is_log(called.as_fd(), journal), "the service's own end is not a log");
        }
    }

    #[test]
    fn an_error_without_a_text_is_shown_as_its_number() {
        assert_eq!(Reason(Errno::MFILE).to_string(), "too many open files");
        assert_eq!(Reason(Errno::DOM).to_string(), "error 33");
    }
}
