//! How the relay counts. Its unit is the entry of a Scribe call, because that is what it passes on. Annotations, the unit of
//! all of BlkKin, are counted as well, by walking over the spans (docs/adr/0006-relay-ledger.md).

use std::ops::{Add, AddAssign, Sub, SubAssign};

/// A number of entries and of the annotations in them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Entries of Scribe calls.
    pub entries: u64,
    /// Annotations in those entries that are spans; an entry that should be a span and is not counts as one annotation.
    pub annotations: u64,
}

impl Count {
    /// More than anything can hold.
    pub const MAX: Count = Count { entries: u64::MAX, annotations: u64::MAX };

    /// One entry with this many annotations.
    pub fn entry(annotations: u64) -> Self {
        Count { entries: 1, annotations }
    }

    /// The smaller of this and `whole`, for entries and annotations each.
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

/// Saturating, because numbers from a damaged file must not cause a panic.
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
    /// The spool was full, and this entry was among the oldest.
    SpoolEvicted,
    /// The upstream refuses the entry for good.
    Rejected,
    /// The spool could not be read where the entry was.
    Damaged,
}

impl Loss {
    /// All causes, in the order of the spool's file of positions.
    pub const ALL: [Loss; 3] = [Loss::SpoolEvicted, Loss::Rejected, Loss::Damaged];

    /// The cause's label in the metrics.
    pub fn label(self) -> &'static str {
        match self {
            Loss::SpoolEvicted => "spool_evicted",
            Loss::Rejected => "rejected",
            Loss::Damaged => "damaged",
        }
    }
}

/// What became of everything that one upstream should get: offered = acked + in_flight + lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Spooled for this upstream.
    pub offered: Count,
    /// Acknowledged by this upstream.
    pub acked: Count,
    /// In the spool, or sent and not acknowledged.
    pub in_flight: Count,
    /// Lost to this upstream, by [`Loss`].
    pub lost: [Count; 3],
}

impl Delivered {
    /// Whether offered = acked + in_flight + lost.
    pub fn balances(&self) -> bool {
        let lost = self.lost.into_iter().fold(Count::default(), Add::add);
        self.offered == self.acked + self.in_flight + lost
    }
}

/// What became of everything that arrived: received = accepted + malformed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Arrived {
    /// In calls that were answered with `OK`, or could not be read. A call that was answered with `TRY_LATER` does not count here:
    /// its sender still has the entries.
    pub received: Count,
    /// Durable in the spool.
    pub accepted: Count,
    /// In calls that could not be read: each counts as one entry with one annotation, since nothing better is known.
    pub malformed: Count,
}
