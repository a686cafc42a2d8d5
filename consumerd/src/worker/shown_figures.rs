//! The figures that `/metrics` last showed, saved in the staging memory. The next worker begins with the retired figures and
//! counts the rest again, and must not show less than this one did.

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
pub(super) struct ShownFigures([u64; WORDS]);

impl ShownFigures {
    /// Collects the figures of the sinks; 0 for those that are not configured, so that no old figures stay.
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

    /// The settled annotations that were shown of a sink.
    pub(super) fn settled(&self, sink: &str) -> ByOutcome {
        let mut figures = ByOutcome::default();
        if let Some(at) = NAMES.iter().position(|known| *known == sink) {
            figures.copy_from_slice(&self.0[at * FIGURES..][..FIGURES]);
        }
        figures
    }

    /// The number of split spans that was shown.
    pub(super) fn spans_split(&self) -> u64 {
        self.0[WORDS - 1]
    }

    /// Reads the figures from the staging memory; `None` if they are damaged.
    ///
    /// # Errors
    /// When the memory cannot be read.
    pub(super) fn read(memory: &Memfd) -> io::Result<Option<Self>> {
        Ok(twice::read(memory, SHOWN_AT)?.map(Self))
    }

    /// Writes the figures into the staging memory.
    ///
    /// # Errors
    /// When the memory cannot be written.
    pub(super) fn write(&self, memory: &mut Memfd) -> io::Result<()> {
        twice::write(memory, SHOWN_AT, &self.0)
    }
}
