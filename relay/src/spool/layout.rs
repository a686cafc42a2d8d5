//! The spool's file format. Numbers are little-endian, checksums XXH3 (64 bits); `tests/golden/decode_spool.py` reads it too.
//!
//! The folder holds segments, named by 16 hexadecimal digits and `.spool`, with rising numbers; `positions`
//! ([`checkpoint`](super::checkpoint)); `lock`; and `damaged/`, for what could not be read.
//!
//! A **segment** begins with 64 bytes:
//!
//! | offset | bytes | |
//! |---|---|---|
//! | 0 | 8 | `BLKSPOOL` |
//! | 8 | 4 | version, 1 |
//! | 12 | 4 | 0 |
//! | 16 | 8 | the segment's number |
//! | 24 | 8 | entries in all segments before this one, since the spool was made |
//! | 32 | 8 | annotations in all segments before this one, since the spool was made |
//! | 40 | 16 | 0 |
//! | 56 | 8 | checksum of bytes 0 to 55 |
//!
//! **Records** follow, each padded with zeros to a multiple of 8 bytes:
//!
//! | offset | bytes | |
//! |---|---|---|
//! | 0 | 4 | `REC1` |
//! | 4 | 4 | length of the payload, without padding |
//! | 8 | 4 | entries in it |
//! | 12 | 4 | annotations in them |
//! | 16 | 8 | entries before this record, since the spool was made |
//! | 24 | 8 | annotations before this record, since the spool was made |
//! | 32 | 8 | checksum of the payload |
//! | 40 | 8 | checksum of bytes 0 to 39, seeded with the segment's number |
//! | 48 | … | the payload: `LogEntry` structs of Scribe in TBinary, one after another, as they arrived |
//!
//! The counts of what came before make every gap countable: the next record that can be read says exactly how much lies
//! between it and the last one.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::ledger::Count;

/// Bytes before a segment's first record.
pub const SEGMENT_HEADER_BYTES: usize = 64;
/// Bytes before a record's payload.
pub const RECORD_HEADER_BYTES: usize = 48;
/// Records begin at multiples of this.
pub const ALIGNMENT: usize = 8;
/// The first bytes of a record.
pub const RECORD_MAGIC: [u8; 4] = *b"REC1";

const SEGMENT_MAGIC: [u8; 8] = *b"BLKSPOOL";
const VERSION: u32 = 1;

/// The beginning of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The segment's number.
    pub number: u64,
    /// The count of all segments before it.
    pub before: Count,
}

/// The beginning of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordHeader {
    /// Bytes of the payload.
    pub length: u32,
    /// The count of its entries and annotations.
    pub count: Count,
    /// The count of all records before it.
    pub before: Count,
    /// Checksum of the payload.
    pub payload_sum: u64,
}

/// The checksum of a payload.
pub fn payload_sum(payload: &[u8]) -> u64 {
    xxh3_64(payload)
}

/// Bytes of a whole record with a payload of this length.
pub fn record_bytes(payload: usize) -> usize {
    (RECORD_HEADER_BYTES + payload).next_multiple_of(ALIGNMENT)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

fn count_at(bytes: &[u8], at: usize) -> Count {
    Count { entries: u64_at(bytes, at), annotations: u64_at(bytes, at + 8) }
}

impl SegmentHeader {
    /// The header's bytes.
    pub fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        bytes[..8].copy_from_slice(&SEGMENT_MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.number.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.before.entries.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.before.annotations.to_le_bytes());
        let sum = xxh3_64(&bytes[..56]);
        bytes[56..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads a header; none if the bytes are too few or not a header of this version.
    pub fn decode(bytes: &[u8]) -> Option<SegmentHeader> {
        let of_this = SegmentHeader::version(bytes)? == VERSION;
        of_this.then(|| SegmentHeader { number: u64_at(bytes, 16), before: count_at(bytes, 24) })
    }

    /// The version of an intact header: magic, version and checksum have the same place in every version.
    fn version(bytes: &[u8]) -> Option<u32> {
        let bytes = bytes.get(..SEGMENT_HEADER_BYTES)?;
        let sound = bytes[..8] == SEGMENT_MAGIC && u64_at(bytes, 56) == xxh3_64(&bytes[..56]);
        sound.then(|| u32_at(bytes, 8))
    }

    /// The version of an intact header of another version, which is not damage.
    pub fn other_version(bytes: &[u8]) -> Option<u32> {
        SegmentHeader::version(bytes).filter(|version| *version != VERSION)
    }
}

impl RecordHeader {
    /// Appends header, payload and padding.
    pub fn encode_with(&self, segment: u64, payload: &[u8], bytes: &mut Vec<u8>) {
        let start = bytes.len();
        bytes.extend_from_slice(&RECORD_MAGIC);
        bytes.extend_from_slice(&self.length.to_le_bytes());
        for number in [self.count.entries, self.count.annotations] {
            bytes.extend_from_slice(&u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
        }
        for number in [self.before.entries, self.before.annotations, self.payload_sum] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        let sum = xxh3_64_with_seed(&bytes[start..], segment);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes.extend_from_slice(payload);
        bytes.resize(start + record_bytes(payload.len()), 0);
    }

    /// Reads the header of a record of `segment`; none if the bytes are too few or not such a header.
    pub fn decode(bytes: &[u8], segment: u64) -> Option<RecordHeader> {
        let bytes = bytes.get(..RECORD_HEADER_BYTES)?;
        let sound =
            bytes[..4] == RECORD_MAGIC && u64_at(bytes, 40) == xxh3_64_with_seed(&bytes[..40], segment);
        sound.then(|| RecordHeader {
            length: u32_at(bytes, 4),
            count: Count { entries: u32_at(bytes, 8).into(), annotations: u32_at(bytes, 12).into() },
            before: count_at(bytes, 16),
            payload_sum: u64_at(bytes, 32),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_round_trip_and_any_flipped_bit_is_seen() {
        let segment = SegmentHeader { number: 7, before: Count { entries: 3, annotations: 9 } };
        let bytes = segment.encode();
        assert_eq!(SegmentHeader::decode(&bytes), Some(segment));
        let record = RecordHeader {
            length: 5,
            count: Count { entries: 1, annotations: 2 },
            before: Count { entries: 4, annotations: 11 },
            payload_sum: payload_sum(b"hello"),
        };
        let mut written = Vec::new();
        record.encode_with(7, b"hello", &mut written);
        assert_eq!(written.len(), record_bytes(5));
        assert_eq!(RecordHeader::decode(&written, 7), Some(record));
        assert_eq!(RecordHeader::decode(&written, 8), None, "the record belongs to another segment");
        for bit in 0..RECORD_HEADER_BYTES * 8 {
            let mut flipped = written.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(RecordHeader::decode(&flipped, 7), None, "bit {bit}");
        }
        for bit in 0..SEGMENT_HEADER_BYTES * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SegmentHeader::decode(&flipped), None, "bit {bit}");
        }
    }
}
