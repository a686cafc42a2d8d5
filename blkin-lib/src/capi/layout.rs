//! The structs of `zipkin_c.h`, field by field. The asserts state the layout that C compilers give the header's structs on
//! every 64-bit Linux; the C tests assert the same layout.

use std::ffi::{c_char, c_int, c_uint};
use std::mem::{offset_of, size_of};

use super::refuse::Zeroable;
use crate::raw::Ids;
use blkin_ringbuf::process::Place;

/// `struct blkin_endpoint`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Endpoint {
    /// Address as text, or NULL.
    pub(super) ip: *const c_char,
    /// The low 16 bits are the port. Programs compiled against an `int16_t` field wrote only those.
    pub(super) port: c_int,
    /// Name of the service.
    pub(super) name: *const c_char,
}

/// `struct blkin_trace_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct TraceInfo {
    /// Trace id, 0 if not sampled.
    pub(super) trace_id: i64,
    /// Span id.
    pub(super) span_id: i64,
    /// Parent span id, 0 for a root.
    pub(super) parent_span_id: i64,
}

/// `struct blkin_trace_info_packed`: big-endian bytes.
#[repr(C, packed)]
#[derive(Clone, Copy, Debug)]
pub(super) struct PackedTraceInfo {
    pub(super) trace_id: [u8; 8],
    pub(super) span_id: [u8; 8],
    pub(super) parent_span_id: [u8; 8],
}

/// `struct blkin_trace`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Trace {
    /// Name of the span.
    pub(super) name: *const c_char,
    /// Ids of the span.
    pub(super) info: TraceInfo,
    /// Endpoint of the span, or NULL.
    pub(super) endpoint: *const Endpoint,
}

/// The unnamed union in `struct blkin_annotation`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) union AnnotationValue {
    /// `val_str` (strings) or the event (timestamps).
    pub(super) text: *const c_char,
    /// `val_int`.
    pub(super) integer: i64,
}

/// `struct blkin_annotation`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Annotation {
    /// One of [`STRING`], [`INTEGER`], [`TIMESTAMP`]; other values are refused.
    pub(super) kind: c_uint,
    /// Key, or NULL for timestamps.
    pub(super) key: *const c_char,
    /// Value or event.
    pub(super) value: AnnotationValue,
    /// Endpoint of the annotation; NULL: that of the span.
    pub(super) endpoint: *const Endpoint,
}

/// `struct blkin_name`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Name {
    /// Text of the name.
    pub(super) text: *const c_char,
    /// Id in the table of names, 0 until the name is looked up; any thread may write it.
    pub(super) id: u32,
}

/// `struct blkin_span`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    /// The span.
    pub(super) trace: Trace,
    /// The ids of the name (low half) and the endpoint (high half) in the table of names, in the form that records have; 0
    /// unless both have an id.
    pub(super) names: u64,
}

/// `ANNOT_STRING`.
pub(super) const STRING: c_uint = 0;
/// `ANNOT_INTEGER`.
pub(super) const INTEGER: c_uint = 1;
/// `ANNOT_TIMESTAMP`.
pub(super) const TIMESTAMP: c_uint = 2;

// SAFETY: integers, of which any value is valid (Invariant 8).
unsafe impl Zeroable for TraceInfo {}
// SAFETY: bytes, of which any value is valid (Invariant 8).
unsafe impl Zeroable for PackedTraceInfo {}
// SAFETY: pointers, which may be NULL, and integers (Invariant 8).
unsafe impl Zeroable for Trace {}
// SAFETY: as above (Invariant 8).
unsafe impl Zeroable for Annotation {}
// SAFETY: as above (Invariant 8).
unsafe impl Zeroable for Span {}

impl From<TraceInfo> for Ids {
    fn from(info: TraceInfo) -> Ids {
        Ids::new(
            info.trace_id.cast_unsigned(),
            info.span_id.cast_unsigned(),
            info.parent_span_id.cast_unsigned(),
        )
    }
}

impl From<Ids> for TraceInfo {
    fn from(ids: Ids) -> TraceInfo {
        TraceInfo {
            trace_id: ids.trace_id().cast_signed(),
            span_id: ids.span_id().cast_signed(),
            parent_span_id: ids.parent_span_id().cast_signed(),
        }
    }
}

#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<Endpoint>() == 24);
    assert!(offset_of!(Endpoint, port) == 8);
    assert!(offset_of!(Endpoint, name) == 16);
    assert!(size_of::<Endpoint>() == size_of::<Place>());
    assert!(offset_of!(Endpoint, ip) == offset_of!(Place, ip));
    assert!(offset_of!(Endpoint, port) == offset_of!(Place, port));
    assert!(offset_of!(Endpoint, name) == offset_of!(Place, service));
    assert!(size_of::<TraceInfo>() == 24);
    assert!(size_of::<PackedTraceInfo>() == 24);
    assert!(size_of::<Trace>() == 40);
    assert!(offset_of!(Trace, info) == 8);
    assert!(offset_of!(Trace, endpoint) == 32);
    assert!(size_of::<Name>() == 16);
    assert!(offset_of!(Name, id) == 8);
    assert!(size_of::<Span>() == 48);
    assert!(offset_of!(Span, names) == 40);
    assert!(size_of::<Annotation>() == 32);
    assert!(offset_of!(Annotation, key) == 8);
    assert!(offset_of!(Annotation, value) == 16);
    assert!(offset_of!(Annotation, endpoint) == 24);
};
