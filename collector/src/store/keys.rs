//! The rows of the store, written down once. Numbers are big-endian, so that keys sort as their numbers do.
//!
//! ```text
//! key                                              value
//! 'V'                                              format version, 1 byte
//! 'L' figure:u8                                    annotations:u64 spans:u64        the ledger
//! 'B'                                              bytes:u64                        payload bytes of all pieces
//! 'Q'                                              next:u64                         number of the next row of pieces
//! 'T' low:u64 high:u64 0                           Summary                          of one trace
//! 'T' low:u64 high:u64 1 0 source:u64 block:u64    offsets:u16*                     identities that are stored
//! 'T' low:u64 high:u64 1 1                         hash:u128*                       whole pieces that are stored
//! 'T' low:u64 high:u64 1 1 hash:u128               -                                those that had no place in the list
//! 'T' low:u64 high:u64 3 number:u64                (head Piece)*                    in order of arrival; see frame.rs
//! 'I' service:u64 !time:u64 low:u64 high:u64       -                                traces, newest first
//! 'E' minute:u64 low:u64 high:u64                  -                                traces by their last arrival
//! 'N' kind:u8 length:u16 service value             hour:u64                         names, and when last seen
//! ```
//!
//! `low` comes before `high` so that traces that share their low 64 bits are neighbours. `service` is a hash of the
//! service's name (0: all traces); a search looks at the trace itself before it believes the index.

use crate::model::TraceId;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// The format version that this program writes and reads.
pub const FORMAT_VERSION: u8 = 2;

pub(super) const VERSION: &[u8] = b"V";
pub(super) const PAYLOAD_BYTES: &[u8] = b"B";
pub(super) const NEXT_NUMBER: &[u8] = b"Q";
pub(super) const TRACES: u8 = b'T';
pub(super) const LEDGER: u8 = b'L';
pub(super) const BY_TIME: u8 = b'I';
pub(super) const BY_ARRIVAL: u8 = b'E';
pub(super) const NAMES: u8 = b'N';

pub(super) const KIND_SUMMARY: u8 = 0;
pub(super) const KIND_SEEN: u8 = 1;
pub(super) const KIND_PIECES: u8 = 3;

/// Where the kind of a trace's row stands in its key.
pub(super) const KIND_AT: usize = 17;

/// Stands for every service in the time index.
pub(super) const ANY_SERVICE: u64 = 0;

/// Positions that share one row of identities.
const BLOCK_BITS: u32 = 12;

fn append(trace: TraceId, key: &mut Vec<u8>) {
    key.extend_from_slice(&trace.low().to_be_bytes());
    key.extend_from_slice(&trace.high().to_be_bytes());
}

/// Reads the trace id that starts at a byte of a key.
pub(super) fn trace_at(key: &[u8], at: usize) -> Option<TraceId> {
    TraceId::new(read_u64(key, at + 8)?, read_u64(key, at)?)
}

/// Reads the trace id at the end of an index key.
pub(super) fn trace_at_end(key: &[u8]) -> Option<TraceId> {
    trace_at(key, key.len().checked_sub(16)?)
}

pub(super) fn read_u64(bytes: &[u8], at: usize) -> Option<u64> {
    let part = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_be_bytes(part.try_into().ok()?))
}

/// All rows of the traces with these low 64 bits.
pub(super) fn low_prefix(low: u64) -> Vec<u8> {
    let mut key = vec![TRACES];
    key.extend_from_slice(&low.to_be_bytes());
    key
}

/// All rows of one trace.
pub(super) fn trace_prefix(trace: TraceId) -> Vec<u8> {
    let mut key = Vec::with_capacity(48);
    key.push(TRACES);
    append(trace, &mut key);
    key
}

/// All rows of one kind of one trace.
pub(super) fn kind_prefix(trace: TraceId, kind: u8) -> Vec<u8> {
    let mut key = trace_prefix(trace);
    key.push(kind);
    key
}

/// The row with a trace's summary.
pub(super) fn summary(trace: TraceId) -> Vec<u8> {
    kind_prefix(trace, KIND_SUMMARY)
}

/// The row that an identity is in, and its offset there.
pub(super) fn identity(trace: TraceId, source: u64, position: u64) -> (Vec<u8>, u16) {
    let mut key = kind_prefix(trace, KIND_SEEN);
    key.push(0);
    key.extend_from_slice(&source.to_be_bytes());
    key.extend_from_slice(&(position >> BLOCK_BITS).to_be_bytes());
    (key, (position & ((1 << BLOCK_BITS) - 1)) as u16)
}

/// What stands for a whole piece.
pub(super) fn content_hash(encoded: &[u8]) -> u128 {
    xxh3_128(encoded)
}

/// The row that lists whole pieces that are stored.
pub(super) fn listed(trace: TraceId) -> Vec<u8> {
    let mut key = kind_prefix(trace, KIND_SEEN);
    key.push(1);
    key
}

/// The row that says that one whole piece is stored which the list has no place for.
pub(super) fn content(trace: TraceId, hash: u128) -> Vec<u8> {
    let mut key = listed(trace);
    key.extend_from_slice(&hash.to_be_bytes());
    key
}

/// A row of pieces.
pub(super) fn pieces(trace: TraceId, number: u64) -> Vec<u8> {
    let mut key = kind_prefix(trace, KIND_PIECES);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// The number that stands for a service in the time index.
pub(super) fn service_hash(name: &str) -> u64 {
    xxh3_64(name.as_bytes()).max(ANY_SERVICE + 1)
}

/// All rows of one service in the time index.
pub(super) fn service_prefix(service: u64) -> Vec<u8> {
    let mut key = vec![BY_TIME];
    key.extend_from_slice(&service.to_be_bytes());
    key
}

/// The first row of a service in the time index that is not later than `time_us`.
pub(super) fn not_later_than(service: u64, time_us: u64) -> Vec<u8> {
    let mut key = service_prefix(service);
    key.extend_from_slice(&(!time_us).to_be_bytes());
    key
}

/// The row of one trace in the time index.
pub(super) fn by_time(service: u64, time_us: u64, trace: TraceId) -> Vec<u8> {
    let mut key = not_later_than(service, time_us);
    append(trace, &mut key);
    key
}

/// The time in a row of the time index.
pub(super) fn time_of(key: &[u8]) -> Option<u64> {
    read_u64(key, 9).map(|inverted| !inverted)
}

/// The row of one trace in the index by last arrival.
pub(super) fn by_arrival(minute: u64, trace: TraceId) -> Vec<u8> {
    let mut key = vec![BY_ARRIVAL];
    key.extend_from_slice(&minute.to_be_bytes());
    append(trace, &mut key);
    key
}

/// The row of one figure of the ledger.
pub(super) fn figure(number: u8) -> [u8; 2] {
    [LEDGER, number]
}

/// All names of one kind that belong to a service.
pub(super) fn names_prefix(kind: u8, service: &str) -> Vec<u8> {
    let mut key = vec![NAMES, kind];
    key.extend_from_slice(&(service.len() as u16).to_be_bytes());
    key.extend_from_slice(service.as_bytes());
    key
}

/// The row of one name.
pub(super) fn name(kind: u8, service: &str, value: &str) -> Vec<u8> {
    let mut key = names_prefix(kind, service);
    key.extend_from_slice(value.as_bytes());
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    fn trace() -> TraceId {
        TraceId::new(0x0a, 0x0102).unwrap()
    }

    #[test]
    fn the_keys_are_as_written_down() {
        let prefix = "540000000000000102000000000000000a";
        assert_eq!(hex(&summary(trace())), format!("{prefix}00"));
        assert_eq!(hex(&pieces(trace(), 7)), format!("{prefix}030000000000000007"));
        let (row, offset) = identity(trace(), 5, 0x1_2345);
        assert_eq!((hex(&row), offset), (format!("{prefix}010000000000000000050000000000000012"), 0x345));
        assert_eq!(
            hex(&by_time(1, 2, trace())),
            "490000000000000001fffffffffffffffd0000000000000102000000000000000a"
        );
        assert_eq!(hex(&by_arrival(3, trace())), "4500000000000000030000000000000102000000000000000a");
        assert_eq!(hex(&name(1, "ab", "c")), "4e010002616263");
    }

    #[test]
    fn hashes_that_are_stored_never_change() {
        // The published test vectors of XXH3 for no bytes at all.
        assert_eq!(service_hash(""), 0x2d06_8005_38d3_94c2);
        let row = content(trace(), content_hash(b""));
        assert_eq!(hex(&row[KIND_AT..]), "010199aa06d3014798d86001c324468d497f");
    }

    #[test]
    fn later_times_come_first() {
        assert!(by_time(1, 20, trace()) < by_time(1, 10, trace()));
        assert_eq!(time_of(&by_time(1, 20, trace())), Some(20));
        assert_eq!(trace_at_end(&by_time(1, 20, trace())), Some(trace()));
    }
}
