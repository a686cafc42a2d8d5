//! The holder's own counters. They are published in the staging memory, where the worker that serves `/metrics` reads them.

use crate::staging::layout::{HOLDER_AT, HOLDER_COUNTERS};
use crate::staging::{Memory, twice};

/// Which counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// Offers that were taken.
    Taken,
    /// Offers of programs that were held already.
    AlreadyHeld,
    /// Offers beyond a quota.
    Quota,
    /// Messages that were no offers.
    Malformed,
    /// Programs found in /proc.
    Scan,
    /// Workers that ended before they were asked to.
    Restarts,
    /// Workers that were killed because they showed no sign of life.
    StuckKills,
    /// Programs held now.
    Held,
    /// Offers of programs that another daemon reads.
    Elsewhere,
    /// The number that the next program gets.
    NextNumber,
    /// Lines of the holder's log that were lost.
    LogLinesLost,
}

/// The counters.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters([u64; HOLDER_COUNTERS]);

impl Counters {
    /// Adds one.
    pub fn add(&mut self, which: Count) {
        self.0[which as usize] += 1;
    }

    /// Sets a gauge.
    pub fn set(&mut self, which: Count, value: u64) {
        self.0[which as usize] = value;
    }

    /// The value of a counter.
    pub fn get(&self, which: Count) -> u64 {
        self.0[which as usize]
    }

    /// Publishes all of them to the worker.
    pub fn publish(&self, memory: &mut impl Memory) {
        if let Err(e) = twice::write(memory, HOLDER_AT, &self.0) {
            tracing::warn!("failed to publish the holder's counters: {e}");
        }
    }
}

/// Reads what a holder published; `None` where that is damaged.
pub fn read(memory: &impl Memory) -> Option<Counters> {
    twice::read(memory, HOLDER_AT).ok().flatten().map(Counters)
}
