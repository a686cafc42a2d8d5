//! One segment file: creating, opening and reading it. Its content is untrusted input: everything is checked before it is used.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

use super::files::{make_durable, naming, take_alone};
use super::layout::{
    ALIGNMENT, RECORD_HEADER_BYTES, RECORD_MAGIC, RecordHeader, SEGMENT_HEADER_BYTES, SegmentHeader,
    payload_sum, record_bytes,
};
use crate::ledger::Count;

/// Most bytes that are searched at a time for the next record behind a damaged one.
const SEARCH_BYTES: usize = 1 << 20;
/// Bytes that are searched first: the next record is usually near.
const SEARCH_BYTES_AT_FIRST: usize = 16 << 10;

/// A place that cannot be read from the disk is skipped up to the next multiple of this.
const BAD_PLACE_BYTES: u64 = 4096;
/// The errors of Linux for such a place, or for a file system that has lost its metadata.
const OF_BAD_PLACES: [Errno; 3] = [Errno::IO, Errno::BADMSG, Errno::UCLEAN];

/// What reading does at a place that cannot be read from the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadPlace {
    /// It fails: another attempt may succeed.
    Fails,
    /// It reads zeros and goes on. Zeros are not a record, so the place counts as damaged.
    IsZeros,
}

/// Whether a place could not be read from the disk.
pub fn is_of_bad_place(error: &io::Error) -> bool {
    Errno::from_io_error(error).is_some_and(|errno| OF_BAD_PLACES.contains(&errno))
}

/// Opens or creates a file, locks it and empties it. A file that another relay has locked stays as it is.
fn emptied(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path);
    let file = file.map_err(naming(path))?;
    take_alone(&file).map_err(naming(path))?;
    file.set_len(0)?;
    Ok(file)
}

/// A segment that can be read up to `length`.
#[derive(Debug, Clone)]
pub struct Segment {
    /// The segment's number.
    pub number: u64,
    /// The count of all segments before it.
    pub before: Count,
    /// Bytes that are durable.
    pub length: u64,
    /// The file; it can be read even after it was removed.
    pub file: Arc<File>,
    /// Whether the system does not allow writing to it.
    pub is_read_only: bool,
    /// Whether something was cut off its end that may still be on the disk.
    is_cut_unsure: Arc<AtomicBool>,
    /// Places that cannot be read.
    #[cfg(test)]
    pub bad: Arc<std::sync::Mutex<Range<u64>>>,
}

/// An intact record that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The record's header.
    pub header: RecordHeader,
    /// Where it begins in the segment.
    pub start: u64,
    /// Where the next record begins.
    pub end: u64,
    /// Where its payload lies in the bytes that were read.
    pub payload: Range<usize>,
}

/// Consecutive records of one segment.
#[derive(Debug, Default)]
pub struct Chunk {
    /// The bytes that were read.
    pub bytes: Vec<u8>,
    /// The records in them.
    pub records: Vec<Record>,
    /// Where to continue.
    pub end: u64,
    /// What could not be read, between the last record and `end`.
    pub damage: Option<Range<u64>>,
    /// The count of all records before `end`, if the header of the damaged record still tells.
    pub after_damage: Option<Count>,
}

impl Chunk {
    /// The count of all records before the chunk's end, if the chunk tells.
    pub fn after(&self) -> Option<Count> {
        let last = self.records.last().map(|record| record.header.before + record.header.count);
        last.or(self.after_damage)
    }
}

/// The path of a segment.
pub fn path(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{number:016x}.spool"))
}

/// The numbers of all segments in a folder, in order. Files with names that [`path`] does not produce are ignored, and so is the
/// highest possible number, since no segment could follow it.
///
/// # Errors
/// When the folder cannot be read.
pub fn numbers(folder: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(folder)? {
        let found = entry?.path();
        let digits = found.file_name().and_then(OsStr::to_str).and_then(|name| name.strip_suffix(".spool"));
        let number = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
        numbers.extend(number.filter(|number| *number < u64::MAX && path(folder, *number) == found));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Opens a file, and returns whether it is read-only.
fn open_as_allowed(path: &Path) -> io::Result<(File, bool)> {
    match File::options().read(true).write(true).open(path) {
        Err(error) if is_forbidden(&error) => Ok((File::open(path)?, true)),
        opened => Ok((opened?, false)),
    }
}

fn is_forbidden(error: &io::Error) -> bool {
    error.kind() == ErrorKind::PermissionDenied
}

/// What was found in a file that should be a segment.
#[derive(Debug)]
pub enum Found {
    /// A segment.
    Segment(Segment),
    /// A segment whose header cannot be read; its records tell what the header would have said.
    WithoutHeader(Segment),
    /// A file without any records: its creation was interrupted before the header was complete, or it was emptied once all
    /// upstreams had everything.
    Empty,
    /// A file in which nothing can be read.
    Damaged(Segment),
    /// A file that cannot be opened, because it belongs to another user or the disk cannot read it. With its length, if that is
    /// known, and the error.
    Closed(Option<u64>, io::Error),
}

impl Segment {
    /// Creates an empty segment, durably: it survives a loss of power.
    ///
    /// # Errors
    /// When the file system refuses; nothing is left behind then.
    pub fn create(folder: &Path, number: u64, before: Count) -> io::Result<Segment> {
        let path = path(folder, number);
        let file = emptied(&path)?;
        let made = || -> io::Result<Segment> {
            #[cfg(test)]
            super::files::tests::check_room()?;
            file.write_all_at(&SegmentHeader { number, before }.encode(), 0)?;
            file.sync_all()?;
            File::open(folder)?.sync_all()?;
            Ok(Segment::new(number, before, SEGMENT_HEADER_BYTES as u64, file))
        };
        made().inspect_err(|_| drop(fs::remove_file(&path)))
    }

    /// Creates a segment without even a header, for a full disk; it takes no records. The next start removes it.
    ///
    /// # Errors
    /// When the file system refuses even that.
    pub fn create_emptied(folder: &Path, number: u64, before: Count) -> io::Result<Segment> {
        Ok(Segment::new(number, before, 0, emptied(&path(folder, number))?))
    }

    fn new(number: u64, before: Count, length: u64, file: File) -> Segment {
        Segment {
            number,
            before,
            length,
            file: Arc::new(file),
            is_read_only: false,
            is_cut_unsure: Arc::default(),
            #[cfg(test)]
            bad: tests::bad_places_of(number),
        }
    }

    /// Whether it was emptied, including its header: it takes no more records.
    pub fn is_emptied(&self) -> bool {
        self.length == 0
    }

    /// Opens a segment of an earlier run.
    ///
    /// # Errors
    /// When another attempt may succeed, for example with more descriptors, or another version of the relay wrote it.
    pub fn open(folder: &Path, number: u64) -> io::Result<Found> {
        let path = path(folder, number);
        let (file, is_read_only) = match open_as_allowed(&path) {
            Err(error) if is_forbidden(&error) || is_of_bad_place(&error) => {
                return Ok(Found::Closed(fs::metadata(&path).ok().map(|file| file.len()), error));
            }
            opened => opened.map_err(naming(&path))?,
        };
        take_alone(&file).map_err(naming(&path))?;
        let length = file.metadata()?.len();
        if length < SEGMENT_HEADER_BYTES as u64 {
            return Ok(Found::Empty);
        }
        let segment = Segment { is_read_only, ..Segment::new(number, Count::default(), length, file) };
        let (header, failed) = segment.bytes(0, SEGMENT_HEADER_BYTES, BadPlace::Fails);
        if let Some(error) = failed.filter(|error| !is_of_bad_place(error)) {
            return Err(error);
        }
        if let Some(version) = SegmentHeader::other_version(&header) {
            let reason = format!(
                "segment {number:016x} is of version {version}: start the version of the relay that wrote it, to send it"
            );
            return Err(io::Error::new(ErrorKind::Unsupported, reason));
        }
        match SegmentHeader::decode(&header) {
            Some(header) if header.number == number => {
                Ok(Found::Segment(Segment { before: header.before, ..segment }))
            }
            _ => segment.without_header(),
        }
    }

    /// Opens a segment without a header: the first record that can be read tells what the header said.
    fn without_header(self) -> io::Result<Found> {
        let mut at = SEGMENT_HEADER_BYTES as u64;
        while at < self.length {
            let chunk = self.read(at, SEARCH_BYTES, u64::MAX, BadPlace::IsZeros)?;
            if let Some(first) = chunk.records.first() {
                return Ok(Found::WithoutHeader(Segment { before: first.header.before, ..self }));
            }
            at = chunk.end;
        }
        Ok(Found::Damaged(self))
    }

    /// Whether it has anything behind its header: records, or damage where they were.
    pub fn holds_more_than_its_header(&self) -> bool {
        self.length > SEGMENT_HEADER_BYTES as u64
    }

    /// Cuts off what lies behind `length`: durably, unless the file is read-only, when it is only ignored.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn cut(&mut self, length: u64) -> io::Result<()> {
        if !self.is_read_only {
            self.file.set_len(length)?;
            self.file.sync_all()?;
        }
        self.length = length;
        Ok(())
    }

    /// Cuts off, durably, whatever lies behind the durable part. A cut that was not made durable might come undone on the disk.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn cut_to_length(&self) -> io::Result<()> {
        if self.file.metadata()?.len() > self.length {
            self.is_cut_unsure.store(true, Ordering::Relaxed);
            self.file.set_len(self.length)?;
        }
        if self.is_cut_unsure.load(Ordering::Relaxed) {
            make_durable(&self.file)?;
            self.is_cut_unsure.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Reads complete records from `start` on: at most `max_bytes` and `max_entries`, but at least one record if there is one.
    ///
    /// # Errors
    /// When the first record cannot be read.
    pub fn read(
        &self,
        start: u64,
        max_bytes: usize,
        max_entries: u64,
        bad_place: BadPlace,
    ) -> io::Result<Chunk> {
        let (bytes, failed) = self.bytes(start, max_bytes, bad_place);
        let mut chunk = Chunk { bytes, end: start, ..Chunk::default() };
        let mut entries = 0;
        while let Some(record) = self.record(start, &chunk) {
            entries += record.header.count.entries;
            if !chunk.records.is_empty() && entries > max_entries {
                break;
            }
            chunk.end = record.end;
            chunk.records.push(record);
        }
        match failed {
            Some(error) if chunk.records.is_empty() => Err(error),
            None if chunk.records.is_empty() && start < self.length => {
                self.read_hard(start, chunk, bad_place)
            }
            _ => Ok(chunk),
        }
    }

    /// The next record of a chunk, if it is intact and completely in the bytes that were read.
    fn record(&self, start: u64, chunk: &Chunk) -> Option<Record> {
        let at = usize::try_from(chunk.end - start).ok()?;
        let header = RecordHeader::decode(chunk.bytes.get(at..)?, self.number)?;
        let payload = at + RECORD_HEADER_BYTES..at + RECORD_HEADER_BYTES + header.length as usize;
        let sound = payload_sum(chunk.bytes.get(payload.clone())?) == header.payload_sum;
        let end = chunk.end + record_bytes(header.length as usize) as u64;
        (sound && end <= self.length).then_some(Record { header, start: chunk.end, end, payload })
    }

    /// Handles a record at `start` that is larger than what was read, or damaged.
    fn read_hard(&self, start: u64, chunk: Chunk, bad_place: BadPlace) -> io::Result<Chunk> {
        let header = self.header_at(start, &chunk.bytes, bad_place)?;
        let whole = header.as_ref().map(|header| record_bytes(header.length as usize));
        if let Some(whole) = whole.filter(|whole| *whole > chunk.bytes.len() && self.holds(start, *whole)) {
            return self.read(start, whole, u64::MAX, bad_place);
        }
        let (end, after_damage) = match whole.filter(|whole| self.holds(start, *whole)) {
            // Only the payload is damaged: the header still tells where the next record begins.
            Some(whole) => (start + whole as u64, header.map(|header| header.before + header.count)),
            None => (self.find_record(start + ALIGNMENT as u64, bad_place)?, None),
        };
        Ok(Chunk { end, damage: Some(start..end), after_damage, ..Chunk::default() })
    }

    fn holds(&self, start: u64, bytes: usize) -> bool {
        start + bytes as u64 <= self.length
    }

    fn header_at(&self, start: u64, read: &[u8], bad_place: BadPlace) -> io::Result<Option<RecordHeader>> {
        if read.len() >= RECORD_HEADER_BYTES {
            return Ok(RecordHeader::decode(read, self.number));
        }
        let bytes = self.all_bytes(start, RECORD_HEADER_BYTES, bad_place)?;
        Ok(RecordHeader::decode(&bytes, self.number))
    }

    /// Where the next intact header begins, or the end of the segment.
    fn find_record(&self, mut from: u64, bad_place: BadPlace) -> io::Result<u64> {
        let mut most = SEARCH_BYTES_AT_FIRST;
        while from + (RECORD_HEADER_BYTES as u64) <= self.length {
            let bytes = self.all_bytes(from, most, bad_place)?;
            let last = bytes.len().saturating_sub(RECORD_HEADER_BYTES);
            let is_record = |at: &usize| {
                bytes[*at..*at + 4] == RECORD_MAGIC
                    && RecordHeader::decode(&bytes[*at..], self.number).is_some()
            };
            if let Some(at) = (0..=last).step_by(ALIGNMENT).find(is_record) {
                return Ok(from + at as u64);
            }
            from += (last - last % ALIGNMENT + ALIGNMENT) as u64;
            most = SEARCH_BYTES.min(2 * most);
        }
        Ok(self.length)
    }

    /// The bytes of a range, with zeros where they cannot be read.
    pub fn bytes_with_gaps(&self, range: Range<u64>) -> Vec<u8> {
        let most = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        self.bytes(range.start, most, BadPlace::IsZeros).0
    }

    fn all_bytes(&self, start: u64, most: usize, bad_place: BadPlace) -> io::Result<Vec<u8>> {
        match self.bytes(start, most, bad_place) {
            (bytes, None) => Ok(bytes),
            (_, Some(error)) => Err(error),
        }
    }

    /// The bytes up to the first place that cannot be read, and the error there.
    fn bytes(&self, start: u64, most: usize, bad_place: BadPlace) -> (Vec<u8>, Option<io::Error>) {
        let there = usize::try_from(self.length.saturating_sub(start)).unwrap_or(usize::MAX);
        let mut bytes = vec![0; there.min(most)];
        let mut read = 0;
        while read < bytes.len() {
            let at = start + read as u64;
            match self.read_at(&mut bytes[read..], at) {
                // Somebody cut the file: the missing part stays zeros, which are not a record, and so counts as damaged.
                Ok(0) => break,
                Ok(more) => read += more,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if bad_place == BadPlace::IsZeros && is_of_bad_place(&e) => {
                    read += (BAD_PLACE_BYTES - at % BAD_PLACE_BYTES) as usize;
                }
                Err(e) => {
                    bytes.truncate(read);
                    return (bytes, Some(e));
                }
            }
        }
        (bytes, None)
    }

    fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<usize> {
        #[cfg(test)]
        let bytes = tests::up_to_bad_place(&self.bad, bytes, at)?;
        self.file.read_at(bytes, at)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    use super::*;

    thread_local! {
        static BAD_PLACES: RefCell<BTreeMap<u64, Range<u64>>> = RefCell::default();
        static READ: Cell<u64> = Cell::default();
    }

    /// Bytes of segments that this thread has read.
    pub(crate) fn read_so_far() -> u64 {
        READ.get()
    }

    /// Makes a range unreadable of a segment that this thread opens from now on.
    pub(crate) fn set_bad_place_of(number: u64, range: Range<u64>) {
        BAD_PLACES.with_borrow_mut(|places| places.insert(number, range));
    }

    pub(super) fn bad_places_of(number: u64) -> Arc<Mutex<Range<u64>>> {
        let place = BAD_PLACES.with_borrow(|places| places.get(&number).cloned());
        Arc::new(Mutex::new(place.unwrap_or_default()))
    }

    /// The part of `bytes` that can be read at `at`.
    pub(super) fn up_to_bad_place<'a>(
        bad: &Mutex<Range<u64>>,
        bytes: &'a mut [u8],
        at: u64,
    ) -> io::Result<&'a mut [u8]> {
        let bad = bad.lock().unwrap().clone();
        if bad.contains(&at) {
            return Err(OF_BAD_PLACES[0].into());
        }
        let most = if at < bad.start { (bad.start - at) as usize } else { usize::MAX };
        let most = most.min(bytes.len());
        READ.set(READ.get() + most as u64);
        Ok(&mut bytes[..most])
    }
}
