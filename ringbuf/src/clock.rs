//! Time: a raw counter that programs read, and how the consumer turns it into wall-clock time.
//!
//! Programs read the cheapest monotonic clock there is. The consumer reads that clock and CLOCK_REALTIME side by side
//! every now and then (an *anchor*) and interpolates between the anchors around a raw value.

use std::collections::VecDeque;

use rustix::time::{ClockId, clock_gettime};

/// Which clock a program's raw values come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockKind {
    /// The CPU's invariant time stamp counter.
    Tsc,
    /// CLOCK_MONOTONIC in nanoseconds, through the vDSO.
    Monotonic,
}

impl ClockKind {
    /// The best clock of this machine.
    pub fn detect() -> ClockKind {
        if tsc::is_invariant() { ClockKind::Tsc } else { ClockKind::Monotonic }
    }

    /// One reading. No system call where the vDSO serves the clock; async-signal-safe; keeps errno.
    #[inline(always)]
    pub fn read(self) -> u64 {
        match self {
            ClockKind::Tsc => tsc::read(),
            ClockKind::Monotonic => nanoseconds(ClockId::Monotonic),
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

#[cfg(target_arch = "x86_64")]
mod tsc {
    use std::arch::x86_64::{__cpuid, _rdtsc};

    const ADVANCED_POWER_LEAF: u32 = 0x8000_0007;
    const INVARIANT_TSC: u32 = 1 << 8;

    pub(super) fn is_invariant() -> bool {
        let leaves = __cpuid(0x8000_0000).eax;
        leaves >= ADVANCED_POWER_LEAF && __cpuid(ADVANCED_POWER_LEAF).edx & INVARIANT_TSC != 0
    }

    #[inline(always)]
    pub(super) fn read() -> u64 {
        // SAFETY: every x86-64 CPU has the instruction, and Linux leaves it enabled for programs.
        unsafe { _rdtsc() }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod tsc {
    pub(super) fn is_invariant() -> bool {
        false
    }

    pub(super) fn read() -> u64 {
        0
    }
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// Coarse monotonic seconds, for limits of rate.
pub(crate) fn coarse_seconds() -> u64 {
    clock_gettime(ClockId::MonotonicCoarse).tv_sec as u64
}

/// One moment on two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// The program's clock.
    pub raw: u64,
    /// Nanoseconds since 1970.
    pub realtime_ns: i64,
}

impl Anchor {
    /// Reads both clocks; of five tries the one with the narrowest bracket counts.
    pub fn now(kind: ClockKind) -> Anchor {
        let tries = (0..5).map(|_| {
            let before = kind.read();
            let realtime_ns = nanoseconds(ClockId::Realtime) as i64;
            let width = kind.read().wrapping_sub(before);
            (width, Anchor { raw: before.wrapping_add(width / 2), realtime_ns })
        });
        tries.min_by_key(|(width, _)| *width).map_or(Anchor { raw: 0, realtime_ns: 0 }, |(_, anchor)| anchor)
    }
}

const MOST_ANCHORS: usize = 600;
const ANCHOR_SPACING_NS: i64 = 500_000_000;

/// The consumer's anchors, for both clocks.
#[derive(Debug, Default)]
pub struct ClockSeries {
    tsc: VecDeque<Anchor>,
    monotonic: VecDeque<Anchor>,
}

impl ClockSeries {
    /// An empty series; the first [`ClockSeries::tick`] gives it its first anchor.
    pub fn new() -> ClockSeries {
        ClockSeries::default()
    }

    /// Takes an anchor if the last one is half a second old. Call it before records are converted: what is converted
    /// then lies mostly between two anchors.
    pub fn tick(&mut self) {
        for (kind, anchors) in [(ClockKind::Tsc, &mut self.tsc), (ClockKind::Monotonic, &mut self.monotonic)]
        {
            let now = Anchor::now(kind);
            let is_due = anchors
                .back()
                .is_none_or(|last| (now.realtime_ns - last.realtime_ns).abs() >= ANCHOR_SPACING_NS);
            if is_due {
                anchors.push_back(now);
            }
            if anchors.len() > MOST_ANCHORS {
                anchors.pop_front();
            }
        }
    }

    /// Converts a raw reading to nanoseconds since 1970. `program` is the program's own anchor, which reaches back to
    /// before the consumer was there. Values between two anchors are interpolated, later ones extrapolated.
    pub fn to_realtime_ns(&self, kind: ClockKind, program: &Anchor, raw: u64) -> i64 {
        let anchors = match kind {
            ClockKind::Tsc => &self.tsc,
            ClockKind::Monotonic => &self.monotonic,
        };
        let after = anchors.partition_point(|anchor| anchor.raw <= raw);
        let (earlier, later) = match (after.checked_sub(1).map(|before| anchors[before]), anchors.get(after))
        {
            (Some(earlier), Some(later)) => (earlier, *later),
            (None, Some(later)) => (*program, *later),
            (Some(last), None) => match after.checked_sub(2).map(|before| anchors[before]) {
                Some(one_before) => (one_before, last),
                None if program.raw > last.raw => (last, *program), // a program that began after our only anchor
                None => (*program, last),
            },
            (None, None) => (*program, *program),
        };
        interpolate(kind, earlier, later, raw)
    }
}

fn interpolate(kind: ClockKind, earlier: Anchor, later: Anchor, raw: u64) -> i64 {
    let offset = i128::from(raw) - i128::from(earlier.raw);
    let span = i128::from(later.raw) - i128::from(earlier.raw);
    let elapsed = if span > 0 && later.realtime_ns > earlier.realtime_ns {
        // A program's own anchor may say anything: saturate, and let the conversion below refuse.
        let passed = i128::from(later.realtime_ns) - i128::from(earlier.realtime_ns);
        offset.saturating_mul(passed) / span
    } else if kind == ClockKind::Monotonic {
        offset
    } else {
        0
    };
    let converted = i128::from(earlier.realtime_ns).saturating_add(elapsed);
    i64::try_from(converted).unwrap_or(earlier.realtime_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_converts_to_between_its_brackets() {
        for kind in [ClockKind::detect(), ClockKind::Monotonic] {
            let program = Anchor::now(kind);
            let mut series = ClockSeries::new();
            series.tick();
            let before = nanoseconds(ClockId::Realtime) as i64;
            let raw = kind.read();
            let after = nanoseconds(ClockId::Realtime) as i64;
            let last = Anchor::now(kind);
            match kind {
                ClockKind::Tsc => series.tsc.push_back(last),
                ClockKind::Monotonic => series.monotonic.push_back(last),
            }
            let converted = series.to_realtime_ns(kind, &program, raw);
            let slack = 20_000;
            assert!(
                before - slack <= converted && converted <= after + slack,
                "{before} {converted} {after}"
            );
        }
    }

    #[test]
    fn program_younger_than_the_only_anchor_keeps_its_time_moving() {
        let mut series = ClockSeries::new();
        series.tsc.push_back(Anchor { raw: 1_000, realtime_ns: 10_000 });
        let program = Anchor { raw: 3_000, realtime_ns: 11_000 };
        assert_eq!(series.to_realtime_ns(ClockKind::Tsc, &program, 3_000), 11_000);
        assert_eq!(series.to_realtime_ns(ClockKind::Tsc, &program, 5_000), 12_000);
    }

    #[test]
    fn absurd_readings_convert_without_a_panic() {
        let mut series = ClockSeries::new();
        for program in
            [Anchor { raw: u64::MAX, realtime_ns: i64::MIN }, Anchor { raw: 0, realtime_ns: i64::MIN }]
        {
            let mut series = ClockSeries::new();
            series.tick();
            for raw in [0, 1, u64::MAX / 2, u64::MAX] {
                series.to_realtime_ns(ClockKind::Tsc, &program, raw);
                series.to_realtime_ns(ClockKind::Monotonic, &program, raw);
            }
        }
        let program = Anchor { raw: u64::MAX, realtime_ns: i64::MIN };
        for raw in [0, 1, u64::MAX] {
            series.to_realtime_ns(ClockKind::Tsc, &program, raw);
        }
        series.tick();
        for raw in [0, 1, u64::MAX] {
            series.to_realtime_ns(ClockKind::Tsc, &program, raw);
            series.to_realtime_ns(ClockKind::Monotonic, &program, raw);
        }
    }
}
