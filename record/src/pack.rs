//! Bytes to words, in registers: what is stored a byte at a time and then loaded a word at a time waits for all of the
//! stores.

/// Joins bytes to little-endian words, the last one padded with zeros, and passes them on in order.
pub(crate) struct Packer<P: FnMut(u64)> {
    put: P,
    /// What is not a whole word yet.
    word: u64,
    /// How much of it, in bits: less than a word.
    bits: u32,
}

impl<P: FnMut(u64)> Packer<P> {
    #[inline(always)]
    pub(crate) fn new(put: P) -> Packer<P> {
        Packer { put, word: 0, bits: 0 }
    }

    /// Up to 7 bytes; those of `value` behind them are 0.
    #[inline(always)]
    pub(crate) fn few(&mut self, value: u64, bytes: usize) {
        debug_assert!(bytes < 8 && value >> (8 * bytes) == 0);
        let filled = self.bits + 8 * bytes as u32;
        self.word |= value << self.bits;
        if filled >= u64::BITS {
            (self.put)(self.word);
            self.word = above(value, self.bits);
        }
        self.bits = filled % u64::BITS;
    }

    /// A text of any length.
    #[inline(always)]
    pub(crate) fn text(&mut self, text: &[u8]) {
        let (chunks, rest) = text.as_chunks::<8>();
        for chunk in chunks {
            let value = u64::from_le_bytes(*chunk);
            (self.put)(self.word | value << self.bits);
            self.word = above(value, self.bits);
        }
        // The last bytes of a text that has eight are loaded with those before them.
        let last = match text.last_chunk::<8>() {
            Some(last) => above(u64::from_le_bytes(*last), 8 * rest.len() as u32),
            None => word_of(rest),
        };
        self.few(last, rest.len());
    }

    /// Passes the last word on, unless it is empty.
    #[inline(always)]
    pub(crate) fn finish(mut self) {
        if self.bits > 0 {
            (self.put)(self.word);
        }
    }
}

/// What of `value` does not fit into a word behind `bits` others; nothing, if there are none.
#[inline(always)]
fn above(value: u64, bits: u32) -> u64 {
    value >> 1 >> (u64::BITS - 1 - bits)
}

/// Up to eight bytes as a little-endian word. Overlapping loads instead of a copy: copying so few bytes would cost a
/// call of memcpy for each text of each record.
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

    proptest! {
        #[test]
        fn words_are_the_bytes_one_behind_the_other(pieces in proptest::collection::vec(
                proptest::collection::vec(any::<u8>(), 0..40), 0..8)) {
            let mut words = Vec::new();
            let mut packer = Packer::new(|word: u64| words.extend_from_slice(&word.to_le_bytes()));
            for piece in &pieces {
                match piece.len() {
                    0..8 => packer.few(word_of(piece), piece.len()),
                    _ => packer.text(piece),
                }
                packer.text(piece);
            }
            packer.finish();
            let expected: Vec<u8> = pieces.iter().flat_map(|piece| piece.iter().chain(piece)).copied().collect();
            prop_assert_eq!(words.len(), expected.len().next_multiple_of(8));
            prop_assert_eq!(&words[..expected.len()], &expected[..]);
            prop_assert!(words[expected.len()..].iter().all(|byte| *byte == 0));
        }
    }
}
