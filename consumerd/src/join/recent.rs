//! The last spans that left, in bounded memory: as hashes of 64 bits, in two generations of which the older is
//! forgotten at once. Two spans of the same hash are taken for one, once in 2^48.

use std::collections::HashSet;
use std::hash::BuildHasher;

use crate::hash::Keyed;

#[derive(Debug)]
pub(super) struct Recent {
    /// Spans of a generation.
    most: usize,
    keys: Keyed,
    young: HashSet<u64, Keyed>,
    old: HashSet<u64, Keyed>,
}

impl Recent {
    /// Knows the last `most` spans, and forgets those before twice as many.
    pub(super) fn new(most: usize) -> Self {
        Self { most, keys: Keyed::default(), young: HashSet::default(), old: HashSet::default() }
    }

    pub(super) fn contains(&self, key: (u64, u64)) -> bool {
        let hash = self.keys.hash_one(key);
        self.young.contains(&hash) || self.old.contains(&hash)
    }

    pub(super) fn insert(&mut self, key: (u64, u64)) {
        self.young.insert(self.keys.hash_one(key));
        if self.young.len() >= self.most {
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_known_and_older_ones_forgotten() {
        let mut recent = Recent::new(2);
        for id in [1, 1, 2, 3] {
            recent.insert((id, id));
        }
        assert!(recent.contains((2, 2)) && recent.contains((3, 3)));
        recent.insert((4, 4));
        assert!(!recent.contains((1, 1)) && !recent.contains((2, 2)));
        assert!(recent.contains((3, 3)) && recent.contains((4, 4)));
    }
}
