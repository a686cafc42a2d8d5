//! The consumer's protocol: copy what is committed, stop at a hole while its writer may be alive, interpret nothing.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use blkin_record::{GRAIN_WORDS, MAX_GRAINS, ORDINAL_MASK, POSITION_MASK, Stamp};

use crate::copies::{Copies, append_grains};
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
    /// Where head was when the drain began: every grain before it was reserved by then.
    pub head_grain: u64,
    /// Records copied.
    pub records: u64,
    /// Records that were reserved and never committed; counted only once no writer is left.
    pub torn: u64,
    /// It stopped at a hole: a writer is between reservation and commit, or was stopped there.
    pub blocked_on_hole: bool,
    /// There was more than the limit allowed.
    pub more: bool,
    /// Head lies outside the ring: the program (or what overwrote its memory) broke the protocol.
    pub insane: bool,
}

/// How many grains ahead of the current one memory is prefetched from its producer's cache: the processor by itself does
/// not prefetch beyond the end of a page.
const AHEAD_GRAINS: u64 = 24;

/// A grain as it was copied.
type Grain = [u64; GRAIN_WORDS];

/// What a drain has done so far. Kept apart from what the caller sees, which lies in memory: a count there would wait,
/// record after record, for its own last store.
#[derive(Clone, Copy, Default)]
struct Done {
    at: Position,
    records: u64,
    torn: u64,
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

    /// The position just past the last grain that was reserved by now; `None` if head lies outside the ring.
    ///
    /// A caller that looks at another ring afterwards finds there what a thread had reserved before the reservations seen here.
    pub fn reserved(&self, at: Position) -> Option<u64> {
        // SYNC POINT look: pairs with the release in ring. For a sequence, the order of stores on x86-64 suffices.
        let head = Head(self.header.load(slot::HEAD, Acquire));
        let available = head.position().wrapping_sub(at.grain) & POSITION_MASK;
        (available <= self.shape.grains()).then_some(at.grain + available)
    }

    /// Appends whole records to `out`, as they stand in the ring, and moves `at` past them. Stops once `at` has moved by
    /// `max_grains` or more. `no_writer_left`: holes are passed and counted as torn.
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
        let room = available.min(max_grains.saturating_add(MAX_GRAINS as u64));
        let (limit, mut done) =
            (drained.from.grain.saturating_add(max_grains), Done { at: *at, ..Done::default() });
        append_grains(out, room as usize, |copies| {
            while done.at.grain < end && !drained.blocked_on_hole {
                if done.at.grain >= limit {
                    drained.more = true;
                    break;
                }
                if done.at.grain + AHEAD_GRAINS < end {
                    self.grains.prefetch(self.shape.word_of(done.at.grain + AHEAD_GRAINS));
                }
                match self.copy_record(done, end, copies) {
                    Some(next) => done = next,
                    None if no_writer_left => done.at.grain += 1,
                    None => drained.blocked_on_hole = true,
                }
            }
        });
        (*at, drained.records, drained.torn) = (done.at, done.records, done.torn);
        if no_writer_left && at.grain == end {
            drained.torn += self.torn_before_head(head, at);
        }
        drained.to = *at;
        drained
    }

    /// Copies the committed record that begins where the drain stands, if there is one. If not all of its continuation grains
    /// are its own, only those before the first foreign one are copied: what follows is judged by its own stamps, so that a
    /// bad record hides no good one.
    #[inline(always)]
    fn copy_record(&self, done: Done, end: u64, copies: &mut Copies<'_>) -> Option<Done> {
        let position = done.at.grain;
        // SYNC POINT commit: pairs with the release in ring (invariant 5).
        let head: Grain = self.grains.load_run(self.shape.word_of(position), Acquire);
        let grains = Stamp(head[0]).head_length_at(position & POSITION_MASK, self.shape.cookie())?;
        copies.push(&head);
        let own =
            if grains == 1 { 1 } else { 1 + self.copy_continuations(position, grains as u64, end, copies) };
        let torn = self.torn_before(head[GRAIN_WORDS - 1], done.at.records);
        let at = Position { grain: position + own, records: done.at.records + 1 + torn };
        Some(Done { at, records: done.records + 1, torn: done.torn + torn })
    }

    /// Copies the continuation grains that are the record's own, and returns how many there are.
    #[inline(never)]
    fn copy_continuations(&self, position: u64, grains: u64, end: u64, copies: &mut Copies<'_>) -> u64 {
        let most = grains.min(end - position);
        for index in 1..most {
            let position = position + index;
            let grain: Grain = self.grains.load_run(self.shape.word_of(position), Relaxed);
            if Stamp(grain[0]) != Stamp::continuation(position, index as usize, self.shape.cookie()) {
                return index - 1;
            }
            copies.push(&grain);
        }
        most - 1
    }

    /// How many records were torn in the hole before a committed one: the ordinals on both sides tell. A hostile ordinal
    /// cannot claim more than a ring holds.
    #[inline(always)]
    fn torn_before(&self, ordinal: u64, records: u64) -> u64 {
        let skipped = ordinal.wrapping_sub(records) & ORDINAL_MASK;
        if skipped > self.shape.grains() { 0 } else { skipped }
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
