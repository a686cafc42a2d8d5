//! The segment that this process writes, as a consumer gets it.

use std::os::fd::OwnedFd;

use blkin_ringbuf::Attachment;
use blkin_ringbuf::layout::{CONTROL_NAME, SEGMENT_NAME};
use rustix::fs::{Mode, OFlags, open};

/// This process' own memfd of that name, opened anew as the descriptor that an offer carries.
pub(crate) fn own_memfd(name: &str) -> OwnedFd {
    let wanted = format!("/memfd:{name} (deleted)");
    let entries = std::fs::read_dir("/proc/self/fd").expect("/proc is there");
    let path = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .find(|path| std::fs::read_link(path).is_ok_and(|target| target.as_os_str() == wanted.as_str()))
        .expect("the memfd is open");
    open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).expect("it opens again")
}

/// Attached to it.
pub(crate) fn attach() -> Attachment {
    Attachment::open(own_memfd(SEGMENT_NAME), &own_memfd(CONTROL_NAME)).expect("a true segment")
}
