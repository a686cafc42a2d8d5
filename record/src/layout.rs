//! Sizes and bit positions of the record; every other module takes them from here.

/// Version of this layout.
pub const VERSION: u32 = 2;
/// The oldest version that a reader accepts. Version 1 is version 2 without records in cells.
pub const OLDEST_VERSION: u32 = 1;

/// Whether a reader accepts records of this version.
pub fn is_read(version: u64) -> bool {
    (u64::from(OLDEST_VERSION)..=u64::from(VERSION)).contains(&version)
}

/// Words of a grain.
pub const GRAIN_WORDS: usize = 8;
/// Bytes of a grain, the unit in which ring space is given out.
pub const GRAIN_BYTES: usize = GRAIN_WORDS * 8;
/// Bytes of a continuation grain that carry the tail.
pub(crate) const TAIL_GRAIN_BYTES: usize = GRAIN_BYTES - 8;
/// The longest text, in bytes. Longer texts are cut at a character boundary, and the record is flagged.
pub const MAX_TEXT_BYTES: usize = 4096;
/// The longest address, in bytes. Longer addresses are cut; the longest IPv6 text with a zone has 62 characters.
pub const MAX_IP_BYTES: usize = 64;
/// The most grains of a record that a stamp can express; [`crate::Draft`] stays far below.
pub const MAX_GRAINS: usize = 511;

/// The bits of a position that a stamp and the head word of a ring hold.
pub const POSITION_MASK: u64 = (1 << 36) - 1;
/// The bits of an ordinal.
pub const ORDINAL_MASK: u64 = (1 << 28) - 1;

pub(crate) const ENTRY_HEADER_BYTES: usize = 4;
/// Port and length of the address, which precede the two texts of an endpoint.
pub(crate) const ENDPOINT_FIXED_BYTES: usize = 3;
pub(crate) const TAG_NAME: u8 = 1;
pub(crate) const TAG_ENDPOINT: u8 = 2;
pub(crate) const TAG_KEY: u8 = 3;
pub(crate) const TAG_VALUE: u8 = 4;
pub(crate) const FIRST_EXTENSION_TAG: u8 = 128;

pub(crate) const KIND_EVENT: u8 = 1;
pub(crate) const KIND_INTEGER: u8 = 2;
pub(crate) const KIND_STRING: u8 = 3;
pub(crate) const FLAG_TRUNCATED: u16 = 1;
pub(crate) const FLAG_CELLS: u16 = 2;

const LARGEST_TAIL_BYTES: usize = 4 * (ENTRY_HEADER_BYTES + MAX_TEXT_BYTES) + 3 + MAX_IP_BYTES;
const _: () = assert!(LARGEST_TAIL_BYTES.div_ceil(TAIL_GRAIN_BYTES) < MAX_GRAINS);
const _: () = assert!(MAX_TEXT_BYTES + 3 + MAX_IP_BYTES <= u16::MAX as usize);
const _: () = assert!(GRAIN_BYTES == 64);
