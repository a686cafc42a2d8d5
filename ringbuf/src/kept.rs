//! What is kept outside the state that fork wipes: descriptors, texts of the environment; and the caller's errno.

use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize};

use crate::segment::{self, Identity};
use crate::uncancelled::Uncancelled;

/// A descriptor of ours, outside the wiped pages: a forked child has to close what it inherited.
pub(crate) struct Descriptor {
    fd: AtomicI32,
    device: AtomicU64,
    inode: AtomicU64,
}

impl Descriptor {
    const fn none() -> Descriptor {
        Descriptor { fd: AtomicI32::new(-1), device: AtomicU64::new(0), inode: AtomicU64::new(0) }
    }

    pub(crate) fn keep(&self, fd: Uncancelled, identity: Identity) {
        self.device.store(identity.device, Relaxed);
        self.inode.store(identity.inode, Relaxed);
        self.fd.store(fd.into_raw_fd(), Relaxed);
    }

    /// The descriptor, if it is still our memfd: the program may have closed it and opened something else there.
    pub(crate) fn still_open(&self) -> Option<BorrowedFd<'static>> {
        let fd = self.fd.load(Relaxed);
        let identity = Identity { device: self.device.load(Relaxed), inode: self.inode.load(Relaxed) };
        // SAFETY: a number that is open, or answers EBADF, is all that the check needs, and what passes it is ours
        // (invariant 18).
        let fd = (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })?;
        segment::is_still(fd, identity).then_some(fd)
    }

    /// Closes it in a forked child, which has its parent's descriptors but not their mappings. Returns whether this process is a
    /// child of one that recorded.
    pub(crate) fn close_inherited(&self) -> bool {
        if let Some(open) = self.still_open() {
            // SAFETY: the descriptor was made by this library and still is that memfd, and nobody else will use it
            // (invariant 18).
            let _failed = unsafe { rustix::io::try_close(open.as_raw_fd()) };
        }
        self.fd.swap(-1, Relaxed) >= 0
    }
}

/// A text from the environment: by the time it is needed, the program may be changing the environment.
pub(crate) struct KeptText {
    bytes: AtomicUsize,
    words: [AtomicU64; KeptText::WORDS],
}

impl KeptText {
    /// More than the address of a socket holds, or a number has digits: a longer text is refused when it is used.
    const WORDS: usize = 16;

    pub(crate) const fn none() -> KeptText {
        KeptText { bytes: AtomicUsize::new(0), words: [const { AtomicU64::new(0) }; KeptText::WORDS] }
    }

    pub(crate) fn keep(&self, text: &[u8]) {
        let kept = &text[..text.len().min(Self::WORDS * 8)];
        for (word, chunk) in self.words.iter().zip(kept.chunks(8)) {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            word.store(u64::from_le_bytes(bytes), Relaxed);
        }
        self.bytes.store(kept.len(), Relaxed);
    }

    pub(crate) fn with<T>(&self, body: impl FnOnce(&[u8]) -> T) -> T {
        let mut text = [0; KeptText::WORDS * 8];
        for (word, bytes) in self.words.iter().zip(text.chunks_mut(8)) {
            bytes.copy_from_slice(&word.load(Relaxed).to_le_bytes());
        }
        body(&text[..self.bytes.load(Relaxed).min(text.len())])
    }
}

pub(crate) static SEGMENT: Descriptor = Descriptor::none();
pub(crate) static CONTROL: Descriptor = Descriptor::none();

/// Restores the caller's errno when dropped: libc may set it where nothing failed (getauxval does).
pub(crate) struct KeptErrno(libc::c_int);

impl KeptErrno {
    pub(crate) fn new() -> KeptErrno {
        // SAFETY: no preconditions (invariant 14).
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: the thread's own errno (invariant 15).
        KeptErrno(unsafe { *errno })
    }
}

impl Drop for KeptErrno {
    fn drop(&mut self) {
        // SAFETY: no preconditions (invariant 14).
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: the thread's own errno (invariant 15).
        unsafe { *errno = self.0 };
    }
}
