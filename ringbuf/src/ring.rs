//! The producer's protocol: reserve by compare-and-swap, write, commit by the stamp.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use blkin_record::{
    Draft, GRAIN_BYTES, GRAIN_WORDS, ORDINAL_MASK, POSITION_MASK, Payload, Place, Stamp, TAIL_WORDS,
};

use crate::evict::next_oldest;
use crate::layout::{RingMode, control, slot};
use crate::words::Words;

const RECORDS_SHIFT: u32 = 36;
/// How far ahead of a record's place its memory is prefetched; past the ring's end that is in vain.
const AHEAD_WORDS: usize = 32 * GRAIN_WORDS;

const _: () = assert!(POSITION_MASK == (1 << RECORDS_SHIFT) - 1);
const _: () = assert!(ORDINAL_MASK == u64::MAX >> RECORDS_SHIFT);
// Head tells a full ring from an empty one, and counts its records, only while a ring is far shorter than a lap of either field.
const _: () = assert!((crate::layout::MAX_RING_BYTES / GRAIN_BYTES) as u64 <= ORDINAL_MASK / 2);

/// The head word: how far producers have reserved. OLDEST is written the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head(pub(crate) u64);

impl Head {
    /// Packs both into one word; higher bits are dropped.
    pub(crate) fn of(position: u64, records: u64) -> Head {
        Head(position & POSITION_MASK | records << RECORDS_SHIFT)
    }

    #[inline(always)]
    pub(crate) fn position(self) -> u64 {
        self.0 & POSITION_MASK
    }

    #[inline(always)]
    pub(crate) fn records(self) -> u64 {
        self.0 >> RECORDS_SHIFT
    }

    /// Records between an earlier head and this one.
    pub(crate) fn records_since(self, earlier: Head) -> u64 {
        self.records().wrapping_sub(earlier.records()) & ORDINAL_MASK
    }

    /// Grains between an earlier head and this one.
    pub(crate) fn grains_since(self, earlier: Head) -> u64 {
        self.position().wrapping_sub(earlier.position()) & POSITION_MASK
    }

    /// Head after one more record of `grains`. The count wraps out of the word's top by itself.
    #[inline(always)]
    pub(crate) fn after(self, grains: u64) -> Head {
        let position = self.position();
        Head((self.0 ^ position).wrapping_add(1 << RECORDS_SHIFT) | (position + grains) & POSITION_MASK)
    }
}

/// Size and cookie of a ring; the producer's own copy, which nobody else can change.
#[derive(Clone, Copy, Debug)]
pub struct RingShape {
    pub(crate) grains: u64,
    /// Grains of an eighth of the ring.
    pub(crate) eighth: u64,
    pub(crate) cookie: u32,
    /// Stamp of a record of one grain at position 0.
    pub(crate) stamp: Stamp,
}

impl RingShape {
    /// `ring_bytes` must be a power of two and hold at least one grain.
    pub fn new(ring_bytes: usize, cookie: u32) -> RingShape {
        debug_assert!(ring_bytes.is_power_of_two() && ring_bytes >= GRAIN_BYTES);
        let grains = (ring_bytes / GRAIN_BYTES) as u64;
        RingShape { grains, eighth: (grains / 8).max(1), cookie, stamp: Stamp::head(0, 1, cookie) }
    }

    /// Grains that the ring holds.
    pub fn grains(self) -> u64 {
        self.grains
    }

    pub(crate) fn cookie(self) -> u32 {
        self.cookie
    }

    /// First word of the grain at `position` (invariant 1).
    #[inline(always)]
    pub(crate) fn word_of(self, position: u64) -> usize {
        ((position & (self.grains - 1)) as usize) * GRAIN_WORDS
    }
}

/// Why a record found no place. Each is counted in the slot before [`Ring::push`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The consumer has not caught up.
    Full,
    /// The consumer, or the eviction of the oldest, cannot pass a hole whose writer may still be alive.
    Stalled,
    /// The record is longer than the whole ring.
    TooLarge,
}

/// One slot as its producers see it.
pub struct Ring<'a, W: Words + ?Sized> {
    /// The slot's header: head and counters.
    pub header: &'a W,
    /// The ring's grains.
    pub grains: &'a W,
    /// The slot's line in the control page; only read.
    pub control: &'a W,
    /// Size and cookie.
    pub shape: RingShape,
    /// What it does when it is full.
    pub mode: RingMode,
}

impl<W: Words + ?Sized> Ring<'_, W> {
    /// Writes one record and returns whether head has passed an eighth of the ring with it; or counts the refusal and returns
    /// its reason. `clock` is read between the load of head and its compare-and-swap: if it were read before the load, a thread
    /// preempted in between would make time run backwards within the ring.
    ///
    /// Lock-free, async-signal-safe: a writer that is interrupted, stopped or killed at any instruction leaves at
    /// worst a hole, which the consumer counts once that writer can no longer return.
    pub fn push(&self, draft: &Draft<'_>, mut clock: impl FnMut() -> u64) -> Result<bool, Refused> {
        if draft.truncated {
            self.header.fetch_add(slot::TRUNCATED, 1, Relaxed);
        }
        let grains = draft.grains() as u64;
        if grains == 1 {
            let words = draft.head_words();
            let is_event = matches!(draft.payload, Payload::Event);
            return self.push_grain(&words, || if is_event { clock() } else { words[1] });
        }
        if grains > self.shape.grains {
            return self.refuse(slot::TOO_LARGE, Refused::TooLarge);
        }
        let (start, now) = self.reserve(grains, &mut clock)?;
        let base = start.position();
        let stamp = draft.write(base, start.records(), self.shape.cookie, now, Reserved { ring: self, base });
        Ok(self.commit(start, grains, stamp))
    }

    /// As [`Ring::push`], for a record of one grain given by its words: see [`Ring::try_push_grain`].
    pub fn push_grain(
        &self,
        words: &[u64; GRAIN_WORDS],
        mut word1: impl FnMut() -> u64,
    ) -> Result<bool, Refused> {
        let (start, word1) = self.reserve(1, &mut word1)?;
        Ok(self.write_grain(start, word1, words))
    }

    /// As [`Ring::push`], for a record given by its words: those of its head grain, as for [`Ring::push_grain`], and in `tail`,
    /// for each continuation grain, the words after its stamp.
    pub fn push_tail(
        &self,
        words: &[u64; GRAIN_WORDS],
        tail: &[[u64; TAIL_WORDS]],
        mut word1: impl FnMut() -> u64,
    ) -> Result<bool, Refused> {
        let grains = 1 + tail.len();
        if grains as u64 > self.shape.grains {
            return self.refuse(slot::TOO_LARGE, Refused::TooLarge);
        }
        let (start, word1) = self.reserve(grains as u64, &mut word1)?;
        Ok(self.write_grains(start, word1, words, tail))
    }

    /// One attempt at [`Ring::push_tail`]; see [`Ring::try_push_grain`].
    #[inline(always)]
    pub fn try_push_tail(
        &self,
        mut word1: impl FnMut() -> u64,
        words: impl FnOnce() -> [u64; GRAIN_WORDS],
        tail: &[[u64; TAIL_WORDS]],
    ) -> Option<bool> {
        let (head, grains) = (self.head(), 1 + tail.len() as u64);
        let word1 = if self.has_room(head, grains) { self.take(head, grains, &mut word1) } else { None }?;
        Some(self.write_grains(head, word1, &words(), tail))
    }

    /// Writes the grains that were reserved at `start`, and commits them.
    #[inline(always)]
    fn write_grains(
        &self,
        start: Head,
        word1: u64,
        words: &[u64; GRAIN_WORDS],
        tail: &[[u64; TAIL_WORDS]],
    ) -> bool {
        self.write_head(start, word1, words);
        let base = start.position();
        for (index, words) in (1..).zip(tail) {
            self.write_continuation(base + index as u64, index, words);
        }
        let grains = 1 + tail.len();
        self.commit(start, grains as u64, Stamp::head(base, grains, self.shape.cookie))
    }

    /// Writes the continuation grain number `index`, which was reserved at `position`.
    #[inline(always)]
    fn write_continuation(&self, position: u64, index: usize, words: &[u64; TAIL_WORDS]) {
        let at = self.shape.word_of(position);
        self.grains.prefetch_to_store(at + AHEAD_WORDS);
        let stamp = Stamp::continuation(position, index, self.shape.cookie);
        self.grains.store_run(at, [stamp.0]);
        self.grains.store_run(at + 1, *words);
    }

    /// One attempt at [`Ring::push`] for a record of one grain. `None` if there was no room, or the compare-and-swap failed,
    /// as when another producer was faster: nothing has happened then. `word1` is called for the second word (an event's clock)
    /// before the place is taken, `words` for the others afterwards; of these the first and the last are filled in here.
    #[inline(always)]
    pub fn try_push_grain(
        &self,
        mut word1: impl FnMut() -> u64,
        words: impl FnOnce() -> [u64; GRAIN_WORDS],
    ) -> Option<bool> {
        let head = self.head();
        let word1 = if self.has_room(head, 1) { self.take(head, 1, &mut word1) } else { None }?;
        Some(self.write_grain(head, word1, &words()))
    }

    /// Writes the grain that was reserved at `start`, and commits it.
    #[inline(always)]
    fn write_grain(&self, start: Head, word1: u64, words: &[u64; GRAIN_WORDS]) -> bool {
        self.write_head(start, word1, words);
        self.commit(start, 1, Stamp(self.shape.stamp.0 | start.position()))
    }

    /// Writes a head grain except for its stamp.
    #[inline(always)]
    fn write_head(&self, start: Head, word1: u64, words: &[u64; GRAIN_WORDS]) {
        let [_, _, trace_id, span_id, parent_span_id, names, traits, counts] = *words;
        let counts = counts | start.records();
        let at = self.shape.word_of(start.position());
        self.grains.store_run(at + 1, [word1, trace_id, span_id, parent_span_id, names, traits, counts]);
    }

    /// Commits the record that was written from `start` on; returns whether it passed an eighth of the ring.
    #[inline(always)]
    fn commit(&self, start: Head, grains: u64, stamp: Stamp) -> bool {
        let base = start.position();
        // SYNC POINT commit: pairs with the acquire in drain (invariant 5).
        self.grains.store(self.shape.word_of(base), stamp.0, Release);
        ((base + grains) ^ base) & self.shape.eighth != 0
    }

    /// Whether so much waits for the consumer, three eighths of the ring, that it should not sleep any longer. Never
    /// so in an overwriting ring.
    #[cold]
    pub fn is_filling(&self) -> bool {
        let used = self.head().position().wrapping_sub(self.first_in_use()) & POSITION_MASK;
        self.mode == RingMode::Discard && used >= self.shape.grains / 8 * 3
    }

    /// Moves head over `grains` (invariant 4); returns where head was, and what `clock` returned.
    #[inline(always)]
    fn reserve(&self, grains: u64, clock: &mut impl FnMut() -> u64) -> Result<(Head, u64), Refused> {
        loop {
            let head = self.head();
            if !self.has_room(head, grains) {
                self.without_room(head, grains)?;
            } else if let Some(now) = self.take(head, grains, clock) {
                return Ok((head, now));
            }
        }
    }

    #[inline(always)]
    fn head(&self) -> Head {
        Head(self.header.load(slot::HEAD, Relaxed))
    }

    #[inline(always)]
    fn has_room(&self, head: Head, grains: u64) -> bool {
        let used = head.position().wrapping_sub(self.first_in_use()) & POSITION_MASK;
        used + grains <= self.shape.grains
    }

    /// Moves head over `grains`, if it still is `head`; returns what `clock` returned.
    #[inline(always)]
    fn take(&self, head: Head, grains: u64, clock: &mut impl FnMut() -> u64) -> Option<u64> {
        // The line is in the cache of whoever read it last; a store that misses the cache delays the next reading of the clock.
        self.grains.prefetch_to_store(self.shape.word_of(head.position()) + AHEAD_WORDS);
        let now = clock();
        // SYNC POINT look: pairs with the acquire in drain (`reserved`).
        self.header.swap_if(slot::HEAD, head.0, head.after(grains).0, Release).ok()?;
        if self.mode == RingMode::Overwrite {
            // SYNC POINT overwrite: pairs with the acquire fence of a snapshot (invariant 9).
            self.header.fence(Release);
        }
        Some(now)
    }

    /// The first grain that must not be written.
    #[inline(always)]
    fn first_in_use(&self) -> u64 {
        match self.mode {
            // SYNC POINT reuse: pairs with the release in attach (invariant 6).
            RingMode::Discard => self.control.load(control::TAIL, Acquire),
            // SYNC POINT evict: pairs with the release below (invariant 9).
            RingMode::Overwrite => Head(self.header.load(slot::OLDEST, Acquire)).position(),
        }
    }

    /// Refuses the record, or makes room for it.
    #[cold]
    fn without_room(&self, head: Head, grains: u64) -> Result<(), Refused> {
        // Tail or OLDEST may have passed a head that was loaded long ago; judge by the present one.
        if self.head() != head {
            return Ok(());
        }
        match self.mode {
            RingMode::Discard => self.refuse_full(),
            RingMode::Overwrite => self.evict(head, grains),
        }
    }

    /// Gives up the oldest records, so that `grains` fit after `head`. Another producer may already have done so.
    fn evict(&self, head: Head, grains: u64) -> Result<(), Refused> {
        let oldest = Head(self.header.load(slot::OLDEST, Acquire));
        let Some(next) = next_oldest(self.grains, self.shape, oldest, head, grains) else {
            // Either there is a hole, or other producers were faster and these grains are in use again. In that case OLDEST and
            // head have moved, and this fence makes that visible.
            self.header.fence(Acquire);
            let is_now = |index: usize, word: Head| self.header.load(index, Relaxed) == word.0;
            let is_stuck = is_now(slot::OLDEST, oldest) && is_now(slot::HEAD, head);
            return if is_stuck { self.refuse(slot::STALLED, Refused::Stalled) } else { Ok(()) };
        };
        // SYNC POINT evict: pairs with the acquire of OLDEST in producers and snapshots (invariant 9).
        if next != oldest && self.header.swap_if(slot::OLDEST, oldest.0, next.0, AcqRel).is_ok() {
            self.header.fetch_add(slot::OVERWRITTEN, next.records_since(oldest), Relaxed);
        }
        Ok(())
    }

    fn refuse_full(&self) -> Result<(), Refused> {
        if self.control.load(control::WAITING_AT_HOLE, Relaxed) != 0 {
            self.refuse(slot::STALLED, Refused::Stalled)
        } else {
            self.refuse(slot::FULL, Refused::Full)
        }
    }

    /// Counts an attempt that found no place, and why. Those that find one are counted by the move of head.
    #[cold]
    fn refuse<T>(&self, counter: usize, why: Refused) -> Result<T, Refused> {
        self.header.fetch_add(slot::ATTEMPTED, 1, Relaxed);
        self.header.fetch_add(counter, 1, Relaxed);
        Err(why)
    }
}

/// Grains that were reserved from `base` on.
struct Reserved<'a, 'r, W: Words + ?Sized> {
    ring: &'a Ring<'r, W>,
    base: u64,
}

impl<W: Words + ?Sized> Reserved<'_, '_, W> {
    #[inline(always)]
    fn word_of(&self, grain: usize) -> usize {
        self.ring.shape.word_of(self.base + grain as u64)
    }
}

impl<W: Words + ?Sized> Place for Reserved<'_, '_, W> {
    #[inline(always)]
    fn put(&mut self, index: usize, word: u64) {
        self.ring.grains.store(self.word_of(index / GRAIN_WORDS) + index % GRAIN_WORDS, word, Relaxed);
    }

    #[inline(always)]
    fn put_grain(&mut self, grain: usize, words: [u64; TAIL_WORDS]) {
        let at = self.word_of(grain);
        self.ring.grains.prefetch_to_store(at + AHEAD_WORDS);
        self.ring.grains.store_run(at + 1, words);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_keeps_the_low_bits_of_longer_counts() {
        let head = Head::of(POSITION_MASK + 1 + 7, ORDINAL_MASK + 1 + 5);
        assert_eq!((head.position(), head.records()), (7, 5));
        assert_eq!(Head::of(POSITION_MASK, ORDINAL_MASK), Head(u64::MAX));
    }

    #[test]
    fn position_and_records_of_a_head_wrap_independently() {
        let behind = Head::of(POSITION_MASK, 5).after(3);
        assert_eq!((behind.position(), behind.records()), (2, 6));
        let behind = Head::of(7, ORDINAL_MASK).after(3);
        assert_eq!((behind.position(), behind.records()), (10, 0));
        let before = Head(u64::MAX);
        let after = before.after(1).after(2);
        assert_eq!((after.grains_since(before), after.records_since(before)), (3, 2));
    }
}
