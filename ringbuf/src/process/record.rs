//! Recording: from an annotation to a record in the ring of the calling thread's slot.
//!
//! Three lengths of the way: an annotation all of whose texts have ids is one grain, whose words go straight into the
//! sequence; one of a few grains is put together on the stack and copied in by the sequence; everything else, and
//! everything of programs without restartable sequences, takes the portable protocol.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use blkin_record::{
    Draft, EndpointParts, GRAIN_WORDS, MAX_IP_BYTES, MAX_TEXT_BYTES, Payload, Source, Stamp, cut, traits_word,
};

use super::Annotation;
use super::start::{count_without_segment, offer_if_due, open_slot, ready_or_start};
use super::state::{GATE, PORTABLE, RSEQ, STATE, clock, control_words, mode, ring_of, words};
use super::text::{recognise, recognise_endpoint};
use crate::evict::next_oldest;
use crate::image::{Image, LONG_TAIL_BYTES, SHORT_TAIL_BYTES};
use crate::layout::{self, RingMode, control, header, slot};
use crate::ring::{Head, Refused};
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
    match STATE.hot.phase.load(Acquire) {
        PORTABLE if push_grain(&[0, 0, ids[0], ids[1], ids[2], names, traits, 0], value) => return 0,
        // SAFETY: this phase says that the rings are written so.
        RSEQ => unsafe { rseq::refresh_limit(&STATE.hot) },
        _ => {}
    }
    record_draft(&Draft {
        trace_id: ids[0],
        span_id: ids[1],
        parent_span_id: ids[2],
        name: Source::Id(names as u32),
        endpoint: Source::Id((names >> 32) as u32),
        key: Source::Id(traits as u32),
        payload: payload_of(traits, value),
        level: (traits >> 40) as u8,
        truncated: false,
    });
    0
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

/// Records one annotation, or counts why not; one on a trace that is not sampled (id 0) does nothing. The gate is the
/// caller's to ask. No system call, lock or allocation once the process and the slot are in use; async-signal-safe; keeps
/// errno.
#[inline(always)]
pub fn record(annotation: &Annotation<'_>) {
    if annotation.trace_id != 0 {
        record_draft(&draft(annotation));
    }
}

#[inline(always)]
fn record_draft(draft: &Draft<'_>) {
    match ready_or_start() {
        RSEQ => record_in_sequence(draft),
        PORTABLE => record_portably(draft, own_number()),
        super::state::OFF => {}
        phase => count_without_segment(phase),
    }
}

#[inline(always)]
fn record_in_sequence(draft: &Draft<'_>) {
    let grains = draft.grains();
    let is_done = if grains <= Image::<SHORT_TAIL_BYTES>::GRAINS {
        push_image::<SHORT_TAIL_BYTES>(draft, grains)
    } else if grains <= Image::<LONG_TAIL_BYTES>::GRAINS {
        push_image::<LONG_TAIL_BYTES>(draft, grains)
    } else {
        false
    };
    if is_done {
        return;
    }
    record_portably(draft, STATE.slots.load(Relaxed) - 1);
}

/// Copies a draft into the ring of the calling thread's slot, or counts its loss. False if the thread has no slot of its
/// own, or is interrupted again and again.
#[inline(always)]
fn push_image<const TAIL_BYTES: usize>(draft: &Draft<'_>, grains: usize) -> bool {
    let mut image = Image { head: draft.head_words(), tail: [0; TAIL_BYTES] };
    image.head[0] = Stamp::head(0, grains, STATE.cookie.load(Relaxed) as u32).0;
    draft.write_tail(&mut image.tail);
    let is_event = matches!(draft.payload, Payload::Event);
    for _ in 0..rseq::TRIES {
        // SAFETY: this phase says that the rings are written so.
        match unsafe { rseq::push_long(&STATE.hot, &mut image, grains, is_event) } {
            Outcome::Done => return count_traits(draft),
            Outcome::Passed => {
                wake();
                return count_traits(draft);
            }
            Outcome::NoSlot if open_own_slot() => {}
            Outcome::NoSlot => return false,
            Outcome::Refused if mode() == RingMode::Overwrite => {
                if !evict(grains) {
                    return false;
                }
                // SAFETY: as above.
                unsafe { rseq::refresh_limit(&STATE.hot) };
            }
            Outcome::Refused => return refuse(),
            Outcome::Aborted => {}
        }
    }
    false
}

/// What is worth counting though nothing is lost.
fn count_traits(draft: &Draft<'_>) -> bool {
    count(slot::TRUNCATED, u64::from(draft.truncated));
    true
}

/// Adds to a counter that no sequence stores to; which slot has it does not matter.
#[inline(always)]
fn count(index: usize, number: u64) {
    if number == 0 {
        return;
    }
    let slots = STATE.slots.load(Relaxed).max(1);
    match rseq::index(&STATE.hot).filter(|own| *own < slots) {
        Some(own) => words().get(layout::slot_header(own) + index).map(|word| rseq::add(word, number)),
        None => words()
            .get(layout::slot_header(own_number() % slots) + index)
            .map(|word| word.fetch_add(number, Relaxed)),
    };
}

/// Makes the ring of the calling thread's slot writable. False if it has none, or there is no memory.
#[cold]
fn open_own_slot() -> bool {
    let number = rseq::index(&STATE.hot).filter(|number| *number + 1 < STATE.slots.load(Relaxed));
    number.is_some_and(|number| open_slot(&STATE.hot.slots[number], number))
}

#[cold]
fn refuse() -> bool {
    offer_if_due();
    // SAFETY: this phase says that the rings are written so.
    let counted = (0..rseq::TRIES).any(|_| unsafe { rseq::refuse(&STATE.hot) } == Outcome::Done);
    if !counted {
        let at = layout::slot_header(STATE.slots.load(Relaxed) - 1);
        words()[at + slot::ATTEMPTED].fetch_add(1, Relaxed);
        words()[at + slot::FULL].fetch_add(1, Relaxed);
    }
    true
}

/// Gives up the oldest records of the slot's ring. False if that cannot be.
#[cold]
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

/// By compare-and-swap, into the ring with this number.
#[inline(never)]
fn record_portably(draft: &Draft<'_>, number: usize) {
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
fn own_number() -> usize {
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
fn wake() {
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

/// Cuts what is too long and replaces by their ids the texts that the table of names holds.
#[inline(always)]
fn draft<'a>(annotation: &Annotation<'a>) -> Draft<'a> {
    let (name, name_cut) = known(annotation.name);
    let (key, key_cut) = known(annotation.key);
    let (endpoint, endpoint_cut) = known_endpoint(annotation.endpoint);
    let (payload, value_cut) = match annotation.payload {
        Payload::Str(value) => {
            let (value, value_cut) = cut(value, MAX_TEXT_BYTES);
            (Payload::Str(value), value_cut)
        }
        other => (other, false),
    };
    let inline = [name.is_inline(), key.is_inline(), endpoint.is_inline()];
    count(slot::NOT_INTERNED, inline.into_iter().map(u64::from).sum());
    Draft {
        trace_id: annotation.trace_id,
        span_id: annotation.span_id,
        parent_span_id: annotation.parent_span_id,
        name,
        endpoint,
        key,
        payload,
        level: annotation.level & 7,
        truncated: name_cut || key_cut || endpoint_cut || value_cut,
    }
}

#[inline(always)]
fn known(text: Source<&[u8]>) -> (Source<&[u8]>, bool) {
    let Source::Inline(text) = text else { return (text, false) };
    let (text, was_cut) = cut(text, MAX_TEXT_BYTES);
    match recognise(text) {
        0 => (Source::Inline(text), was_cut),
        id => (Source::Id(id), was_cut),
    }
}

#[inline(always)]
fn known_endpoint(endpoint: Source<EndpointParts<'_>>) -> (Source<EndpointParts<'_>>, bool) {
    let Source::Inline(whole) = endpoint else { return (endpoint, false) };
    let (ip, ip_cut) = cut(whole.ip, MAX_IP_BYTES);
    let (name, name_cut) = cut(whole.name, MAX_TEXT_BYTES);
    let parts = EndpointParts { ip, port: whole.port, name };
    match recognise_endpoint(&parts) {
        0 => (Source::Inline(parts), ip_cut || name_cut),
        id => (Source::Id(id), ip_cut || name_cut),
    }
}
