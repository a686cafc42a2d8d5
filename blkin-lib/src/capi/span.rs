//! Spans and names that are looked up once: the calls behind `BLKIN_EVENT` and its like.

use std::ffi::{c_char, c_int, c_uint};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};

use blkin_ringbuf::process;

use super::layout::{Name, Span, Trace};
use super::record::endpoint_bytes;
use super::{INVALID, OK, bytes, guard};
use crate::raw::{self, EndpointBytes, Payload, Source, Texts, source};

/// Of a name that found no room in the table.
const NO_ROOM: u32 = u32::MAX;

/// See `zipkin_c.h`.
///
/// # Safety
/// Invariants 1 and 2.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn blkin_span_of(span: *mut Span, trace: *const Trace) -> c_int {
    guard(|| {
        if span.is_null() || trace.is_null() {
            return INVALID;
        }
        // SAFETY: a live struct (by Invariant 1), copied whole (by Invariant 3): all of it is needed.
        let trace = unsafe { trace.read() };
        // SAFETY: NULL or a string of the caller (Invariant 2).
        let Some(name) = (unsafe { bytes(trace.name) }) else { return INVALID };
        // SAFETY: NULL or a struct of the caller (Invariants 1 and 2).
        let Some(endpoint) = (unsafe { endpoint_bytes(trace.endpoint) }) else { return INVALID };
        let (mut name_id, mut endpoint_id) = (0, 0);
        if trace.info.trace_id != 0 {
            name_id = process::recognise(name);
            endpoint_id = process::recognise_endpoint(&endpoint);
        }
        // SAFETY: a live struct that may be written (by Invariant 1), written whole (by Invariant 3).
        unsafe { span.write(Span { trace, name_id, endpoint_id }) };
        OK
    })
}

/// See `zipkin_c.h`.
///
/// # Safety
/// Invariants 1 and 2.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn blkin_span_event(span: *const Span, event: *mut Name, level: c_uint) {
    // SAFETY: passed on from the caller.
    unsafe { record(span, event, Payload::Event, level) }
}

/// See `zipkin_c.h`.
///
/// # Safety
/// Invariants 1 and 2.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn blkin_span_integer(
    span: *const Span,
    key: *mut Name,
    val: i64,
    level: c_uint,
) {
    // SAFETY: passed on from the caller.
    unsafe { record(span, key, Payload::Integer(val), level) }
}

/// See `zipkin_c.h`.
///
/// # Safety
/// Invariants 1 and 2.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn blkin_span_string(
    span: *const Span,
    key: *mut Name,
    val: *const c_char,
    level: c_uint,
) {
    guard(|| {
        // SAFETY: NULL or a string of the caller (Invariant 2).
        let Some(value) = (unsafe { bytes(val) }) else { return INVALID };
        // SAFETY: passed on from the caller.
        unsafe { record(span, key, Payload::Str(value), level) };
        OK
    });
}

/// See `zipkin_c.h`.
#[unsafe(no_mangle)]
pub(super) extern "C" fn blkin_level_is_on(level: c_uint) -> c_int {
    c_int::from(process::is_on((level & 7) as u8))
}

/// # Safety
/// Invariants 1 and 2.
#[inline(always)]
unsafe fn record(span: *const Span, key: *mut Name, payload: Payload<'_>, level: c_uint) {
    if span.is_null() || key.is_null() {
        return;
    }
    // SAFETY: a live struct (by Invariant 1), copied whole (by Invariant 3).
    let Span { trace, name_id, endpoint_id } = unsafe { span.read() };
    let level = (level & 7) as u8;
    if trace.info.trace_id == 0 || !process::is_on(level) {
        return;
    }
    // SAFETY: a live struct; its id is only ever seen as an atomic word.
    let known = unsafe { AtomicU32::from_ptr(&raw mut (*key).id) }.load(Acquire);
    if name_id != 0 && endpoint_id != 0 && known != 0 && known != NO_ROOM {
        let texts =
            Texts { name: Source::Id(name_id), endpoint: Source::Id(endpoint_id), key: Source::Id(known) };
        raw::record(&trace.info.into(), &texts, payload, level);
        return;
    }
    // SAFETY: passed on from the caller.
    guard(|| unsafe { record_texts(span, key, payload, level) });
}

/// As [`record`], for what has no ids yet, or no room in the table.
///
/// # Safety
/// Neither is NULL; Invariants 1 and 2.
#[cold]
unsafe fn record_texts(span: *const Span, key: *mut Name, payload: Payload<'_>, level: u8) -> c_int {
    // SAFETY: a live struct (by Invariant 1), copied whole (by Invariant 3).
    let Span { trace, name_id, endpoint_id } = unsafe { span.read() };
    // SAFETY: NULL or a string of the caller (Invariant 2).
    let Some(name) = (unsafe { bytes(trace.name) }) else { return INVALID };
    // SAFETY: NULL or a struct of the caller (Invariants 1 and 2).
    let Some(endpoint) = (unsafe { endpoint_bytes(trace.endpoint) }) else { return INVALID };
    // SAFETY: a live struct (by Invariant 1), one field of it copied (by Invariant 3).
    let text = unsafe { (*key).text };
    // SAFETY: NULL or a string of the caller (Invariant 2).
    let Some(text) = (unsafe { bytes(text) }) else { return INVALID };
    // SAFETY: a live struct; its id is only ever seen as an atomic word.
    let id = unsafe { AtomicU32::from_ptr(&raw mut (*key).id) };
    if id.load(Acquire) == 0 {
        let declared = process::declare(text);
        id.store(if declared == 0 { NO_ROOM } else { declared }, Release);
    }
    let known = id.load(Acquire);
    let texts = Texts::<'_> {
        name: source(name_id, name),
        endpoint: source::<EndpointBytes<'_>>(endpoint_id, endpoint),
        key: source(if known == NO_ROOM { 0 } else { known }, text),
    };
    raw::record(&trace.info.into(), &texts, payload, level);
    OK
}
