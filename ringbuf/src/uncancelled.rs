//! Descriptors that close without being a cancellation point.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};

/// A descriptor that is closed by the system call alone. An [`OwnedFd`] is closed by libc's `close`, which is a cancellation
/// point: a cancelled thread would end there, and unwinding it out of a record ends the program. Keeps errno.
#[derive(Debug)]
pub(crate) struct Uncancelled(ManuallyDrop<OwnedFd>);

impl From<OwnedFd> for Uncancelled {
    fn from(fd: OwnedFd) -> Self {
        Self(ManuallyDrop::new(fd))
    }
}

impl AsFd for Uncancelled {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Uncancelled {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl IntoRawFd for Uncancelled {
    fn into_raw_fd(self) -> RawFd {
        ManuallyDrop::new(self).as_raw_fd()
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // A filter of system calls may answer with an error, which rustix's `close` takes for impossible.
        // SAFETY: the descriptor is this value's own, and is closed with it (invariant 18).
        let _failed = unsafe { rustix::io::try_close(self.0.as_raw_fd()) };
    }
}
