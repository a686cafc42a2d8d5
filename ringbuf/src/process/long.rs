//! Records with texts in them: put together on the stack, then copied into the ring by the sequence.
//!
//! What is read here stays in registers as far as may be: a load of what was just stored in other pieces waits for the
//! stores, and what loads wait for, the reading of the clock waits for too (docs/adr/0007-reading-the-clock.md). So the short
//! way is one function, and what leaves it gets a copy.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use blkin_record::{Draft, MAX_TEXT_BYTES, Payload, Source, Stamp, cut};

use super::Annotation;
use super::record::{own_number, record_portably, wake};
use super::start::{count_without_segment, offer_if_due, open_slot, ready_or_start};
use super::state::{OFF, PORTABLE, RSEQ, STATE, mode, ring_of, words};
use super::text::{is_due, recognise_endpoint_if, recognise_if};
use crate::evict::next_oldest;
use crate::image::{Image, LONG_TAIL_BYTES, SHORT_TAIL_BYTES};
use crate::layout::{self, RingMode, slot};
use crate::ring::Head;
use crate::rseq::{self, Outcome};

/// Records one annotation, or counts why not; one on a trace that is not sampled (id 0) does nothing. The gate is the
/// caller's to ask. No system call, lock or allocation once the process and the slot are in use; async-signal-safe; keeps
/// errno.
#[inline(always)]
pub fn record(annotation: &Annotation<'_>) {
    if annotation.trace_id == 0 {
        return;
    }
    let is_due = is_due();
    record_texts(Draft {
        trace_id: annotation.trace_id,
        span_id: annotation.span_id,
        parent_span_id: annotation.parent_span_id,
        name: annotation.name.or_id(|text| recognise_if(text, || is_due)),
        endpoint: annotation.endpoint.or_id(|endpoint| recognise_endpoint_if(&endpoint, || is_due)),
        key: annotation.key.or_id(|text| recognise_if(text, || is_due)),
        payload: annotation.payload,
        level: annotation.level & 7,
        truncated: false,
    });
}

/// Records what has been looked for in the table of names; what is too long is cut.
#[inline(always)]
pub(super) fn record_texts(draft: Draft<'_>) {
    let inline =
        [draft.name.id(), draft.key.id(), draft.endpoint.id()].into_iter().filter(|id| *id == 0).count();
    if inline > 0 {
        count(slot::NOT_INTERNED, inline as u64);
    }
    if draft.is_within_limits() {
        record_draft(&draft);
    } else {
        let copy = draft;
        record_cut(&copy);
    }
}

#[cold]
#[inline(never)]
fn record_cut(draft: &Draft<'_>) {
    let draft = draft.cut();
    record_otherwise(&draft, draft.grains());
}

/// As [`super::record_short_at`], of a key with a string.
///
/// # Safety
/// `ids` points to three readable words, aligned; the first of them is not 0.
#[inline(always)]
pub unsafe fn record_string_at(ids: *const u64, names: u64, key: u32, value: &[u8], level: u8) {
    // SAFETY: passed on from the caller.
    let id = |index: usize| unsafe { ids.wrapping_add(index).read() };
    let (value, truncated) = cut(value, MAX_TEXT_BYTES);
    record_draft(&Draft {
        trace_id: id(0),
        span_id: id(1),
        parent_span_id: id(2),
        name: Source::known(names as u32),
        endpoint: Source::known((names >> 32) as u32),
        key: Source::known(key),
        payload: Payload::Str(value),
        level: level & 7,
        truncated,
    });
}

/// By whatever way there is.
#[inline(always)]
pub(super) fn record_draft(draft: &Draft<'_>) {
    let grains = draft.grains();
    if STATE.hot.phase.load(Acquire) == RSEQ && grains <= Image::<SHORT_TAIL_BYTES>::GRAINS {
        push_image::<SHORT_TAIL_BYTES>(draft, grains);
    } else {
        let copy = *draft;
        record_otherwise(&copy, grains);
    }
}

/// The first record, long ones, and those of programs without restartable sequences.
#[inline(never)]
fn record_otherwise(draft: &Draft<'_>, grains: usize) {
    match ready_or_start() {
        RSEQ if grains <= Image::<SHORT_TAIL_BYTES>::GRAINS => push_image::<SHORT_TAIL_BYTES>(draft, grains),
        RSEQ if grains <= Image::<LONG_TAIL_BYTES>::GRAINS => push_image::<LONG_TAIL_BYTES>(draft, grains),
        RSEQ => record_portably(draft, STATE.slots.load(Relaxed) - 1),
        PORTABLE => record_portably(draft, own_number()),
        OFF => {}
        phase => count_without_segment(phase),
    }
}

/// Copies a draft into the ring of the calling thread's slot, or counts its loss. One that has no slot of its own, or is
/// interrupted again and again, writes by compare-and-swap.
#[inline(always)]
fn push_image<const TAIL_BYTES: usize>(draft: &Draft<'_>, grains: usize) {
    let mut image = Image { head: draft.head_words(), tail: [0; TAIL_BYTES] };
    image.head[0] = Stamp::head(0, grains, STATE.cookie.load(Relaxed) as u32).0;
    draft.stage(&mut image.tail);
    let is_event = matches!(draft.payload, Payload::Event);
    // SAFETY: this phase says that the rings are written so.
    let outcome = unsafe { rseq::push_long(&STATE.hot, &mut image, grains, is_event) };
    if outcome != Outcome::Done && !push_again(outcome, &mut image, grains, is_event) {
        let copy = *draft;
        record_portably(&copy, STATE.slots.load(Relaxed) - 1);
    } else if draft.truncated {
        count(slot::TRUNCATED, 1);
    }
}

/// What follows a push that was not simply done. False if it cannot be done this way.
#[cold]
#[inline(never)]
fn push_again<const TAIL_BYTES: usize>(
    first: Outcome,
    image: &mut Image<TAIL_BYTES>,
    grains: usize,
    is_event: bool,
) -> bool {
    let mut outcome = first;
    for _ in 0..rseq::TRIES {
        match outcome {
            Outcome::Done => return true,
            Outcome::Passed => {
                wake();
                return true;
            }
            Outcome::NoSlot if open_own_slot() => {}
            Outcome::NoSlot => return false,
            Outcome::Refused if mode() == RingMode::Overwrite => {
                if !evict(grains) {
                    return false;
                }
            }
            Outcome::Refused => {
                refuse();
                return true;
            }
            Outcome::Aborted => {}
        }
        // SAFETY: this phase says that the rings are written so.
        outcome = unsafe { rseq::push_long(&STATE.hot, image, grains, is_event) };
    }
    match outcome {
        Outcome::Done => true,
        Outcome::Passed => {
            wake();
            true
        }
        _ => false,
    }
}

/// Adds to a counter that no sequence stores to; which slot has it does not matter.
#[inline(always)]
pub(super) fn count(index: usize, number: u64) {
    let own = rseq::index(&STATE.hot).and_then(|own| STATE.hot.slots.get(own));
    let header = own.map_or(std::ptr::null_mut(), |own| own.header.load(Acquire));
    if header.is_null() {
        return count_elsewhere(index, number);
    }
    debug_assert!(index < layout::SLOT_HEADER_WORDS);
    let word = header.wrapping_add(index);
    // SAFETY: not null, so that it points to a slot's header in the segment, which has this word (invariants 1, 2, 3 and 8).
    rseq::add(unsafe { &*word }, number);
}

/// In any slot, for threads whose own one is not in use.
#[cold]
#[inline(never)]
fn count_elsewhere(index: usize, number: u64) {
    let slot = own_number() % STATE.slots.load(Relaxed).max(1);
    if let Some(word) = words().get(layout::slot_header(slot) + index) {
        word.fetch_add(number, Relaxed);
    }
}

/// Makes the ring of the calling thread's slot writable. False if it has none, or there is no memory.
fn open_own_slot() -> bool {
    let number = rseq::index(&STATE.hot).filter(|number| *number + 1 < STATE.slots.load(Relaxed));
    number.is_some_and(|number| open_slot(&STATE.hot.slots[number], number))
}

/// Counts a record that found no room.
fn refuse() {
    offer_if_due();
    // SAFETY: this phase says that the rings are written so.
    let counted = (0..rseq::TRIES).any(|_| unsafe { rseq::refuse(&STATE.hot) } == Outcome::Done);
    if !counted {
        let at = layout::slot_header(STATE.slots.load(Relaxed) - 1);
        words()[at + slot::ATTEMPTED].fetch_add(1, Relaxed);
        words()[at + slot::FULL].fetch_add(1, Relaxed);
    }
}

/// Gives up the oldest records of the slot's ring. False if that cannot be.
fn evict(grains: usize) -> bool {
    let number = rseq::index(&STATE.hot).filter(|number| *number < STATE.hot.slots.len());
    let Some(ring) = number.and_then(|number| ring_of(&STATE.hot.slots[number])) else { return false };
    let word = |index: usize| ring.header[index].load(Acquire);
    let (oldest, overwritten) = (Head(word(slot::OLDEST)), word(slot::OVERWRITTEN));
    let head = Head(word(slot::HEAD));
    let Some(next) = next_oldest(ring.grains, ring.shape, oldest, head, grains as u64) else {
        // Read while another thread wrote there: this one has been moved meanwhile, and looks again where it is now.
        return true;
    };
    let overwritten = overwritten + next.records_since(oldest);
    // SAFETY: this phase says that the rings are written so. If anything has moved meanwhile nothing happens.
    unsafe { rseq::evict(&STATE.hot, ring.header.as_ptr(), oldest.0, next.0, overwritten) };
    true
}
