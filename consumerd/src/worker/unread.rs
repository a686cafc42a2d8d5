//! What a sink has yet to read of what is staged: after a restart all that an earlier worker left, and what comes until
//! that is read.
//!
//! A new worker first counts what is staged, so that its ledger goes on where the last one's ended; then each sink has it read
//! for itself, frame by frame in their order, as its queue has room that nobody else needs. What is not read yet is in flight
//! like all that waits in queues, and takes no memory but that of staging.

use blkin_ringbuf::RingTime;

use crate::hash::Map;

/// The frames that one sink has yet to read.
#[derive(Debug)]
pub(super) struct Unread {
    /// Number of the first of them.
    pub(super) next: u64,
    /// Of each program's rings, which are converted from where this sink stands.
    times: Map<(u64, u32), RingTime>,
}

impl Unread {
    pub(super) fn from(next: u64) -> Self {
        Self { next, times: Map::default() }
    }

    /// So that a ring's times stay in order.
    pub(super) fn time_of(&mut self, program: u64, slot: u32) -> &mut RingTime {
        self.times.entry((program, slot)).or_default()
    }
}
