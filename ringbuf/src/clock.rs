//! Time: a raw counter that programs read, and how the consumer turns it into wall-clock time.
//!
//! Programs read the cheapest monotonic clock there is. The consumer reads that clock, CLOCK_MONOTONIC and
//! CLOCK_REALTIME side by side every now and then and interpolates: see [`ClockSeries`].
//!
//! `--cfg blkin_portable` leaves the time stamp counter out, as on a CPU that has none.

mod counter;
mod series;

use crate::kept::KeptErrno;

pub use counter::Counter;
pub use series::{ClockSeries, RingTime};

/// Which clock a program's raw values come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockKind {
    /// The CPU's invariant time stamp counter.
    Tsc,
    /// CLOCK_MONOTONIC in nanoseconds, through the vDSO.
    Monotonic,
}

impl ClockKind {
    /// The best clock of this machine. Reads a file the first time; async-signal-safe.
    pub fn detect() -> ClockKind {
        match Counter::of_machine() {
            Counter::Trusted => ClockKind::Tsc,
            Counter::NotInvariant | Counter::Distrusted => ClockKind::Monotonic,
        }
    }

    /// One reading. No system call where the vDSO serves the clock; async-signal-safe; keeps errno.
    #[inline(always)]
    pub fn read(self) -> u64 {
        match self {
            ClockKind::Tsc => tsc::read(),
            ClockKind::Monotonic => nanoseconds(libc::CLOCK_MONOTONIC) as u64,
        }
    }

    pub(crate) fn to_word(self) -> u64 {
        match self {
            ClockKind::Tsc => 1,
            ClockKind::Monotonic => 2,
        }
    }

    pub(crate) fn from_word(word: u64) -> Option<ClockKind> {
        match word {
            1 => Some(ClockKind::Tsc),
            2 => Some(ClockKind::Monotonic),
            _ => None,
        }
    }
}

#[cfg(all(target_arch = "x86_64", not(blkin_portable)))]
mod tsc {
    use std::arch::x86_64::{__cpuid, _mm_lfence, _rdtsc};

    const ADVANCED_POWER_LEAF: u32 = 0x8000_0007;
    const INVARIANT_TSC: u32 = 1 << 8;

    pub(super) fn is_invariant() -> bool {
        let leaves = __cpuid(0x8000_0000).eax;
        leaves >= ADVANCED_POWER_LEAF && __cpuid(ADVANCED_POWER_LEAF).edx & INVARIANT_TSC != 0
    }

    #[inline(always)]
    pub(super) fn read() -> u64 {
        // SAFETY: every x86-64 CPU has the instruction, and Linux leaves it enabled for programs (invariant 14).
        unsafe { _rdtsc() }
    }

    /// A reading that stays where it stands among the instructions around it.
    pub(super) fn read_in_order() -> u64 {
        // SAFETY: every x86-64 CPU has the instruction; it touches no memory (invariant 14).
        unsafe { _mm_lfence() };
        let now = read();
        // SAFETY: as above (invariant 14).
        unsafe { _mm_lfence() };
        now
    }
}

#[cfg(not(all(target_arch = "x86_64", not(blkin_portable))))]
mod tsc {
    pub(super) fn is_invariant() -> bool {
        false
    }

    pub(super) fn read() -> u64 {
        0
    }

    pub(super) fn read_in_order() -> u64 {
        0
    }
}

/// A function of its own, so that records that read the time stamp counter have nothing to save for it.
#[inline(never)]
fn nanoseconds(clock: libc::clockid_t) -> i64 {
    let time = time_on(clock);
    time.tv_sec.wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec)
}

/// 0 where a filter of system calls forbids the call. Through libc, which has found the vDSO before any code of the program ran:
/// rustix looks for it when first asked, under the dynamic linker's lock, which may be held by a thread that waits for this one.
#[inline]
fn time_on(clock: libc::clockid_t) -> libc::timespec {
    let errno = KeptErrno::new();
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: libc writes one time (invariant 10).
    if unsafe { libc::clock_gettime(clock, &raw mut time) } == 0 {
        // Nothing has touched errno.
        std::mem::forget(errno);
    }
    time
}

/// Coarse monotonic seconds, for rate limits.
pub(crate) fn coarse_seconds() -> u64 {
    time_on(libc::CLOCK_MONOTONIC_COARSE).tv_sec as u64
}

/// One moment on three clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// The program's clock.
    pub raw: u64,
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub monotonic_ns: i64,
    /// Nanoseconds since 1970.
    pub realtime_ns: i64,
}

impl Anchor {
    /// Reads the clocks; the narrowest bracket of five tries counts. Async-signal-safe.
    pub fn now(kind: ClockKind) -> Anchor {
        let tries = (0..5).map(|_| {
            let before = kind.read();
            let monotonic_ns = nanoseconds(libc::CLOCK_MONOTONIC);
            let realtime_ns = nanoseconds(libc::CLOCK_REALTIME);
            let width = kind.read().wrapping_sub(before);
            (width, Anchor { raw: before.wrapping_add(width / 2), monotonic_ns, realtime_ns })
        });
        let none = Anchor { raw: 0, monotonic_ns: 0, realtime_ns: 0 };
        tries.min_by_key(|(width, _)| *width).map_or(none, |(_, anchor)| anchor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_clock_returns_0_and_keeps_errno() {
        const NO_CLOCK: libc::clockid_t = 1000;
        let errno = || std::io::Error::last_os_error().raw_os_error();
        // SAFETY: fails, whatever it is given.
        unsafe { libc::close(-1) };
        assert_eq!(nanoseconds(NO_CLOCK), 0);
        assert_eq!(errno(), Some(libc::EBADF));
    }
}
