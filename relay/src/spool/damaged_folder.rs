//! `damaged/`: copies of what cannot be read, for inspection. A disk may damage more than anybody will look at. So the number and
//! size of the copies are limited, which also keeps a start through much damage short, and the log does not name every region.

use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Instant;

use blkin_daemon::Notices;

use super::DepartedSegment;
use super::segment::{self, Segment};

/// The folder's name.
pub(super) const DAMAGED: &str = "damaged";
/// Most bytes of all copies. For a region beyond that, only an empty file is kept, whose name tells the place.
const MAX_BYTES: u64 = 64 << 20;
/// Most files; beyond that, nothing is kept.
pub(super) const MAX_FILES: usize = 1000;

/// The folder, and how much is in it.
#[derive(Debug)]
pub(super) struct DamagedFolder {
    folder: PathBuf,
    files: usize,
    bytes: u64,
    told: Notices,
}

impl DamagedFolder {
    /// The folder of a spool, with what earlier runs left in it.
    pub(super) fn of(spool: &Path) -> Self {
        let folder = spool.join(DAMAGED);
        let (mut files, mut bytes) = (0, 0);
        for found in fs::read_dir(&folder).into_iter().flatten().flatten() {
            files += 1;
            bytes += found.metadata().map_or(0, |metadata| metadata.len());
        }
        DamagedFolder { folder, files, bytes, told: Notices::default() }
    }

    /// Keeps a copy of a region, as far as there is room, and logs the region. Returns false if an earlier copy is already there.
    pub(super) fn copy(&mut self, segment: &Segment, damage: Range<u64>) -> bool {
        let path = self.folder.join(format!("{:016x}-{}.bin", segment.number, damage.start));
        if path.exists() {
            return false;
        }
        let (number, offset, bytes) = (segment.number, damage.start, damage.end - damage.start);
        let told = self.told.admit(Instant::now());
        if let Some(held_back) = told {
            tracing::warn!(
                segment = number,
                offset,
                bytes,
                held_back,
                "a region of the spool cannot be read"
            );
        }
        if self.files >= MAX_FILES {
            return true;
        }
        let kept = if self.bytes + bytes <= MAX_BYTES { bytes } else { 0 };
        match fs::write(&path, segment.bytes_with_gaps(offset..offset + kept)) {
            Ok(()) => self.count(kept),
            // On a full disk, for example; log lines about it must not fill the disk further.
            Err(error) if told.is_some() => tracing::warn!("failed to keep {}: {error}", path.display()),
            Err(_) => {}
        }
        true
    }

    /// Logs how many regions were not logged.
    pub(super) fn log_rest(&mut self) {
        if let Some(held_back) = self.told.rest(Instant::now()) {
            tracing::warn!(held_back, "more regions of the spool cannot be read");
        }
    }

    /// Moves a whole segment to this folder.
    ///
    /// # Errors
    /// When the file system refuses.
    pub(super) fn take(&mut self, spool: &Path, departed: DepartedSegment) -> io::Result<()> {
        let (from, to) = (segment::path(spool, departed.number), self.place_of(departed.number));
        match fs::rename(&from, &to) {
            Ok(()) => self.count(departed.length),
            Err(error) if error.kind() != io::ErrorKind::NotFound || from.exists() => {
                let reason = format!("failed to move {} to {}: {error}", from.display(), to.display());
                return Err(io::Error::new(error.kind(), reason));
            }
            // The segment was removed by somebody else.
            Err(_) => {}
        }
        Ok(())
    }

    /// Where a whole segment is kept.
    pub(super) fn place_of(&self, number: u64) -> PathBuf {
        segment::path(&self.folder, number)
    }

    fn count(&mut self, bytes: u64) {
        self.files += 1;
        self.bytes += bytes;
    }
}
