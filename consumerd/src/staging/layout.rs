//! The layout of the staging memory. Every integer is little-endian; every offset is a multiple of eight.
//!
//! ```text
//! 0      header page
//!          0  magic "BLKSTAGE"      8  version u32, zero u32     16  log bytes u64    24  checkpoint bytes u64
//!         32  bytes of the table of numbers u64
//!         64  head u64: end of the committed log, a position that only grows, unless the log before it is found damaged
//!        128  heartbeat u64: CLOCK_MONOTONIC in ms when the worker last made progress
//!        192  the holder's own counters, 11 x u64, and their checksum u64
//!        512  what `/metrics` showed last: the figures of every possible sink, then the number of split spans, u64 each; their
//!             checksum u64
//!       2240, 2560  second copies of both: see `twice.rs`
//! 4096   the holder's table of numbers, rows of 32 bytes: the program's number u64, 0 in a free row; device u64 and inode u64
//!        of its segment; checksum u64
//!   +T   checkpoint A                 sequence u64, payload bytes u64, tail u64, checksum u64, payload
//!   +C   checkpoint B
//!   +C   log: position p lies at p modulo the log's bytes; an entry never wraps
//! ```
//!
//! An entry of the log:
//! ```text
//!  0  magic u32 ("BFRM" a frame, "BPAD" padding to the end of the area)     4  bytes of the whole entry u32
//!  8  number u64, counts up by one     16  program u64     24  slot u32     28  records u32
//! 32  from: grain u64, records u64     48  to: grain u64, records u64
//! 64  torn u64     72  bytes of raw grains u64     80  checksum u64 of all before it     88  raw grains
//! ```

use blkin_record::{GRAIN_BYTES, MAX_GRAINS};

/// First eight bytes of the memory.
pub const MAGIC: [u8; 8] = *b"BLKSTAGE";
/// Version of everything described here.
pub const VERSION: u32 = 10;
/// Offset of the log's committed end.
pub const HEAD_AT: u64 = 64;
/// Offset of the worker's heartbeat.
pub const HEARTBEAT_AT: u64 = 128;
/// Offset of the holder's counters.
pub const HOLDER_AT: u64 = 192;
/// How many counters the holder keeps.
pub const HOLDER_COUNTERS: usize = 11;
/// Offset of what `/metrics` showed last.
pub const SHOWN_AT: u64 = 512;
/// Distance from the holder's counters, and from what was shown, to their second copies.
pub const SECOND_COPY_BYTES: u64 = 2048;
/// Bytes of the header page.
pub const HEADER_BYTES: u64 = 4096;
/// Offset of the table of numbers.
pub const NUMBERS_AT: u64 = HEADER_BYTES;
/// Bytes of a row of the table of numbers.
pub const NUMBER_ROW_BYTES: usize = 32;
/// Bytes before a checkpoint's payload.
pub const CHECKPOINT_HEADER_BYTES: usize = 32;
/// Bytes before a frame's raw grains.
pub const FRAME_HEADER_BYTES: usize = 88;
/// Magic number of a frame, "BFRM".
pub const FRAME_MAGIC: u32 = u32::from_le_bytes(*b"BFRM");
/// Magic number of padding, "BPAD".
pub const PAD_MAGIC: u32 = u32::from_le_bytes(*b"BPAD");
/// Largest value of `ring_budget_bytes`.
pub const MAX_RING_BUDGET_BYTES: usize = 4 << 20;
/// Most raw bytes in one frame: the budget of a ring, and the rest of the record that exceeds it.
pub const MAX_FRAME_RAW_BYTES: usize = MAX_RING_BUDGET_BYTES + MAX_GRAINS * GRAIN_BYTES;

/// The sizes of the parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of the circular log, a multiple of 4096.
    pub log_bytes: u64,
    /// Bytes of each of the two checkpoints, a multiple of 4096.
    pub checkpoint_bytes: u64,
    /// Bytes of the table of numbers, a multiple of 4096.
    pub numbers_bytes: u64,
}

impl Geometry {
    /// Bytes of the whole memory.
    pub fn total_bytes(&self) -> u64 {
        self.log_at() + self.log_bytes
    }

    /// Offset of checkpoint 0 or 1; for 2, the offset of what follows them.
    pub fn checkpoint_at(&self, which: u64) -> u64 {
        NUMBERS_AT + self.numbers_bytes + which * self.checkpoint_bytes
    }

    /// Offset of the log.
    pub fn log_at(&self) -> u64 {
        self.checkpoint_at(2)
    }

    /// Whether the sizes are valid.
    pub fn is_valid(&self) -> bool {
        let fits =
            |bytes: u64, least: u64, most: u64| bytes.is_multiple_of(4096) && (least..=most).contains(&bytes);
        let tables = [self.checkpoint_bytes, self.numbers_bytes];
        fits(self.log_bytes, 4096, 1 << 40) && tables.iter().all(|bytes| fits(*bytes, 4096, 1 << 30))
    }
}

/// Reads a little-endian word; `at + 8` must not exceed the length of `bytes`.
pub(super) fn word(bytes: &[u8], at: usize) -> u64 {
    let mut raw = [0; 8];
    raw.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(raw)
}

/// Reads a little-endian half word; `at + 4` must not exceed the length of `bytes`.
pub(super) fn half(bytes: &[u8], at: usize) -> u32 {
    let mut raw = [0; 4];
    raw.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(raw)
}

/// FNV-1a over the 64-bit words of several byte strings. It detects interrupted writes, but is no defence against an attacker.
pub fn checksum(parts: &[&[u8]]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for part in parts {
        for chunk in part.chunks(8) {
            let mut raw = [0; 8];
            raw[..chunk.len()].copy_from_slice(chunk);
            hash = (hash ^ u64::from_le_bytes(raw)).wrapping_mul(0x0000_0100_0000_01b3);
            hash ^= hash >> 29;
        }
    }
    hash
}
