//! The extension field `position` of an annotation: the number of a ring in the segment, and the place in that ring.

/// Bits of the place within the ring, which is counted in grains.
const GRAIN_BITS: u32 = 40;

/// Combines ring number and grain into one number, never negative. Within a ring, later annotations have larger positions.
pub fn of(slot: u32, grain: u64) -> i64 {
    ((i64::from(slot) & 0x7f_ffff) << GRAIN_BITS) | (grain & ((1 << GRAIN_BITS) - 1)) as i64
}

/// The number of the ring in a position.
pub fn ring(position: i64) -> i64 {
    position >> GRAIN_BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_packs_ring_and_grain_into_a_positive_number() {
        assert_eq!(of(3, 7), 3 << 40 | 7);
        assert_eq!(of(0, (1 << 40) + 5), 5);
        assert!(of(u32::MAX, u64::MAX) > 0);
        assert_eq!((ring(of(3, 7)), ring(of(0, u64::MAX))), (3, 0));
    }
}
