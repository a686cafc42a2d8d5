//! The holder's own counters. They lie in the staging memory, where the worker that serves `/metrics` reads them.

use crate::staging::Memory;
use crate::staging::layout::{HOLDER_AT, HOLDER_COUNTERS};

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

    /// One of them.
    pub fn get(&self, which: Count) -> u64 {
        self.0[which as usize]
    }

    /// Shows them to the worker.
    pub fn publish(&self, memory: &mut impl Memory) {
        let bytes: Vec<u8> = self.0.iter().flat_map(|count| count.to_le_bytes()).collect();
        if let Err(e) = memory.write(HOLDER_AT, &bytes) {
            tracing::warn!("failed to publish the holder's counters: {e}");
        }
    }
}

/// Reads what a holder published.
pub fn read(memory: &impl Memory) -> Counters {
    let mut bytes = [0; HOLDER_COUNTERS * 8];
    let mut counters = Counters::default();
    if memory.read(HOLDER_AT, &mut bytes).is_ok() {
        for (counter, raw) in counters.0.iter_mut().zip(bytes.chunks_exact(8)) {
            *counter = raw.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        }
    }
    counters
}
