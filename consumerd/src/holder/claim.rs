//! One reader at a time: two daemons that read the same rings would each free room that the other has not read.
//!
//! The daemon that reads a program's rings holds the lock (flock) of the program's control page, on an open file of its
//! own, which the holder hands to its worker. The kernel releases the lock when both have ended, however they ended.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Locks a control page, or any other memory file; `None` while somebody else has the lock. The descriptor must be known to be a
/// memfd's: opening it again calls into its file system.
///
/// # Errors
/// When the file cannot be opened again, as without /proc.
pub(crate) fn claim(control: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    // The descriptor's open file is shared with the program and with every daemon that got its offer, and so would be its lock.
    let path = format!("/proc/self/fd/{}", control.as_raw_fd());
    let own = OwnedFd::from(OpenOptions::new().read(true).write(true).open(path)?);
    match flock(&own, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(own)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};

    #[test]
    fn a_page_stays_claimed_until_its_last_descriptor_is_closed() {
        let page = memfd_create("x", MemfdFlags::CLOEXEC).unwrap();
        let sent = page.try_clone().unwrap();
        let own = claim(&page).unwrap().unwrap();
        assert!(claim(&sent).unwrap().is_none());
        let workers = own.try_clone().unwrap();
        drop(own);
        assert!(claim(&sent).unwrap().is_none());
        drop(workers);
        assert!(claim(&sent).unwrap().is_some());
    }
}
