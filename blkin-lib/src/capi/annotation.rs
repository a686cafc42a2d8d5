//! `blkin_init_..._annotation`: these functions fill in annotations, which `blkin_record` records.

use std::ffi::{c_char, c_int, c_uint};
use std::ptr;

use super::layout::{Annotation, AnnotationValue, Endpoint, INTEGER, STRING, TIMESTAMP};
use super::refuse::refuse;
use super::{INVALID, OK, guard};

/// See `zipkin_c.h`.
///
/// # Safety
/// Invariants 1 and 2.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn blkin_init_string_annotation(
    annotation: *mut Annotation,
    key: *const c_char,
    val: *const c_char,
    endpoint: *const Endpoint,
) -> c_int {
    guard(|| {
        if key.is_null() || val.is_null() {
            // SAFETY: passed on from the caller (Invariant 6).
            return unsafe { refuse(annotation) };
        }
        // SAFETY: passed on from the caller (Invariant 6).
        unsafe { fill(annotation, STRING, key, AnnotationValue { text: val }, endpoint) }
    })
}

/// See `zipkin_c.h`.
///
/// # Safety
/// Invariants 1 and 2.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn blkin_init_integer_annotation(
    annotation: *mut Annotation,
    key: *const c_char,
    val: i64,
    endpoint: *const Endpoint,
) -> c_int {
    guard(|| {
        if key.is_null() {
            // SAFETY: passed on from the caller (Invariant 6).
            return unsafe { refuse(annotation) };
        }
        // SAFETY: passed on from the caller (Invariant 6).
        unsafe { fill(annotation, INTEGER, key, AnnotationValue { integer: val }, endpoint) }
    })
}

/// See `zipkin_c.h`.
///
/// # Safety
/// Invariants 1 and 2.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn blkin_init_timestamp_annotation(
    annotation: *mut Annotation,
    event: *const c_char,
    endpoint: *const Endpoint,
) -> c_int {
    guard(|| {
        if event.is_null() {
            // SAFETY: passed on from the caller (Invariant 6).
            return unsafe { refuse(annotation) };
        }
        // SAFETY: passed on from the caller (Invariant 6).
        unsafe { fill(annotation, TIMESTAMP, ptr::null(), AnnotationValue { text: event }, endpoint) }
    })
}

/// # Safety
/// Invariant 1 for `annotation`.
unsafe fn fill(
    annotation: *mut Annotation,
    kind: c_uint,
    key: *const c_char,
    value: AnnotationValue,
    endpoint: *const Endpoint,
) -> c_int {
    if annotation.is_null() {
        return INVALID;
    }
    // SAFETY: a live struct that may be written (by Invariant 1), written whole (by Invariant 3).
    unsafe { annotation.write(Annotation { kind, key, value, endpoint }) };
    OK
}
