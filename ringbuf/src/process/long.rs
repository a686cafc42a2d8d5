//! Records with texts in them: put together on the stack, then copied into the ring by the sequence.
//!
//! The path that can be taken at once is one function that calls only the sequence; everything else starts again from a draft.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use blkin_record::{Draft, Entry, MAX_TEXT_BYTES, Payload, Source, Stamp, cut, names_word, traits_word};

use super::Annotation;
use super::call::string_bytes;
use super::record::{end_push, is_event, own_number, record_portably, ring_to_try, words_of};
use super::start::{Growth, count_without_segment, grow_slot, open_slot, ready_or_start};
use super::state::{FRESH, GATE, OFF, PORTABLE, RSEQ, STATE, add_to_word, clock, mode, ring_of};
use super::text::{is_due, recognise_endpoint_if, recognise_if};
use super::waking::{after_refusal, wake};
use crate::clock::ClockKind;
use crate::evict::next_oldest;
use crate::hot::HotSlot;
use crate::image::{Counts, Image, Terminated, Text};
use crate::layout::{self, ProducerKind, RingMode, slot};
use crate::ring::Head;
use crate::rseq::{self, Outcome};

/// Records one annotation, or counts why not; an annotation of a trace that is not sampled (id 0) does nothing. The caller
/// asks the gate first. No system call, lock or allocation once the process and the slot are in use; async-signal-safe;
/// keeps errno.
#[inline(always)]
pub fn record(annotation: &Annotation<'_>) {
    if annotation.trace_id == 0 {
        return;
    }
    let is_due = is_due();
    let draft = Draft {
        trace_id: annotation.trace_id,
        span_id: annotation.span_id,
        parent_span_id: annotation.parent_span_id,
        name: annotation.name.or_id(|text| recognise_if(text, || is_due)),
        endpoint: annotation.endpoint.or_id(|endpoint| recognise_endpoint_if(&endpoint, || is_due)),
        key: annotation.key.or_id(|text| recognise_if(text, || is_due)),
        payload: annotation.payload,
        level: annotation.level & 7,
        truncated: false,
    };
    if !record_at_once(&draft) {
        let copy = draft;
        record_texts(&copy);
    }
}

/// As [`super::record_short_at`], for a key with a string.
///
/// # Safety
/// `ids` points to three readable words, aligned; the first of them is not 0. `value` points to bytes that may be read up to
/// a 0 and do not change during the call.
#[inline(always)]
pub(super) unsafe fn record_string_at(ids: *const u64, names: u64, key: u32, value: *const u8, level: u8) {
    // SAFETY: passed on from the caller (invariant 13).
    let text = unsafe { Terminated::new(value) };
    // SAFETY: passed on from the caller (invariant 13).
    if !unsafe { record_value_at_once(ids, names, key, text, level) } {
        // SAFETY: as above (invariant 13).
        unsafe { record_string_otherwise(ids, names, key, value, level) };
    }
}

/// As [`super::record_short`], for a key with a string.
#[inline(never)]
pub fn record_string(ids: &[u64; 3], names: u64, key: u32, value: &[u8], level: u8) {
    // SAFETY: three words (invariant 17).
    if !unsafe { record_value_at_once(ids.as_ptr(), names, key, value, level) } {
        record_value(ids, names, key, value, level);
    }
}

/// Records a value that may be read block by block. False if something stands in the way; then nothing has happened.
///
/// # Safety
/// `ids` points to three readable words.
#[inline(always)]
unsafe fn record_value_at_once(ids: *const u64, names: u64, key: u32, value: impl Text, level: u8) -> bool {
    if !may_at_once() {
        return false;
    }
    let mut image = Image::new();
    let tail = image.begin().entry(Entry::Value, value);
    let ids_in_head = [names as u32, (names >> 32) as u32, key];
    let Some(counts) = tail.and_then(|tail| tail.end(ids_in_head)) else { return false };
    image.set_value(0);
    let traits = traits_word(key, &Payload::Str(&[]), level & 7, false);
    // SAFETY: passed on from the caller; what was put into the image (invariant 13).
    unsafe { push_at_once(ids, names, traits, &image, counts) }
}

/// # Safety
/// As [`record_string_at`].
#[cold]
#[inline(never)]
unsafe fn record_string_otherwise(ids: *const u64, names: u64, key: u32, value: *const u8, level: u8) {
    // SAFETY: passed on from the caller (invariant 13).
    let ids = unsafe { ids.cast::<[u64; 3]>().read() };
    // SAFETY: passed on from the caller (invariant 13).
    record_value(&ids, names, key, unsafe { string_bytes(value) }, level);
}

/// As [`record_string`], on whatever path is available.
#[cold]
#[inline(never)]
fn record_value(ids: &[u64; 3], names: u64, key: u32, value: &[u8], level: u8) {
    let [trace_id, span_id, parent_span_id] = *ids;
    let (value, truncated) = cut(value, MAX_TEXT_BYTES);
    record_draft(&Draft {
        trace_id,
        span_id,
        parent_span_id,
        name: Source::known(names as u32),
        endpoint: Source::known((names >> 32) as u32),
        key: Source::known(key),
        payload: Payload::Str(value),
        level: level & 7,
        truncated,
    });
}

/// Whether records with texts are put together before they have a place, so that [`super::record_new_call`] can succeed. Strings
/// may then be read block by block, too.
#[inline(always)]
pub fn may_at_once() -> bool {
    writes_by_sequence() || STATE.pushes_images.load(Acquire)
}

/// Whether rings are written by restartable sequences.
#[inline(always)]
pub(super) fn writes_by_sequence() -> bool {
    STATE.hot.push_offset.load(Relaxed) != 0
}

/// Records a draft with a tail. False if something stands in the way; then nothing has happened.
#[inline(always)]
fn record_at_once(draft: &Draft<'_>) -> bool {
    if !may_at_once() {
        return false;
    }
    let mut image = Image::new();
    let Some(counts) = image.set_draft(draft) else { return false };
    let names = names_word(draft.name.id(), draft.endpoint.id());
    let traits = traits_word(draft.key.id(), &draft.payload, draft.level, draft.truncated);
    let ids = [draft.trace_id, draft.span_id, draft.parent_span_id];
    // SAFETY: three words, and what was put into the image (invariant 17).
    unsafe { push_at_once(ids.as_ptr(), names, traits, &image, counts) }
}

/// Puts a record with a tail into the ring of the calling thread's slot. False if it was not done.
///
/// # Safety
/// As [`rseq::push_texts`].
#[inline(always)]
pub(super) unsafe fn push_at_once(
    ids: *const u64,
    names: u64,
    traits: u64,
    image: &Image,
    counts: Counts,
) -> bool {
    if counts.grains() == 1 {
        return false;
    }
    // SAFETY: passed on from the caller (invariant 13).
    match unsafe { rseq::push_texts(ids, names, traits, image, counts) } {
        Outcome::Done => true,
        Outcome::Passed => {
            wake();
            true
        }
        // SAFETY: passed on from the caller (invariant 13).
        Outcome::NoSlot => unsafe { push_image_portably(ids, names, traits, image, counts) },
        Outcome::Refused => refuse_if_full(counts.grains() as u64),
        Outcome::Aborted => false,
    }
}

/// As [`push_at_once`], by compare-and-swap: one quick try where the ring and the clock allow it, then as often as it takes.
///
/// # Safety
/// As [`rseq::push_texts`].
#[inline(never)]
unsafe fn push_image_portably(
    ids: *const u64,
    names: u64,
    traits: u64,
    image: &Image,
    counts: Counts,
) -> bool {
    if !STATE.pushes_images.load(Acquire) {
        return false;
    }
    let number = own_number();
    let words = || {
        // SAFETY: passed on from the caller (invariant 13).
        let mut words = unsafe { words_of(ids, names, traits) };
        words[7] = counts.tail_bytes_word();
        words
    };
    // SAFETY: passed on from the caller (invariant 13).
    let tail = unsafe { image.tail(counts) };
    // SAFETY: as above; it has a value unless it is an event (invariant 13).
    let word1 = |clock: ClockKind| unsafe { if is_event(traits) { clock.read() } else { image.value() } };
    match ring_to_try(number).and_then(|ring| ring.try_push_tail(|| word1(ClockKind::Tsc), words, tail)) {
        Some(false) => {}
        Some(true) => wake(),
        None => {
            let Some(ring) = STATE.hot.slots.get(number).and_then(ring_of) else { return false };
            end_push(ring.push_tail(&words(), tail, || word1(clock())));
        }
    }
    if counts.texts() != 0 {
        count(slot::NOT_INTERNED, counts.texts());
    }
    true
}

/// Records a draft whose texts were looked up in the table of names; texts that are too long are cut.
#[cold]
#[inline(never)]
pub(super) fn record_texts(draft: &Draft<'_>) {
    let inline =
        [draft.name.id(), draft.key.id(), draft.endpoint.id()].into_iter().filter(|id| *id == 0).count();
    count(slot::NOT_INTERNED, inline as u64);
    record_draft(&draft.cut());
}

/// Records a draft on whatever path is available: the first record, long ones, those of programs without restartable
/// sequences, and those that could not be recorded at once.
#[inline(never)]
pub(super) fn record_draft(draft: &Draft<'_>) {
    match STATE.hot.phase.load(Acquire) {
        FRESH => record_first_draft(draft),
        RSEQ if push_image(draft) => {}
        RSEQ => record_portably(draft, last_slot()),
        PORTABLE => record_portably(draft, own_number()),
        OFF => {}
        phase => count_without_segment(phase),
    }
}

/// The caller found the gate open, as it is before there is a control page; a forked child's page says what its parent's did.
#[cold]
#[inline(never)]
fn record_first_draft(draft: &Draft<'_>) {
    ready_or_start();
    if GATE.is_open(draft.level) {
        record_draft(draft);
    }
}

/// Copies a draft into the ring of the calling thread's slot, or counts its loss. False if the draft is too long, if the thread
/// has no slot of its own, or if it is interrupted again and again: then nothing has happened.
fn push_image(draft: &Draft<'_>) -> bool {
    let mut image = Image::new();
    let Some(counts) = image.set_draft(draft) else { return false };
    let mut head = draft.head_words();
    head[0] = Stamp::head(0, counts.grains(), STATE.cookie.load(Relaxed) as u32).0;
    image.set_head(head);
    let is_event = matches!(draft.payload, Payload::Event);
    let is_done = push_long(&mut image, counts.grains(), is_event);
    if is_done && draft.truncated {
        count(slot::TRUNCATED, 1);
    }
    is_done
}

/// Copies an image into the ring, or counts its loss. False if it cannot be done this way.
fn push_long(image: &mut Image, grains: usize, is_event: bool) -> bool {
    for _ in 0..=rseq::TRIES {
        // SAFETY: in this phase the rings are written by sequences (invariant 4).
        match unsafe { rseq::push_long(&STATE.hot, image, grains, is_event) } {
            Outcome::Done => return true,
            Outcome::Passed => {
                wake();
                return true;
            }
            Outcome::NoSlot if open_own_slot() => {}
            Outcome::NoSlot => return false,
            Outcome::Refused => match grow_own_slot() {
                Growth::Grown => {}
                Growth::NoMemory => return false,
                Growth::Whole if mode() == RingMode::Overwrite => {
                    if !evict(grains) {
                        return false;
                    }
                }
                Growth::Whole => {
                    refuse();
                    return true;
                }
            },
            Outcome::Aborted => {}
        }
    }
    false
}

/// Adds to a counter that no sequence stores to; which slot's counter does not matter.
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

/// Counts in any slot, for threads whose own slot is not in use.
#[cold]
#[inline(never)]
fn count_elsewhere(index: usize, number: u64) {
    let slot = own_number() % STATE.slots.load(Relaxed).max(1);
    add_to_word(layout::slot_header(slot) + index, number);
}

/// Makes the ring of the calling thread's slot writable. False if the thread has no slot, or there is no memory.
fn open_own_slot() -> bool {
    own_slot().is_some_and(|(slot, number)| open_slot(slot, number, ProducerKind::Rseq))
}

/// Gives the ring of the calling thread's slot more memory, unless it has all of it.
fn grow_own_slot() -> Growth {
    own_slot().map_or(Growth::Grown, |(slot, number)| grow_slot(slot, number))
}

/// The slot that the calling thread writes by sequences at this moment, and its number.
fn own_slot() -> Option<(&'static HotSlot, usize)> {
    let number = rseq::index(&STATE.hot).filter(|number| *number + 1 < STATE.slots.load(Relaxed))?;
    Some((&STATE.hot.slots[number], number))
}

/// The number of the slot that sequences do not write.
fn last_slot() -> usize {
    STATE.slots.load(Relaxed).saturating_sub(1)
}

/// Counts a record for which a sequence had no room as lost, if a look at how far the consumer has read confirms that there is
/// none. Else false, and the sequences know the room that there is. So a program that nobody reads does not pay for another try.
#[cold]
#[inline(never)]
pub(super) fn refuse_if_full(grains: u64) -> bool {
    if STATE.hot.phase.load(Acquire) != RSEQ {
        return false;
    }
    // SAFETY: in this phase the rings are written by sequences (invariant 4).
    let has_room = unsafe { rseq::find_room(&STATE.hot, grains) };
    let is_lost = !has_room && mode() == RingMode::Discard;
    if is_lost {
        refuse();
    }
    is_lost
}

/// Counts a record that found no room.
fn refuse() {
    after_refusal();
    // SAFETY: in this phase the rings are written by sequences (invariant 4).
    let counted = (0..rseq::TRIES).any(|_| unsafe { rseq::refuse(&STATE.hot) } == Outcome::Done);
    if !counted {
        let at = layout::slot_header(last_slot());
        add_to_word(at + slot::ATTEMPTED, 1);
        add_to_word(at + slot::FULL, 1);
    }
}

/// Gives up the oldest records of the slot's ring. False if that is impossible.
fn evict(grains: usize) -> bool {
    let number = rseq::index(&STATE.hot).filter(|number| *number < STATE.hot.slots.len());
    let Some(ring) = number.and_then(|number| ring_of(&STATE.hot.slots[number])) else { return false };
    let word = |index: usize| ring.header[index].load(Acquire);
    let (oldest, overwritten) = (Head(word(slot::OLDEST)), word(slot::OVERWRITTEN));
    let head = Head(word(slot::HEAD));
    let Some(next) = next_oldest(ring.grains, ring.shape, oldest, head, grains as u64) else {
        // These words were read while another thread wrote: this one has been migrated, and looks again where it is now.
        return true;
    };
    let overwritten = overwritten + next.records_since(oldest);
    // SAFETY: in this phase the rings are written by sequences. If anything has moved meanwhile, nothing happens (invariant 4).
    unsafe { rseq::evict(&STATE.hot, ring.header.as_ptr(), oldest.0, next.0, overwritten) };
    true
}
