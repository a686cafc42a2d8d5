//! The collector's ledger: received = stored + duplicate + lost{malformed, sampled_out, expired}.
//!
//! The unit is one annotation: v1 annotations and binary annotations, v2 annotations and tags. Spans (pieces as they
//! arrive) are counted beside them. Every figure is counted where it happens; the totals are committed in the same
//! transaction as what they describe, so they hold after a crash too.

use std::ops::{AddAssign, SubAssign};

/// A number of annotations, and of the pieces of spans in which they came.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Count {
    /// Annotations, the unit of the ledger.
    pub annotations: u64,
    /// Pieces of spans.
    pub spans: u64,
}

impl Count {
    /// One piece with so many annotations.
    pub fn piece(annotations: usize) -> Self {
        Count { annotations: annotations as u64, spans: 1 }
    }

    /// So many annotations of a piece that is itself counted elsewhere.
    pub fn annotations(annotations: usize) -> Self {
        Count { annotations: annotations as u64, spans: 0 }
    }
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Count) {
        self.annotations = self.annotations.saturating_add(other.annotations);
        self.spans = self.spans.saturating_add(other.spans);
    }
}

impl SubAssign for Count {
    fn sub_assign(&mut self, other: Count) {
        self.annotations = self.annotations.saturating_sub(other.annotations);
        self.spans = self.spans.saturating_sub(other.spans);
    }
}

/// The figures of the ledger. The number of each is its key in the store: never reuse one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Figure {
    /// Came by Scribe.
    ReceivedScribe = 0,
    /// Came by `POST /api/v1/spans`.
    ReceivedHttpV1 = 1,
    /// Came by `POST /api/v2/spans`.
    ReceivedHttpV2 = 2,
    /// Is in the store now.
    Stored = 3,
    /// Was in the store already.
    Duplicate = 4,
    /// Could not be read, or is empty (an annotation without a time or a value, a tag without a key or a value).
    Malformed = 5,
    /// Belongs to a trace that the collector's sampling leaves out.
    SampledOut = 6,
    /// Was in the store and left it by age or size.
    Expired = 7,
    /// Has been committed to the store since the store was created: equals stored + expired, but is counted on its own.
    Committed = 8,
}

/// How many figures there are.
pub const FIGURES: usize = 9;

/// All figures, in the order of their numbers.
pub const ALL_FIGURES: [Figure; FIGURES] = [
    Figure::ReceivedScribe,
    Figure::ReceivedHttpV1,
    Figure::ReceivedHttpV2,
    Figure::Stored,
    Figure::Duplicate,
    Figure::Malformed,
    Figure::SampledOut,
    Figure::Expired,
    Figure::Committed,
];

/// One count for each figure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ledger([Count; FIGURES]);

impl Ledger {
    /// The count of one figure.
    pub fn get(&self, figure: Figure) -> Count {
        self.0[figure as usize]
    }

    /// The count of one figure, to change it.
    pub fn get_mut(&mut self, figure: Figure) -> &mut Count {
        &mut self.0[figure as usize]
    }

    /// Adds every count of another ledger.
    pub fn add(&mut self, other: &Ledger) {
        for figure in ALL_FIGURES {
            *self.get_mut(figure) += other.get(figure);
        }
    }

    /// All that was received.
    pub fn received(&self) -> Count {
        let mut sum = self.get(Figure::ReceivedScribe);
        sum += self.get(Figure::ReceivedHttpV1);
        sum += self.get(Figure::ReceivedHttpV2);
        sum
    }

    /// All that was received and is accounted for: what is stored, was a duplicate, or is lost.
    pub fn accounted(&self) -> Count {
        let mut sum = Count::default();
        for figure in
            [Figure::Stored, Figure::Duplicate, Figure::Malformed, Figure::SampledOut, Figure::Expired]
        {
            sum += self.get(figure);
        }
        sum
    }

    /// Whether received = stored + duplicate + lost.
    pub fn balances(&self) -> bool {
        self.received() == self.accounted()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_is_at_its_own_index() {
        for (at, figure) in ALL_FIGURES.into_iter().enumerate() {
            assert_eq!(figure as usize, at);
        }
    }

    #[test]
    fn one_uncounted_annotation_unbalances_the_ledger() {
        let mut ledger = Ledger::default();
        *ledger.get_mut(Figure::ReceivedScribe) += Count::piece(3);
        *ledger.get_mut(Figure::Stored) += Count::piece(2);
        assert!(!ledger.balances());
        *ledger.get_mut(Figure::Duplicate) += Count::annotations(1);
        assert!(ledger.balances());
    }
}
