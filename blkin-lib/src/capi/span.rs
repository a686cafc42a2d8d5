//! Spans and names that are looked up once: the functions behind `BLKIN_EVENT`, `BLKIN_INTEGER` and `BLKIN_STRING`.

use std::ffi::{c_char, c_int, c_uint};
use std::hint::black_box;
use std::ptr;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};

use blkin_ringbuf::process::{self, CallValue, Short};

use super::layout::{Name, Span, Trace, TraceInfo};
use super::record::{EndpointTexts, endpoint_bytes};
use super::refuse::refuse_keeping;
use super::{INVALID, OK, bytes, guard};
use crate::raw::{self, Payload, Source, Texts};

/// See `zipkin_c.h`. Nothing in here panics.
///
/// # Safety
/// Invariants 1 and 2.
#[unsafe(link_section = ".text.sorted.blkin_6")]
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn blkin_span_of(span: *mut Span, trace: *const Trace) -> c_int {
    if span.is_null() || trace.is_null() {
        // SAFETY: passed on from the caller (Invariant 6).
        return unsafe { refuse_keeping(span, trace) };
    }
    // SAFETY: a live struct (by Invariant 1), one field of it copied (by Invariant 3).
    let name = unsafe { (*trace).name };
    // SAFETY: as above (Invariant 6).
    let endpoint = unsafe { (*trace).endpoint };
    if name.is_null() || endpoint.is_null() {
        // SAFETY: passed on from the caller (Invariant 6).
        return unsafe { refuse_keeping(span, trace) };
    }
    // SAFETY: a live struct (by Invariant 1), copied whole (by Invariant 3): all of it is needed.
    let texts = EndpointTexts::of(unsafe { endpoint.read() });
    if texts.service.is_null() {
        // SAFETY: passed on from the caller (Invariant 6).
        return unsafe { refuse_keeping(span, trace) };
    }
    // SAFETY: a live struct (by Invariant 1).
    let ids = unsafe { &raw const (*trace).info };
    // SAFETY: as above, one field of it copied (by Invariant 3).
    let names = if unsafe { (*ids).trace_id } == 0 {
        0
    } else {
        // SAFETY: strings of the caller (Invariant 2).
        match unsafe { process::recognise_span(texts.call(name, endpoint, ptr::null())) } {
            Some(names) => names,
            // SAFETY: passed on from the caller, and checked for NULL above (Invariant 6).
            None => return unsafe { meet_span(span, trace) },
        }
    };
    // SAFETY: as above. Last, so that they need no registers meanwhile (Invariant 6).
    let info = unsafe { one_by_one(ids) };
    // SAFETY: a live struct that may be written (by Invariant 1), written whole (by Invariant 3).
    unsafe { span.write(Span { trace: Trace { name, info, endpoint }, names }) };
    OK
}

/// Copies ids one by one. Those of a new span have just been stored one by one: a load of two at once would have to wait until
/// both stores are done.
///
/// # Safety
/// `ids` points to a live struct.
#[inline(always)]
unsafe fn one_by_one(ids: *const TraceInfo) -> TraceInfo {
    let words = ids.cast::<i64>();
    // SAFETY: one of the struct's three integers in a row, copied (by Invariant 3).
    let id = |at: usize| unsafe { words.wrapping_add(at).read_volatile() };
    TraceInfo { trace_id: id(0), span_id: id(1), parent_span_id: id(2) }
}

/// The slow path of [`blkin_span_of`]: a sampled span with texts that were not met before. Takes the caller's arguments
/// unchanged, and hides the result from the compiler, so that the caller saves no registers.
///
/// # Safety
/// Invariants 1 and 2; nothing that is needed is NULL.
#[cold]
#[inline(never)]
unsafe extern "C" fn meet_span(span: *mut Span, trace: *const Trace) -> c_int {
    // SAFETY: a live struct (by Invariant 1), copied whole (by Invariant 3): all of it is needed.
    let trace = unsafe { trace.read() };
    // SAFETY: a live struct (by Invariant 1), copied whole (by Invariant 3): all of it is needed.
    let texts = EndpointTexts::of(unsafe { trace.endpoint.read() });
    let call = texts.call(trace.name, trace.endpoint, ptr::null());
    // Without ids of the names, after a panic too, the texts are looked up at each record.
    let mut names = 0;
    guard(|| {
        // SAFETY: strings of the caller (Invariant 2).
        names = unsafe { process::intern_span(call) };
        OK
    });
    // SAFETY: a live struct that may be written (by Invariant 1), written whole (by Invariant 3).
    unsafe { span.write(Span { trace, names }) };
    black_box(OK)
}

/// See `zipkin_c.h`.
///
/// # Safety
/// Invariants 1 and 2; neither is NULL.
#[unsafe(link_section = ".text.sorted.blkin_7")]
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn blkin_span_event(span: *const Span, event: *mut Name, level: c_uint) {
    // SAFETY: passed on from the caller (Invariant 6).
    if !unsafe { record(span, event, Short::Event, level) } {
        // SAFETY: passed on from the caller (Invariant 6).
        unsafe { record_event(span, event, level) };
    }
}

/// See `zipkin_c.h`.
///
/// # Safety
/// Invariants 1 and 2; neither is NULL.
#[unsafe(link_section = ".text.sorted.blkin_8")]
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn blkin_span_integer(
    span: *const Span,
    key: *mut Name,
    val: i64,
    level: c_uint,
) {
    // SAFETY: passed on from the caller (Invariant 6).
    if !unsafe { record(span, key, Short::Integer(val), level) } {
        // SAFETY: passed on from the caller (Invariant 6).
        unsafe { record_integer(span, key, val, level) };
    }
}

/// See `zipkin_c.h`.
///
/// # Safety
/// Invariants 1 and 2; neither of the first two is NULL.
#[unsafe(link_section = ".text.sorted.blkin_8")]
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn blkin_span_string(
    span: *const Span,
    key: *mut Name,
    val: *const c_char,
    level: c_uint,
) {
    // SAFETY: passed on from the caller (Invariant 6).
    if let Some((ids, names, key)) = unsafe { ids_of(span, key) } {
        let said = CallValue::String(val.cast());
        // SAFETY: three integers in a row, only read (by Invariant 3); NULL or a string of the caller (Invariant 2).
        unsafe { process::record_known(ids, names, key, said, (level & 7) as u8) };
        return;
    }
    // SAFETY: NULL or a string of the caller (Invariant 2).
    if let Some(value) = unsafe { bytes(val) } {
        // SAFETY: passed on from the caller (Invariant 6).
        unsafe { record_texts(span, key, Payload::Str(value), level) };
    }
}

/// See `zipkin_c.h`.
#[unsafe(no_mangle)]
pub(super) extern "C" fn blkin_level_is_on(level: c_uint) -> c_int {
    c_int::from(process::is_on((level & 7) as u8))
}

/// Records if the span and the key have their ids in the table of names; else returns false. Nothing in here panics.
///
/// # Safety
/// Neither is NULL; Invariants 1 and 2.
#[inline(always)]
unsafe fn record(span: *const Span, key: *mut Name, what: Short, level: c_uint) -> bool {
    // SAFETY: passed on from the caller (Invariant 6).
    let Some((ids, names, key)) = (unsafe { ids_of(span, key) }) else { return false };
    // SAFETY: three integers in a row, only read (by Invariant 3).
    unsafe { process::record_short_at(ids, names, key, what, (level & 7) as u8) };
    true
}

/// The address of a span's ids, and the ids of its names and of the key in the table of names; `None` if one has no id there.
///
/// # Safety
/// Neither is NULL; Invariants 1 and 2.
#[inline(always)]
unsafe fn ids_of(span: *const Span, key: *mut Name) -> Option<(*const u64, u64, u32)> {
    // SAFETY: a live struct (by Invariant 1), one field of it copied (by Invariant 3).
    let names = unsafe { (*span).names };
    // SAFETY: passed on from the caller. Acquire: a consumer that sees our record also sees the text, even if another
    // thread declared it (Invariant 6).
    let key = unsafe { id_of(key) }.load(Acquire);
    // SAFETY: the address of a part of a live struct (by Invariant 1).
    let ids = unsafe { &raw const (*span).trace.info }.cast();
    (names != 0 && key != 0).then_some((ids, names, key))
}

/// As [`record`], for texts without an id: new ones, or those for which the table has no room. Takes the caller's arguments
/// unchanged, so that the caller saves no registers.
///
/// # Safety
/// Neither is NULL; Invariants 1 and 2.
#[cold]
#[inline(never)]
unsafe extern "C" fn record_event(span: *const Span, event: *mut Name, level: c_uint) {
    // SAFETY: passed on from the caller (Invariant 6).
    unsafe { record_texts(span, event, Payload::Event, level) };
}

/// As [`record_event`].
///
/// # Safety
/// As [`record_event`].
#[cold]
#[inline(never)]
unsafe extern "C" fn record_integer(span: *const Span, key: *mut Name, val: i64, level: c_uint) {
    // SAFETY: passed on from the caller (Invariant 6).
    unsafe { record_texts(span, key, Payload::Integer(val), level) };
}

/// As [`record`], for texts without an id and for any value.
///
/// # Safety
/// Neither is NULL; Invariants 1 and 2.
#[inline(never)]
unsafe fn record_texts(span: *const Span, key: *mut Name, payload: Payload<'_>, level: c_uint) {
    guard(|| {
        // SAFETY: a live struct (by Invariant 1), copied whole (by Invariant 3).
        let Span { trace, names } = unsafe { span.read() };
        // SAFETY: passed on from the caller (Invariant 6).
        let Some(key) = (unsafe { known(key) }) else { return INVALID };
        let (name, endpoint) = if names == 0 {
            // SAFETY: NULL or a string of the caller (Invariant 2).
            let Some(name) = (unsafe { bytes(trace.name) }) else { return INVALID };
            // SAFETY: NULL or a struct of the caller (Invariants 1 and 2).
            let Some(endpoint) = (unsafe { endpoint_bytes(trace.endpoint) }) else { return INVALID };
            (Source::inline(name), Source::inline(endpoint))
        } else {
            (Source::known(names as u32), Source::known((names >> 32) as u32))
        };
        raw::record(&trace.info.into(), &Texts { name, endpoint, key }, payload, (level & 7) as u8);
        OK
    });
}

/// The id of a name, as the atomic word that threads share.
///
/// # Safety
/// `name` is not NULL; Invariant 1.
#[inline(always)]
unsafe fn id_of<'a>(name: *mut Name) -> &'a AtomicU32 {
    // SAFETY: the address of a part of a live struct (by Invariant 1).
    let id = unsafe { &raw mut (*name).id };
    // SAFETY: aligned (by Invariant 1), and only ever accessed as an atomic word (by Invariant 7).
    unsafe { AtomicU32::from_ptr(id) }
}

/// The id of a declared name in the table of names, or its text if the table has no room for it; `None` if its text is NULL.
///
/// # Safety
/// `name` is not NULL; Invariants 1 and 2.
unsafe fn known<'a>(name: *mut Name) -> Option<Source<&'a [u8]>> {
    // SAFETY: passed on from the caller (Invariant 6).
    let id = unsafe { id_of(name) };
    if id.load(Acquire) != 0 {
        return Some(Source::known(id.load(Acquire)));
    }
    // SAFETY: a live struct (by Invariant 1), one field of it copied (by Invariant 3).
    let text = unsafe { (*name).text };
    // SAFETY: NULL or a string of the caller (Invariant 2).
    let text = unsafe { bytes(text) }?;
    let declared = process::declare(text);
    // Without room in the table there is no id. Do not store 0 then: all threads read this word.
    if declared != 0 {
        id.store(declared, Release);
    }
    Some(Source::new(declared, text))
}
