//! Tells which traces a segment surely does not hold: a Bloom filter over their low 64 bits (Bloom 1970), in blocks of one cache
//! line each (Putze, Sanders, Singler 2007), so that a lookup costs one cache miss.

/// Words of a block, which is a cache line.
const BLOCK_WORDS: usize = 8;
/// Bits for each trace: of 1,000 lookups of absent traces, fewer than 10 answer that the trace may be there.
const BITS_PER_TRACE: usize = 12;
/// Bits that are set for a trace.
const PROBES: u32 = 6;

fn words_for(traces: usize) -> usize {
    traces.saturating_mul(BITS_PER_TRACE).div_ceil(BLOCK_WORDS * 64).max(1).saturating_mul(BLOCK_WORDS)
}

/// The filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Filter {
    words: Vec<u64>,
}

impl Filter {
    /// An empty filter with room for so many traces.
    pub(super) fn for_traces(traces: usize) -> Filter {
        Filter { words: vec![0; words_for(traces)] }
    }

    pub(super) fn insert(&mut self, low: u64) {
        let (block, mut bits) = self.place(low);
        for _ in 0..PROBES {
            self.words[block + (bits >> 6) as usize % BLOCK_WORDS] |= 1 << (bits & 63);
            bits >>= 9;
        }
    }

    /// False only if these low bits were never inserted.
    pub(super) fn may_hold(&self, low: u64) -> bool {
        let (block, mut bits) = self.place(low);
        (0..PROBES).all(|_| {
            let word = self.words[block + (bits >> 6) as usize % BLOCK_WORDS];
            let bit = bits & 63;
            bits >>= 9;
            word >> bit & 1 == 1
        })
    }

    /// The first word of a trace's block, and the bits that choose within it. Senders may count ids up, so the ids are mixed
    /// first (with the finalizer of MurmurHash3).
    fn place(&self, low: u64) -> (usize, u64) {
        let mut mixed = low ^ low >> 33;
        mixed = mixed.wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed ^= mixed >> 33;
        mixed = mixed.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        mixed ^= mixed >> 33;
        let blocks = (self.words.len() / BLOCK_WORDS) as u64;
        let block = ((u128::from(mixed) * u128::from(blocks)) >> 64) as usize;
        (block * BLOCK_WORDS, mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 10)
    }

    /// Whether it has the size of a filter for so many traces.
    pub(super) fn is_for(&self, traces: usize) -> bool {
        self.words.len() == words_for(traces)
    }

    pub(super) fn words(&self) -> &[u64] {
        &self.words
    }

    /// A filter that was stored; none if these words cannot be one.
    pub(super) fn of_words(words: Vec<u64>) -> Option<Filter> {
        (!words.is_empty() && words.len().is_multiple_of(BLOCK_WORDS)).then_some(Filter { words })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_holds_all_inserted_ids_and_few_others() {
        const TRACES: u64 = 20_000;
        for apart in [1, 0x1_0000_0001] {
            let mut filter = Filter::for_traces(TRACES as usize);
            (0..TRACES).for_each(|n| filter.insert(n * apart));
            assert!((0..TRACES).all(|n| filter.may_hold(n * apart)));
            let seems = (TRACES..2 * TRACES).filter(|n| filter.may_hold(n * apart)).count();
            assert!(seems < TRACES as usize / 50, "{seems} of {TRACES}");
        }
    }

    #[test]
    fn an_empty_filter_holds_nothing() {
        let filter = Filter::for_traces(0);
        assert!((0..1000).all(|n| !filter.may_hold(n)));
        assert_eq!(Filter::of_words(filter.words().to_vec()), Some(filter));
        assert!(Filter::of_words(vec![0; 7]).is_none() && Filter::of_words(Vec::new()).is_none());
    }
}
