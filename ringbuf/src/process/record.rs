//! Recording: from an annotation to a record in the ring of the calling thread's slot.
//!
//! | Entry | Taken when | Writes | Falls back to |
//! |---|---|---|---|
//! | `record_short` | all texts have ids: one grain | words straight into the ring | `record_draft`, by `push_again` |
//! | `record_in_cells` | C event, short new texts: three grains | the strings, straight | `record_brief_call`, `record_call` |
//! | `push_at_once` | texts in a record of up to eight grains | an image on the stack, copied | `record_draft`, by its callers |
//! | `push_image` | any other draft of up to eight grains | the same, as often as it takes | `record_portably`, shared slot |
//! | `record_portably` | all other drafts; without sequences, all | an image, copied, or word by word | nothing: counted as lost |
//!
//! All but the last write by restartable sequences, in this order: `rseq::push_event` or `push_value`, `push_cells`, `push_texts`,
//! `push_long`. Where a program has none, the first and the third write by compare-and-swap as the last does (`push_otherwise`,
//! `push_image_portably`), and the other two are passed over. Images need strings that may be read block by block.
//!
//! The entries are in this module, `long` and `strings`. `record_draft`, which ends in the last two, also starts the process. A
//! record for which its ring has no room, where rings discard, is counted as lost at once: no other path is tried.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use blkin_record::{Draft, GRAIN_WORDS, Payload, Source, traits_word};

use super::long::{count, record_draft, refuse_if_full};
use super::start::open_slot;
use super::state::{GATE, PORTABLE, RSEQ, STATE, add_to_word, clock, ring_of, ring_of_mode};
use super::waking::{after_refusal, wake};
use crate::clock::ClockKind;
use crate::cpu;
use crate::image::Image;
use crate::layout::{MAX_SLOTS, ProducerKind, RingMode, header, slot};
use crate::ring::{Refused, Ring};
use crate::rseq::{self, Outcome};

/// What a record without a tail says besides its ids.
#[derive(Clone, Copy, Debug)]
pub enum Short {
    /// It happened now.
    Event,
    /// A key has this value.
    Integer(i64),
}

impl From<Short> for Payload<'_> {
    #[inline(always)]
    fn from(what: Short) -> Self {
        match what {
            Short::Event => Payload::Event,
            Short::Integer(value) => Payload::Integer(value),
        }
    }
}

/// Whether annotations of this level (0 to 7) are recorded: the gate that `blkin set` and BLKIN_OFF close. Two loads and
/// a branch; async-signal-safe.
#[inline(always)]
pub fn is_on(level: u8) -> bool {
    GATE.is_open(level)
}

/// Records an annotation whose texts all have ids (see [`super::declare`]), none of which may be 0, on a sampled trace.
/// The caller asks the gate first. `ids`: trace, span, parent; `names`: see [`blkin_record::names_word`].
///
/// No system call, lock or allocation once the process and the slot are in use; async-signal-safe; keeps errno.
#[inline(always)]
pub fn record_short(ids: &[u64; 3], names: u64, key: u32, what: Short, level: u8) {
    // SAFETY: three words (invariant 17).
    unsafe { record_short_at(ids.as_ptr(), names, key, what, level) };
}

/// As [`record_short`], for ids in memory that others may change. Always 0, which C functions that end with this call return.
///
/// # Safety
/// `ids` points to three readable words, aligned.
#[inline(always)]
pub unsafe fn record_short_at(ids: *const u64, names: u64, key: u32, what: Short, level: u8) -> i32 {
    let traits = traits_word(key, &what.into(), level, false);
    match what {
        // SAFETY: passed on from the caller (invariant 13).
        Short::Event => unsafe { rseq::push_event(ids, names, traits) },
        // SAFETY: as above (invariant 13).
        Short::Integer(value) => unsafe { rseq::push_value(ids, names, traits, value as u64) },
    }
}

/// Where the sequence of a short record ends unless it simply succeeded; takes whatever path is available. Always 0.
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
    match Outcome::from_code(code) {
        Outcome::Passed => {
            wake();
            return 0;
        }
        Outcome::Refused if refuse_if_full(1) => return 0,
        _ => {}
    }
    // SAFETY: passed on from the caller (invariant 13).
    let ids = unsafe { ids.cast::<[u64; 3]>().read() };
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

/// Where an event goes in a process that does not write by restartable sequences, or is not set up. Always 0.
///
/// # Safety
/// `ids` points to three readable words.
pub(crate) unsafe extern "C" fn push_event_otherwise(
    ids: *const u64,
    names: u64,
    traits: u64,
    _: u64,
) -> i32 {
    // SAFETY: passed on from the caller (invariant 13).
    unsafe { push_otherwise::<true>(ids, names, traits, 0) }
}

/// As [`push_event_otherwise`], for a value.
///
/// # Safety
/// As [`push_event_otherwise`].
pub(crate) unsafe extern "C" fn push_value_otherwise(
    ids: *const u64,
    names: u64,
    traits: u64,
    value: u64,
) -> i32 {
    // SAFETY: passed on from the caller (invariant 13).
    unsafe { push_otherwise::<false>(ids, names, traits, value) }
}

/// Finds the ring by the thread's rseq area, if there is one: that is the quickest way.
///
/// # Safety
/// As [`push_event_otherwise`].
#[inline(always)]
unsafe fn push_otherwise<const IS_EVENT: bool>(ids: *const u64, names: u64, traits: u64, value: u64) -> i32 {
    match rseq::index(&STATE.hot) {
        // SAFETY: passed on from the caller (invariant 13).
        Some(number) if number < MAX_SLOTS => unsafe {
            push_to::<IS_EVENT>(number, ids, names, traits, value)
        },
        // SAFETY: as above (invariant 13).
        _ => unsafe { push_without_area::<IS_EVENT>(ids, names, traits, value) },
    }
}

/// # Safety
/// As [`push_event_otherwise`].
#[inline(never)]
unsafe fn push_without_area<const IS_EVENT: bool>(
    ids: *const u64,
    names: u64,
    traits: u64,
    value: u64,
) -> i32 {
    // SAFETY: passed on from the caller (invariant 13).
    unsafe { push_to::<IS_EVENT>(own_number(), ids, names, traits, value) }
}

/// Tries to write a short record by compare-and-swap in the simplest case: the ring exists, discards what it has no room
/// for, and its clock is one instruction. Otherwise goes on in [`push_by_any_ring`].
///
/// # Safety
/// As [`push_event_otherwise`].
#[inline(always)]
unsafe fn push_to<const IS_EVENT: bool>(
    number: usize,
    ids: *const u64,
    names: u64,
    traits: u64,
    value: u64,
) -> i32 {
    let word1 = || if IS_EVENT { ClockKind::Tsc.read() } else { value };
    // SAFETY: passed on from the caller (invariant 13).
    let words = || unsafe { words_of(ids, names, traits) };
    match ring_to_try(number).and_then(|ring| ring.try_push_grain(word1, words)) {
        Some(false) => 0,
        Some(true) => wake_and_return(),
        // SAFETY: passed on from the caller (invariant 13).
        None => unsafe { push_by_any_ring::<IS_EVENT>(ids, names, traits, value) },
    }
}

/// The ring with this number, if it exists and a quick try is allowed.
#[inline(always)]
pub(super) fn ring_to_try(number: usize) -> Option<Ring<'static, [AtomicU64]>> {
    if !STATE.tries_first.load(Acquire) {
        return None;
    }
    ring_of_mode(STATE.hot.slots.get(number)?, RingMode::Discard)
}

/// As [`push_to`], for any ring and any clock, and as often as it takes.
///
/// # Safety
/// As [`push_event_otherwise`].
#[inline(never)]
unsafe fn push_by_any_ring<const IS_EVENT: bool>(
    ids: *const u64,
    names: u64,
    traits: u64,
    value: u64,
) -> i32 {
    if STATE.hot.phase.load(Acquire) == PORTABLE
        && let Some(ring) = ring_of(&STATE.hot.slots[own_number()])
    {
        let clock = clock();
        // SAFETY: passed on from the caller (invariant 13).
        let words = unsafe { words_of(ids, names, traits) };
        end_push(ring.push_grain(&words, || if IS_EVENT { clock.read() } else { value }));
        return 0;
    }
    // SAFETY: passed on from the caller (invariant 13).
    unsafe { push_again(ids, names, traits, value, rseq::NO_SLOT) }
}

/// The words of a short record.
///
/// # Safety
/// As [`push_event_otherwise`].
#[inline(always)]
pub(super) unsafe fn words_of(ids: *const u64, names: u64, traits: u64) -> [u64; GRAIN_WORDS] {
    // SAFETY: passed on from the caller (invariant 13).
    let [trace_id, span_id, parent_span_id] = unsafe { ids.cast::<[u64; 3]>().read() };
    [0, 0, trace_id, span_id, parent_span_id, names, traits, 0]
}

#[cold]
fn wake_and_return() -> i32 {
    wake();
    0
}

/// What follows a push by compare-and-swap.
#[inline(always)]
pub(super) fn end_push(result: Result<bool, Refused>) {
    match result {
        Ok(true) => wake(),
        Ok(false) => {}
        Err(_) => after_refusal(),
    }
}

fn payload_of(traits: u64, value: u64) -> Payload<'static> {
    if is_event(traits) { Payload::Event } else { Payload::Integer(value as i64) }
}

/// Whether a record with this word 6 is an event.
#[inline(always)]
pub(super) fn is_event(traits: u64) -> bool {
    let kind = |word: u64| (word >> 32) as u8;
    kind(traits) == kind(traits_word(0, &Payload::Event, 0, false))
}

/// Records a draft by compare-and-swap, into the ring with this number.
#[inline(never)]
pub(super) fn record_portably(draft: &Draft<'_>, number: usize) {
    let is_shared = STATE.hot.phase.load(Relaxed) == RSEQ;
    let slot = if is_shared { Some(&STATE.shared_slot) } else { STATE.hot.slots.get(number) };
    let opened = |slot| open_slot(slot, number, ProducerKind::Portable).then(|| ring_of(slot)).flatten();
    let Some(ring) = slot.and_then(|slot| ring_of(slot).or_else(|| opened(slot))) else {
        add_to_word(header::ATTEMPTED, 1);
        add_to_word(header::NO_SEGMENT, 1);
        return;
    };
    end_push(push_draft(&ring, draft));
}

/// Puts the record together before it has a place, if it is short enough and its texts may be read block by block.
fn push_draft(ring: &Ring<'_, [AtomicU64]>, draft: &Draft<'_>) -> Result<bool, Refused> {
    let clock = clock();
    let is_event = matches!(draft.payload, Payload::Event);
    let mut image = Image::new();
    let counts = if STATE.reads_blocks.load(Relaxed) { image.set_draft(draft) } else { None };
    let Some(counts) = counts else {
        return ring.push(draft, || if is_event { clock.read() } else { 0 });
    };
    if draft.truncated {
        count(slot::TRUNCATED, 1);
    }
    let words = draft.head_words();
    // SAFETY: what was just written (invariant 17).
    let tail = unsafe { image.tail(counts) };
    ring.push_tail(&words, tail, || if is_event { clock.read() } else { words[1] })
}

/// The number of the ring that the calling thread writes portably: its own at this moment. Any thread may write any of these
/// rings.
#[inline]
pub(super) fn own_number() -> usize {
    let index = rseq::index(&STATE.hot).unwrap_or_else(|| cpu::current(STATE.asks_processor.load(Relaxed)));
    let slots = STATE.slots.load(Relaxed).max(1);
    // Nearly always so; a division would cost as much as the clock.
    if index < slots { index } else { index % slots }
}
