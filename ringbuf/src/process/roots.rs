//! Which roots are sampled, and ids.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use super::start::{random, ready_or_start, seed};
use super::state::{OFF, STATE, is_ready};
use crate::cpu;
use crate::hot::HotSlot;
use crate::layout::control;
use crate::rseq::{self, Outcome};

/// What SplitMix64 goes on by.
const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// One more root that was counted, and is not simply left out: where, and what the countdown there was.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Turn {
    /// `None` of threads without a slot of their own, who have not counted it yet.
    slot: Option<&'static HotSlot>,
    left: u64,
}

impl Turn {
    /// Whether the root is to be sampled.
    #[inline(always)]
    pub fn samples(self) -> bool {
        match self.slot {
            _ if self.samples_at_once() => true,
            Some(slot) => ends_countdown(slot, self.left),
            None => samples_first_root(),
        }
    }

    /// Whether it is, and nothing is left to be done: nearly always, and with each root of a program that samples all of them. If
    /// not, [`Turn::samples`] tells.
    #[inline(always)]
    pub fn samples_at_once(self) -> bool {
        match self.slot {
            Some(slot) if self.left == 1 && is_ready(STATE.hot.phase.load(Acquire)) => {
                slot.roots.store(rate().max(1), Relaxed);
                true
            }
            _ => false,
        }
    }
}

/// Whether one more root is to be sampled: one in N of those of a slot, from a random phase, where N is what `blkin set`
/// says, else the environment. Never when the program is off.
#[inline(always)]
pub fn samples_root() -> bool {
    count_root().is_some_and(Turn::samples)
}

/// The first half of [`samples_root`], by itself for callers that have nothing else to keep: `None` if the root is left out,
/// else whoever asks [`Turn::samples`] is told.
#[inline(always)]
pub fn count_root() -> Option<Turn> {
    match own_slot() {
        Some(slot) => count_root_in(slot),
        None => Some(Turn { slot: None, left: 0 }),
    }
}

/// As [`count_root`], in this slot.
#[inline(always)]
fn count_root_in(slot: &'static HotSlot) -> Option<Turn> {
    let left = rseq::add(&slot.roots, 1_u64.wrapping_neg());
    // Neither due (1), nor not seeded yet (0), nor begun when the rate was a larger one.
    let is_left_out = left.wrapping_sub(2) < rate().saturating_sub(1);
    (!is_left_out).then_some(Turn { slot: Some(slot), left })
}

/// What [`samples_root`] does once in N calls. `left`: what the countdown was.
#[cold]
#[inline(never)]
fn ends_countdown(slot: &HotSlot, left: u64) -> bool {
    let is_off = ready_or_start() == OFF;
    let rate = rate().max(1);
    if left == 1 || is_off || rate == 1 {
        // Also of a program that is off: so that it soon ends again, and does not count below 0.
        slot.roots.store(rate, Relaxed);
        return !is_off;
    }
    if left == 0 || left > i64::MAX as u64 {
        slot.roots.store(1 + random() % rate, Relaxed);
        return samples_root();
    }
    slot.roots.store(rate, Relaxed);
    false
}

/// Without an area for restartable sequences: by the CPU's slot, or by one for all.
#[cold]
#[inline(never)]
fn samples_first_root() -> bool {
    if ready_or_start() == OFF {
        return false;
    }
    if let Some(slot) = slot_of_cpu() {
        return count_root_in(slot).is_some_and(Turn::samples);
    }
    let rate = rate().max(1);
    if STATE.shared_slot.roots.load(Relaxed) == 0 {
        seed(&STATE.shared_slot.roots, 1 + random() % rate);
    }
    STATE.shared_slot.roots.fetch_add(1, Relaxed).is_multiple_of(rate)
}

/// One in so many roots is sampled.
#[inline(always)]
fn rate() -> u64 {
    let control = STATE.hot.control.load(Relaxed);
    let set = if control.is_null() {
        0
    } else {
        let word = control.wrapping_add(control::RATE);
        // SAFETY: set once from a mapping that lives on (invariants 2 and 3), which has this word (invariant 1).
        unsafe { &*word }.load(Relaxed)
    };
    if set == 0 { STATE.hot.rate.load(Relaxed) } else { set }
}

/// An id that no other call, process or child gets but by chance: positive, 63 bits. The next number of a sequence that
/// starts at a random place in each slot of each process (a forked child draws anew), mixed by the finaliser of
/// SplitMix64 (Steele, Lea, Flood 2014).
#[inline]
pub fn new_id() -> u64 {
    try_new_id().unwrap_or_else(|| mix(next_number_otherwise()))
}

/// As [`new_id`], if that is done at once, as it nearly always is: for callers that then have nothing to keep meanwhile.
#[inline(always)]
pub fn try_new_id() -> Option<u64> {
    if STATE.hot.rseq_offset.load(Relaxed) == 0 {
        return None;
    }
    // SAFETY: the offset of the rseq areas is set.
    unsafe { rseq::next_number(&STATE.hot, GOLDEN_GAMMA) }.ok().map(mix)
}

#[inline(always)]
fn mix(state: u64) -> u64 {
    let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((mixed ^ mixed >> 31) & i64::MAX as u64).max(1)
}

/// When the first try did not do: it was interrupted, or the slot's generator is not seeded, or there are no such areas.
#[cold]
#[inline(never)]
fn next_number_otherwise() -> u64 {
    if STATE.hot.rseq_offset.load(Relaxed) != 0 {
        for _ in 0..rseq::TRIES {
            // SAFETY: the offset of the rseq areas is set.
            match unsafe { rseq::next_number(&STATE.hot, GOLDEN_GAMMA) } {
                Ok(number) => return number,
                Err(Outcome::Aborted) => {}
                Err(_) => break,
            }
        }
        if let Some(slot) = own_slot() {
            seed(&slot.ids, random());
        }
    }
    ready_or_start();
    let slot = slot_of_cpu().unwrap_or(&STATE.shared_slot);
    if slot.ids.load(Relaxed) == 0 {
        seed(&slot.ids, random());
    }
    slot.ids.fetch_add(GOLDEN_GAMMA, Relaxed)
}

/// The slot of the calling thread at this moment. Only a hint for whoever uses no restartable sequence.
#[inline(always)]
fn own_slot() -> Option<&'static HotSlot> {
    STATE.hot.slots.get(rseq::index(&STATE.hot)?)
}

/// The slot of the CPU, in a process without areas for restartable sequences where that is told as quickly.
fn slot_of_cpu() -> Option<&'static HotSlot> {
    if STATE.asks_processor.load(Relaxed) { STATE.hot.slots.get(cpu::current(true)) } else { None }
}
