//! Hashes of ids that programs choose: a multiplication for each word, keyed at random in each process, so that no
//! program can pick ids which collide. (The standard library's keyed hash took an eighth of the time of a record.)

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::LazyLock;

/// A map from ids.
pub(crate) type Map<K, V> = std::collections::HashMap<K, V, Keyed>;

static KEYS: LazyLock<[u64; 2]> = LazyLock::new(|| {
    let random = RandomState::new();
    // An even factor would lose the highest bit of every word.
    [random.hash_one(0_u8), random.hash_one(1_u8) | 1]
});

/// Makes hashers with the keys of this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keyed([u64; 2]);

impl Default for Keyed {
    fn default() -> Self {
        Self(*KEYS)
    }
}

impl BuildHasher for Keyed {
    type Hasher = Folded;

    #[inline]
    fn build_hasher(&self) -> Folded {
        let [state, factor] = self.0;
        Folded { state, factor }
    }
}

/// Folds in each word by one multiplication to 128 bits, and mixes both halves of the product.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Folded {
    state: u64,
    factor: u64,
}

impl Hasher for Folded {
    #[inline]
    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.state ^ word).wrapping_mul(u128::from(self.factor));
        self.state = product as u64 ^ (product >> 64) as u64;
    }

    #[inline]
    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
        self.write_u64(bytes.len() as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn consecutive_ids_spread_over_low_and_high_hash_bits() {
        let hashes = || (0..4096_u64).map(|id| Keyed::default().hash_one((id << 20, id)));
        let low: HashSet<u64> = hashes().map(|hash| hash & 0xfff).collect();
        let high: HashSet<u64> = hashes().map(|hash| hash >> 52).collect();
        // Of 4096 throws into as many boxes, about 63 % of the boxes are hit.
        assert!(low.len() > 2300 && high.len() > 2300, "{} {}", low.len(), high.len());
    }
}
