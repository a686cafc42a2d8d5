//! Keeps from the program the signals by which the kernel reports that a system call fails, or is not for a background job: the
//! program is to meet none that this library causes.

use std::ptr;

use crate::kept::KeptErrno;

/// The kernel's set of signals: a bit for each, the lowest for signal 1.
type Set = u64;

/// What comes with EPIPE (nobody reads a pipe or socket) and with EFBIG (a file beyond RLIMIT_FSIZE). Either ends a program
/// that does not handle it.
const SIGNALS: [libc::c_int; 2] = [libc::SIGPIPE, libc::SIGXFSZ];
const BOTH: Set = bit(SIGNALS[0]) | bit(SIGNALS[1]);
/// What stops a background job that writes to its terminal, if the terminal is set so (`stty tostop`). The kernel sends it to no
/// thread that blocks it, and lets that thread write (`__tty_check_change` in drivers/tty/tty_jobctrl.c).
const NOT_SENT: Set = bit(libc::SIGTTOU);

const fn bit(signal: libc::c_int) -> Set {
    1 << (signal - 1)
}

/// While it lives, a failing system call of this thread is reported by its error alone, and no call stops the thread.
/// Async-signal-safe, keeps errno, and no call here is a cancellation point: they go to the kernel directly.
pub(crate) struct Unsignalled {
    /// The thread's mask; `None` if the kernel did not let us change it.
    mask: Option<Set>,
    /// Signals that were pending before: the program's own.
    waiting: Set,
    _errno: KeptErrno,
}

impl Unsignalled {
    pub(crate) fn new() -> Unsignalled {
        let errno = KeptErrno::new();
        let mask = change_mask(libc::SIG_BLOCK, BOTH | NOT_SENT);
        Unsignalled { mask, waiting: waiting(), _errno: errno }
    }
}

impl Drop for Unsignalled {
    fn drop(&mut self) {
        let Some(mask) = self.mask else { return };
        let ours = waiting() & !self.waiting & BOTH;
        SIGNALS.into_iter().filter(|&signal| ours & bit(signal) != 0).for_each(take);
        change_mask(libc::SIG_SETMASK, mask);
    }
}

/// Changes the thread's mask; returns what it was.
fn change_mask(how: libc::c_int, set: Set) -> Option<Set> {
    let (set, mut before): (Set, Set) = (set, 0);
    // SAFETY: the kernel reads and writes one set each, of the size that it is told (invariant 10).
    let failed = unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const set, &raw mut before, size_of::<Set>())
    };
    (failed == 0).then_some(before)
}

/// Signals that are blocked, and pending for this thread.
fn waiting() -> Set {
    let mut waiting: Set = 0;
    // SAFETY: the kernel writes one set, of the size that it is told (invariant 10).
    unsafe { libc::syscall(libc::SYS_rt_sigpending, &raw mut waiting, size_of::<Set>()) };
    waiting
}

/// Takes a pending signal away.
fn take(signal: libc::c_int) {
    let set = bit(signal);
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let nothing = ptr::null_mut::<libc::siginfo_t>();
    // SAFETY: the kernel reads one set, of the size that it is told, and a time; it is given nowhere to write (invariant 10).
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigtimedwait,
            &raw const set,
            nothing,
            &raw const at_once,
            size_of::<Set>(),
        )
    };
}
