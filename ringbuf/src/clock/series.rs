//! The consumer's series of anchors.
//!
//! ```text
//!  raw ──(TSC: straight lines between knots; CLOCK_MONOTONIC: itself)──▶ monotonic ──(+ offset of its era)──▶ realtime
//! ```
//!
//! Two steps, because they fail differently. How fast the counter runs against CLOCK_MONOTONIC changes slowly (NTP
//! slews both of the kernel's clocks alike), so that is interpolated. CLOCK_REALTIME minus CLOCK_MONOTONIC is constant
//! to the nanosecond until somebody sets the clock, so that is never interpolated: a step begins a new *era*, and is
//! not smeared over the records around it.
//!
//! What makes times exact and keeps them in order:
//!
//! - The consumer ticks after it has copied records and before it converts them. A reading is then never newer than the
//!   newest knot, and lies between two knots that are as near as the consumer's rounds: the error is that of a knot (half
//!   a bracket) plus what slewing changed between the two. Newer readings, which only a broken program has, get the
//!   newest knot's time; nothing is extrapolated.
//! - The counter of most machines begins again when they come back from being suspended to memory or disk, and the kernel
//!   goes on using it. So does this series: a reading far above the newest knot is then looked for among the knots of before.
//! - Knots are appended and never change, so that a reading that lies among them always converts alike. Once knots have been
//!   thinned out or forgotten, readings of long ago may convert a little differently; [`RingTime`] keeps a ring in order even
//!   then.

use std::collections::VecDeque;

use super::{Anchor, ClockKind, nanoseconds, tsc};

/// The clocks of a machine; tests have others.
pub(super) trait Clocks {
    /// The time stamp counter, read in order.
    fn tsc(&self) -> u64;
    /// Nanoseconds of CLOCK_MONOTONIC.
    fn monotonic_ns(&self) -> i64;
    /// Nanoseconds of CLOCK_REALTIME.
    fn realtime_ns(&self) -> i64;
}

struct Machine;

impl Clocks for Machine {
    fn tsc(&self) -> u64 {
        tsc::read_in_order()
    }

    fn monotonic_ns(&self) -> i64 {
        nanoseconds(libc::CLOCK_MONOTONIC)
    }

    fn realtime_ns(&self) -> i64 {
        nanoseconds(libc::CLOCK_REALTIME)
    }
}

/// Knots of the last rounds; at one round a millisecond they reach back a second.
const MOST_RECENT: usize = 1024;
/// Older knots, [`OLDER_SPACING_NS`] apart: ten minutes.
const MOST_OLDER: usize = 2400;
const OLDER_SPACING_NS: i64 = 250_000_000;
/// Steps of the clock that are remembered.
const MOST_ERAS: usize = 64;
/// A bracket that was interrupted is taken again, at most this often. The narrowest counts.
const MOST_TRIES: usize = 5;
/// Knots that are looked at one by one before all others are searched.
const NEAR: usize = 8;
/// The kernel rounds each of the two clocks to nanoseconds by itself.
const ROUNDING_NS: i64 = 2;
/// Three readings of the clocks take less if nothing comes between them; a smaller step may stay unseen.
const UNDISTURBED_NS: i64 = 10_000;

/// A counter that is lower than before by more than this has begun again: the counters of two CPUs do not differ by a
/// thousandth of that, or the kernel would not trust them.
const BEGUN_AGAIN_TICKS: u64 = 10_000_000;

/// One moment of the counter and of CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Knot {
    tsc: u64,
    monotonic_ns: i64,
}

/// A time in which nobody set the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Era {
    since_ns: i64,
    /// CLOCK_REALTIME minus CLOCK_MONOTONIC.
    offset_ns: i64,
}

/// What must hold for every reading of one ring: the times of its records never run backwards, except where
/// CLOCK_REALTIME itself did. One for each ring, whose records are converted in order.
#[derive(Clone, Copy, Debug, Default)]
pub struct RingTime {
    latest_monotonic_ns: i64,
    /// The knots around the reading that was converted last: most of the next readings lie between them too.
    around: (Knot, Knot),
}

/// The consumer's anchors.
#[derive(Debug)]
pub struct ClockSeries {
    has_tsc: bool,
    knots: Knots,
    /// The knots of before the counter began again.
    before: Option<Knots>,
    eras: VecDeque<Era>,
    /// When the newest tick was.
    newest_ns: i64,
    /// The narrowest bracket so far, in ticks of the counter.
    narrowest: u64,
}

impl ClockSeries {
    /// A series that begins now.
    pub fn new() -> ClockSeries {
        ClockSeries::begun(&Machine, tsc::is_invariant())
    }

    fn begun(clocks: &impl Clocks, has_tsc: bool) -> ClockSeries {
        let mut series = ClockSeries {
            has_tsc,
            knots: Knots::default(),
            before: None,
            eras: VecDeque::new(),
            newest_ns: 0,
            narrowest: u64::MAX,
        };
        // The first call shows how narrow a bracket can be.
        series.take_knot(clocks);
        series.tick_by(clocks);
        series
    }

    /// Looks at the clocks. Call it after records were copied and before they are converted, and a few times a second
    /// meanwhile. About 100 ns.
    pub fn tick(&mut self) {
        self.tick_by(&Machine);
    }

    fn tick_by(&mut self, clocks: &impl Clocks) {
        if self.has_tsc {
            self.take_knot(clocks);
        }
        self.watch_offset(clocks);
    }

    fn take_knot(&mut self, clocks: &impl Clocks) {
        let mut best = (u64::MAX, Knot { tsc: 0, monotonic_ns: 0 });
        for _ in 0..MOST_TRIES {
            let before = clocks.tsc();
            let monotonic_ns = clocks.monotonic_ns();
            let width = clocks.tsc().wrapping_sub(before);
            if width < best.0 {
                best = (width, Knot { tsc: before.wrapping_add(width / 2), monotonic_ns });
            }
            // The first knot has nothing to go by, and takes the best of all tries.
            if self.narrowest != u64::MAX && best.0 <= self.narrowest.saturating_mul(2) {
                break;
            }
        }
        self.narrowest = self.narrowest.min(best.0);
        let has_begun_again =
            |last: &Knot| last.tsc.checked_sub(best.1.tsc).is_some_and(|lower| lower > BEGUN_AGAIN_TICKS);
        if self.knots.newest().is_some_and(has_begun_again) {
            self.before = Some(std::mem::take(&mut self.knots));
        }
        self.knots.add(best.1);
    }

    /// Begins a new era when the clock was set. What lies between two ticks with a step between them stays in the era
    /// before the step.
    fn watch_offset(&mut self, clocks: &impl Clocks) {
        let mut narrowest: Option<(i64, i64)> = None;
        for _ in 0..MOST_TRIES {
            let before = clocks.monotonic_ns();
            let realtime = clocks.realtime_ns();
            let after = clocks.monotonic_ns();
            self.newest_ns = self.newest_ns.max(after);
            let bracket @ (least, most) = (realtime.wrapping_sub(after), realtime.wrapping_sub(before));
            if narrowest.is_none_or(|(low, high)| most - least < high - low) {
                narrowest = Some(bracket);
            }
            // A bracket that something else interrupted may hold both the old offset and the new one.
            if most - least <= UNDISTURBED_NS && self.goes_on(bracket) {
                return;
            }
        }
        if let Some((least, most)) = narrowest.filter(|bracket| !self.goes_on(*bracket)) {
            let offset_ns = least + (most - least) / 2;
            self.eras.push_back(Era { since_ns: self.newest_ns, offset_ns });
        }
        if self.eras.len() > MOST_ERAS {
            self.eras.pop_front();
        }
    }

    /// Whether the newest era's offset is within these bounds.
    fn goes_on(&self, (least, most): (i64, i64)) -> bool {
        let possible = least - ROUNDING_NS..=most.saturating_add(ROUNDING_NS);
        self.eras.back().is_some_and(|era| possible.contains(&era.offset_ns))
    }

    /// Converts a raw reading to nanoseconds since 1970. `program` is the program's own anchor, taken before the consumer
    /// was there; `ring` belongs to the ring that the record came through.
    ///
    /// The answer lies between the boot and the last tick, whatever the program says.
    #[inline]
    pub fn to_realtime_ns(&self, kind: ClockKind, program: &Anchor, raw: u64, ring: &mut RingTime) -> i64 {
        let converted = match kind {
            ClockKind::Tsc => self.monotonic_of_tsc(program, raw, &mut ring.around),
            ClockKind::Monotonic => i64::try_from(raw).unwrap_or(i64::MAX),
        };
        let monotonic = converted.min(self.newest_ns).max(ring.latest_monotonic_ns);
        ring.latest_monotonic_ns = monotonic;
        monotonic.saturating_add(self.offset_at(monotonic))
    }

    fn offset_at(&self, monotonic_ns: i64) -> i64 {
        let begun = self.eras.iter().rev().find(|era| era.since_ns <= monotonic_ns);
        begun.or(self.eras.front()).map_or(0, |era| era.offset_ns)
    }

    #[inline]
    fn monotonic_of_tsc(&self, program: &Anchor, raw: u64, around: &mut (Knot, Knot)) -> i64 {
        let (earlier, later) = *around;
        if (earlier.tsc..later.tsc).contains(&raw) {
            return between(earlier, later, raw);
        }
        self.search(program, raw, around)
    }

    #[inline(never)]
    fn search(&self, program: &Anchor, raw: u64, around: &mut (Knot, Knot)) -> i64 {
        let is_newer = |newest: &Knot| newest.tsc.saturating_add(BEGUN_AGAIN_TICKS) < raw;
        let (knots, last_of_before) = match &self.before {
            // No reading is so much newer than the newest knot: this one is from before the counter began again.
            Some(before) if self.knots.newest().is_some_and(is_newer) => (before, None),
            Some(before) => (&self.knots, before.newest()),
            None => (&self.knots, None),
        };
        match knots.around(raw) {
            (Some(earlier), Some(later)) => {
                *around = (earlier, later);
                between(earlier, later, raw)
            }
            (Some(newest), None) => newest.monotonic_ns,
            // An anchor from before the counter began again says nothing about it.
            (None, Some(first))
                if last_of_before.is_some_and(|last| program.monotonic_ns <= last.monotonic_ns) =>
            {
                first.monotonic_ns
            }
            (None, Some(first)) => before_first(program, first, raw),
            (None, None) => self.newest_ns,
        }
    }
}

impl Default for ClockSeries {
    fn default() -> Self {
        Self::new()
    }
}

/// What is known of a counter since it began.
#[derive(Debug, Default)]
struct Knots {
    older: VecDeque<Knot>,
    recent: VecDeque<Knot>,
}

impl Knots {
    fn newest(&self) -> Option<&Knot> {
        self.recent.back()
    }

    /// Order is kept even if another CPU's counter stands a little lower.
    fn add(&mut self, knot: Knot) {
        let follows = |last: &Knot| last.tsc < knot.tsc && last.monotonic_ns <= knot.monotonic_ns;
        if !self.newest().is_none_or(follows) {
            return;
        }
        self.recent.push_back(knot);
        if self.recent.len() <= MOST_RECENT {
            return;
        }
        let Some(leaving) = self.recent.pop_front() else { return };
        let is_due = |last: &Knot| leaving.monotonic_ns - last.monotonic_ns >= OLDER_SPACING_NS;
        if self.older.back().is_none_or(is_due) {
            self.older.push_back(leaving);
        }
        if self.older.len() > MOST_OLDER {
            self.older.pop_front();
        }
    }

    /// The last knot not later than `raw`, and the first that is.
    fn around(&self, raw: u64) -> (Option<Knot>, Option<Knot>) {
        let knots = match self.recent.front() {
            Some(first) if first.tsc <= raw => &self.recent,
            _ => &self.older,
        };
        let behind = index_behind(knots, raw);
        let earlier = behind.checked_sub(1).and_then(|index| knots.get(index));
        // Behind the last of the older ones comes the first of the recent ones.
        let later = knots.get(behind).or_else(|| self.recent.front().filter(|first| first.tsc > raw));
        (earlier.copied(), later.copied())
    }
}

/// Index of the first knot later than `raw`: mostly one of the last few, as many back as programs were drained since.
fn index_behind(knots: &VecDeque<Knot>, raw: u64) -> usize {
    let is_behind = |knot: &&Knot| knot.tsc <= raw;
    let back = knots.iter().rev().take(NEAR).position(|knot| is_behind(&knot));
    back.map_or_else(|| knots.partition_point(|knot| is_behind(&knot)), |back| knots.len() - back)
}

/// A reading before the consumer's first knot: on the line from the program's own anchor to it, if the anchor is credible.
fn before_first(program: &Anchor, first: Knot, raw: u64) -> i64 {
    let own = Knot { tsc: program.raw, monotonic_ns: program.monotonic_ns };
    if own.tsc >= first.tsc || !(1..=first.monotonic_ns).contains(&own.monotonic_ns) {
        return first.monotonic_ns;
    }
    between(own, first, raw.max(own.tsc))
}

/// `earlier.tsc` ≤ `raw` < `later.tsc`, and their times are in order.
#[inline]
fn between(earlier: Knot, later: Knot, raw: u64) -> i64 {
    let (into, ticks) = (raw - earlier.tsc, later.tsc - earlier.tsc);
    let passed = (later.monotonic_ns - earlier.monotonic_ns) as u64;
    let elapsed = match into.checked_mul(passed) {
        Some(product) => product / ticks,
        // Less than `passed`, since `into` is less than `ticks`.
        None => (u128::from(into) * u128::from(passed) / u128::from(ticks)) as u64,
    };
    earlier.monotonic_ns + elapsed as i64
}

#[cfg(test)]
mod tests;
