//! Which segments make up the index, oldest first, and which blocks they cover.

use xxhash_rust::xxh3::xxh3_64;

use super::engine::Snapshot;
use super::{StoreError, keys, varint};

/// One segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) id: u64,
    /// How often it was merged.
    pub(super) level: u64,
    pub(super) traces: u64,
    /// The last block of any of its traces: once retention has passed that, nobody needs it.
    pub(super) last_block: u64,
    /// Times of its latest trace and of its earliest, in microseconds.
    pub(super) latest_us: u64,
    pub(super) earliest_us: u64,
    /// Its rows, without their keys.
    pub(super) bytes: u64,
}

/// All of them.
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
        Some(Manifest { next_segment, indexed, segments })
    }

    /// The manifest of a store; an empty one if there is none yet.
    pub(super) fn read(rows: &dyn Snapshot) -> Result<Manifest, StoreError> {
        match rows.get(keys::MANIFEST)? {
            None => Ok(Manifest::default()),
            Some(row) => Manifest::decode(&row)
                .ok_or_else(|| StoreError::Corrupted("the manifest of its index".to_owned())),
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
    use super::*;

    #[test]
    fn a_manifest_comes_back_and_no_flipped_bit_goes_unnoticed() {
        let entry = |id| Entry {
            id,
            level: 1,
            traces: 2,
            last_block: 3,
            latest_us: 1 << 50,
            earliest_us: 5,
            bytes: 6,
        };
        let manifest = Manifest { next_segment: 9, indexed: 300, segments: vec![entry(1), entry(u64::MAX)] };
        let row = manifest.encode();
        assert_eq!(Manifest::decode(&row), Some(manifest));
        for bit in 0..row.len() * 8 {
            let mut flipped = row.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Manifest::decode(&flipped), None, "bit {bit}");
        }
    }
}
