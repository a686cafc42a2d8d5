//! What the macros of the older interface call: `blkin_record` of an annotation that is not put together first.

use std::ffi::c_char;
use std::ptr;

use blkin_ringbuf::process::{self, Short};

use super::layout::{Annotation, AnnotationValue, Endpoint, INTEGER, TIMESTAMP, Trace};
use super::record::{LEGACY_LEVEL, call_at, ids_of, is_whole, record_if_new, record_travelling};

/// See `zipkin_c.h`.
///
/// # Safety
/// Invariants 1 and 2; neither `trace` nor `event` is NULL.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn blkin_trace_event(
    trace: *const Trace,
    endpoint: *const Endpoint,
    event: *const c_char,
) {
    // SAFETY: passed on from the caller.
    match unsafe { record(trace, endpoint, event, Short::Event) } {
        Met::Whole => {}
        // SAFETY: passed on from the caller.
        Met::InPart(names, key_id) => unsafe { record_event_in_part(trace, endpoint, event, names, key_id) },
        // SAFETY: passed on from the caller.
        Met::Never => unsafe { record_event(trace, endpoint, event) },
    }
}

/// See `zipkin_c.h`.
///
/// # Safety
/// Invariants 1 and 2; neither `trace` nor `key` is NULL.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn blkin_trace_integer(
    trace: *const Trace,
    endpoint: *const Endpoint,
    key: *const c_char,
    val: i64,
) {
    // SAFETY: passed on from the caller.
    match unsafe { record(trace, endpoint, key, Short::Integer(val)) } {
        Met::Whole => {}
        // SAFETY: passed on from the caller.
        Met::InPart(names, key_id) => unsafe {
            record_integer_in_part(trace, endpoint, key, val, names, key_id);
        },
        // SAFETY: passed on from the caller.
        Met::Never => unsafe { record_integer(trace, endpoint, key, val) },
    }
}

/// How a call was met before.
enum Met {
    /// With all of its texts; it has been recorded.
    Whole,
    /// With other texts at some of the places: its ids, 0 for those texts.
    InPart(u64, u32),
    Never,
}

/// Records a call if it was met before with all of its texts. Nothing in here panics.
///
/// # Safety
/// `trace` is not NULL; Invariants 1 and 2.
#[inline(always)]
unsafe fn record(trace: *const Trace, endpoint: *const Endpoint, key: *const c_char, what: Short) -> Met {
    // SAFETY: passed on from the caller.
    let Some(call) = (unsafe { call_at(trace, endpoint, key) }) else { return Met::Never };
    // SAFETY: NULL, which nothing is known of, or strings of the caller (Invariant 2).
    let Some((names, key)) = (unsafe { process::recognise_call(call) }) else { return Met::Never };
    if !is_whole(names, key) {
        return Met::InPart(names, key);
    }
    // SAFETY: passed on from the caller.
    let ids = unsafe { ids_of(trace) };
    // SAFETY: three integers in a row, only read (by Invariant 3).
    unsafe { process::record_short_at(ids, names, key, what, LEGACY_LEVEL) };
    Met::Whole
}

/// As [`record`], of a call that was never met. Its arguments are its caller's, which so keeps nothing.
///
/// # Safety
/// As [`record`].
#[inline(never)]
unsafe extern "C" fn record_event(trace: *const Trace, endpoint: *const Endpoint, event: *const c_char) {
    // SAFETY: passed on from the caller.
    unsafe { record_if_new(trace, &event_of(endpoint, event)) };
}

/// As [`record_event`], of a call that was met with other texts.
///
/// # Safety
/// As [`record`].
#[inline(never)]
unsafe extern "C" fn record_event_in_part(
    trace: *const Trace,
    endpoint: *const Endpoint,
    event: *const c_char,
    names: u64,
    key_id: u32,
) {
    // SAFETY: passed on from the caller.
    unsafe { record_travelling(trace, &event_of(endpoint, event), names, key_id) };
}

/// As [`record_event`].
///
/// # Safety
/// As [`record`].
#[inline(never)]
unsafe extern "C" fn record_integer(
    trace: *const Trace,
    endpoint: *const Endpoint,
    key: *const c_char,
    val: i64,
) {
    // SAFETY: passed on from the caller.
    unsafe { record_if_new(trace, &integer_of(endpoint, key, val)) };
}

/// As [`record_event_in_part`].
///
/// # Safety
/// As [`record`].
#[inline(never)]
unsafe extern "C" fn record_integer_in_part(
    trace: *const Trace,
    endpoint: *const Endpoint,
    key: *const c_char,
    val: i64,
    names: u64,
    key_id: u32,
) {
    // SAFETY: passed on from the caller.
    unsafe { record_travelling(trace, &integer_of(endpoint, key, val), names, key_id) };
}

fn event_of(endpoint: *const Endpoint, event: *const c_char) -> Annotation {
    Annotation { kind: TIMESTAMP, key: ptr::null(), value: AnnotationValue { text: event }, endpoint }
}

fn integer_of(endpoint: *const Endpoint, key: *const c_char, val: i64) -> Annotation {
    Annotation { kind: INTEGER, key, value: AnnotationValue { integer: val }, endpoint }
}
