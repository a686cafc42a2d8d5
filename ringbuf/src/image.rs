//! Records of several grains, put together on the stack before they have a place in a ring.

use blkin_record::{GRAIN_BYTES, GRAIN_WORDS};

/// One with room for a tail of so many bytes, and a word behind it.
#[repr(C, align(64))]
pub(crate) struct Image<const TAIL_BYTES: usize> {
    /// Word 0: the stamp without its position. Word 7: ordinal 0.
    pub(crate) head: [u64; GRAIN_WORDS],
    /// What stands in the continuation grains behind their stamps, without gaps.
    pub(crate) tail: [u8; TAIL_BYTES],
}

/// Bytes of the tail in a continuation grain.
const TAIL_GRAIN_BYTES: usize = GRAIN_BYTES - size_of::<u64>();

/// The tail of most records: three short texts.
pub(crate) const SHORT_TAIL_BYTES: usize = 2 * TAIL_GRAIN_BYTES + size_of::<u64>();
/// The longest tail that is copied within a restartable sequence: a longer one would keep a thread inside for so long that
/// it seldom ends it.
pub(crate) const LONG_TAIL_BYTES: usize = 7 * TAIL_GRAIN_BYTES + size_of::<u64>();

impl<const TAIL_BYTES: usize> Image<TAIL_BYTES> {
    /// Grains that have room in it.
    pub(crate) const GRAINS: usize = 1 + TAIL_BYTES / TAIL_GRAIN_BYTES;
}
