//! The producer's protocol: reserve by compare-and-swap, write, commit by the stamp.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use blkin_record::{Draft, GRAIN_BYTES, GRAIN_WORDS, ORDINAL_MASK, POSITION_MASK};

use crate::layout::{control, slot};
use crate::words::Words;

const RECORDS_SHIFT: u32 = 36;

const _: () = assert!(POSITION_MASK == (1 << RECORDS_SHIFT) - 1);
const _: () = assert!(ORDINAL_MASK == u64::MAX >> RECORDS_SHIFT);
// Head tells a full ring from an empty one, and counts its records, only while a ring is far below a lap of both.
const _: () = assert!((crate::layout::MAX_RING_BYTES / GRAIN_BYTES) as u64 <= ORDINAL_MASK / 2);

/// The head word: how far producers have reserved.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head(pub(crate) u64);

impl Head {
    #[inline(always)]
    pub(crate) fn position(self) -> u64 {
        self.0 & POSITION_MASK
    }

    #[inline(always)]
    pub(crate) fn records(self) -> u64 {
        self.0 >> RECORDS_SHIFT
    }

    /// Head after one more record of `grains`. The count wraps out of the word's top by itself.
    #[inline(always)]
    fn after(self, grains: u64) -> Head {
        let records = (self.records() + 1) << RECORDS_SHIFT;
        Head(records | (self.position() + grains) & POSITION_MASK)
    }
}

/// Size and cookie of a ring; the producer's own copy, which nobody else can change.
#[derive(Clone, Copy, Debug)]
pub struct RingShape {
    grains: u64,
    cookie: u32,
}

impl RingShape {
    /// `ring_bytes` must be a power of two and hold at least one grain.
    pub fn new(ring_bytes: usize, cookie: u32) -> RingShape {
        debug_assert!(ring_bytes.is_power_of_two() && ring_bytes >= GRAIN_BYTES);
        RingShape { grains: (ring_bytes / GRAIN_BYTES) as u64, cookie }
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
    /// The consumer cannot pass a hole whose writer may still live.
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
}

impl<W: Words + ?Sized> Ring<'_, W> {
    /// Writes one record, or counts why not. `clock` is read between the load of head and its compare-and-swap:
    /// were it read before, a thread that is preempted in between would run backwards within the ring.
    ///
    /// Lock-free, async-signal-safe: a writer that is interrupted, stopped or killed at any instruction leaves at
    /// worst a hole, which the consumer counts once that writer cannot return.
    pub fn push(&self, draft: &Draft<'_>, mut clock: impl FnMut() -> u64) -> Result<(), Refused> {
        self.header.fetch_add(slot::ATTEMPTED, 1, Relaxed);
        if draft.truncated {
            self.header.fetch_add(slot::TRUNCATED, 1, Relaxed);
        }
        let grains = draft.grains() as u64;
        if grains > self.shape.grains {
            return self.refuse(slot::TOO_LARGE, Refused::TooLarge);
        }
        let (start, now) = self.reserve(grains, &mut clock)?;
        let base = start.position();
        let stamp = draft.write(base, start.records(), self.shape.cookie, now, |index, word| {
            let grain = base + (index / GRAIN_WORDS) as u64;
            self.grains.store(self.shape.word_of(grain) + index % GRAIN_WORDS, word, Relaxed);
        });
        // SYNC POINT commit: pairs with the acquire in drain (invariant 5).
        self.grains.store(self.shape.word_of(base), stamp.0, Release);
        Ok(())
    }

    /// Moves head over `grains` (invariant 4) and returns where it stood and when.
    fn reserve(&self, grains: u64, clock: &mut impl FnMut() -> u64) -> Result<(Head, u64), Refused> {
        let mut head = Head(self.header.load(slot::HEAD, Relaxed));
        loop {
            // SYNC POINT reuse: pairs with the release in attach (invariant 6).
            let tail = self.control.load(control::TAIL, Acquire);
            let used = head.position().wrapping_sub(tail) & POSITION_MASK;
            if used + grains > self.shape.grains {
                // Tail may have passed a head that was loaded long ago; judge by the present one.
                let again = Head(self.header.load(slot::HEAD, Relaxed));
                if again == head {
                    return self.refuse_full();
                }
                head = again;
                continue;
            }
            let now = clock();
            match self.header.swap_if(slot::HEAD, head.0, head.after(grains).0, Relaxed) {
                Ok(_) => return Ok((head, now)),
                Err(moved) => head = Head(moved),
            }
        }
    }

    #[cold]
    fn refuse_full<T>(&self) -> Result<T, Refused> {
        if self.control.load(control::WAITING_AT_HOLE, Relaxed) != 0 {
            self.refuse(slot::STALLED, Refused::Stalled)
        } else {
            self.refuse(slot::FULL, Refused::Full)
        }
    }

    #[cold]
    fn refuse<T>(&self, counter: usize, why: Refused) -> Result<T, Refused> {
        self.header.fetch_add(counter, 1, Relaxed);
        Err(why)
    }
}
