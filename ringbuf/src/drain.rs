//! The consumer's protocol: copy what is committed, stop at a hole while its writer may live, judge nothing.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use blkin_record::{GRAIN_BYTES, GRAIN_WORDS, ORDINAL_MASK, POSITION_MASK, Stamp};

use crate::layout::slot;
use crate::ring::{Head, RingShape};
use crate::words::Words;

/// How far a ring has been read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Grains since the ring began.
    pub grain: u64,
    /// Records since the ring began, torn ones included.
    pub records: u64,
}

/// What one call of drain did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Where it began.
    pub from: Position,
    /// Where it stopped.
    pub to: Position,
    /// Where head stood when it began: everything before that was reserved by then.
    pub head_grain: u64,
    /// Records copied.
    pub records: u64,
    /// Records that were reserved and never committed; only once no writer is left.
    pub torn: u64,
    /// It stopped at a hole: a writer is between reservation and commit, or was stopped there.
    pub blocked_on_hole: bool,
    /// There was more than the limit allowed.
    pub more: bool,
    /// Head lies outside the ring: the program (or what overwrote its memory) broke the protocol.
    pub insane: bool,
}

/// How far ahead of the grain that is looked at its producer's cache is asked for one: the processor by itself does not
/// ask beyond the end of a page.
const AHEAD_GRAINS: u64 = 24;

/// Grains that are looked at before they are copied: few enough to still be in the first cache then.
const RUN_GRAINS: u64 = 64;

/// Whole committed records behind each other that are not copied yet; within one lap of the ring, because head is.
#[derive(Default)]
struct Run {
    start: u64,
    grains: u64,
}

impl Run {
    fn begin_at(&mut self, grain: u64) {
        if self.grains == 0 {
            self.start = grain;
        }
    }
}

/// One slot as its consumer sees it. It only loads.
pub struct RingReader<'a, W: Words + ?Sized> {
    /// The slot's header.
    pub header: &'a W,
    /// The ring's grains.
    pub grains: &'a W,
    /// Size and cookie.
    pub shape: RingShape,
}

impl<W: Words + ?Sized> RingReader<'_, W> {
    /// Records that are reserved and not yet read.
    pub fn pending(&self, at: Position) -> u64 {
        let head = Head(self.header.load(slot::HEAD, Relaxed));
        let records = head.records().wrapping_sub(at.records) & ORDINAL_MASK;
        records.min(self.shape.grains())
    }

    /// Whether head stands where the reader does.
    pub fn is_drained(&self, at: Position) -> bool {
        Head(self.header.load(slot::HEAD, Relaxed)).position() == at.grain & POSITION_MASK
    }

    /// Appends whole records to `out`, as they stand in the ring, and moves `at` behind them. At most `max_grains`,
    /// but at least one record. `no_writer_left`: holes are passed and counted as torn.
    pub fn drain(
        &self,
        at: &mut Position,
        max_grains: u64,
        no_writer_left: bool,
        out: &mut Vec<u8>,
    ) -> Drained {
        let head = Head(self.header.load(slot::HEAD, Relaxed));
        let available = head.position().wrapping_sub(at.grain) & POSITION_MASK;
        let mut drained = Drained { from: *at, to: *at, head_grain: at.grain, ..Drained::default() };
        if available > self.shape.grains() {
            drained.insane = true;
            return drained;
        }
        let end = at.grain + available;
        drained.head_grain = end;
        if available == 0 && !no_writer_left {
            return drained;
        }
        out.reserve(available.min(max_grains) as usize * GRAIN_BYTES);
        let mut run = Run::default();
        while at.grain < end && !drained.blocked_on_hole {
            if at.grain - drained.from.grain >= max_grains {
                drained.more = true;
                break;
            }
            if at.grain + AHEAD_GRAINS < end {
                self.grains.prefetch(self.shape.word_of(at.grain + AHEAD_GRAINS));
            }
            match self.committed_grains(at.grain, end) {
                Some(grains) => {
                    let skipped = self.torn_before(at);
                    run.begin_at(at.grain);
                    drained.torn += skipped;
                    drained.records += 1;
                    at.records += 1 + skipped;
                    at.grain += grains;
                    run.grains += grains;
                }
                None if no_writer_left => {
                    self.copy(&mut run, out);
                    at.grain += 1;
                }
                None => drained.blocked_on_hole = true,
            }
            if run.grains >= RUN_GRAINS {
                self.copy(&mut run, out);
            }
        }
        self.copy(&mut run, out);
        if no_writer_left && at.grain == end {
            drained.torn += self.torn_before_head(head, at);
        }
        drained.to = *at;
        drained
    }

    /// Length of the committed record at `position`. One whose continuation grains are not its own is taken only as
    /// far as they are: what follows is judged by its own stamps, so that a bad record hides no good one.
    #[inline]
    fn committed_grains(&self, position: u64, end: u64) -> Option<u64> {
        // SYNC POINT commit: pairs with the release in ring (invariant 5).
        let stamp = Stamp(self.grains.load(self.shape.word_of(position), Acquire));
        let grains = stamp.head_length_at(position & POSITION_MASK, self.shape.cookie())? as u64;
        let own = (1..grains.min(end - position)).take_while(|index| {
            let position = position + index;
            let expected = Stamp::continuation(position, *index as usize, self.shape.cookie());
            self.grains.load(self.shape.word_of(position), Relaxed) == expected.0
        });
        Some(1 + own.count() as u64)
    }

    /// How many records were torn in the hole before the committed one at `at`: the ordinals on both sides tell. A
    /// hostile ordinal cannot claim more than a ring holds.
    #[inline]
    fn torn_before(&self, at: &Position) -> u64 {
        let last = self.shape.word_of(at.grain) + GRAIN_WORDS - 1;
        let ordinal = self.grains.load(last, Relaxed);
        let skipped = ordinal.wrapping_sub(at.records) & ORDINAL_MASK;
        if skipped > self.shape.grains() { 0 } else { skipped }
    }

    /// Copies a run of whole records, in two pieces where the ring ends within it, and empties it.
    #[inline]
    fn copy(&self, run: &mut Run, out: &mut Vec<u8>) {
        let Run { start, grains } = std::mem::take(run);
        let first = self.shape.word_of(start);
        let words = |grains: u64| grains as usize * GRAIN_WORDS;
        let to_end = words(self.shape.grains()) - first;
        let words = words(grains);
        self.grains.copy(first..first + words.min(to_end), out);
        if words > to_end {
            self.grains.copy(0..words - to_end, out);
        }
    }

    /// Reservations between the last record and head that nobody committed.
    fn torn_before_head(&self, head: Head, at: &mut Position) -> u64 {
        let torn = head.records().wrapping_sub(at.records) & ORDINAL_MASK;
        if torn > self.shape.grains() {
            return 0;
        }
        at.records += torn;
        torn
    }
}
