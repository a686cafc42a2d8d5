//! Recording: from an annotation to a record in the ring of the calling thread's slot.
//!
//! Three lengths of the way: an annotation all of whose texts have ids is one grain, whose words go straight into the
//! sequence; one of a few grains is put together on the stack and copied in by the sequence (`long`); everything else, and
//! everything of programs without restartable sequences, takes the portable protocol.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use blkin_record::{Draft, GRAIN_WORDS, Payload, Source, traits_word};

use super::long::record_draft;
use super::start::{offer_if_due, open_slot};
use super::state::{GATE, PORTABLE, RSEQ, STATE, clock, control_words, ring_of, words};
use crate::layout::{control, header};
use crate::ring::Refused;
use crate::rseq::{self, Outcome};

/// What a record without a tail says beside its ids.
#[derive(Clone, Copy, Debug)]
pub enum Short {
    /// It happened now.
    Event,
    /// A key has this value.
    Integer(i64),
}

/// Whether annotations of this level (0 to 7) are recorded: the gate that `blkin set` and BLKIN_OFF close. Two loads and
/// a branch; async-signal-safe.
#[inline(always)]
pub fn is_on(level: u8) -> bool {
    GATE.is_open(level)
}

/// Records an annotation all of whose texts have ids (see [`super::declare`]), which must not be 0, on a sampled trace.
/// The gate is the caller's to ask. `ids`: trace, span, parent; `names`: see [`blkin_record::names_word`].
///
/// No system call, lock or allocation once the process and the slot are in use; async-signal-safe; keeps errno.
#[inline(always)]
pub fn record_short(ids: &[u64; 3], names: u64, key: u32, what: Short, level: u8) {
    // SAFETY: three words.
    unsafe { record_short_at(ids.as_ptr(), names, key, what, level) };
}

/// As [`record_short`], for ids in memory that others may change. Always 0, as C functions that end with it return.
///
/// # Safety
/// `ids` points to three readable words, aligned.
#[inline(always)]
pub unsafe fn record_short_at(ids: *const u64, names: u64, key: u32, what: Short, level: u8) -> i32 {
    let (payload, value) = match what {
        Short::Event => (Payload::Event, 0),
        Short::Integer(value) => (Payload::Integer(value), value as u64),
    };
    let traits = traits_word(key, &payload, level, false);
    match what {
        // SAFETY: passed on from the caller.
        Short::Event => unsafe { rseq::push_event(ids, names, traits) },
        // SAFETY: as above.
        Short::Integer(_) => unsafe { rseq::push_value(ids, names, traits, value) },
    }
}

/// Where the sequence of a short record ends when it was not simply done: by whatever way there is. Always 0.
///
/// # Safety
/// `ids` points to three readable words.
#[cold]
pub(crate) unsafe extern "C" fn push_again(
    ids: *const u64,
    names: u64,
    traits: u64,
    value: u64,
    code: u32,
) -> i32 {
    if Outcome::from_code(code) == Outcome::Passed {
        wake();
        return 0;
    }
    // SAFETY: passed on from the caller.
    let ids = unsafe { ids.cast::<[u64; 3]>().read() };
    if STATE.hot.phase.load(Acquire) == RSEQ {
        // SAFETY: this phase says that the rings are written so.
        unsafe { rseq::refresh_limit(&STATE.hot) };
    }
    record_draft(&Draft {
        trace_id: ids[0],
        span_id: ids[1],
        parent_span_id: ids[2],
        name: Source::known(names as u32),
        endpoint: Source::known((names >> 32) as u32),
        key: Source::known(traits as u32),
        payload: payload_of(traits, value),
        level: (traits >> 40) as u8,
        truncated: false,
    });
    0
}

/// Where a short record goes in a process that does not write by restartable sequences, or is not set up. Always 0.
///
/// # Safety
/// `ids` points to three readable words.
pub(crate) unsafe extern "C" fn push_otherwise(ids: *const u64, names: u64, traits: u64, value: u64) -> i32 {
    if STATE.hot.phase.load(Acquire) == PORTABLE {
        // SAFETY: passed on from the caller.
        let [trace_id, span_id, parent_span_id] = unsafe { ids.cast::<[u64; 3]>().read() };
        if push_grain(&[0, 0, trace_id, span_id, parent_span_id, names, traits, 0], value) {
            return 0;
        }
    }
    // SAFETY: passed on from the caller.
    unsafe { push_again(ids, names, traits, value, rseq::NO_SLOT) }
}

/// Writes a short record by compare-and-swap. False if there is no ring for it yet.
#[inline(always)]
fn push_grain(words: &[u64; GRAIN_WORDS], value: u64) -> bool {
    let Some(ring) = ring_of(&STATE.hot.slots[own_number()]) else { return false };
    let clock = clock();
    let is_event = matches!(payload_of(words[6], value), Payload::Event);
    end_push(ring.push_grain(words, || if is_event { clock.read() } else { value }));
    true
}

/// What follows a push by compare-and-swap.
#[inline(always)]
fn end_push(result: Result<bool, Refused>) {
    match result {
        Ok(true) => wake(),
        Ok(false) => {}
        Err(_) => offer_if_due(),
    }
}

fn payload_of(traits: u64, value: u64) -> Payload<'static> {
    let is_event = traits_word(traits as u32, &Payload::Event, (traits >> 40) as u8, false) == traits;
    if is_event { Payload::Event } else { Payload::Integer(value as i64) }
}

/// By compare-and-swap, into the ring with this number.
#[inline(never)]
pub(super) fn record_portably(draft: &Draft<'_>, number: usize) {
    let is_shared = STATE.hot.phase.load(Relaxed) == RSEQ;
    let slot = if is_shared { &STATE.shared_slot } else { &STATE.hot.slots[number] };
    let Some(ring) = ring_of(slot).or_else(|| open_slot(slot, number).then(|| ring_of(slot)).flatten())
    else {
        words()[header::ATTEMPTED].fetch_add(1, Relaxed);
        words()[header::NO_SEGMENT].fetch_add(1, Relaxed);
        return;
    };
    let clock = clock();
    let is_event = matches!(draft.payload, Payload::Event);
    end_push(ring.push(draft, || if is_event { clock.read() } else { 0 }));
}

/// The number of the ring that the calling thread writes portably: its own at this moment. Any ring may be written from
/// anywhere.
#[inline]
pub(super) fn own_number() -> usize {
    let index = rseq::index(&STATE.hot).unwrap_or_else(|| {
        // SAFETY: no preconditions; libc serves it from the vDSO, or by a system call that never fails here.
        unsafe { libc::sched_getcpu() }.max(0) as usize
    });
    let slots = STATE.slots.load(Relaxed).max(1);
    // Nearly always; a division would cost as much as the clock.
    if index < slots { index } else { index % slots }
}

/// Wakes a consumer that sleeps and has asked for it, if enough waits for it. One system call, which neither blocks nor
/// touches errno.
#[cold]
pub(super) fn wake() {
    let asks = control_words().get(control::SLEEPING).filter(|word| word.load(Relaxed) != 0);
    if let (true, Some(word)) = (STATE.may_wake.load(Relaxed), asks.filter(|_| is_filling())) {
        let half = (&raw const *word).cast::<AtomicU32>();
        // SAFETY: the low half of a word of the control page, little-endian, aligned, never unmapped (invariants 2, 3).
        let half = unsafe { &*half };
        let _ = rustix::thread::futex::wake(half, rustix::thread::futex::Flags::empty(), 1);
    }
}

/// Whether much waits in a ring that the calling thread writes.
fn is_filling() -> bool {
    let written = [&STATE.hot.slots[own_number()], &STATE.shared_slot];
    written.into_iter().filter_map(ring_of).any(|ring| ring.is_filling())
}
