//! Spans: new ones, children, and the ids in them.

use std::ffi::{c_char, c_int};
use std::hint::black_box;

use super::layout::{Endpoint, Trace, TraceInfo};
use super::refuse::refuse_keeping;
use super::{INVALID, OK, guard};
use crate::raw;
use blkin_ringbuf::process::{self, Status};

/// See `zipkin_c.h`. Returns 0 even if the program cannot be traced: that is not an error of the program.
#[unsafe(no_mangle)]
pub(super) extern "C" fn blkin_init() -> c_int {
    guard(|| {
        raw::init();
        OK
    });
    OK
}

/// See `zipkin_c.h`; the numbers are those of `enum blkin_state`. Nothing in here panics.
#[unsafe(no_mangle)]
pub(super) extern "C" fn blkin_status() -> c_int {
    match process::status() {
        None => 0,
        Some(Status::Tracing) => 1,
        Some(Status::Off) => 2,
        Some(Status::Without) => 3,
    }
}

/// See `zipkin_c.h`.
///
/// # Safety
/// Invariants 1 and 2.
#[unsafe(link_section = ".text.sorted.blkin_1")]
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn blkin_init_new_trace(
    new_trace: *mut Trace,
    name: *const c_char,
    endpoint: *const Endpoint,
) -> c_int {
    if new_trace.is_null() {
        return INVALID;
    }
    let rate = process::rate();
    if rate.samples_all()
        && let Some(ids) = raw::try_sampled_root()
    {
        // SAFETY: a live struct that may be written (by Invariant 1), written whole (by Invariant 3).
        unsafe { new_trace.write(Trace { name, info: ids.into(), endpoint }) };
        return OK;
    }
    // SAFETY: not NULL; passed on from the caller (Invariant 6).
    unsafe { count_trace(new_trace, name, endpoint, rate) }
}

/// A root of a program that samples only some roots, or has not started recording. A function of its own, so that the path that
/// samples every root saves no registers. Nothing in here panics.
///
/// # Safety
/// `new_trace` is not NULL; Invariant 1.
#[unsafe(link_section = ".text.sorted.blkin_1")]
#[inline(never)]
unsafe extern "C" fn count_trace(
    new_trace: *mut Trace,
    name: *const c_char,
    endpoint: *const Endpoint,
    rate: process::Rate,
) -> c_int {
    if let Some(turn) = process::count_root(rate) {
        // SAFETY: not NULL; passed on from the caller (Invariant 6).
        return unsafe { begin_trace(new_trace, name, endpoint, turn) };
    }
    let trace = Trace { name, info: raw::Ids::default().into(), endpoint };
    // SAFETY: a live struct that may be written (by Invariant 1), written whole (by Invariant 3).
    unsafe { new_trace.write(trace) };
    OK
}

/// A root that may be sampled. A function of its own, so that the path of a root that is left out saves no registers. The result
/// is hidden from the compiler, because the caller would otherwise save a register in order to return 0 itself.
///
/// # Safety
/// `new_trace` is not NULL; Invariant 1.
#[cold]
#[inline(never)]
pub(super) unsafe extern "C" fn begin_trace(
    new_trace: *mut Trace,
    name: *const c_char,
    endpoint: *const Endpoint,
    turn: process::CountedRoot,
) -> c_int {
    let ids = if turn.samples() { raw::sampled_root() } else { raw::Ids::default() };
    // SAFETY: a live struct that may be written (by Invariant 1), written whole (by Invariant 3).
    unsafe { new_trace.write(Trace { name, info: ids.into(), endpoint }) };
    black_box(OK)
}

/// See `zipkin_c.h`.
///
/// # Safety
/// Invariant 1.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn blkin_init_trace_info(trace_info: *mut TraceInfo) {
    guard(|| {
        if trace_info.is_null() {
            return INVALID;
        }
        let info = raw::new_root().into();
        // SAFETY: a live struct that may be written (by Invariant 1), written whole (by Invariant 3).
        unsafe { trace_info.write(info) };
        OK
    });
}

/// See `zipkin_c.h`.
///
/// # Safety
/// Invariants 1 and 2.
#[unsafe(link_section = ".text.sorted.blkin_3")]
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn blkin_init_child(
    child: *mut Trace,
    parent: *const Trace,
    endpoint: *const Endpoint,
    child_name: *const c_char,
) -> c_int {
    if parent.is_null() {
        // SAFETY: passed on from the caller (Invariant 6).
        return unsafe { refuse_keeping(child, parent) };
    }
    // SAFETY: a live struct (by Invariant 1), one field of it copied before `child` is written (by Invariant 3).
    let endpoint = if endpoint.is_null() { unsafe { (*parent).endpoint } } else { endpoint };
    // SAFETY: as above (Invariant 6).
    let info = unsafe { &raw const (*parent).info };
    if child.is_null() || endpoint.is_null() {
        // SAFETY: passed on from the caller (Invariant 6).
        return unsafe { refuse_keeping(child, parent) };
    }
    // SAFETY: passed on from the caller, and checked for NULL (Invariant 6).
    unsafe { write_child(child, info, endpoint, child_name) }
}

/// See `zipkin_c.h`.
///
/// # Safety
/// Invariants 1 and 2.
#[unsafe(link_section = ".text.sorted.blkin_2")]
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn blkin_init_child_info(
    child: *mut Trace,
    info: *const TraceInfo,
    endpoint: *const Endpoint,
    child_name: *const c_char,
) -> c_int {
    if info.is_null() || child.is_null() || endpoint.is_null() {
        // SAFETY: passed on from the caller (Invariant 6).
        return unsafe { refuse_keeping(child, info) };
    }
    // SAFETY: passed on from the caller, and checked for NULL (Invariant 6).
    unsafe { write_child(child, info, endpoint, child_name) }
}

/// Writes a child of the span with the ids `parent`. Nothing in here panics.
///
/// # Safety
/// Invariants 1 and 2; neither `child`, `parent` nor `endpoint` is NULL.
#[inline(always)]
unsafe fn write_child(
    child: *mut Trace,
    parent: *const TraceInfo,
    endpoint: *const Endpoint,
    name: *const c_char,
) -> c_int {
    // SAFETY: a live struct (by Invariant 1), one field of it copied (by Invariant 3).
    let is_sampled = unsafe { (*parent).trace_id } != 0;
    // SAFETY: as above, copied whole before `child` is written (Invariant 6).
    let Some(ids) = raw::try_new_child(is_sampled, || unsafe { parent.read() }.into()) else {
        // SAFETY: passed on from the caller (Invariant 6).
        return unsafe { write_child_otherwise(child, parent, endpoint, name) };
    };
    // SAFETY: a live struct that may be written (by Invariant 1), written whole (by Invariant 3).
    unsafe { child.write(Trace { name, info: ids.into(), endpoint }) };
    OK
}

/// The slow path of [`write_child`]. Takes the caller's arguments unchanged, and hides the result from the compiler, so that the
/// caller saves no registers.
///
/// # Safety
/// As [`write_child`].
#[cold]
#[inline(never)]
unsafe extern "C" fn write_child_otherwise(
    child: *mut Trace,
    parent: *const TraceInfo,
    endpoint: *const Endpoint,
    name: *const c_char,
) -> c_int {
    // Without ids, after a panic, the child is not sampled.
    let mut ids = raw::Ids::default();
    guard(|| {
        // SAFETY: a live struct (by Invariant 1), copied whole before `child` is written (by Invariant 3).
        ids = raw::new_child(&unsafe { parent.read() }.into());
        OK
    });
    // SAFETY: a live struct that may be written (by Invariant 1), written whole (by Invariant 3).
    unsafe { child.write(Trace { name, info: ids.into(), endpoint }) };
    black_box(OK)
}

/// See `zipkin_c.h`.
///
/// # Safety
/// Invariant 1.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn blkin_get_trace_info(trace: *const Trace, info: *mut TraceInfo) -> c_int {
    guard(|| {
        if trace.is_null() || info.is_null() {
            // SAFETY: passed on from the caller (Invariant 6).
            return unsafe { refuse_keeping(info, trace) };
        }
        // SAFETY: a live struct (by Invariant 1), one field of it copied (by Invariant 3).
        let ids = unsafe { (*trace).info };
        // SAFETY: a live struct that may be written (by Invariant 1), written whole (by Invariant 3).
        unsafe { info.write(ids) };
        OK
    })
}

/// See `zipkin_c.h`.
///
/// # Safety
/// Invariant 1.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn blkin_set_trace_info(trace: *mut Trace, info: *const TraceInfo) -> c_int {
    guard(|| {
        if trace.is_null() || info.is_null() {
            return INVALID;
        }
        // SAFETY: a live struct (by Invariant 1), read by copy (by Invariant 3).
        let ids = unsafe { info.read() };
        // SAFETY: a live struct that may be written (by Invariant 1), one field of it overwritten (by Invariant 3).
        unsafe { (*trace).info = ids };
        OK
    })
}

/// See `zipkin_c.h`.
///
/// # Safety
/// Invariants 1 and 2.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn blkin_set_trace_properties(
    trace: *mut Trace,
    info: *const TraceInfo,
    name: *const c_char,
    endpoint: *const Endpoint,
) -> c_int {
    guard(|| {
        if trace.is_null() || info.is_null() || name.is_null() || endpoint.is_null() {
            // SAFETY: passed on from the caller (Invariant 6).
            return unsafe { refuse_keeping(trace, info) };
        }
        // SAFETY: a live struct (by Invariant 1), read by copy (by Invariant 3).
        let info = unsafe { info.read() };
        // SAFETY: a live struct that may be written (by Invariant 1), written whole (by Invariant 3).
        unsafe { trace.write(Trace { name, info, endpoint }) };
        OK
    })
}
