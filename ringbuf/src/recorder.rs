//! Reading a ring while it is written, without taking anything out of it.
//!
//! What lies between the first grain in use (OLDEST of an overwriting ring, the tail of any other) and head is copied
//! piece by piece. After each piece the first grain in use is read again: what has been given up meanwhile may have
//! been overwritten, and is dropped from the copy (invariant 9). So a copy never holds half of a record, and everything
//! from its beginning up to head is there, except for holes.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use blkin_record::GRAIN_BYTES;

use crate::attach::Attachment;
use crate::clock::Anchor;
use crate::copies::append_grains;
use crate::layout::{NAMES_TEXT, NAMES_TEXT_WORDS, RingMode, SLOT_HEADER_WORDS, control, slot};
use crate::names::MAX_INTERNED_BYTES;
use crate::ring::{Head, RingShape};
use crate::saved::{Identity, Run, Saved, SavedSlot};
use crate::words::Words;

/// Grains between two looks at what is in use.
const PIECE_GRAINS: u64 = 256;
/// A copy that was overtaken begins again where the oldest record is then; in all it copies at most this many rings.
const MOST_LAPS: u64 = 4;

/// A copy of which less than one part in this many is left is not what was wanted.
const ENOUGH: u64 = 4;

/// What a ring held at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RingCopy {
    /// Head word of its beginning: records << 36 | grains.
    pub from: u64,
    /// Head word of its end.
    pub to: u64,
    /// Grains, as they stood in the ring.
    pub raw: Vec<u8>,
}

/// A ring and how its first grain in use is found.
pub(crate) struct LiveRing<'a, W: Words + ?Sized, F: Fn() -> Head> {
    pub(crate) header: &'a W,
    pub(crate) grains: &'a W,
    pub(crate) shape: RingShape,
    /// Loads the head word of the first grain in use, with acquire.
    pub(crate) first: F,
}

impl<W: Words + ?Sized, F: Fn() -> Head> LiveRing<'_, W, F> {
    /// Copies what is in use, or the newest part of it if the ring is written meanwhile. The copy has no grains when the ring
    /// contradicts itself (then nothing lies between its ends), or is written faster than it can be copied (then its ends say
    /// what there was).
    pub(crate) fn copy(&self) -> RingCopy {
        let grains = self.shape.grains();
        let (mut budget, mut longest) = (MOST_LAPS * grains, RingCopy::default());
        let mut room = self.room();
        loop {
            // SYNC POINT evict: the thread that moved OLDEST had seen a head past it (invariant 9).
            let first = (self.first)();
            let head = Head(self.header.load(slot::HEAD, Relaxed));
            let is_within = head.grains_since(first) <= grains;
            if is_within {
                let copy = self.copy_between(first, head, std::mem::take(&mut room), &mut budget);
                if copy.raw.len() as u64 * ENOUGH >= head.grains_since(first) * GRAIN_BYTES as u64 {
                    return copy;
                }
                room = keep_longer(&mut longest, copy);
            } else {
                // Writers went on between the two loads; or the ring contradicts itself each time.
                budget = budget.saturating_sub(grains);
            }
            if budget == 0 {
                let from = if is_within { first } else { head };
                let nothing = RingCopy { from: from.0, to: head.0, raw: Vec::new() };
                return if longest.raw.is_empty() { nothing } else { longest };
            }
        }
    }

    /// Memory for all that is in use, touched in advance: while the kernel supplied the pages of a large ring one by one, a
    /// writer would pass all of them.
    fn room(&self) -> Vec<u8> {
        let head = Head(self.header.load(slot::HEAD, Relaxed));
        let grains = head.grains_since((self.first)()).min(self.shape.grains());
        let mut room = Vec::new();
        room.resize(grains as usize * GRAIN_BYTES, 1);
        room
    }

    /// Copies what lies between `first` and `head`, except for what was given up before it was copied.
    fn copy_between(&self, first: Head, head: Head, mut raw: Vec<u8>, budget: &mut u64) -> RingCopy {
        raw.clear();
        let (mut from, length) = (first, head.grains_since(first));
        // Grains past `first`: where the copy begins, and how far it has come.
        let (mut start, mut copied) = (0, 0);
        while copied < length {
            let piece = PIECE_GRAINS.min(length - copied);
            self.copy_piece(first.position() + copied, piece, &mut raw);
            copied += piece;
            *budget = budget.saturating_sub(piece);
            // SYNC POINT overwrite: pairs with the release fence in ring (invariant 9).
            self.header.fence(Acquire);
            from = (self.first)();
            let given_up = from.grains_since(first);
            if given_up > copied {
                (start, copied) = (given_up, given_up);
                raw.clear();
            }
        }
        // A program may write anything into its ring's header, also an earlier place than before.
        let lost = from.grains_since(first).saturating_sub(start);
        raw.drain(..raw.len().min(lost as usize * GRAIN_BYTES));
        RingCopy { from: from.0, to: head.0, raw }
    }

    fn copy_piece(&self, position: u64, grains: u64, out: &mut Vec<u8>) {
        append_grains(out, grains as usize, |copies| {
            for position in position..position + grains {
                // SYNC POINT commit: pairs with the release in ring (invariant 5); a record's stamp comes first.
                copies.push(&self.grains.load_run(self.shape.word_of(position), Acquire));
            }
        });
    }
}

/// Keeps the longer copy, and returns the memory of the shorter one.
fn keep_longer(longest: &mut RingCopy, copy: RingCopy) -> Vec<u8> {
    if copy.raw.len() > longest.raw.len() { std::mem::replace(longest, copy).raw } else { copy.raw }
}

/// The number that has the 28 bits of `records` and is nearest to `about`: a count that its writer keeps in 64 bits beside
/// the word that counts, and that a kill between the two updates leaves a little behind.
pub(crate) fn nearest_count(records: u64, about: u64) -> u64 {
    const BITS: u32 = blkin_record::ORDINAL_MASK.trailing_ones();
    let ahead = records.wrapping_sub(about) << (u64::BITS - BITS);
    about.wrapping_add_signed(ahead.cast_signed() >> (u64::BITS - BITS))
}

/// Two moments on a program's clock, each also in nanoseconds since 1970, as the clock is set now: `CLOCK_MONOTONIC`, which
/// nobody sets, tells how long ago the first one was. An exception is a program in a time namespace that moves this clock: its
/// anchor then contradicts what was measured here since the segment was `opened`, and `CLOCK_REALTIME` is the better guess.
fn line_of(first: Anchor, opened: Anchor, now: Anchor) -> [(u64, i64); 2] {
    let monotonic_ns = now.monotonic_ns.saturating_sub(first.monotonic_ns);
    let ticks = |since: Anchor| i128::from(now.raw.wrapping_sub(since.raw));
    let said = ticks(first) * i128::from(now.monotonic_ns.saturating_sub(opened.monotonic_ns));
    let measured = ticks(opened) * i128::from(monotonic_ns);
    let is_moved = (said - measured).abs() > measured.abs() / 1000;
    let ago = if is_moved { now.realtime_ns.saturating_sub(first.realtime_ns) } else { monotonic_ns };
    [(first.raw, now.realtime_ns.saturating_sub(ago)), (now.raw, now.realtime_ns)]
}

impl Attachment {
    /// Copies what a ring holds: from an overwriting ring what nobody has overwritten, from any other what nobody has
    /// drained. A discarding ring is copied exactly by the one consumer that drains it; others may find a record spoilt that
    /// was drained and overwritten meanwhile, and its stamps then tell.
    pub fn copy_ring(&self, slot: usize) -> RingCopy {
        let reader = self.reader(slot);
        let line = control::slot_line(slot);
        let first = || match self.info().mode {
            RingMode::Overwrite => Head(reader.header.load(slot::OLDEST, Acquire)),
            RingMode::Discard => {
                let word = |index: usize| self.control_words()[line + index].load(Acquire);
                Head::of(word(control::TAIL), word(control::TAIL_RECORDS))
            }
        };
        LiveRing { header: reader.header, grains: reader.grains, shape: reader.shape, first }.copy()
    }

    /// Everything that the rings hold now, with what is needed to read it elsewhere.
    pub fn save(&self, identity: Identity) -> Saved {
        self.save_with((0..self.slots()).filter_map(|slot| self.save_ring(slot)).collect(), identity)
    }

    /// What [a ring holds](Self::copy_ring), to be saved; `None` if it was never written.
    pub fn save_ring(&self, slot: usize) -> Option<SavedSlot> {
        let ring = self.copy_ring(slot);
        (ring.to != 0).then(|| SavedSlot {
            number: slot as u32,
            header: self.slot_header_words(slot),
            range: Some((ring.from, ring.to)),
            runs: vec![Run { position: Head(ring.from).position(), raw: ring.raw }],
        })
    }

    /// Rings that [were copied](Self::save_ring) just before, with what is needed to read them elsewhere. The names of every
    /// record that was copied are in it.
    pub fn save_with(&self, slots: Vec<SavedSlot>, identity: Identity) -> Saved {
        let now = Anchor::now(self.info().clock);
        Saved {
            identity,
            clock: Some(self.info().clock),
            anchors: line_of(self.info().anchor, self.opened_at(), now).to_vec(),
            header: self.header_words(),
            names: self.names_words(),
            slots,
        }
    }

    /// The words of a slot's header, as they are now.
    pub fn slot_header_words(&self, slot: usize) -> Vec<u64> {
        let header = self.slot_header(slot);
        (0..SLOT_HEADER_WORDS).map(|index| header[index].load(Relaxed)).collect()
    }

    /// The first words of the segment's header.
    fn header_words(&self) -> Vec<u64> {
        self.words()[..crate::saved::HEADER_WORDS].iter().map(|word| word.load(Relaxed)).collect()
    }

    /// The words of the table of names. Taken after the rings, it holds every name of their records.
    fn names_words(&self) -> Vec<u64> {
        let words = &self.words()[NAMES_TEXT..][..NAMES_TEXT_WORDS];
        let mut words: Vec<u64> = words.iter().map(|word| word.load(Acquire)).collect();
        // Only the program itself knows how much is given out. The last text may end with words of zeros.
        let used = words.iter().rposition(|word| *word != 0).map_or(1, |last| last + 1);
        words.truncate(used + MAX_INTERNED_BYTES.div_ceil(8));
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: i64 = 1_000_000_000;
    const NOW: Anchor =
        Anchor { raw: 30_000, monotonic_ns: 110 * SECOND, realtime_ns: 1_700_000_000 * SECOND };
    /// The counter has a thousand ticks a second.
    const OPENED: Anchor =
        Anchor { raw: 29_000, monotonic_ns: 109 * SECOND, realtime_ns: NOW.realtime_ns - SECOND };

    /// The anchor of a program, ten seconds ago, by clocks that were slow by so many seconds then.
    fn begun(monotonic: i64, realtime: i64) -> Anchor {
        let ago = |now_ns: i64, slow: i64| now_ns - (10 + slow) * SECOND;
        Anchor {
            raw: 20_000,
            monotonic_ns: ago(NOW.monotonic_ns, monotonic),
            realtime_ns: ago(NOW.realtime_ns, realtime),
        }
    }

    #[test]
    fn setting_the_clock_moves_no_records_of_a_running_program() {
        let line = [(20_000, NOW.realtime_ns - 10 * SECOND), (30_000, NOW.realtime_ns)];
        for slow in [0, 1, 3600, -3600, 365 * 86_400] {
            assert_eq!(line_of(begun(0, slow), OPENED, NOW), line, "set by {slow} s");
        }
    }

    #[test]
    fn a_monotonic_clock_moved_by_a_time_namespace_is_not_trusted() {
        let line = [(20_000, NOW.realtime_ns - 10 * SECOND), (30_000, NOW.realtime_ns)];
        for moved in [1, -1, 86_400, i64::MAX / SECOND - 200] {
            assert_eq!(line_of(begun(moved, 0), OPENED, NOW), line, "moved by {moved} s");
        }
        let [_, last] =
            line_of(Anchor { raw: 0, monotonic_ns: i64::MIN, realtime_ns: i64::MIN }, OPENED, NOW);
        assert_eq!(last, line[1]);
    }

    proptest! {
        #[test]
        fn a_count_is_restored_from_its_low_bits_and_a_near_count(count: u64, off in -(1i64 << 26)..1 << 26) {
            let near = count.wrapping_add_signed(off);
            prop_assert_eq!(nearest_count(count & blkin_record::ORDINAL_MASK, near), count);
        }
    }
}
