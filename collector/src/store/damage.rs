//! Counts of what was found damaged since the start of the process.

use std::sync::atomic::{AtomicU64, Ordering};

/// The counters.
#[derive(Debug, Default)]
pub struct Damage {
    pieces: AtomicU64,
    files: AtomicU64,
    salvaged: AtomicU64,
}

impl Damage {
    /// Times that a piece was left out, of an answer or of the index, because its bytes are not those that were stored.
    pub fn pieces(&self) -> u64 {
        self.pieces.load(Ordering::Relaxed)
    }

    /// Files that were set aside because their tree could not be used; includes files of an earlier process that did not finish
    /// recovering them.
    pub fn files(&self) -> u64 {
        self.files.load(Ordering::Relaxed)
    }

    /// Pieces that were found whole in such files, and stored again.
    pub fn salvaged(&self) -> u64 {
        self.salvaged.load(Ordering::Relaxed)
    }

    pub(super) fn note_piece(&self) {
        self.pieces.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn note_file(&self) {
        self.files.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn note_salvaged(&self, pieces: u64) {
        self.salvaged.fetch_add(pieces, Ordering::Relaxed);
    }
}
