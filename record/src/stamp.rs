//! The stamp in word 0 of each grain.

use crate::layout::{MAX_GRAINS, POSITION_MASK};

const LENGTH_SHIFT: u32 = 36;
const LENGTH_MASK: u64 = 0x1ff;
const HEAD_BIT: u64 = 1 << 45;
const COOKIE_SHIFT: u32 = 46;
const COOKIE_MASK: u64 = (1 << 18) - 1;

const _: () = assert!(MAX_GRAINS as u64 == LENGTH_MASK);
const _: () = assert!(POSITION_MASK >> LENGTH_SHIFT == 0);

/// Word 0 of a grain: states the grain's position, and whether it is a head or a continuation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp(pub u64);

impl Stamp {
    /// The stamp of a record's head grain at `position`. `grains` is the length of the record.
    #[inline(always)]
    pub fn head(position: u64, grains: usize, cookie: u32) -> Stamp {
        Stamp(HEAD_BIT | Self::common(position, grains, cookie))
    }

    /// The stamp of the continuation grain number `index` (from 1) at `position`.
    #[inline(always)]
    pub fn continuation(position: u64, index: usize, cookie: u32) -> Stamp {
        Stamp(Self::common(position, index, cookie))
    }

    #[inline(always)]
    fn common(position: u64, length: usize, cookie: u32) -> u64 {
        (position & POSITION_MASK)
            | (length as u64 & LENGTH_MASK) << LENGTH_SHIFT
            | (u64::from(cookie) & COOKIE_MASK) << COOKIE_SHIFT
    }

    /// The cookie of a segment, from a random number: 18 bits, never 0, so that zeroed memory is not a valid stamp.
    pub fn cookie_from(random: u64) -> u32 {
        ((random & COOKIE_MASK) as u32).max(1)
    }

    /// The position (mod 2^36) in this stamp.
    #[inline]
    pub fn position(self) -> u64 {
        self.0 & POSITION_MASK
    }

    /// Of a head: the grains of its record. Of a continuation: its index in the record.
    #[inline]
    pub fn length(self) -> usize {
        (self.0 >> LENGTH_SHIFT & LENGTH_MASK) as usize
    }

    /// The length of the record, in grains, if this is the stamp of a head grain at `position` in the segment with this
    /// cookie.
    #[inline]
    pub fn head_length_at(self, position: u64, cookie: u32) -> Option<usize> {
        let grains = self.length();
        (grains > 0 && self == Stamp::head(position, grains, cookie)).then_some(grains)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_stamp_is_valid_only_for_its_own_position_and_cookie(position in 0..=POSITION_MASK, other in 0..=POSITION_MASK,
                grains in 1usize..=MAX_GRAINS, cookie in 1u32..1 << 18, foreign in 1u32..1 << 18) {
            let stamp = Stamp::head(position, grains, cookie);
            prop_assert_eq!(stamp.head_length_at(position, cookie), Some(grains));
            prop_assert_eq!(stamp.head_length_at(other, cookie).is_some(), other == position);
            prop_assert_eq!(stamp.head_length_at(position, foreign).is_some(), foreign == cookie);
            prop_assert_eq!(Stamp::continuation(position, grains, cookie).head_length_at(position, cookie), None);
        }
    }

    #[test]
    fn a_cookie_keeps_18_random_bits_and_is_never_zero() {
        let cookies = [0, 1 << 18, 1, 7, u64::MAX].map(Stamp::cookie_from);
        assert_eq!(cookies, [1, 1, 1, 7, (1 << 18) - 1]);
    }

    /// Otherwise a reader would never get past such a head.
    #[test]
    fn a_head_stamp_of_zero_grains_is_invalid() {
        assert_eq!(Stamp::head(5, 0, 7).head_length_at(5, 7), None);
        assert_eq!(Stamp(0).head_length_at(0, 0), None);
    }
}
