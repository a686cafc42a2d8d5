//! Tries, without an entry, whether the disk accepts again what it has refused: while no entries arrive, nothing else would show
//! that.

use xxhash_rust::xxh3::xxh3_64;

use super::layout::{ALIGNMENT, RECORD_MAGIC, SEGMENT_HEADER_BYTES};
use super::{AppendError, Spool, WhenFull, is_stuck, segment, write_durably};

/// The first byte of each word of a trial; no record begins with it.
const NO_RECORD: u8 = !RECORD_MAGIC[0];

impl Spool {
    /// Writes as an append of `bytes` would, and removes that again. After a crash in between, the next start cuts it off as a
    /// tail that was never acknowledged. Nothing is dropped from the spool for a trial. Only the thread that appends calls this.
    ///
    /// # Errors
    /// When such an append would fail.
    pub fn try_out(&self, bytes: usize, sign_of_life: &dyn Fn()) -> Result<(), AppendError> {
        self.with_remedies(|| self.try_as_it_is(bytes, sign_of_life))
    }

    fn try_as_it_is(&self, bytes: usize, sign_of_life: &dyn Fn()) -> Result<(), AppendError> {
        sign_of_life();
        self.cut_unfinished().map_err(AppendError::Disk)?;
        self.must_have_room((SEGMENT_HEADER_BYTES + bytes) as u64, sign_of_life)?;
        let (segment, _) = self.active(bytes as u64).map_err(AppendError::Disk)?;
        sign_of_life();
        let written = write_durably(&segment, &filler(bytes), &segment::path(&self.folder, segment.number));
        written.and_then(|()| segment.cut_to_length()).map_err(AppendError::Disk)
    }

    /// As [`Spool::make_room`], but drops nothing for a trial. The failed append has already made its room.
    fn must_have_room(&self, size: u64, sign_of_life: &dyn Fn()) -> Result<(), AppendError> {
        if self.limits.when_full == WhenFull::Refuse {
            return self.make_room(size, sign_of_life);
        }
        let bound = self.bound();
        let state = self.lock();
        if state.bytes + size > bound && !state.departed.is_empty() { Err(is_stuck()) } else { Ok(()) }
    }
}

/// At least this many bytes that no file system can compress, and that never read as a record.
pub(super) fn filler(bytes: usize) -> Vec<u8> {
    let word = |number: u64| {
        let mut word = xxh3_64(&number.to_le_bytes()).to_le_bytes();
        word[0] = NO_RECORD;
        word
    };
    let words = bytes.div_ceil(ALIGNMENT) as u64;
    (0..words).flat_map(word).collect()
}
