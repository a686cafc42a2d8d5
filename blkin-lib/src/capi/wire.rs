//! Conversion of ids to and from the 24 big-endian bytes that are sent over a network.

use std::ffi::c_int;

use super::layout::{PackedTraceInfo, TraceInfo};
use super::refuse::refuse_keeping;
use super::{OK, guard};

/// See `zipkin_c.h`.
///
/// # Safety
/// Invariants 1 and 4.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn blkin_pack_trace_info(
    info: *const TraceInfo,
    pinfo: *mut PackedTraceInfo,
) -> c_int {
    guard(|| {
        if info.is_null() || pinfo.is_null() {
            // SAFETY: passed on from the caller (Invariant 6).
            return unsafe { refuse_keeping(pinfo, info) };
        }
        // SAFETY: a live struct (by Invariant 1), read by copy (by Invariant 3).
        let info = unsafe { info.read() };
        let packed = PackedTraceInfo {
            trace_id: info.trace_id.to_be_bytes(),
            span_id: info.span_id.to_be_bytes(),
            parent_span_id: info.parent_span_id.to_be_bytes(),
        };
        // SAFETY: 24 bytes that may be written (by Invariant 1), at any alignment (by Invariant 4).
        unsafe { pinfo.write_unaligned(packed) };
        OK
    })
}

/// See `zipkin_c.h`.
///
/// # Safety
/// Invariants 1 and 4.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn blkin_unpack_trace_info(
    pinfo: *const PackedTraceInfo,
    info: *mut TraceInfo,
) -> c_int {
    guard(|| {
        if pinfo.is_null() || info.is_null() {
            // SAFETY: passed on from the caller (Invariant 6).
            return unsafe { refuse_keeping(info, pinfo) };
        }
        // SAFETY: 24 readable bytes (by Invariant 1), at any alignment (by Invariant 4).
        let packed = unsafe { pinfo.read_unaligned() };
        let unpacked = TraceInfo {
            trace_id: i64::from_be_bytes(packed.trace_id),
            span_id: i64::from_be_bytes(packed.span_id),
            parent_span_id: i64::from_be_bytes(packed.parent_span_id),
        };
        // SAFETY: a live struct that may be written (by Invariant 1), written whole (by Invariant 3).
        unsafe { info.write(unpacked) };
        OK
    })
}
