//! One reader at a time: two daemons that read the same rings would each give back room that the other has not read.
//!
//! Whoever reads a program's rings holds the lock (flock) of its control page, on an open file of its own; the holder
//! hands that to its worker. The kernel takes it away when both are gone, however they ended.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::offers::Offer;

/// How long a program is waited for that another daemon reads: as long as a worker may need to notice that its holder
/// is gone.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most programs that are waited for.
const MAX_WAITING: usize = 1024;

/// Locks a control page, or any other memory file; `None` while somebody else has it. The descriptor must be known to be a
/// memfd's: opening it again calls into its file system.
///
/// # Errors
/// When it cannot be opened again, as without /proc.
pub(crate) fn claim(control: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    // The descriptor itself is shared with the program and with all to whom it offered itself, and so is its lock.
    let path = format!("/proc/self/fd/{}", control.as_raw_fd());
    let own = OwnedFd::from(OpenOptions::new().read(true).write(true).open(path)?);
    match flock(&own, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(own)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Programs that another daemon still reads.
#[derive(Debug, Default)]
pub(super) struct Waiting(Vec<(Offer, Instant)>);

impl Waiting {
    /// Gives the offer back if too many wait, or `most_of_user` of its user: he may lock their pages himself.
    pub(super) fn push(&mut self, offer: Offer, since: Instant, most_of_user: usize) -> Result<(), Offer> {
        let of_user = self.0.iter().filter(|(other, _)| other.program.uid == offer.program.uid).count();
        if self.0.len() >= MAX_WAITING || of_user >= most_of_user || since.elapsed() > PATIENCE {
            return Err(offer);
        }
        self.0.push((offer, since));
        Ok(())
    }

    /// Takes all, each with the time since which it waits.
    pub(super) fn take(&mut self) -> Vec<(Offer, Instant)> {
        std::mem::take(&mut self.0)
    }

    /// Whether any of them is such a one.
    pub(super) fn any(&self, is_such: impl Fn(&Offer) -> bool) -> bool {
        self.0.iter().any(|(offer, _)| is_such(offer))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Program;
    use rustix::fs::{MemfdFlags, memfd_create};

    #[test]
    fn no_user_fills_what_waits_with_his_programs() {
        let memfd = || memfd_create("x", MemfdFlags::CLOEXEC).unwrap();
        let offer = |uid| Offer {
            program: Program { number: 0, uid, pid: 1, comm: "x".into() },
            segment: memfd(),
            control: memfd(),
        };
        let mut waiting = Waiting::default();
        let mut push = |uid| waiting.push(offer(uid), Instant::now(), 2).is_ok();
        assert_eq!([1, 1, 1, 2].map(&mut push), [true, true, false, true]);
    }

    #[test]
    fn a_page_is_locked_by_one_until_its_last_descriptor_is_closed() {
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
