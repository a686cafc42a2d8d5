//! The staged frames that a sink has yet to read: after a restart, all that an earlier worker left, and all that comes until those
//! are read.
//!
//! A new worker first counts what is staged, so that its ledger continues where the last one's ended. Then each sink reads the
//! frames by itself, in their order, as its queue has spare room. What is not read yet is in flight, like all that waits in queues,
//! and takes no memory except that of staging.

use blkin_ringbuf::RingTime;

use crate::hash::Map;

/// The frames that one sink has yet to read.
#[derive(Debug)]
pub(super) struct Unread {
    /// Number of the next frame to read.
    pub(super) next: u64,
    /// The last time of each program's rings, as far as this sink has read them.
    times: Map<(u64, u32), RingTime>,
}

impl Unread {
    pub(super) fn from(next: u64) -> Self {
        Self { next, times: Map::default() }
    }

    /// The last time of a ring, so that its times stay in order.
    pub(super) fn time_of(&mut self, program: u64, slot: u32) -> &mut RingTime {
        self.times.entry((program, slot)).or_default()
    }
}
