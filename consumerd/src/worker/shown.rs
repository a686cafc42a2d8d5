//! What `/metrics` has shown of what a worker counts. It lies in the staging memory: the next worker begins with what was
//! retired, counts the rest again, and must not show less than this one did.

use std::io;

use super::ledger::SinkFigures;
use crate::sinks::NAMES;
use crate::sinks::queue::{ByOutcome, Outcome};
use crate::staging::layout::SHOWN_AT;
use crate::staging::{Memfd, twice};

const FIGURES: usize = Outcome::ALL.len();
const WORDS: usize = NAMES.len() * FIGURES + 1;

/// Each sink's figures in the order of [`NAMES`], then spans that were split.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Shown([u64; WORDS]);

impl Shown {
    /// None of a sink that is not among these, which may be another's next time.
    pub(super) fn of<'a>(sinks: impl Iterator<Item = (&'a str, SinkFigures)>, spans_split: u64) -> Self {
        let mut shown = Self::default();
        for (name, figures) in sinks {
            if let Some(at) = NAMES.iter().position(|known| *known == name) {
                shown.0[at * FIGURES..][..FIGURES].copy_from_slice(&figures.settled());
            }
        }
        shown.0[WORDS - 1] = spans_split;
        shown
    }

    /// What was shown of a sink.
    pub(super) fn settled(&self, sink: &str) -> ByOutcome {
        let mut figures = ByOutcome::default();
        if let Some(at) = NAMES.iter().position(|known| *known == sink) {
            figures.copy_from_slice(&self.0[at * FIGURES..][..FIGURES]);
        }
        figures
    }

    /// What was shown of spans that were split.
    pub(super) fn spans_split(&self) -> u64 {
        self.0[WORDS - 1]
    }

    /// As it lies in the staging memory; `None` where it is damaged.
    ///
    /// # Errors
    /// When that cannot be read.
    pub(super) fn read(memory: &Memfd) -> io::Result<Option<Self>> {
        Ok(twice::read(memory, SHOWN_AT)?.map(Self))
    }

    /// Lays it there.
    ///
    /// # Errors
    /// When that cannot be written.
    pub(super) fn write(&self, memory: &mut Memfd) -> io::Result<()> {
        twice::write(memory, SHOWN_AT, &self.0)
    }
}
