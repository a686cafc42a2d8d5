//! The consumer's mappings of what a program offered.

use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::fs::{Mode, OFlags, open};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::attach::AttachError;

/// A mapping that is unmapped with its owner (invariant 2).
pub(crate) struct Mapping {
    start: NonNull<AtomicU64>,
    bytes: usize,
}

// SAFETY: the memory is only seen as atomic words (invariant 3), and belongs to no thread.
unsafe impl Send for Mapping {}
// SAFETY: as above; shared references only give atomic access (invariant 3).
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps through a descriptor that was opened for reading alone, so that our own mapping never counts as one that
    /// might write (see `no_writer_left`); where /proc is not there, through the given one.
    pub(crate) fn read_only(fd: &OwnedFd, bytes: usize) -> Result<Mapping, AttachError> {
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        match open(path.as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(reopened) => Mapping::of(&reopened, bytes, ProtFlags::READ),
            Err(_) => Mapping::of(fd, bytes, ProtFlags::READ),
        }
    }

    pub(crate) fn of(fd: &OwnedFd, bytes: usize, access: ProtFlags) -> Result<Mapping, AttachError> {
        // SAFETY: a new mapping at a place of the kernel's choice touches nothing that exists. The file is sealed
        // against shrinking, so that no access can fail for want of pages (invariant 2).
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, fd, 0) }
            .map_err(|error| AttachError::System("map a descriptor", error))?;
        let start = NonNull::new(start.cast()).ok_or(AttachError::Header("mapped at 0"))?;
        Ok(Mapping { start, bytes })
    }

    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: page-aligned and mapped for as long as `self` lives (invariants 2 and 3).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes / 8) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping this value made, and every reference into it borrowed this value. An
        // error would leave it mapped, which harms nobody (invariant 2).
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
