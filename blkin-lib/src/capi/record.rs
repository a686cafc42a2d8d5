//! `blkin_record`, and its fast and slow paths.

use std::ffi::{c_char, c_int};

use super::layout::{Annotation, Endpoint, INTEGER, TIMESTAMP, Trace};
use super::{INVALID, OK, bytes, guard};
use crate::raw::EndpointBytes;
pub(super) use blkin_ringbuf::process::LEGACY_LEVEL;
use blkin_ringbuf::process::{self, Call, CallMatch, CallValue, Ids, Short};

/// The address text of an endpoint without an address.
const NO_IP: &std::ffi::CStr = c"";

/// See `zipkin_c.h`.
///
/// # Safety
/// Invariants 1, 2 and 5.
#[unsafe(link_section = ".text.sorted.blkin_8")]
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn blkin_record(trace: *const Trace, annotation: *const Annotation) -> c_int {
    if trace.is_null() || annotation.is_null() {
        return INVALID;
    }
    // SAFETY: a live struct (by Invariant 1), one field of it copied (by Invariant 3).
    if unsafe { (*trace).info.trace_id } == 0 || !process::is_on(LEGACY_LEVEL) {
        return OK;
    }
    // SAFETY: neither is NULL; the rest is passed on from the caller (Invariant 6).
    unsafe { blkin_trace_annotation(trace, annotation) }
}

/// See `zipkin_c.h`. A function of its own, so that `blkin_record` saves no registers when nothing is to be recorded.
///
/// # Safety
/// Neither is NULL; Invariants 1, 2 and 5.
#[inline(never)]
#[unsafe(link_section = ".text.sorted.blkin_8")]
#[unsafe(no_mangle)]
unsafe extern "C" fn blkin_trace_annotation(trace: *const Trace, annotation: *const Annotation) -> c_int {
    // SAFETY: passed on from the caller (Invariant 6).
    let Some((call, said)) = (unsafe { call_of(trace, annotation) }) else {
        // SAFETY: as above (Invariant 6).
        return unsafe { record_slowly(trace, annotation) };
    };
    // SAFETY: passed on from the caller (Invariant 6).
    let ids = unsafe { ids_of(trace) };
    // SAFETY: NULL, which nothing is known of, or strings of the caller (Invariant 2).
    match unsafe { process::recognise_call(call) } {
        // SAFETY: passed on from the caller (Invariant 6).
        CallMatch::Whole(names, key) => unsafe { record_whole(ids, names, key, said) },
        // SAFETY: as above (Invariant 6).
        CallMatch::Longer(names, ids) => unsafe { record_longer(trace, annotation, names, ids.0) },
        // SAFETY: as above (Invariant 6).
        CallMatch::InPart(names, key) => unsafe { record_travelling(trace, annotation, names, key) },
        // SAFETY: as above (Invariant 6).
        CallMatch::New(_) => unsafe { record_travelling(trace, annotation, 0, 0) },
        // SAFETY: as above (Invariant 6).
        CallMatch::Never if process::may_at_once() => unsafe { record_if_new(trace, annotation) },
        // SAFETY: as above (Invariant 6).
        CallMatch::Never => unsafe { record_slowly(trace, annotation) },
    }
}

/// Records a call all of whose texts were recognised.
///
/// # Safety
/// `ids` points to the ids of a sampled span; a string keeps Invariant 2.
#[inline(always)]
unsafe fn record_whole(ids: *const u64, names: u64, key: u32, said: CallValue) -> c_int {
    match said {
        // SAFETY: three integers in a row, only read (by Invariant 3).
        CallValue::Short(short) => unsafe { process::record_short_at(ids, names, key, short, LEGACY_LEVEL) },
        // SAFETY: passed on from the caller (Invariant 6).
        CallValue::String(value) => unsafe { record_string(ids, names, key, value) },
    }
}

/// Records a call of which the beginnings of the texts were recognised: compares the ends of the long texts first.
///
/// # Safety
/// Neither is NULL; Invariants 1, 2 and 5.
#[inline(never)]
unsafe extern "C" fn record_longer(
    trace: *const Trace,
    annotation: *const Annotation,
    names: u64,
    ids: u64,
) -> c_int {
    // SAFETY: passed on from the caller (Invariant 6).
    if let Some((call, said)) = unsafe { call_of(trace, annotation) } {
        // SAFETY: strings of the caller (Invariant 2): what was met so is not NULL.
        if let Some(key) = unsafe { process::recognise_longer(&call, Ids(ids)) } {
            // SAFETY: passed on from the caller (Invariant 6).
            let ids = unsafe { ids_of(trace) };
            // SAFETY: passed on from the caller (Invariant 6).
            return unsafe { record_whole(ids, names, key, said) };
        }
    }
    // SAFETY: passed on from the caller (Invariant 6).
    unsafe { record_if_new(trace, annotation) }
}

/// Records a call that was not recognised, probably because one of its texts is new. A C function, as its caller is.
///
/// # Safety
/// Neither is NULL; Invariants 1, 2 and 5.
#[inline(never)]
pub(super) unsafe extern "C" fn record_if_new(trace: *const Trace, annotation: *const Annotation) -> c_int {
    // SAFETY: passed on from the caller (Invariant 6).
    if let Some((call, said)) = unsafe { call_of(trace, annotation) } {
        // SAFETY: passed on from the caller (Invariant 6).
        let ids = unsafe { ids_of(trace) };
        // SAFETY: three integers in a row, only read (by Invariant 3); NULL or strings of the caller (Invariant 2).
        if unsafe { process::record_new_call(ids, call, said, LEGACY_LEVEL) } {
            return OK;
        }
    }
    // SAFETY: passed on from the caller (Invariant 6).
    unsafe { record_slowly(trace, annotation) }
}

/// Records a call some of whose texts are new each time: those have no id, and travel in the record.
///
/// # Safety
/// Neither is NULL; Invariants 1, 2 and 5.
#[inline(never)]
pub(super) unsafe extern "C" fn record_travelling(
    trace: *const Trace,
    annotation: *const Annotation,
    names: u64,
    key: u32,
) -> c_int {
    // SAFETY: passed on from the caller (Invariant 6).
    if let Some((call, said)) = unsafe { call_of(trace, annotation) } {
        // SAFETY: passed on from the caller (Invariant 6).
        let ids = unsafe { ids_of(trace) };
        // SAFETY: three integers in a row, only read (by Invariant 3); strings of the caller (Invariant 2).
        if unsafe { process::record_travelling_call(ids, call, names, key, said, LEGACY_LEVEL) } {
            return OK;
        }
    }
    // SAFETY: passed on from the caller (Invariant 6).
    unsafe { record_slowly(trace, annotation) }
}

/// Records a recognised call whose value is a string. A function of its own, so that calls without a string save no
/// registers.
///
/// # Safety
/// `ids` points to the ids of a sampled span; `value` is NULL or keeps Invariant 2.
#[inline(never)]
unsafe extern "C" fn record_string(ids: *const u64, names: u64, key: u32, value: *const u8) -> c_int {
    guard(|| {
        // SAFETY: passed on from the caller (Invariant 6).
        let done = unsafe { process::record_known(ids, names, key, CallValue::String(value), LEGACY_LEVEL) };
        done.unwrap_or(INVALID)
    })
}

/// Records a call that no faster path has recorded. Arguments and result are those of the caller, which so saves no
/// registers.
///
/// # Safety
/// Neither is NULL; Invariants 1, 2 and 5.
#[inline(never)]
unsafe extern "C" fn record_slowly(trace: *const Trace, annotation: *const Annotation) -> c_int {
    guard(|| {
        // SAFETY: passed on from the caller (Invariant 6).
        let Some((call, said)) = (unsafe { call_of(trace, annotation) }) else { return INVALID };
        // SAFETY: passed on from the caller (Invariant 6).
        let ids = unsafe { ids_of(trace) };
        // SAFETY: three integers in a row, only read (by Invariant 3); NULL or strings of the caller (Invariant 2).
        unsafe { process::record_call(ids, call, said, LEGACY_LEVEL) }.unwrap_or(INVALID)
    })
}

/// The address of a span's ids.
///
/// # Safety
/// `trace` is not NULL; Invariant 1.
#[inline(always)]
pub(super) unsafe fn ids_of(trace: *const Trace) -> *const u64 {
    // SAFETY: the address of a part of a live struct (by Invariant 1).
    unsafe { &raw const (*trace).info }.cast()
}

/// The addresses of a call's texts, and its value. `None` if the type is unknown, or if there is no endpoint. Nothing in
/// here panics.
///
/// # Safety
/// Neither is NULL; Invariants 1, 2 and 5.
#[inline(always)]
unsafe fn call_of(trace: *const Trace, annotation: *const Annotation) -> Option<(Call, CallValue)> {
    // SAFETY: a live struct (by Invariant 1), the byte that counts of one field of it copied (by Invariants 3 and 5).
    let kind = unsafe { (*annotation).kind } & 0xff;
    if kind > TIMESTAMP {
        return None;
    }
    // SAFETY: as above; set for every kind (by Invariant 5).
    let value = unsafe { (*annotation).value };
    let (key, said) = if kind == TIMESTAMP {
        // SAFETY: the member that `kind` names (by Invariant 5).
        (unsafe { value.text }, CallValue::Short(Short::Event))
    } else {
        // SAFETY: as `kind`; set for these kinds (Invariant 6).
        let key = unsafe { (*annotation).key };
        if kind == INTEGER {
            // SAFETY: the member that `kind` names (by Invariant 5).
            (key, CallValue::Short(Short::Integer(unsafe { value.integer })))
        } else {
            // SAFETY: the member that `kind` names (by Invariant 5).
            (key, CallValue::String(unsafe { value.text }.cast()))
        }
    };
    // SAFETY: as `kind` (Invariant 6).
    let own = unsafe { (*annotation).endpoint };
    // SAFETY: passed on from the caller (Invariant 6).
    let call = unsafe { call_at(trace, own, key) }?;
    Some((call, said))
}

/// The addresses of a call's texts. `own` is its endpoint, or NULL for that of the span. `None` if there is no endpoint.
/// Nothing in here panics.
///
/// # Safety
/// `trace` is not NULL; Invariants 1 and 2.
#[inline(always)]
unsafe fn call_at(trace: *const Trace, own: *const Endpoint, key: *const c_char) -> Option<Call> {
    // SAFETY: passed on from the caller (Invariant 6).
    let (name, endpoint) = unsafe { place_of(trace, own) }?;
    // SAFETY: a live struct (by Invariant 1), copied whole (by Invariant 3): all of it is needed.
    let texts = EndpointTexts::of(unsafe { endpoint.read() });
    Some(texts.call(name, endpoint, key))
}

/// The name of a span, and the endpoint of a call: `own`, or the span's if `own` is NULL. `None` if both are NULL.
///
/// # Safety
/// `trace` is not NULL; Invariant 1.
#[inline(always)]
pub(super) unsafe fn place_of(
    trace: *const Trace,
    own: *const Endpoint,
) -> Option<(*const c_char, *const Endpoint)> {
    // SAFETY: a live struct (by Invariant 1), one field of it copied (by Invariant 3).
    let name = unsafe { (*trace).name };
    // SAFETY: as above (Invariant 6).
    let endpoint = if own.is_null() { unsafe { (*trace).endpoint } } else { own };
    (!endpoint.is_null()).then_some((name, endpoint))
}

/// The addresses of an endpoint's texts, and its port.
pub(super) struct EndpointTexts {
    /// Never NULL.
    ip: *const c_char,
    pub(super) service: *const c_char,
    port: u16,
}

impl EndpointTexts {
    #[inline(always)]
    pub(super) fn of(endpoint: Endpoint) -> EndpointTexts {
        let Endpoint { ip, port, name: service } = endpoint;
        let ip = if ip.is_null() { NO_IP.as_ptr() } else { ip };
        EndpointTexts { ip, service, port: (port & 0xffff) as u16 }
    }

    /// A call with these texts, a span's name and a key. `endpoint`: the address of the endpoint itself.
    #[inline(always)]
    pub(super) fn call(self, name: *const c_char, endpoint: *const Endpoint, key: *const c_char) -> Call {
        let texts = [name, self.ip, self.service, key].map(<*const c_char>::cast);
        Call { texts, endpoint: endpoint.cast(), port: self.port }
    }
}

/// # Safety
/// `endpoint` is NULL or keeps Invariants 1 and 2 for as long as `'a`.
pub(super) unsafe fn endpoint_bytes<'a>(endpoint: *const Endpoint) -> Option<EndpointBytes<'a>> {
    if endpoint.is_null() {
        return None;
    }
    // SAFETY: a live struct (by Invariant 1), copied whole (by Invariant 3).
    let Endpoint { ip, port, name } = unsafe { endpoint.read() };
    // SAFETY: NULL or a string of the caller (Invariant 2).
    let ip = unsafe { bytes(ip) }.unwrap_or(NO_IP.to_bytes());
    // SAFETY: NULL or a string of the caller (Invariant 2).
    let name = unsafe { bytes(name) }?;
    Some(EndpointBytes { ip, port: (port & 0xffff) as u16, name })
}
