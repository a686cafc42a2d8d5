//! Waiting until one of many programs wakes its consumer.
//!
//! A program's control page has a word whose low half is 1 while the consumer sleeps, and whose high half is another for
//! each sleep. The program reads it whenever a head passes an eighth of its ring. If it is not 0 and three eighths of the
//! ring are unread, the program makes a FUTEX_WAKE on its low half: the only system call of a record in the steady state, none
//! while the consumer is busy, and none more in a sleep that a call has ended. Nothing orders the program's store of head
//! before that read, as a fence in each record would; a wake-up that is missed for this reason costs until the next eighth, or
//! the consumer's own timeout.
//!
//! The consumer waits for all its programs with one `futex_waitv` (Linux 5.16). The kernel takes at most 128 words per
//! call, one of which is the [`Waiter`]'s own, by which the consumer's other threads call the waiting one.

use std::ffi::c_void;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};

use rustix::io::Errno;
use rustix::thread::ClockId;
use rustix::thread::futex::{self, Wait, WaitFlags, WaitPtr, WaitvFlags};

use crate::control::ControlPage;
use crate::layout::control;

/// Most programs that one call can wait for.
pub const MAX_PROGRAMS: usize = 127;

/// Whether this kernel can wait for many words at once.
pub fn is_supported() -> bool {
    // An empty list of words is an error of its own wherever the call exists.
    futex::waitv(&[], WaitvFlags::empty(), None, ClockId::Monotonic) == Err(Errno::INVAL)
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// A program woke its consumer, or a signal came.
    ByProgram,
    /// [`Waiter::call`] was called after the ticket had been taken.
    Called,
    /// A page did not say that its consumer sleeps: its program would wake nobody.
    NotAsleep,
}

/// One thread that waits, and the word by which others call it.
#[derive(Debug, Default)]
pub struct Waiter {
    calls: AtomicU32,
}

impl Waiter {
    /// To be taken before the caller looks up what [`Waiter::wait`] is to wait for: a call in between is then not missed.
    pub fn ticket(&self) -> u32 {
        self.calls.load(Acquire)
    }

    /// Ends the wait for which the current ticket was taken, or keeps it from beginning.
    pub fn call(&self) {
        self.calls.fetch_add(1, Release);
        // Cannot fail for a word of our own.
        let _ = futex::wake(&self.calls, futex::Flags::PRIVATE, 1);
    }

    /// Waits until one of the programs wakes its consumer, or until somebody calls. Each page must say that its consumer sleeps.
    /// Of more than [`MAX_PROGRAMS`] pages, only the first ones count.
    ///
    /// # Errors
    /// `ENOSYS` where the kernel has no such call, `EPERM` where it is forbidden.
    pub fn wait(&self, ticket: u32, pages: &[ControlPage]) -> Result<Woken, Errno> {
        let mut words = [Wait::new(); 1 + MAX_PROGRAMS];
        words[0] = word(self.calls.as_ptr(), ticket, WaitFlags::PRIVATE);
        let pages = &pages[..pages.len().min(MAX_PROGRAMS)];
        for (word_of_page, page) in words[1..].iter_mut().zip(pages) {
            // The word's low half, which is what programs wake. A futex in shared memory is identified by its file.
            let low_half = page.sleeping().as_ptr().cast();
            *word_of_page = word(low_half, control::ASLEEP, WaitFlags::empty());
        }
        // The kernel only compares what stands there. The borrowed pages keep it mapped (invariant 2).
        match futex::waitv(&words[..=pages.len()], WaitvFlags::empty(), None, ClockId::Monotonic) {
            Ok(0) => Ok(Woken::Called),
            Ok(_) | Err(Errno::INTR) => Ok(Woken::ByProgram),
            Err(Errno::AGAIN) if self.ticket() != ticket => Ok(Woken::Called),
            Err(Errno::AGAIN) => Ok(Woken::NotAsleep),
            Err(error) => Err(error),
        }
    }
}

fn word(address: *mut u32, expected: u32, scope: WaitFlags) -> Wait {
    let mut wait = Wait::new();
    wait.val = u64::from(expected);
    wait.uaddr = WaitPtr::new(address.cast::<c_void>());
    wait.flags = WaitFlags::SIZE_U32 | scope;
    wait
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::thread;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use rustix::mm::ProtFlags;

    use super::*;
    use crate::layout::CONTROL_BYTES;
    use crate::mapping::Mapping;

    /// A control page as its consumer has it, and the program's own mapping of the same memory.
    fn page() -> (ControlPage, Mapping) {
        let memfd: OwnedFd = memfd_create("x", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memfd, CONTROL_BYTES as u64).unwrap();
        let both = ProtFlags::READ | ProtFlags::WRITE;
        let ours = Mapping::of(&memfd, CONTROL_BYTES, both).unwrap();
        let theirs = Mapping::of(&memfd, CONTROL_BYTES, ProtFlags::READ).unwrap();
        (ControlPage::new(Arc::new(ours)), theirs)
    }

    /// Wakes as a program does; returns whether somebody waited.
    fn wake_as_program(theirs: &Mapping) -> bool {
        let word = &theirs.words()[control::SLEEPING];
        let low_half = word.as_ptr().cast::<u32>();
        // SAFETY: aligned, mapped as long as `theirs` lives, and seen as atomic words only (invariants 2 and 3).
        let low_half = unsafe { AtomicU32::from_ptr(low_half) };
        futex::wake(low_half, futex::Flags::empty(), 1).unwrap() > 0
    }

    #[test]
    fn any_program_wakes_the_consumer_through_a_read_only_mapping() {
        assert!(is_supported());
        let pages: Vec<_> = (0..MAX_PROGRAMS).map(|_| page()).collect();
        let ours: Vec<ControlPage> = pages.iter().map(|(ours, _)| ours.clone()).collect();
        ours.iter().for_each(|page| page.set_sleeping(true));
        for (_, theirs) in [&pages[0], &pages[60], &pages[MAX_PROGRAMS - 1]] {
            let (waiter, ours) = (Waiter::default(), ours.clone());
            let waiting = thread::spawn(move || waiter.wait(waiter.ticket(), &ours));
            while !wake_as_program(theirs) {
                thread::yield_now();
            }
            assert_eq!(waiting.join().unwrap(), Ok(Woken::ByProgram));
        }
    }

    #[test]
    fn a_call_ends_a_wait_even_if_made_before_it() {
        let (ours, _theirs) = page();
        ours.set_sleeping(true);
        let waiter = Arc::new(Waiter::default());
        let ticket = waiter.ticket();
        waiter.call();
        assert_eq!(waiter.wait(ticket, std::slice::from_ref(&ours)), Ok(Woken::Called));
        let (begun, begins) = channel();
        let waiting = thread::spawn({
            let waiter = waiter.clone();
            move || {
                let ticket = waiter.ticket();
                begun.send(()).unwrap();
                waiter.wait(ticket, &[ours])
            }
        });
        begins.recv().unwrap();
        waiter.call();
        assert_eq!(waiting.join().unwrap(), Ok(Woken::Called));
    }

    #[test]
    fn a_wait_ends_at_once_if_no_program_would_wake_it() {
        let (ours, theirs) = page();
        let waiter = Waiter::default();
        assert!(!ours.is_sleeping());
        assert_eq!(waiter.wait(waiter.ticket(), &[ours]), Ok(Woken::NotAsleep));
        assert!(!wake_as_program(&theirs));
    }
}
