//! Packs bytes into words, in registers: a word that is loaded after its bytes were stored one by one waits for all of these
//! stores. Grains that are full of one text are passed on whole.

use crate::layout::{GRAIN_WORDS, TAIL_GRAIN_BYTES};

/// Words of a continuation grain after its stamp.
pub const TAIL_WORDS: usize = GRAIN_WORDS - 1;

/// From this length, in bytes, it is worth while to look for grains that are full of one text.
const LONG: usize = 3 * TAIL_GRAIN_BYTES;

/// A sink for the words of a tail, in order.
pub(crate) trait Tail {
    /// Takes the next word.
    fn put(&mut self, word: u64);
    /// How many words are free in the grain that has been begun; 0 if no grain has.
    fn words_left(&self) -> usize;
    /// Takes all words of a grain. Allowed only if no grain has been begun.
    fn put_grain(&mut self, words: [u64; TAIL_WORDS]);
}

/// Joins bytes to little-endian words, the last one padded with zeros, and passes them on in order.
pub(crate) struct Packer<T: Tail> {
    tail: T,
    /// The bytes that do not fill a word yet.
    word: u64,
    /// How many bits of `word` are filled: less than 64.
    bits: u32,
}

impl<T: Tail> Packer<T> {
    #[inline(always)]
    pub(crate) fn new(tail: T) -> Packer<T> {
        Packer { tail, word: 0, bits: 0 }
    }

    /// Appends up to 7 bytes of `value`; its other bytes are 0.
    #[inline(always)]
    pub(crate) fn push_bytes(&mut self, value: u64, bytes: usize) {
        debug_assert!(bytes < 8 && value >> (8 * bytes) == 0);
        let filled = self.bits + 8 * bytes as u32;
        self.word |= value << self.bits;
        if filled >= u64::BITS {
            self.tail.put(self.word);
            self.word = above(value, self.bits);
        }
        self.bits = filled % u64::BITS;
    }

    /// Appends a text of any length.
    #[inline(always)]
    pub(crate) fn push_text(&mut self, text: &[u8]) {
        let text = if text.len() < LONG { text } else { self.full_grains(text) };
        let (chunks, rest) = text.as_chunks::<8>();
        for chunk in chunks {
            let value = u64::from_le_bytes(*chunk);
            self.tail.put(self.word | value << self.bits);
            self.word = above(value, self.bits);
        }
        // The last bytes of a text of eight or more are loaded together with the bytes before them.
        let last = match text.last_chunk::<8>() {
            Some(last) => above(u64::from_le_bytes(*last), 8 * rest.len() as u32),
            None => word_of(rest),
        };
        self.push_bytes(last, rest.len());
    }

    /// Appends the part of a long text that completes the current grain, and then whole grains; returns the rest.
    #[inline(never)]
    fn full_grains<'t>(&mut self, text: &'t [u8]) -> &'t [u8] {
        let missing = ((u64::BITS - self.bits) / 8 % 8) as usize;
        let (first, text) = text.split_at(missing);
        self.push_bytes(word_of(first), missing);
        let (first, text) = text.split_at(size_of::<u64>() * self.tail.words_left());
        first.as_chunks().0.iter().for_each(|word| self.tail.put(u64::from_le_bytes(*word)));
        let (grains, rest) = text.as_chunks::<TAIL_GRAIN_BYTES>();
        for grain in grains {
            let words = grain.as_chunks().0;
            self.tail.put_grain(std::array::from_fn(|index| u64::from_le_bytes(words[index])));
        }
        rest
    }

    /// Puts the last word, unless it is empty.
    #[inline(always)]
    pub(crate) fn finish(mut self) -> T {
        if self.bits > 0 {
            self.tail.put(self.word);
        }
        self.tail
    }
}

/// The high bits of `value` that do not fit into a word in which `bits` bits are filled; 0 if none are filled.
#[inline(always)]
fn above(value: u64, bits: u32) -> u64 {
    value >> 1 >> (u64::BITS - 1 - bits)
}

/// Up to eight bytes as a little-endian word. Uses overlapping loads: a copy of so few bytes would call memcpy for each
/// text of each record.
#[inline(always)]
pub fn word_of(bytes: &[u8]) -> u64 {
    let last = bytes.len().saturating_sub(1);
    match *bytes {
        [a, b, c, d, e, f, g, h] => u64::from_le_bytes([a, b, c, d, e, f, g, h]),
        [a, b, c, d, ..] => {
            let high = u32::from_le_bytes([bytes[last - 3], bytes[last - 2], bytes[last - 1], bytes[last]]);
            u64::from(u32::from_le_bytes([a, b, c, d])) | u64::from(high) << (8 * (last - 3))
        }
        [a, b, ..] => {
            let high = u16::from_le_bytes([bytes[last - 1], bytes[last]]);
            u64::from(u16::from_le_bytes([a, b])) | u64::from(high) << (8 * (last - 1))
        }
        [a] => u64::from(a),
        [] => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The words, and how many whole grains were put.
    #[derive(Default)]
    struct Words(Vec<u64>, usize);

    impl Tail for Words {
        fn put(&mut self, word: u64) {
            self.0.push(word);
        }

        fn words_left(&self) -> usize {
            self.0.len().next_multiple_of(TAIL_WORDS) - self.0.len()
        }

        fn put_grain(&mut self, words: [u64; TAIL_WORDS]) {
            assert_eq!(self.words_left(), 0);
            self.0.extend(words);
            self.1 += 1;
        }
    }

    fn text(bytes: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(any::<u8>(), bytes)
    }

    proptest! {
        #[test]
        fn packed_words_hold_the_bytes_in_order(pieces in proptest::collection::vec(
                prop_oneof![text(0..40), text(0..2 * LONG)], 0..8)) {
            let mut packer = Packer::new(Words::default());
            for piece in &pieces {
                match piece.len() {
                    0..8 => packer.push_bytes(word_of(piece), piece.len()),
                    _ => packer.push_text(piece),
                }
                packer.push_text(piece);
            }
            let Words(words, grains) = packer.finish();
            let words: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
            let expected: Vec<u8> = pieces.iter().flat_map(|piece| piece.iter().chain(piece)).copied().collect();
            prop_assert_eq!(words.len(), expected.len().next_multiple_of(8));
            prop_assert_eq!(&words[..expected.len()], &expected[..]);
            prop_assert!(words[expected.len()..].iter().all(|byte| *byte == 0));
            // All but the part that completes the grain before, and the rest at the end.
            let least = |piece: &Vec<u8>| 2 * (piece.len() / TAIL_GRAIN_BYTES).saturating_sub(1);
            let long = pieces.iter().filter(|piece| piece.len() >= LONG);
            prop_assert!(grains >= long.map(least).sum());
        }
    }
}
