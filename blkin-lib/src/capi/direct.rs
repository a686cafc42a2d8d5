//! The functions behind the macros of the older interface: they record as `blkin_record` does, without an annotation struct.

use std::ffi::c_char;
use std::ptr;

use blkin_ringbuf::process::{self, Call, CallMatch, Ids, Short, Size};

use super::layout::{Annotation, AnnotationValue, Endpoint, INTEGER, TIMESTAMP, Trace};
use super::record::{EndpointTexts, LEGACY_LEVEL, ids_of, place_of, record_if_new, record_travelling};

/// See `zipkin_c.h`.
///
/// # Safety
/// Invariants 1 and 2; neither `trace` nor `event` is NULL.
#[unsafe(link_section = ".text.sorted.blkin_4")]
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn blkin_trace_event(
    trace: *const Trace,
    endpoint: *const Endpoint,
    event: *const c_char,
) {
    // SAFETY: passed on from the caller (Invariant 6).
    let Some((name, place)) = (unsafe { place_of(trace, endpoint) }) else { return };
    // SAFETY: passed on from the caller; what was just found (Invariant 6).
    let call = unsafe { call_in(name, place, event) };
    // SAFETY: as above (Invariant 6).
    match unsafe { record(trace, call, Short::Event) } {
        CallMatch::Whole(..) => {}
        CallMatch::New(Size::Cells) => {
            // SAFETY: passed on from the caller (Invariant 6).
            let ids = unsafe { ids_of(trace) };
            // SAFETY: three integers in a row, only read (by Invariant 3); strings of the caller (Invariant 2), met so just now.
            unsafe { process::record_in_cells(ids, place.cast(), call.texts) }
        }
        // SAFETY: passed on from the caller; what it was met as (Invariant 6).
        CallMatch::Longer(names, ids) => unsafe { record_longer_event(trace, place, event, names, ids.0) },
        // SAFETY: as above (Invariant 6).
        CallMatch::New(Size::Brief) => unsafe { record_brief_event(trace, place, event) },
        // SAFETY: passed on from the caller (Invariant 6).
        CallMatch::InPart(names, key_id) => unsafe {
            record_event_in_part(trace, place, event, names, key_id);
        },
        // SAFETY: passed on from the caller (Invariant 6).
        CallMatch::Never => unsafe { record_event(trace, place, event) },
    }
}

/// See `zipkin_c.h`.
///
/// # Safety
/// Invariants 1 and 2; neither `trace` nor `key` is NULL.
#[unsafe(link_section = ".text.sorted.blkin_8")]
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn blkin_trace_integer(
    trace: *const Trace,
    endpoint: *const Endpoint,
    key: *const c_char,
    val: i64,
) {
    // SAFETY: passed on from the caller (Invariant 6).
    let Some((name, place)) = (unsafe { place_of(trace, endpoint) }) else { return };
    // SAFETY: passed on from the caller; what was just found (Invariant 6).
    let call = unsafe { call_in(name, place, key) };
    // SAFETY: as above (Invariant 6).
    match unsafe { record(trace, call, Short::Integer(val)) } {
        CallMatch::Whole(..) => {}
        // SAFETY: passed on from the caller; what it was met as (Invariant 6).
        CallMatch::Longer(names, ids) => unsafe {
            record_longer_integer(trace, place, key, val, names, ids.0);
        },
        // SAFETY: as above (Invariant 6).
        CallMatch::New(_) => unsafe { record_brief_integer(trace, place, key, val) },
        // SAFETY: passed on from the caller (Invariant 6).
        CallMatch::InPart(names, key_id) => unsafe {
            record_integer_in_part(trace, place, key, val, names, key_id);
        },
        // SAFETY: passed on from the caller (Invariant 6).
        CallMatch::Never => unsafe { record_integer(trace, place, key, val) },
    }
}

/// The texts of a call on a span of this name. Nothing in here panics.
///
/// # Safety
/// `endpoint` is not NULL; Invariants 1 and 2.
#[inline(always)]
unsafe fn call_in(name: *const c_char, endpoint: *const Endpoint, key: *const c_char) -> Call {
    // SAFETY: a live struct (by Invariant 1), copied whole (by Invariant 3): all of it is needed.
    EndpointTexts::of(unsafe { endpoint.read() }).call(name, endpoint, key)
}

/// Records a call if the library has met it before with the same texts. Returns how the call was met. Nothing in here
/// panics.
///
/// # Safety
/// `trace` is not NULL; Invariants 1 and 2.
#[inline(always)]
unsafe fn record(trace: *const Trace, call: Call, what: Short) -> CallMatch {
    // SAFETY: NULL, which nothing is known of, or strings of the caller (Invariant 2).
    let met = unsafe { process::recognise_call(call) };
    if let CallMatch::Whole(names, key) = met {
        // SAFETY: passed on from the caller (Invariant 6).
        let ids = unsafe { ids_of(trace) };
        // SAFETY: three integers in a row, only read (by Invariant 3).
        unsafe { process::record_short_at(ids, names, key, what, LEGACY_LEVEL) };
    }
    met
}

/// As [`record`], for a call whose texts are all short, and new each time. Takes the caller's arguments unchanged, so that the
/// caller saves no registers.
///
/// # Safety
/// Invariants 1 and 2; no argument is NULL, nor is the name of the span.
#[inline(never)]
unsafe extern "C" fn record_brief_event(
    trace: *const Trace,
    endpoint: *const Endpoint,
    event: *const c_char,
) {
    // SAFETY: passed on from the caller (Invariant 6).
    if !unsafe { record_brief(trace, endpoint, event, Short::Event) } {
        // SAFETY: as above (Invariant 6).
        unsafe { record_event(trace, endpoint, event) };
    }
}

/// As [`record_brief_event`].
///
/// # Safety
/// As [`record_brief_event`].
#[inline(never)]
unsafe extern "C" fn record_brief_integer(
    trace: *const Trace,
    endpoint: *const Endpoint,
    key: *const c_char,
    val: i64,
) {
    // SAFETY: passed on from the caller (Invariant 6).
    if !unsafe { record_brief(trace, endpoint, key, Short::Integer(val)) } {
        // SAFETY: as above (Invariant 6).
        unsafe { record_integer(trace, endpoint, key, val) };
    }
}

/// As [`record`], for a call of which the beginnings of the texts were recognised, but not yet their ends. Takes the caller's
/// arguments unchanged, so that the caller saves no registers.
///
/// # Safety
/// As [`record_brief_event`].
#[inline(never)]
unsafe extern "C" fn record_longer_event(
    trace: *const Trace,
    endpoint: *const Endpoint,
    event: *const c_char,
    names: u64,
    ids: u64,
) {
    // SAFETY: passed on from the caller (Invariant 6).
    if !unsafe { record_longer(trace, endpoint, event, Short::Event, names, Ids(ids)) } {
        // SAFETY: as above (Invariant 6).
        unsafe { record_event(trace, endpoint, event) };
    }
}

/// As [`record_longer_event`].
///
/// # Safety
/// As [`record_brief_event`].
#[inline(never)]
unsafe extern "C" fn record_longer_integer(
    trace: *const Trace,
    endpoint: *const Endpoint,
    key: *const c_char,
    val: i64,
    names: u64,
    ids: u64,
) {
    // SAFETY: passed on from the caller (Invariant 6).
    if !unsafe { record_longer(trace, endpoint, key, Short::Integer(val), names, Ids(ids)) } {
        // SAFETY: as above (Invariant 6).
        unsafe { record_integer(trace, endpoint, key, val) };
    }
}

/// # Safety
/// As [`record_brief_event`].
#[inline(always)]
unsafe fn record_longer(
    trace: *const Trace,
    endpoint: *const Endpoint,
    key: *const c_char,
    what: Short,
    names: u64,
    ids: Ids,
) -> bool {
    // SAFETY: passed on from the caller (Invariant 6).
    let call = unsafe { call_of_span(trace, endpoint, key) };
    // SAFETY: strings of the caller (Invariant 2): what was met so is not NULL.
    let Some(key) = (unsafe { process::recognise_longer(&call, ids) }) else { return false };
    // SAFETY: passed on from the caller (Invariant 6).
    let ids = unsafe { ids_of(trace) };
    // SAFETY: three integers in a row, only read (by Invariant 3).
    unsafe { process::record_short_at(ids, names, key, what, LEGACY_LEVEL) };
    true
}

/// As [`call_in`], with the name of `trace`.
///
/// # Safety
/// Invariants 1 and 2; neither `trace` nor `endpoint` is NULL.
#[inline(always)]
unsafe fn call_of_span(trace: *const Trace, endpoint: *const Endpoint, key: *const c_char) -> Call {
    // SAFETY: a live struct (by Invariant 1), one field of it copied (by Invariant 3).
    let name = unsafe { (*trace).name };
    // SAFETY: passed on from the caller (Invariant 6).
    unsafe { call_in(name, endpoint, key) }
}

/// # Safety
/// As [`record_brief_event`].
#[inline(always)]
unsafe fn record_brief(
    trace: *const Trace,
    endpoint: *const Endpoint,
    key: *const c_char,
    what: Short,
) -> bool {
    // SAFETY: passed on from the caller (Invariant 6).
    let call = unsafe { call_of_span(trace, endpoint, key) };
    let [_, _, service, _] = call.texts;
    if service.is_null() {
        return false;
    }
    // SAFETY: passed on from the caller (Invariant 6).
    let ids = unsafe { ids_of(trace) };
    // SAFETY: three integers in a row, only read (by Invariant 3); strings of the caller (Invariant 2).
    unsafe { process::record_brief_call(ids, call, what, LEGACY_LEVEL) }
}

/// As [`record`], for a call that was not met before. Takes the caller's arguments unchanged, so that the caller saves no
/// registers.
///
/// # Safety
/// Neither `trace` nor `endpoint` is NULL; Invariants 1 and 2.
#[inline(never)]
unsafe extern "C" fn record_event(trace: *const Trace, endpoint: *const Endpoint, event: *const c_char) {
    // SAFETY: passed on from the caller (Invariant 6).
    unsafe { record_if_new(trace, &event_of(endpoint, event)) };
}

/// As [`record_event`], for a call some of whose texts are new each time.
///
/// # Safety
/// Neither `trace` nor `endpoint` is NULL; Invariants 1 and 2.
#[inline(never)]
unsafe extern "C" fn record_event_in_part(
    trace: *const Trace,
    endpoint: *const Endpoint,
    event: *const c_char,
    names: u64,
    key_id: u32,
) {
    // SAFETY: passed on from the caller (Invariant 6).
    unsafe { record_travelling(trace, &event_of(endpoint, event), names, key_id) };
}

/// As [`record_event`].
///
/// # Safety
/// Neither `trace` nor `endpoint` is NULL; Invariants 1 and 2.
#[inline(never)]
unsafe extern "C" fn record_integer(
    trace: *const Trace,
    endpoint: *const Endpoint,
    key: *const c_char,
    val: i64,
) {
    // SAFETY: passed on from the caller (Invariant 6).
    unsafe { record_if_new(trace, &integer_of(endpoint, key, val)) };
}

/// As [`record_event_in_part`].
///
/// # Safety
/// Neither `trace` nor `endpoint` is NULL; Invariants 1 and 2.
#[inline(never)]
unsafe extern "C" fn record_integer_in_part(
    trace: *const Trace,
    endpoint: *const Endpoint,
    key: *const c_char,
    val: i64,
    names: u64,
    key_id: u32,
) {
    // SAFETY: passed on from the caller (Invariant 6).
    unsafe { record_travelling(trace, &integer_of(endpoint, key, val), names, key_id) };
}

fn event_of(endpoint: *const Endpoint, event: *const c_char) -> Annotation {
    Annotation { kind: TIMESTAMP, key: ptr::null(), value: AnnotationValue { text: event }, endpoint }
}

fn integer_of(endpoint: *const Endpoint, key: *const c_char, val: i64) -> Annotation {
    Annotation { kind: INTEGER, key, value: AnnotationValue { integer: val }, endpoint }
}
