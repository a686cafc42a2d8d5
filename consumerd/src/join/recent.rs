//! The last spans that left, in bounded memory: their hashes ("marks") in a table of sets. Each set is one cache line, and drops
//! its oldest mark when it is full. Two spans with the same mark count as one, which happens to one in 2^64 pairs of spans.

use std::hash::BuildHasher;

use crate::hash::Keyed;

/// Marks of a set: one line of memory.
const WAYS: usize = 8;
/// The mark of a free place; a span's is never that.
const NONE: u64 = 0;

#[derive(Clone, Debug)]
#[repr(align(64))]
struct Set([u64; WAYS]);

#[derive(Debug)]
pub(super) struct Recent {
    keys: Keyed,
    /// Their number is a power of two; empty before the first span left.
    sets: Vec<Set>,
    most: usize,
}

impl Recent {
    /// Remembers about the last `most` spans, or more: there is room for four times as many, so that hardly any set is short of
    /// room.
    pub(super) fn new(most: usize) -> Self {
        Self { keys: Keyed::default(), sets: Vec::new(), most }
    }

    /// Notes that a span leaves, and returns whether a piece of it left before.
    pub(super) fn insert(&mut self, key: (u64, u64)) -> bool {
        if self.sets.is_empty() {
            self.sets = vec![Set([NONE; WAYS]); (4 * self.most / WAYS).next_power_of_two()];
        }
        let (set, mark) = self.place(key);
        let Some(Set(marks)) = self.sets.get_mut(set) else { return false };
        let is_known = marks.contains(&mark);
        if !is_known {
            marks.copy_within(..WAYS - 1, 1);
            marks[0] = mark;
        }
        is_known
    }

    /// The set and the mark of a span.
    fn place(&self, key: (u64, u64)) -> (usize, u64) {
        let mark = self.keys.hash_one(key).max(NONE + 1);
        ((mark >> 32) as usize & self.sets.len().wrapping_sub(1), mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_spans_are_known_and_older_ones_forgotten() {
        let most = 1 << 12;
        let of = |ids: std::ops::Range<usize>| ids.rev().map(|id| (id as u64, id as u64));
        let mut recent = Recent::new(most);
        assert!((0..10 * most as u64).all(|id| !recent.insert((id, id))));
        // The newest first: a span that was forgotten is put in again, and drives out an older one.
        assert!(of(9 * most..10 * most).filter(|key| recent.insert(*key)).count() > most * 99 / 100);
        assert!(of(0..most).filter(|key| recent.insert(*key)).count() < most / 100);
        assert_eq!(recent.sets.len() * WAYS, 4 * most);
    }

    #[test]
    fn a_span_inserted_repeatedly_takes_one_place() {
        let mut recent = Recent::new(64);
        assert!(!recent.insert((1, 1)) && !recent.insert((2, 2)));
        assert!((0..1000).all(|_| recent.insert((2, 2))));
        assert!(recent.insert((1, 1)));
    }
}
