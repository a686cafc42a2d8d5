//! Which roots are sampled, and how ids are made.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use super::start::{random, ready_or_start, seed};
use super::state::{OFF, STATE, is_ready};
use crate::cpu;
use crate::hot::HotSlot;
use crate::layout::control;
use crate::rseq::{self, Outcome};

/// Distance between a slot's numbers: odd, so that all 2^64 numbers come before one comes again, and as much of the golden
/// ratio as fits into an instruction, because its multiples spread evenly (Knuth, The Art of Computer Programming, volume 3,
/// 6.4).
pub(crate) const STEP: i32 = -0x61c8_8647;

/// A root that was counted, and is not simply left out: in which slot, and what the countdown there was.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CountedRoot {
    /// `None` for a thread without a slot of its own, which has not counted the root yet.
    slot: Option<&'static HotSlot>,
    left: u64,
}

impl CountedRoot {
    /// Whether the root is to be sampled.
    #[inline(always)]
    pub fn samples(self) -> bool {
        match self.slot {
            Some(slot) if self.left == 1 && is_ready(STATE.hot.phase.load(Acquire)) => {
                slot.roots.store(rate().at_least_one(), Relaxed);
                true
            }
            Some(slot) => ends_countdown(slot, self.left),
            None => samples_first_root(),
        }
    }
}

/// Whether one more root is to be sampled: in each slot one in N, from a random phase, where N is what `blkin set`
/// says, or else the environment. Never when the program is off.
#[inline(always)]
pub fn samples_root() -> bool {
    let rate = rate();
    rate.samples_all() || samples_counted_root(rate)
}

/// As [`samples_root`], for a program that samples only some roots, or has not started yet. A function of its own, because a
/// compiler makes two copies of the code that follows the two conditions in [`Rate::samples_all`].
#[inline(never)]
fn samples_counted_root(rate: Rate) -> bool {
    count_root(rate).is_some_and(CountedRoot::samples)
}

/// The first half of [`samples_root`] at a rate that does not sample all roots, for callers that then have nothing else to
/// keep: `None` if the root is left out, else [`CountedRoot::samples`] decides.
#[inline(always)]
pub fn count_root(rate: Rate) -> Option<CountedRoot> {
    match own_slot() {
        Some(slot) => count_root_in(slot, rate),
        // A program that is off has no areas: its roots are left out as soon as that is seen.
        None if STATE.hot.phase.load(Acquire) == OFF => None,
        None => Some(CountedRoot { slot: None, left: 0 }),
    }
}

/// As [`count_root`], in this slot.
#[inline(always)]
fn count_root_in(slot: &'static HotSlot, rate: Rate) -> Option<CountedRoot> {
    let left = rseq::add(&slot.roots, 1_u64.wrapping_neg());
    // Neither due (1), nor not seeded yet (0), nor begun when the rate was larger.
    let is_left_out = left.wrapping_sub(2) < rate.0.saturating_sub(1);
    (!is_left_out).then_some(CountedRoot { slot: Some(slot), left })
}

/// What [`samples_root`] does once in N calls. `left`: what the countdown was before.
#[cold]
#[inline(never)]
fn ends_countdown(slot: &HotSlot, left: u64) -> bool {
    let is_off = ready_or_start() == OFF;
    let rate = rate().at_least_one();
    if left == 1 || is_off || rate == 1 {
        // Also in a program that is off: so that the countdown soon ends again, and does not go below 0.
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

/// Without an rseq area: by the CPU's slot, or by one counter for all threads.
#[cold]
#[inline(never)]
fn samples_first_root() -> bool {
    if ready_or_start() == OFF {
        return false;
    }
    if let Some(slot) = slot_of_cpu() {
        return count_root_in(slot, rate()).is_some_and(CountedRoot::samples);
    }
    let rate = rate().at_least_one();
    if STATE.shared_slot.roots.load(Relaxed) == 0 {
        seed(&STATE.shared_slot.roots, 1 + random() % rate);
    }
    STATE.shared_slot.roots.fetch_add(1, Relaxed).is_multiple_of(rate)
}

/// One in this many roots is sampled, as the setting was read a moment ago.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Rate(u64);

impl Rate {
    /// Whether every root is sampled, so that none need be counted: at a rate of 1, in a program that records.
    #[inline(always)]
    pub fn samples_all(self) -> bool {
        self.0 == 1 && is_ready(STATE.hot.phase.load(Acquire))
    }

    /// In a program that never started the rate is 0.
    fn at_least_one(self) -> u64 {
        self.0.max(1)
    }
}

/// What `blkin set` says, or else the environment.
#[inline(always)]
pub fn rate() -> Rate {
    let control = STATE.hot.control.load(Relaxed);
    let set = if control.is_null() {
        0
    } else {
        let word = control.wrapping_add(control::RATE);
        // SAFETY: set once from a mapping that lives on (invariants 2 and 3), which has this word (invariant 1).
        unsafe { &*word }.load(Relaxed)
    };
    Rate(if set == 0 { STATE.hot.rate.load(Relaxed) } else { set })
}

/// An id that no other call, process or child gets but by chance: positive, 63 bits. It is the next number of a sequence that
/// starts at a random place in each slot of each process (a forked child draws anew), mixed by the first round of
/// SplitMix64's finaliser (Steele, Lea, Flood 2014). Ids need to differ and spread, not to be hard to guess, and each round
/// is more code that is cold in the caches.
#[inline]
pub fn new_id() -> u64 {
    try_new_id().unwrap_or_else(|| mix(next_number_otherwise()))
}

/// As [`new_id`], if that can be done at once, as it nearly always can: for callers that then have nothing to keep meanwhile.
#[inline(always)]
pub fn try_new_id() -> Option<u64> {
    let area = STATE.hot.rseq_offset.load(Relaxed);
    if area == 0 {
        return None;
    }
    // SAFETY: the offset of the rseq areas, and not 0 (invariant 15).
    unsafe { rseq::next_number(&STATE.hot, area) }.ok().map(mix)
}

#[inline(always)]
fn mix(state: u64) -> u64 {
    ((state ^ state >> 32).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 1).max(1)
}

/// When the first try failed: it was interrupted, or the slot's generator is not seeded, or there are no rseq areas.
#[cold]
#[inline(never)]
fn next_number_otherwise() -> u64 {
    let area = STATE.hot.rseq_offset.load(Relaxed);
    if area != 0 {
        for _ in 0..rseq::TRIES {
            // SAFETY: the offset of the rseq areas, and not 0 (invariant 15).
            match unsafe { rseq::next_number(&STATE.hot, area) } {
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
    slot.ids.fetch_add(i64::from(STEP) as u64, Relaxed)
}

/// The slot of the calling thread at this moment. Outside a restartable sequence this is only a hint.
#[inline(always)]
fn own_slot() -> Option<&'static HotSlot> {
    STATE.hot.slots.get(rseq::index(&STATE.hot)?)
}

/// The slot of the CPU, in a process without rseq areas where the CPU can be asked for as quickly.
fn slot_of_cpu() -> Option<&'static HotSlot> {
    if STATE.asks_processor.load(Relaxed) { STATE.hot.slots.get(cpu::current(true)) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Collectors sample by id: they keep ids below a bound.
    #[test]
    fn ids_spread_like_random_ones_however_many_a_request_draws() {
        const IDS: u64 = 10_000;
        for drawn_a_request in 1..=100 {
            for one_in in [2, 10, 100] {
                let bound = i64::MAX as u64 / one_in;
                let step = (i64::from(STEP) * drawn_a_request) as u64;
                let below = (0..IDS).filter(|n| mix(1 + step.wrapping_mul(*n)) <= bound).count() as f64;
                let (expected, share) = (IDS as f64 / one_in as f64, 1.0 / one_in as f64);
                let sigma = (expected * (1.0 - share)).sqrt();
                let off = (below - expected).abs();
                assert!(
                    off < 5.0 * sigma,
                    "{below} ids below the bound of one in {one_in}, {drawn_a_request} drawn per request"
                );
            }
        }
    }
}
