//! Which segments make up the index, oldest first, and which blocks they cover.

use xxhash_rust::xxh3::xxh3_64;

use super::commit::number;
use super::engine::Snapshot;
use super::{StoreError, keys, varint};

/// Ids are given one after the other, and no store ever writes so many segments: a greater id is damage.
const MOST_SEGMENTS: u64 = 1 << 48;

/// One segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) id: u64,
    /// How often it was merged.
    pub(super) level: u64,
    pub(super) traces: u64,
    /// The last block of any of its traces, or a later one: once retention has passed that block, the segment is removed, or
    /// replaced by a small one if traces in it go on.
    pub(super) last_block: u64,
    /// Times of its latest trace and of its earliest, in microseconds.
    pub(super) latest_us: u64,
    pub(super) earliest_us: u64,
    /// Bytes of its rows, without their keys.
    pub(super) bytes: u64,
}

/// The list of all segments.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Manifest {
    /// The id of the next segment.
    pub(super) next_segment: u64,
    /// The blocks before this are indexed by segments.
    pub(super) indexed: u64,
    /// Oldest first.
    pub(super) segments: Vec<Entry>,
}

impl Manifest {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        [self.next_segment, self.indexed].iter().for_each(|&number| varint::put(number, &mut body));
        for entry in &self.segments {
            entry.numbers().iter().for_each(|&number| varint::put(number, &mut body));
        }
        [&xxh3_64(&body).to_be_bytes(), body.as_slice()].concat()
    }

    fn decode(row: &[u8]) -> Option<Manifest> {
        let (checksum, mut rest) = row.split_first_chunk()?;
        if u64::from_be_bytes(*checksum) != xxh3_64(rest) {
            return None;
        }
        let (next_segment, indexed) = (varint::take(&mut rest)?, varint::take(&mut rest)?);
        let mut segments = Vec::new();
        while !rest.is_empty() {
            segments.push(Entry::take(&mut rest)?);
        }
        let is_possible = |entry: &Entry| entry.id < next_segment && entry.last_block < indexed;
        let are_possible = next_segment < MOST_SEGMENTS && segments.iter().all(is_possible);
        are_possible.then_some(Manifest { next_segment, indexed, segments })
    }

    /// The manifest of a store; an empty one if there is none yet.
    pub(super) fn read(rows: &dyn Snapshot) -> Result<Manifest, StoreError> {
        match rows.get(keys::MANIFEST)? {
            None => Ok(Manifest::default()),
            Some(row) => {
                let next_block = number(rows, keys::NEXT_BLOCK)?;
                Manifest::decode(&row)
                    .filter(|manifest| manifest.indexed <= next_block)
                    .ok_or_else(|| StoreError::Corrupted("the manifest of the store's index".to_owned()))
            }
        }
    }
}

impl Entry {
    fn numbers(&self) -> [u64; 7] {
        [self.id, self.level, self.traces, self.last_block, self.latest_us, self.earliest_us, self.bytes]
    }

    fn take(bytes: &mut &[u8]) -> Option<Entry> {
        let mut next = || varint::take(bytes);
        Some(Entry {
            id: next()?,
            level: next()?,
            traces: next()?,
            last_block: next()?,
            latest_us: next()?,
            earliest_us: next()?,
            bytes: next()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::engine::{Engine, Transaction};
    use super::super::memory::Memory;
    use super::*;

    #[test]
    fn a_manifest_round_trips_and_any_flipped_bit_is_noticed() {
        let entry = |id| Entry {
            id,
            level: 1,
            traces: 2,
            last_block: 3,
            latest_us: 1 << 50,
            earliest_us: 5,
            bytes: 6,
        };
        let manifest = Manifest { next_segment: 9, indexed: 300, segments: vec![entry(1), entry(8)] };
        let row = manifest.encode();
        assert_eq!(Manifest::decode(&row), Some(manifest));
        for bit in 0..row.len() * 8 {
            let mut flipped = row.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Manifest::decode(&flipped), None, "bit {bit}");
        }
    }

    #[test]
    fn a_manifest_with_impossible_segments_is_rejected() {
        let believed = |next_segment, indexed, id, last_block| {
            let entry = Entry { id, level: 0, traces: 0, last_block, latest_us: 0, earliest_us: 0, bytes: 0 };
            let manifest = Manifest { next_segment, indexed, segments: vec![entry] };
            Manifest::decode(&manifest.encode()).is_some()
        };
        assert!(believed(9, 4, 8, 3) && believed(MOST_SEGMENTS - 1, 4, 8, 3));
        assert!(!believed(MOST_SEGMENTS, 4, 8, 3), "more segments than there can be");
        assert!(!believed(9, 4, 9, 3), "a segment that is still to come");
        assert!(!believed(9, 4, 8, 4), "a segment with a block that is not indexed");
    }

    #[test]
    fn a_manifest_indexing_future_blocks_is_rejected() {
        let engine = Memory::default();
        let manifest = Manifest { indexed: 4, ..Manifest::default() };
        let read = |next_block: u64| {
            let put = &mut |rows: &mut dyn Transaction| {
                rows.put(keys::NEXT_BLOCK, &next_block.to_be_bytes())?;
                rows.put(keys::MANIFEST, &manifest.encode())
            };
            engine.write(put).unwrap();
            Manifest::read(&*engine.read().unwrap())
        };
        assert_eq!(read(4).unwrap(), manifest);
        assert!(matches!(read(3), Err(StoreError::Corrupted(_))));
    }
}
