//! `positions`: the position of each upstream, and the figures that do not follow from the records.
//!
//! The file has two slots of 16 KiB, written in turn and in place, so that positions can be written, and what was acknowledged
//! can be forgotten, even on a full disk. Of the slots with a correct checksum, the one with the higher generation counts.
//! Numbers are little-endian.
//!
//! | bytes | |
//! |---|---|
//! | 8 | `BLKPOSIT` |
//! | 4 | version, 1 |
//! | 4 | length of the slot from its beginning to its checksum |
//! | 8 | generation |
//! | 16 | segment and offset up to which the spool was durable |
//! | 16 | entries and annotations before that place, since the spool was made |
//! | 32 | received and malformed, entries and annotations of each |
//! | 4 | number of upstreams |
//! | … | for each: length of its name (1 byte), the name, segment and offset (16), and in entries and annotations: before that place, offered, acked, spool_evicted, rejected, damaged (96) |
//! | 8 | XXH3 of all before |

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_64;

use super::files::naming;
use super::segment::is_of_bad_place;
use crate::ledger::Count;

/// Bytes of a slot.
pub const SLOT_BYTES: usize = 16 << 10;
/// Most upstreams: this many fit in a slot even with the longest names.
pub const MAX_UPSTREAMS: usize = 32;
/// Longest name of an upstream.
pub const MAX_NAME_BYTES: usize = 255;

const MAGIC: [u8; 8] = *b"BLKPOSIT";
const VERSION: u32 = 1;

/// A place in the spool, before the record that begins there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Position {
    /// Number of the segment.
    pub segment: u64,
    /// Bytes from its beginning.
    pub offset: u64,
    /// The count of all records before this place.
    pub before: Count,
}

impl Position {
    /// Whether `self` comes before `other` in the spool.
    pub fn is_before(&self, other: &Position) -> bool {
        (self.segment, self.offset) < (other.segment, other.offset)
    }
}

/// The stored state of one upstream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UpstreamState {
    /// Its name: host and port.
    pub name: String,
    /// Everything before this was acknowledged or lost.
    pub position: Position,
    /// Spooled for this upstream.
    pub offered: Count,
    /// Acknowledged by this upstream.
    pub acked: Count,
    /// Lost, in the order of [`Loss::ALL`](crate::ledger::Loss::ALL).
    pub lost: [Count; 3],
}

/// The content of a slot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// Everything before this was durable.
    pub durable: Position,
    /// What had arrived by then.
    pub received: Count,
    /// What had arrived by then in calls that could not be read.
    pub malformed: Count,
    /// The upstreams.
    pub upstreams: Vec<UpstreamState>,
}

/// The file of positions.
#[derive(Debug)]
pub struct Positions {
    file: File,
    generation: u64,
    has_bad_place: bool,
}

/// What was found in the file.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// The latest checkpoint that can be read.
    Checkpoint(Checkpoint),
    /// The file is new.
    Nothing,
    /// Neither slot can be read. These are the bytes, with zeros where they cannot be read from the disk.
    Unreadable(Vec<u8>),
}

impl Positions {
    /// Opens or creates the file, and reads it.
    ///
    /// # Errors
    /// When the file system refuses, or a slot is of another version.
    pub fn open(path: &Path) -> io::Result<(Positions, Found)> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.map_err(naming(path))?;
        let mut bytes = vec![0; 2 * SLOT_BYTES];
        let length = file.metadata()?.len();
        let is_short = length < bytes.len() as u64;
        if is_short {
            // The rest of a file that was cut short may still be readable. A new file always gets its full length.
            file.set_len(bytes.len() as u64)?;
            // A full disk must not keep upstreams from what the spool holds. Writing the positions reports it.
            let _taken_later = take_room(&file, length == 0);
        }
        let mut has_bad_place = false;
        for (slot, at) in bytes.chunks_exact_mut(SLOT_BYTES).zip([0, SLOT_BYTES as u64]) {
            has_bad_place |= !read_slot(&file, slot, at)?;
        }
        if let Some(version) = bytes.chunks_exact(SLOT_BYTES).find_map(other_version) {
            let reason =
                format!("they are of version {version}: start the version of the relay that wrote them");
            return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
        }
        let latest =
            bytes.chunks_exact(SLOT_BYTES).filter_map(decode).max_by_key(|(generation, _)| *generation);
        let was_cut = is_short && length > 0;
        let is_new = !has_bad_place && !was_cut && bytes.iter().all(|byte| *byte == 0);
        let (generation, found) = match latest {
            Some((generation, checkpoint)) => (generation, Found::Checkpoint(checkpoint)),
            None => (0, if is_new { Found::Nothing } else { Found::Unreadable(bytes) }),
        };
        Ok((Positions { file, generation, has_bad_place }, found))
    }

    /// Whether a part of the file could not be read from the disk when it was opened.
    pub fn has_bad_place(&self) -> bool {
        self.has_bad_place
    }

    /// The file to which the positions are written.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Continues in a new file at `path`: the content of a file that is already there does not count.
    pub(super) fn move_to(&mut self, path: &Path) -> io::Result<()> {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path);
        let file = file.map_err(naming(path))?;
        file.write_all_at(&[0; 2 * SLOT_BYTES], 0)?;
        file.sync_all()?;
        self.file = file;
        Ok(())
    }

    /// Writes a checkpoint durably.
    ///
    /// # Errors
    /// When the file system refuses; the last checkpoint still counts then.
    pub fn write(&mut self, checkpoint: &Checkpoint) -> io::Result<()> {
        let generation = self.generation + 1;
        let slot = (generation % 2) * SLOT_BYTES as u64;
        #[cfg(test)]
        super::files::tests::check_room()?;
        let mut bytes = encode(generation, checkpoint);
        // Whole pages are written without reading them first, so that the write also works over a place that cannot be read.
        bytes.resize(SLOT_BYTES, 0);
        self.file.write_all_at(&bytes, slot)?;
        self.file.sync_data()?;
        self.generation = generation;
        Ok(())
    }
}

/// Allocates room for both slots, so that a disk that is full later cannot refuse them.
fn take_room(file: &File, is_new: bool) -> io::Result<()> {
    #[cfg(test)]
    super::files::tests::check_room()?;
    if is_new {
        file.write_all_at(&[0; 2 * SLOT_BYTES], 0)?;
    }
    file.sync_all()
}

/// Reads a slot; if it cannot be read from the disk, returns false, and the bytes are zeros.
fn read_slot(file: &File, slot: &mut [u8], at: u64) -> io::Result<bool> {
    match read_exact(file, slot, at) {
        Err(error) if is_of_bad_place(&error) => {
            slot.fill(0);
            Ok(false)
        }
        done => done.map(|()| true),
    }
}

fn read_exact(file: &File, bytes: &mut [u8], at: u64) -> io::Result<()> {
    #[cfg(test)]
    tests::check_place(at)?;
    file.read_exact_at(bytes, at)
}

/// The bytes of a slot.
pub fn encode(generation: u64, checkpoint: &Checkpoint) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1024);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    put(&mut bytes, generation);
    put_position(&mut bytes, &checkpoint.durable);
    put_count(&mut bytes, checkpoint.received);
    put_count(&mut bytes, checkpoint.malformed);
    bytes.extend_from_slice(&(checkpoint.upstreams.len() as u32).to_le_bytes());
    for upstream in &checkpoint.upstreams {
        bytes.push(upstream.name.len() as u8);
        bytes.extend_from_slice(upstream.name.as_bytes());
        put_position(&mut bytes, &upstream.position);
        put_count(&mut bytes, upstream.offered);
        put_count(&mut bytes, upstream.acked);
        upstream.lost.iter().for_each(|count| put_count(&mut bytes, *count));
    }
    let length = bytes.len() as u32;
    bytes[12..16].copy_from_slice(&length.to_le_bytes());
    let sum = xxh3_64(&bytes);
    put(&mut bytes, sum);
    bytes
}

fn put(bytes: &mut Vec<u8>, number: u64) {
    bytes.extend_from_slice(&number.to_le_bytes());
}

fn put_count(bytes: &mut Vec<u8>, count: Count) {
    put(bytes, count.entries);
    put(bytes, count.annotations);
}

fn put_position(bytes: &mut Vec<u8>, position: &Position) {
    put(bytes, position.segment);
    put(bytes, position.offset);
    put_count(bytes, position.before);
}

/// The version of a slot, and its bytes before the checksum; both have the same place in every version. None if the checksum is
/// wrong.
fn whole(slot: &[u8]) -> Option<(u32, &[u8])> {
    let length = u32::from_le_bytes(slot.get(12..16)?.try_into().ok()?) as usize;
    let body = slot.get(..length)?;
    let sum = u64::from_le_bytes(slot.get(length..length + 8)?.try_into().ok()?);
    let version = u32::from_le_bytes(body.get(8..12)?.try_into().ok()?);
    (length >= 24 && body[..8] == MAGIC && sum == xxh3_64(body)).then_some((version, body))
}

/// The version of an intact slot of another version, which is not damage.
fn other_version(slot: &[u8]) -> Option<u32> {
    whole(slot).map(|(version, _)| version).filter(|version| *version != VERSION)
}

/// The generation and content of a slot; none if its checksum is wrong, its version is another, or its content makes no sense.
pub fn decode(slot: &[u8]) -> Option<(u64, Checkpoint)> {
    let (_, body) = whole(slot).filter(|(version, _)| *version == VERSION)?;
    let mut rest = Rest(&body[16..]);
    let generation = rest.number()?;
    let (durable, received, malformed) = (rest.position()?, rest.count()?, rest.count()?);
    let upstreams = u32::from_le_bytes(rest.take(4)?.try_into().ok()?);
    let upstreams = (0..upstreams).map(|_| rest.upstream()).collect::<Option<Vec<_>>>()?;
    Some((generation, Checkpoint { durable, received, malformed, upstreams }))
}

struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }

    fn count(&mut self) -> Option<Count> {
        Some(Count { entries: self.number()?, annotations: self.number()? })
    }

    fn position(&mut self) -> Option<Position> {
        Some(Position { segment: self.number()?, offset: self.number()?, before: self.count()? })
    }

    fn upstream(&mut self) -> Option<UpstreamState> {
        let length = self.take(1)?[0];
        let name = String::from_utf8(self.take(length.into())?.to_vec()).ok()?;
        let (position, offered, acked) = (self.position()?, self.count()?, self.count()?);
        let lost = [self.count()?, self.count()?, self.count()?];
        Some(UpstreamState { name, position, offered, acked, lost })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    thread_local! {
        /// The places of slots that this thread cannot read.
        static BAD: RefCell<Vec<u64>> = RefCell::default();
    }

    pub(super) fn check_place(at: u64) -> io::Result<()> {
        let is_bad = BAD.with_borrow(|bad| bad.contains(&at));
        if is_bad { Err(rustix::io::Errno::IO.into()) } else { Ok(()) }
    }

    #[test]
    fn unreadable_slot_is_treated_like_a_torn_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("positions");
        let (mut positions, _) = Positions::open(&path).unwrap();
        (1..=2).for_each(|generation| positions.write(&checkpoint(generation)).unwrap());
        let found_without = |slots: &[u64]| {
            BAD.replace(slots.to_vec());
            let (positions, found) = Positions::open(&path).unwrap();
            BAD.take();
            assert_eq!(positions.has_bad_place(), !slots.is_empty());
            (positions.generation, found)
        };
        // The second checkpoint is in the first slot.
        assert_eq!(found_without(&[0]), (1, Found::Checkpoint(checkpoint(1))));
        assert_eq!(found_without(&[SLOT_BYTES as u64]), (2, Found::Checkpoint(checkpoint(2))));
        assert_eq!(found_without(&[]), (2, Found::Checkpoint(checkpoint(2))));
        let nothing = vec![0; 2 * SLOT_BYTES];
        assert_eq!(found_without(&[0, SLOT_BYTES as u64]), (0, Found::Unreadable(nothing)));
    }

    fn checkpoint(entries: u64) -> Checkpoint {
        let count = |n: u64| Count { entries: entries + n, annotations: 10 * n };
        let at = |segment, offset, n| Position { segment, offset, before: count(n) };
        let name = "x".repeat(MAX_NAME_BYTES);
        let one = UpstreamState {
            name,
            position: at(1, 64, 1),
            offered: count(2),
            acked: count(3),
            lost: [4, 5, 6].map(count),
        };
        let upstreams = vec![one; MAX_UPSTREAMS];
        Checkpoint { durable: at(2, 4096, 7), received: count(8), malformed: count(9), upstreams }
    }

    #[test]
    fn latest_intact_slot_is_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("positions");
        let (mut positions, found) = Positions::open(&path).unwrap();
        assert_eq!(found, Found::Nothing);
        for generation in 1..=3 {
            positions.write(&checkpoint(generation)).unwrap();
        }
        assert_eq!(Positions::open(&path).unwrap().1, Found::Checkpoint(checkpoint(3)));
        // The third checkpoint is in the second slot; if it is torn, the one before it counts.
        positions.file.write_all_at(&[0xff; 8], SLOT_BYTES as u64 + 100).unwrap();
        assert_eq!(Positions::open(&path).unwrap().1, Found::Checkpoint(checkpoint(2)));
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 2 * SLOT_BYTES as u64);
    }

    #[test]
    fn slot_of_another_version_is_refused_and_left_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("positions");
        let (mut positions, _) = Positions::open(&path).unwrap();
        (1..=2).for_each(|generation| positions.write(&checkpoint(generation)).unwrap());
        let mut other = encode(3, &checkpoint(3));
        other[8] += 1;
        let end = other.len() - 8;
        let sum = xxh3_64(&other[..end]);
        other[end..].copy_from_slice(&sum.to_le_bytes());
        for at in [SLOT_BYTES as u64, 0] {
            positions.file.write_all_at(&other, at).unwrap();
            let before = std::fs::read(&path).unwrap();
            let error = Positions::open(&path).unwrap_err().to_string();
            assert!(
                error.contains("of version 2: start the version of the relay that wrote them"),
                "{error}"
            );
            assert_eq!(std::fs::read(&path).unwrap(), before);
        }
    }

    #[test]
    fn truncated_file_yields_its_intact_slot_or_is_unreadable() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("positions");
        let found_cut_to = |generations: u64, bytes: usize| {
            let _ = std::fs::remove_file(&path);
            let (mut positions, _) = Positions::open(&path).unwrap();
            (1..=generations).for_each(|generation| positions.write(&checkpoint(generation)).unwrap());
            positions.file.set_len(bytes as u64).unwrap();
            let found = Positions::open(&path).unwrap().1;
            assert_eq!(std::fs::metadata(&path).unwrap().len(), 2 * SLOT_BYTES as u64);
            found
        };
        // The second checkpoint is in the first slot, the first in the second.
        assert_eq!(found_cut_to(2, 2 * SLOT_BYTES - 1), Found::Checkpoint(checkpoint(2)));
        assert_eq!(found_cut_to(3, SLOT_BYTES), Found::Checkpoint(checkpoint(2)));
        assert!(matches!(found_cut_to(2, 100), Found::Unreadable(content) if content[..8] == MAGIC));
        assert!(matches!(found_cut_to(1, SLOT_BYTES), Found::Unreadable(_)), "its only slot is gone");
        assert_eq!(found_cut_to(2, 0), Found::Nothing);
    }

    #[test]
    fn the_largest_checkpoint_fits_a_slot_and_any_flipped_byte_is_seen() {
        let bytes = encode(9, &checkpoint(u64::MAX / 2));
        assert!(bytes.len() <= SLOT_BYTES, "{}", bytes.len());
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 0x10;
            assert_eq!(decode(&flipped), None, "byte {at}");
        }
    }
}
