//! New spans whose texts are looked up at once: `blkin_init_new_trace` or `blkin_init_child_info`, and `blkin_span_of`, in one
//! call. That saves a call and two cache lines of code, which counts where the code is not in the caches.

use std::ffi::{c_char, c_int};
use std::ptr;

use blkin_ringbuf::process;

use super::OK;
use super::layout::{Endpoint, Span, Trace, TraceInfo};
use super::record::EndpointTexts;
use super::refuse::{refuse, refuse_keeping};
use super::span::blkin_span_of;
use super::trace::{begin_trace, blkin_init_child_info, blkin_init_new_trace};
use crate::raw;

/// See `zipkin_c.h`. Nothing in here panics.
///
/// # Safety
/// Invariants 1 and 2.
#[unsafe(link_section = ".text.sorted.blkin_6")]
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn blkin_span_root(
    span: *mut Span,
    name: *const c_char,
    endpoint: *const Endpoint,
) -> c_int {
    // SAFETY: passed on from the caller (Invariant 6).
    let Some(texts) = (unsafe { texts_of(span, name, endpoint) }) else {
        // SAFETY: passed on from the caller (Invariant 6).
        return unsafe { refuse(span) };
    };
    let rate = process::rate();
    if !rate.samples_all() {
        // SAFETY: passed on from the caller, and checked for NULL (Invariant 6).
        return unsafe { count_span(span, name, endpoint, rate) };
    }
    // SAFETY: strings of the caller (Invariant 2).
    let names = unsafe { process::recognise_span(texts.call(name, endpoint, ptr::null())) };
    if let Some(names) = names
        && let Some(ids) = raw::try_sampled_root()
    {
        let trace = Trace { name, info: ids.into(), endpoint };
        // SAFETY: a live struct that may be written (by Invariant 1), written whole (by Invariant 3).
        unsafe { span.write(Span { trace, names }) };
        return OK;
    }
    // SAFETY: passed on from the caller, and checked for NULL (Invariant 6).
    unsafe { begin_root(span, name, endpoint) }
}

/// As [`blkin_span_root`], in a program that samples only some roots, or has not started recording. A function of its own, so
/// that the path that samples every root saves no registers.
///
/// # Safety
/// Invariants 1 and 2; nothing that is needed is NULL.
#[unsafe(link_section = ".text.sorted.blkin_6")]
#[inline(never)]
unsafe extern "C" fn count_span(
    span: *mut Span,
    name: *const c_char,
    endpoint: *const Endpoint,
    rate: process::Rate,
) -> c_int {
    if let Some(turn) = process::count_root(rate) {
        // SAFETY: passed on from the caller (Invariant 6).
        return unsafe { begin_counted(span, name, endpoint, turn) };
    }
    let trace = Trace { name, info: raw::Ids::default().into(), endpoint };
    // SAFETY: a live struct that may be written (by Invariant 1), written whole (by Invariant 3).
    unsafe { span.write(Span { trace, names: 0 }) };
    OK
}

/// A root that may be sampled. A function of its own, so that the path of a root that is left out saves no registers.
///
/// # Safety
/// Invariants 1 and 2; nothing that is needed is NULL.
#[cold]
#[inline(never)]
unsafe extern "C" fn begin_counted(
    span: *mut Span,
    name: *const c_char,
    endpoint: *const Endpoint,
    turn: process::CountedRoot,
) -> c_int {
    // SAFETY: the address of a part of a live struct (by Invariant 1).
    let trace = unsafe { &raw mut (*span).trace };
    // SAFETY: passed on from the caller (Invariant 6).
    unsafe { begin_trace(trace, name, endpoint, turn) };
    // SAFETY: as above; the one may be a part of the other (Invariant 3).
    unsafe { blkin_span_of(span, trace) }
}

/// The slow path of [`blkin_span_root`]. Takes the caller's arguments unchanged, so that the caller saves no registers.
///
/// # Safety
/// Invariants 1 and 2; nothing that is needed is NULL.
#[cold]
#[inline(never)]
unsafe extern "C" fn begin_root(span: *mut Span, name: *const c_char, endpoint: *const Endpoint) -> c_int {
    // SAFETY: the address of a part of a live struct (by Invariant 1).
    let trace = unsafe { &raw mut (*span).trace };
    // SAFETY: passed on from the caller (Invariant 6).
    unsafe { blkin_init_new_trace(trace, name, endpoint) };
    // SAFETY: as above; the one may be a part of the other (Invariant 3).
    unsafe { blkin_span_of(span, trace) }
}

/// See `zipkin_c.h`. Nothing in here panics.
///
/// # Safety
/// Invariants 1 and 2.
#[unsafe(link_section = ".text.sorted.blkin_6")]
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn blkin_span_child(
    span: *mut Span,
    parent: *const TraceInfo,
    name: *const c_char,
    endpoint: *const Endpoint,
) -> c_int {
    // SAFETY: passed on from the caller (Invariant 6).
    let Some(texts) = (unsafe { texts_of(span, name, endpoint) }) else {
        // SAFETY: passed on from the caller (Invariant 6).
        return unsafe { refuse_keeping(span, parent) };
    };
    if parent.is_null() {
        // SAFETY: passed on from the caller (Invariant 6).
        return unsafe { refuse_keeping(span, parent) };
    }
    // SAFETY: a live struct (by Invariant 1), one field of it copied (by Invariant 3).
    let is_sampled = unsafe { (*parent).trace_id } != 0;
    let names = if is_sampled {
        // SAFETY: strings of the caller (Invariant 2).
        unsafe { process::recognise_span(texts.call(name, endpoint, ptr::null())) }
    } else {
        Some(0)
    };
    if let Some(names) = names
        // SAFETY: a live struct (by Invariant 1), copied whole before `span` is written (by Invariant 3).
        && let Some(ids) = raw::try_new_child(is_sampled, || unsafe { parent.read() }.into())
    {
        let trace = Trace { name, info: ids.into(), endpoint };
        // SAFETY: a live struct that may be written (by Invariant 1), written whole (by Invariant 3).
        unsafe { span.write(Span { trace, names }) };
        return OK;
    }
    // SAFETY: passed on from the caller, and checked for NULL (Invariant 6).
    unsafe { begin_child(span, parent, name, endpoint) }
}

/// The slow path of [`blkin_span_child`]. Takes the caller's arguments unchanged, so that the caller saves no registers.
///
/// # Safety
/// Invariants 1 and 2; nothing that is needed is NULL.
#[cold]
#[inline(never)]
unsafe extern "C" fn begin_child(
    span: *mut Span,
    parent: *const TraceInfo,
    name: *const c_char,
    endpoint: *const Endpoint,
) -> c_int {
    // SAFETY: the address of a part of a live struct (by Invariant 1).
    let trace = unsafe { &raw mut (*span).trace };
    // SAFETY: passed on from the caller (Invariant 6).
    unsafe { blkin_init_child_info(trace, parent, endpoint, name) };
    // SAFETY: as above; the one may be a part of the other (Invariant 3).
    unsafe { blkin_span_of(span, trace) }
}

/// The texts of a new span's endpoint; `None` if a required pointer is NULL.
///
/// # Safety
/// Invariants 1 and 2.
#[inline(always)]
unsafe fn texts_of(
    span: *const Span,
    name: *const c_char,
    endpoint: *const Endpoint,
) -> Option<EndpointTexts> {
    if span.is_null() || name.is_null() || endpoint.is_null() {
        return None;
    }
    // SAFETY: a live struct (by Invariant 1), copied whole (by Invariant 3): all of it is needed.
    let texts = EndpointTexts::of(unsafe { endpoint.read() });
    (!texts.service.is_null()).then_some(texts)
}
