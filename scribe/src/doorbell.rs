//! How other threads wake a thread that also waits for its upstream.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

/// Any thread may ring the bell, and the waiting thread hears it. The bell stays rung until it is heard, so that nothing is missed
/// between a check and the wait. Clones are the same bell.
#[derive(Debug, Clone)]
pub struct Doorbell(Arc<Bell>);

#[derive(Debug)]
struct Bell {
    event: OwnedFd,
    /// Whether it was rung and not heard yet: ringing again then costs no system call.
    rung: AtomicBool,
}

impl Doorbell {
    /// A bell that is silent.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Doorbell(Arc::new(Bell { event, rung: AtomicBool::new(false) })))
    }

    /// Wakes the thread that waits, or else ends the next wait at once.
    pub fn ring(&self) {
        // Release: the thread that hears the bell sees what was done before it rang.
        if !self.0.rung.swap(true, Ordering::AcqRel) {
            // The only failure is a full counter, which also wakes the thread.
            let _full = rustix::io::write(&self.0.event, &1_u64.to_ne_bytes());
        }
    }

    /// Waits until the bell is rung, or until `due`.
    ///
    /// # Errors
    /// When the kernel refuses to wait.
    pub fn wait(&self, due: Option<Instant>) -> io::Result<()> {
        self.wait_beside(None, due).map(drop)
    }

    /// Waits until the bell is rung, until `other` can be read, or until `due`; returns whether `other` can be read.
    pub(crate) fn wait_beside(
        &self,
        other: Option<BorrowedFd<'_>>,
        due: Option<Instant>,
    ) -> io::Result<bool> {
        let event = self.0.event.as_fd();
        let [is_rung, is_readable] = wait_readable([Some(event), other], due)?;
        if is_rung {
            self.hear();
        }
        Ok(is_readable)
    }

    fn hear(&self) {
        let mut count = [0; 8];
        // If there is nothing to read, another thread has heard the bell.
        let _silent = rustix::io::read(&self.0.event, &mut count);
        // Only after the read: a ring from here on writes again. Acquire: the check that follows sees what was done before a ring
        // that found the bell already rung.
        self.0.rung.swap(false, Ordering::AcqRel);
    }
}

/// Waits until one of these can be read (or has failed), or until `due`; returns which can.
pub(crate) fn wait_readable<const N: usize>(
    of: [Option<BorrowedFd<'_>>; N],
    due: Option<Instant>,
) -> io::Result<[bool; N]> {
    let mut waits: Vec<_> =
        of.iter().flatten().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let left = due.map(|due| due.saturating_duration_since(Instant::now()));
    let left = left.map(Timespec::try_from).transpose().map_err(io::Error::other)?;
    match poll(&mut waits, left.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let mut readable = waits.iter().map(|wait| !wait.revents().is_empty());
    Ok(of.map(|fd| fd.is_some() && readable.next().unwrap_or(false)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn rings_before_the_wait_are_heard_once() {
        let bell = Doorbell::new().unwrap();
        bell.ring();
        bell.ring();
        let begun = Instant::now();
        bell.wait(Some(begun + LONG)).unwrap();
        assert!(begun.elapsed() < LONG);
        let due = Instant::now() + Duration::from_millis(20);
        bell.wait(Some(due)).unwrap();
        assert!(Instant::now() >= due, "the ring was heard twice");
    }

    #[test]
    fn no_ring_is_missed_while_another_is_handled() {
        let bell = Doorbell::new().unwrap();
        let rung = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let ringing = std::thread::spawn({
            let (bell, rung) = (bell.clone(), rung.clone());
            move || {
                for _ in 0..100_000 {
                    rung.fetch_add(1, Ordering::Release);
                    bell.ring();
                }
            }
        });
        let due = Instant::now() + LONG;
        while rung.load(Ordering::Acquire) < 100_000 {
            bell.wait(Some(due)).unwrap();
            assert!(Instant::now() < due);
        }
        ringing.join().unwrap();
    }
}
