//! The functions of the older branches with a leading underscore, as the original branch exported them for its own
//! loader. Programs that look these names up by `dlsym` keep working.

use std::ffi::{c_char, c_int};

use super::layout::{Annotation, Endpoint, PackedTraceInfo, Trace, TraceInfo};

#[unsafe(no_mangle)]
extern "C" fn _blkin_init() -> c_int {
    super::trace::blkin_init()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _blkin_init_new_trace(
    new_trace: *mut Trace,
    name: *const c_char,
    endpoint: *const Endpoint,
) -> c_int {
    // SAFETY: passed on from the caller (Invariant 6).
    unsafe { super::trace::blkin_init_new_trace(new_trace, name, endpoint) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _blkin_init_child(
    child: *mut Trace,
    parent: *const Trace,
    endpoint: *const Endpoint,
    child_name: *const c_char,
) -> c_int {
    // SAFETY: passed on from the caller (Invariant 6).
    unsafe { super::trace::blkin_init_child(child, parent, endpoint, child_name) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _blkin_init_child_info(
    child: *mut Trace,
    info: *const TraceInfo,
    endpoint: *const Endpoint,
    child_name: *const c_char,
) -> c_int {
    // SAFETY: passed on from the caller (Invariant 6).
    unsafe { super::trace::blkin_init_child_info(child, info, endpoint, child_name) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _blkin_init_endpoint(
    endpoint: *mut Endpoint,
    ip: *const c_char,
    port: c_int,
    name: *const c_char,
) -> c_int {
    // SAFETY: passed on from the caller (Invariant 6).
    unsafe { super::endpoint::blkin_init_endpoint(endpoint, ip, port, name) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _blkin_init_string_annotation(
    annotation: *mut Annotation,
    key: *const c_char,
    val: *const c_char,
    endpoint: *const Endpoint,
) -> c_int {
    // SAFETY: passed on from the caller (Invariant 6).
    unsafe { super::annotation::blkin_init_string_annotation(annotation, key, val, endpoint) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _blkin_init_integer_annotation(
    annotation: *mut Annotation,
    key: *const c_char,
    val: i64,
    endpoint: *const Endpoint,
) -> c_int {
    // SAFETY: passed on from the caller (Invariant 6).
    unsafe { super::annotation::blkin_init_integer_annotation(annotation, key, val, endpoint) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _blkin_init_timestamp_annotation(
    annotation: *mut Annotation,
    event: *const c_char,
    endpoint: *const Endpoint,
) -> c_int {
    // SAFETY: passed on from the caller (Invariant 6).
    unsafe { super::annotation::blkin_init_timestamp_annotation(annotation, event, endpoint) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _blkin_record(trace: *const Trace, annotation: *const Annotation) -> c_int {
    // SAFETY: passed on from the caller (Invariant 6).
    unsafe { super::record::blkin_record(trace, annotation) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _blkin_get_trace_info(trace: *const Trace, info: *mut TraceInfo) -> c_int {
    // SAFETY: passed on from the caller (Invariant 6).
    unsafe { super::trace::blkin_get_trace_info(trace, info) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _blkin_set_trace_info(trace: *mut Trace, info: *const TraceInfo) -> c_int {
    // SAFETY: passed on from the caller (Invariant 6).
    unsafe { super::trace::blkin_set_trace_info(trace, info) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _blkin_set_trace_properties(
    trace: *mut Trace,
    info: *const TraceInfo,
    name: *const c_char,
    endpoint: *const Endpoint,
) -> c_int {
    // SAFETY: passed on from the caller (Invariant 6).
    unsafe { super::trace::blkin_set_trace_properties(trace, info, name, endpoint) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _blkin_pack_trace_info(info: *const TraceInfo, pinfo: *mut PackedTraceInfo) -> c_int {
    // SAFETY: passed on from the caller (Invariant 6).
    unsafe { super::wire::blkin_pack_trace_info(info, pinfo) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _blkin_unpack_trace_info(pinfo: *const PackedTraceInfo, info: *mut TraceInfo) -> c_int {
    // SAFETY: passed on from the caller (Invariant 6).
    unsafe { super::wire::blkin_unpack_trace_info(pinfo, info) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _blkin_init_trace_info(trace_info: *mut TraceInfo) {
    // SAFETY: passed on from the caller (Invariant 6).
    unsafe { super::trace::blkin_init_trace_info(trace_info) }
}
