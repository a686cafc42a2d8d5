//! What the library tells people: one line on standard error, each kind at most once a process.

use std::fmt::{self, Write};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};
use rustix::io::{Errno, write};
use rustix::net::{SendFlags, send};
use rustix::stdio::stderr;

use crate::unsignalled::Unsignalled;

/// A line that is said at most once.
pub(crate) struct Once(AtomicBool);

impl Once {
    /// Not yet said.
    pub(crate) const fn new() -> Once {
        Once(AtomicBool::new(false))
    }

    /// Writes `blkin: ` and the message to standard error, whole, the first time. Async-signal-safe; a standard error that
    /// is closed or full, that nobody reads any more, or that holds data of the program's, is ignored.
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
    const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
    let _unsignalled = Unsignalled::new();
    if send(stderr(), line, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) != Err(Errno::NOTSOCK) {
        return;
    }
    if is_data(stderr()) {
        return;
    }
    // A pipe that is full, or a terminal that was stopped, would hold the program up for as long as it is.
    let mut stderr_ready = [PollFd::from_borrowed_fd(stderr(), PollFlags::OUT)];
    if poll(&mut stderr_ready, Some(&AT_ONCE)) == Ok(1) && stderr_ready[0].revents().contains(PollFlags::OUT)
    {
        let _ = write(stderr(), line);
    }
}

/// Whether what is open there holds data of the program's: one that closed its standard error may have got that number for a disk,
/// or for a file. It reads these, too; a log it only writes.
fn is_data(fd: BorrowedFd<'_>) -> bool {
    let Ok(stat) = fstat(fd) else { return false };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice => true,
        FileType::RegularFile => fcntl_getfl(fd).is_ok_and(|flags| flags & OFlags::ACCMODE == OFlags::RDWR),
        _ => false,
    }
}

/// Why a system call failed. `Errno` itself would have libc say it in memory of the allocator: a handler may have interrupted that, and a
/// program that has no memory left would end there.
pub(crate) struct Reason(pub(crate) Errno);

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self.0 {
            Errno::ACCESS => "permission denied",
            Errno::AGAIN => "more memory than may be locked",
            Errno::FBIG => "larger than a file may be",
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
    fn a_reason_that_has_no_words_is_a_number() {
        assert_eq!(Reason(Errno::MFILE).to_string(), "too many open files");
        assert_eq!(Reason(Errno::DOM).to_string(), "error 33");
    }
}
