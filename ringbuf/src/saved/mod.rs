//! Saved segments: what the rings of programs held at one moment, in a file that needs neither the programs nor their
//! machine to be read. Version 1. All words little-endian.
//!
//! A file is a sequence of sections, each of which can be found and checked without the others:
//! ```text
//!  0  magic "BLKSAVED"     8  kind u32, bytes of content u32     16  checksum u64 of bytes 8..16 and the content
//! 24  content, then zeros up to a multiple of eight
//! ```
//! The checksum is 64-bit FNV-1a. Content by kind (a text is its length u64, then the bytes):
//! ```text
//! 1 program   version u64, record version u64, pid u64, uid u64, ended u64 (1: nobody can write the rings any more),
//!             taken u64 (ns since 1970), since u64 (ns since 1970, 0: everything), label text, host text, boot id text
//! 2 clock     kind u64 (1 TSC, 2 CLOCK_MONOTONIC), then two anchors or more: raw u64, realtime ns u64
//! 3 header    the first 32 words of the segment's header
//! 4 names     the words of the table of names that are in use
//! 5 slot      number u64, the 32 words of the slot's header, beginning and end of what was copied, as head words
//! 6 grains    number of the slot u64, position of the first grain u64, grains of 64 bytes; at most 64 KiB
//! 7 end       number of sections from the program's on, this one included, u64
//! ```
//! A section of kind 1 begins a program; there may be several in a file. A reader takes what it can check and says how
//! much it could not check. It skips kinds that it does not know.

mod raw;
mod read;
mod records;
mod section;
mod write;

pub use read::{MAX_FILE_BYTES, Reading, read};
pub use records::{Count, SavedRecord, SavedTime};
pub use section::{END_BYTES, ends_whole};
pub use write::write;

use crate::clock::ClockKind;

/// Version of the format.
pub const VERSION: u64 = 1;
/// Words of the segment's header that are kept.
pub(crate) const HEADER_WORDS: usize = 32;

/// Whose rings they were, and when they were copied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Process.
    pub pid: u32,
    /// User.
    pub uid: u32,
    /// Nobody could write the rings any more.
    pub ended: bool,
    /// When they were copied, in nanoseconds since 1970; 0 when that is not known.
    pub taken_ns: u64,
    /// Records from before this moment were not asked for; 0 when all were.
    pub since_ns: u64,
    /// Name of the program.
    pub label: String,
    /// Name of the machine.
    pub host: String,
    /// The machine's boot id.
    pub boot: String,
}

/// The rings of one program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    /// Whose they were.
    pub identity: Identity,
    /// The clock of raw times, when it is known.
    pub clock: Option<ClockKind>,
    /// Moments on that clock, and in nanoseconds since 1970.
    pub anchors: Vec<(u64, i64)>,
    /// Words of the segment's header.
    pub header: Vec<u64>,
    /// Words of the table of names.
    pub names: Vec<u64>,
    /// Its rings that hold anything.
    pub slots: Vec<SavedSlot>,
}

/// One ring.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedSlot {
    /// Its number.
    pub number: u32,
    /// Words of its header.
    pub header: Vec<u64>,
    /// Head word of the beginning of what was copied, and of its end; `None` when that was lost.
    pub range: Option<(u64, u64)>,
    /// Stretches of grains.
    pub runs: Vec<Run>,
}

/// A stretch of grains without a gap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Position of the first.
    pub position: u64,
    /// The grains.
    pub raw: Vec<u8>,
}

#[cfg(test)]
mod tests;
