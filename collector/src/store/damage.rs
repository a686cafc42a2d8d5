//! Counts of what was found damaged since the start of the process.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::model::TraceId;
use crate::recurring::Recurring;

/// The counters.
#[derive(Debug, Default)]
pub struct Damage {
    pieces: AtomicU64,
    files: AtomicU64,
    salvaged: AtomicU64,
    /// Every query that touches a damaged place finds it again.
    left_out: Recurring,
    missing: Recurring,
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

    /// Counts a damaged piece that was left out, of this trace if that is known, and logs it, with a limit on the rate.
    pub(super) fn tell_of_piece(&self, trace: Option<TraceId>, block: u64) {
        self.note_piece();
        if let Some(held_back) = self.left_out.admit() {
            let trace = trace.map(tracing::field::display);
            tracing::error!(trace, block, held_back, "left out a damaged piece of a span");
        }
    }

    /// Counts a block that should be there, and logs it, with a limit on the rate.
    pub(super) fn tell_of_missing(&self, block: u64) {
        self.note_piece();
        if let Some(held_back) = self.missing.admit() {
            tracing::error!(block, held_back, "failed to find a block of the store");
        }
    }

    pub(super) fn note_file(&self) {
        self.files.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn note_salvaged(&self, pieces: u64) {
        self.salvaged.fetch_add(pieces, Ordering::Relaxed);
    }
}
