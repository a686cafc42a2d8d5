//! Waking the consumer: when a ring fills while it sleeps, and once per sleep.
//!
//! The word by which the consumer says that it sleeps has another value each time it falls asleep. Once a wake-up call has
//! ended a sleep, this process does not call again for the same value: the consumer has yet to reach a CPU, and another call
//! would only cost the traced program. A call that finds nobody waiting is repeated, because the consumer asks to be
//! woken before it begins to wait.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::thread::futex;

use super::offered::{offer_if_due, offer_if_unread};
use super::record::own_number;
use super::state::{STATE, control_words, mode, ring_of};
use crate::layout::{RingMode, control};

/// What a process knows about its consumer's sleep. Updates may be lost between threads: all of it only saves calls.
pub(super) struct Waking {
    /// The sleep that this process ended last: the value that the word had.
    ended: AtomicU64,
    /// High half: that of a sleep; low half: how many records found no room during it.
    refused: AtomicU64,
}

impl Waking {
    pub(super) const fn new() -> Self {
        Self { ended: AtomicU64::new(0), refused: AtomicU64::new(0) }
    }

    /// Counts a record that found no room during this sleep; returns how many have.
    fn count_refused(&self, sleep: u64) -> u32 {
        let before = self.refused.load(Relaxed);
        let count = if before >> 32 == sleep >> 32 { (before as u32).saturating_add(1) } else { 1 };
        self.refused.store(sleep >> 32 << 32 | u64::from(count), Relaxed);
        count
    }
}

/// What is done at each eighth of a ring: wakes a consumer that sleeps and has asked for it, if enough waits for it. One
/// system call, which neither blocks nor touches errno. A C function, because a sequence ends with a jump to it.
#[cold]
pub(crate) extern "C" fn wake() {
    if mode() == RingMode::Overwrite {
        // Such a ring refuses nothing, and so never offers itself as full; and nothing in it waits for a consumer that sleeps.
        return offer_if_unread();
    }
    offer_if_due();
    let Some((word, sleep)) = sleeping().filter(|_| STATE.may_wake.load(Relaxed) && is_filling()) else {
        return;
    };
    if STATE.waking.ended.load(Relaxed) == sleep {
        return;
    }
    let half = (&raw const *word).cast::<AtomicU32>();
    // SAFETY: the low half of a word of the control page, little-endian, aligned, never unmapped (invariants 2, 3).
    let half = unsafe { &*half };
    if futex::wake(half, futex::Flags::empty(), 1).is_ok_and(|woken| woken > 0) {
        STATE.waking.ended.store(sleep, Relaxed);
    }
}

/// What is done with each record that finds no room. A consumer that sleeps although the ring is full was woken before it
/// had begun to wait, and a full ring passes no further eighth that would wake it again. So refusals wake it, each time that
/// their number in this sleep has doubled.
#[cold]
pub(super) fn after_refusal() {
    if sleeping().is_some_and(|(_, sleep)| STATE.waking.count_refused(sleep).is_power_of_two()) {
        wake();
    }
    offer_if_unread();
}

/// The word by which a sleeping consumer is woken, and its value, if a consumer asks for that.
fn sleeping() -> Option<(&'static AtomicU64, u64)> {
    let word = control_words().get(control::SLEEPING)?;
    Some((word, word.load(Relaxed))).filter(|(_, sleep)| *sleep != 0)
}

/// Whether much waits in a ring that the calling thread writes.
fn is_filling() -> bool {
    let written = [&STATE.hot.slots[own_number()], &STATE.shared_slot];
    written.into_iter().filter_map(ring_of).any(|ring| ring.is_filling())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_counted_separately_for_each_sleep() {
        let waking = Waking::new();
        let [first, second] = [7 << 32 | 1, 8 << 32 | 1];
        assert_eq!([1, 2, 3].map(|_| waking.count_refused(first)), [1, 2, 3]);
        assert_eq!([1, 2].map(|_| waking.count_refused(second)), [1, 2]);
        waking.refused.store(8 << 32 | u64::from(u32::MAX), Relaxed);
        assert_eq!(waking.count_refused(second), u32::MAX);
    }
}
