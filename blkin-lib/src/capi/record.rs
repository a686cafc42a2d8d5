//! `blkin_record`: the one call that leaves something behind.

use std::ffi::c_int;

use super::layout::{Annotation, Endpoint, INTEGER, STRING, TIMESTAMP, Trace};
use super::{INVALID, OK, bytes, guard};
use crate::raw::{self, EndpointBytes, Payload, Source, Texts};
use blkin_ringbuf::process::{self, Call, Short};

/// What users of this interface have always recorded at: the level of its LTTng tracepoints, TRACE_WARNING.
const LEGACY_LEVEL: u8 = 4;

/// The address of an endpoint without one.
const NO_IP: &std::ffi::CStr = c"";

/// See `zipkin_c.h`.
///
/// # Safety
/// Invariants 1, 2 and 5.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn blkin_record(trace: *const Trace, annotation: *const Annotation) -> c_int {
    if trace.is_null() || annotation.is_null() {
        return INVALID;
    }
    // SAFETY: a live struct (by Invariant 1), one field of it copied (by Invariant 3).
    if unsafe { (*trace).info.trace_id } == 0 || !process::is_on(LEGACY_LEVEL) {
        return OK;
    }
    // SAFETY: neither is NULL; the rest is passed on from the caller.
    unsafe { record_if_recognised(trace, annotation) }
}

/// A call of a sampled span that is on. By itself, so that a call that is off has nothing to keep; a C function, which never
/// unwinds, so that it can be the end of its caller.
///
/// # Safety
/// Neither is NULL; Invariants 1, 2 and 5.
#[inline(never)]
unsafe extern "C" fn record_if_recognised(trace: *const Trace, annotation: *const Annotation) -> c_int {
    // SAFETY: passed on from the caller.
    let Some((call, what)) = (unsafe { call_of(trace, annotation) }) else {
        // SAFETY: as above.
        return unsafe { record_slowly(trace, annotation) };
    };
    // SAFETY: NULL, which nothing is known of, or strings of the caller (Invariant 2).
    let Some((names, key)) = (unsafe { process::recognise_call(call) }) else {
        // SAFETY: as above.
        return unsafe { record_slowly(trace, annotation) };
    };
    // SAFETY: the address of a part of a live struct (by Invariant 1).
    let ids = unsafe { &raw const (*trace).info }.cast();
    // SAFETY: three integers in a row, only read (by Invariant 3).
    unsafe { process::record_short_at(ids, names, key, what, LEGACY_LEVEL) }
}

/// A call that was not recognised at once, or has a string for its value. Arguments and result are its caller's, which so
/// keeps nothing for it.
///
/// # Safety
/// Neither is NULL; Invariants 1, 2 and 5.
#[inline(never)]
unsafe extern "C" fn record_slowly(trace: *const Trace, annotation: *const Annotation) -> c_int {
    guard(|| {
        // SAFETY: passed on from the caller.
        if let Some((call, what)) = unsafe { call_of(trace, annotation) } {
            // SAFETY: NULL, which nothing is known of, or strings of the caller (Invariant 2).
            if let Some((names, key)) = unsafe { process::recognise_longer_call(call) } {
                // SAFETY: the address of a part of a live struct (by Invariant 1).
                let ids = unsafe { &raw const (*trace).info }.cast();
                // SAFETY: three integers in a row, only read (by Invariant 3).
                return unsafe { process::record_short_at(ids, names, key, what, LEGACY_LEVEL) };
            }
        }
        // SAFETY: passed on from the caller.
        match unsafe { record(trace, annotation) } {
            Some(()) => OK,
            None => INVALID,
        }
    })
}

/// Where the texts of an event or an integer lie, and what it says. `None` for others, and for a call without an endpoint.
/// Nothing in here panics.
///
/// # Safety
/// Neither is NULL; Invariants 1, 2 and 5.
#[inline(always)]
unsafe fn call_of(trace: *const Trace, annotation: *const Annotation) -> Option<(Call, Short)> {
    // SAFETY: a live struct (by Invariant 1), one field of it copied (by Invariant 3).
    let kind = unsafe { (*annotation).kind };
    if kind != TIMESTAMP && kind != INTEGER {
        return None;
    }
    // SAFETY: as above; set for both kinds (by Invariant 5).
    let value = unsafe { (*annotation).value };
    let (key, what) = if kind == TIMESTAMP {
        // SAFETY: the member that `kind` names (by Invariant 5).
        (unsafe { value.text }, Short::Event)
    } else {
        // SAFETY: as above.
        let integer = unsafe { value.integer };
        // SAFETY: as `kind`; set for this kind.
        (unsafe { (*annotation).key }, Short::Integer(integer))
    };
    // SAFETY: as `kind`.
    let name = unsafe { (*trace).name };
    // SAFETY: as `kind`.
    let own = unsafe { (*annotation).endpoint };
    // SAFETY: as `kind`.
    let endpoint = if own.is_null() { unsafe { (*trace).endpoint } } else { own };
    if endpoint.is_null() {
        return None;
    }
    // SAFETY: a live struct (by Invariant 1), copied whole (by Invariant 3): all of it is needed.
    let Endpoint { ip, port, name: service } = unsafe { endpoint.read() };
    let ip = if ip.is_null() { NO_IP.as_ptr() } else { ip };
    let texts = [name.cast(), ip.cast(), service.cast(), key.cast()];
    Some((Call { texts, endpoint: endpoint.cast(), port: (port & 0xffff) as u16 }, what))
}

/// Records on a sampled span; `None` if something needed is missing.
///
/// # Safety
/// Neither is NULL; Invariants 1, 2 and 5.
unsafe fn record(trace: *const Trace, annotation: *const Annotation) -> Option<()> {
    // SAFETY: a live struct (by Invariant 1), copied whole (by Invariant 3): all of it is needed.
    let Trace { name, info, endpoint } = unsafe { trace.read() };
    // SAFETY: as above, one field.
    let own = unsafe { (*annotation).endpoint };
    // SAFETY: NULL or a struct of the caller (Invariants 1 and 2).
    let endpoint = unsafe { endpoint_bytes(if own.is_null() { endpoint } else { own }) }?;
    // SAFETY: NULL or a string of the caller (Invariant 2).
    let name = unsafe { bytes(name) }?;
    // SAFETY: passed on from the caller (Invariants 1, 2 and 5).
    let (key, payload) = unsafe { content(annotation) }?;
    let texts =
        Texts { name: Source::Inline(name), endpoint: Source::Inline(endpoint), key: Source::Inline(key) };
    raw::record(&info.into(), &texts, payload, LEGACY_LEVEL);
    Some(())
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

/// Key and payload; the key of a timestamp annotation is its event.
///
/// # Safety
/// `annotation` is not NULL; Invariants 1, 2 and 5.
unsafe fn content<'a>(annotation: *const Annotation) -> Option<(&'a [u8], Payload<'a>)> {
    // SAFETY: a live struct (by Invariant 1), one field of it copied (by Invariant 3).
    let kind = unsafe { (*annotation).kind };
    if kind > TIMESTAMP {
        return None;
    }
    // SAFETY: as above; set for every kind (by Invariant 5).
    let value = unsafe { (*annotation).value };
    if kind == TIMESTAMP {
        // SAFETY: the member that `kind` names (by Invariant 5).
        let event = unsafe { value.text };
        // SAFETY: NULL or a string of the caller (Invariant 2).
        return Some((unsafe { bytes(event) }?, Payload::Event));
    }
    // SAFETY: as `kind`; set for these kinds.
    let key = unsafe { (*annotation).key };
    // SAFETY: NULL or a string of the caller (Invariant 2).
    let key = unsafe { bytes(key) }?;
    if kind == INTEGER {
        // SAFETY: the member that `kind` names (by Invariant 5).
        return Some((key, Payload::Integer(unsafe { value.integer })));
    }
    debug_assert_eq!(kind, STRING);
    // SAFETY: the member that `kind` names (by Invariant 5).
    let text = unsafe { value.text };
    // SAFETY: NULL or a string of the caller (Invariant 2).
    Some((key, Payload::Str(unsafe { bytes(text) }?)))
}
