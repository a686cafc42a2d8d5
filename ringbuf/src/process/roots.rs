//! Which roots are sampled, and ids.

use std::sync::atomic::Ordering::Relaxed;

use super::start::{random, ready_or_start, seed};
use super::state::{OFF, STATE, control_words};
use crate::hot::HotSlot;
use crate::layout::control;
use crate::rseq;

/// Whether one more root is to be sampled: one in N of those of a slot, from a random phase, where N is what `blkin set`
/// says, else the environment. Never when the program is off, or everything of it is blocked.
#[inline]
pub fn samples_root() -> bool {
    let rate = match ready_or_start() {
        OFF => return false,
        _ => match control_words().get(control::RATE).map_or(0, |word| word.load(Relaxed)) {
            0 => STATE.rate.load(Relaxed),
            rate => rate,
        },
    };
    rate <= 1 || is_due(rate)
}

#[inline]
fn is_due(rate: u64) -> bool {
    if STATE.hot.rseq_offset.load(Relaxed) != 0 {
        // SAFETY: the offset of the rseq areas is set.
        if let Some(due) = unsafe { rseq::root(&STATE.hot, rate) } {
            return due;
        }
        if let Some(slot) = own_slot() {
            seed(&slot.roots, 1 + random() % rate);
        }
    }
    // Without a slot of one's own, and once in each slot.
    seed(&STATE.shared_slot.roots, 1 + random() % rate);
    STATE.shared_slot.roots.fetch_add(1, Relaxed).is_multiple_of(rate)
}

/// An id that no other call, process or child gets but by chance: positive, 63 bits. The next number of a sequence that
/// starts at a random place in each slot of each process (a forked child draws anew), mixed by the finaliser of
/// SplitMix64 (Steele, Lea, Flood 2014).
#[inline]
pub fn new_id() -> u64 {
    const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
    let state = next_number(GOLDEN_GAMMA);
    let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((mixed ^ mixed >> 31) & i64::MAX as u64).max(1)
}

#[inline]
fn next_number(step: u64) -> u64 {
    if STATE.hot.rseq_offset.load(Relaxed) != 0 {
        // SAFETY: the offset of the rseq areas is set.
        if let Some(number) = unsafe { rseq::next_number(&STATE.hot, step) } {
            return number;
        }
        if let Some(slot) = own_slot() {
            seed(&slot.ids, random());
        }
    }
    ready_or_start();
    if STATE.shared_slot.ids.load(Relaxed) == 0 {
        seed(&STATE.shared_slot.ids, random());
    }
    STATE.shared_slot.ids.fetch_add(step, Relaxed)
}

/// The slot of the calling thread at this moment. Only a hint for whoever uses no restartable sequence.
fn own_slot() -> Option<&'static HotSlot> {
    STATE.hot.slots.get(rseq::index(&STATE.hot)?)
}
