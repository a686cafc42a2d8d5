//! How the relay counts. An entry of a Scribe call is its unit, for that is what it passes on; annotations, the unit of
//! the whole product, are counted beside it by walking over the spans (docs/adr/0006-relay-ledger.md).

use std::ops::{Add, AddAssign, Sub, SubAssign};

/// A number of entries and of the annotations in them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Entries of Scribe calls.
    pub entries: u64,
    /// Annotations in them, as far as they are spans; an entry that should be one and is not counts as one.
    pub annotations: u64,
}

impl Count {
    /// More than anything holds.
    pub const MAX: Count = Count { entries: u64::MAX, annotations: u64::MAX };

    /// One entry.
    pub fn entry(annotations: u64) -> Self {
        Count { entries: 1, annotations }
    }

    /// As much of it as `whole` has.
    pub fn within(self, whole: Count) -> Self {
        Count {
            entries: self.entries.min(whole.entries),
            annotations: self.annotations.min(whole.annotations),
        }
    }
}

impl Add for Count {
    type Output = Count;
    fn add(self, other: Count) -> Count {
        Count { entries: self.entries + other.entries, annotations: self.annotations + other.annotations }
    }
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Count) {
        *self = *self + other;
    }
}

/// Saturating: what is read from a damaged file must not end the process.
impl Sub for Count {
    type Output = Count;
    fn sub(self, other: Count) -> Count {
        Count {
            entries: self.entries.saturating_sub(other.entries),
            annotations: self.annotations.saturating_sub(other.annotations),
        }
    }
}

impl SubAssign for Count {
    fn sub_assign(&mut self, other: Count) {
        *self = *self - other;
    }
}

/// Why an upstream does not get an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// The spool had reached its bound and this was the oldest.
    SpoolEvicted,
    /// The upstream refuses it for good.
    Rejected,
    /// The spool could not be read there.
    Damaged,
}

impl Loss {
    /// All of them, in the order of the spool's file of positions.
    pub const ALL: [Loss; 3] = [Loss::SpoolEvicted, Loss::Rejected, Loss::Damaged];

    /// Its name in the metrics.
    pub fn label(self) -> &'static str {
        match self {
            Loss::SpoolEvicted => "spool_evicted",
            Loss::Rejected => "rejected",
            Loss::Damaged => "damaged",
        }
    }
}

/// What became of all that one upstream was to get: offered = acked + in_flight + lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Spooled for this upstream.
    pub offered: Count,
    /// Acknowledged by it.
    pub acked: Count,
    /// In the spool, or sent and not acknowledged.
    pub in_flight: Count,
    /// Lost, by [`Loss`].
    pub lost: [Count; 3],
}

impl Delivered {
    /// Whether the equation holds.
    pub fn balances(&self) -> bool {
        let lost = self.lost.into_iter().fold(Count::default(), Add::add);
        self.offered == self.acked + self.in_flight + lost
    }
}

/// What became of all that arrived: received = accepted + malformed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Arrived {
    /// In calls that were answered with `OK`, or could not be read. A call that was told `TRY_LATER` is its sender's.
    pub received: Count,
    /// Durable in the spool.
    pub accepted: Count,
    /// In calls that could not be read: each counts as one entry with one annotation, for nothing better is known.
    pub malformed: Count,
}
