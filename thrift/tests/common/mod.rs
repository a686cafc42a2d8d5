//! Spans for the tests.
#![allow(dead_code, reason = "each test binary uses its own part")]

use blkin_thrift::{Annotation, AnnotationType, BinaryAnnotation, Endpoint, Span};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

/// The span of the golden files: it has every field, also the extension fields.
pub(crate) fn full_span() -> Span {
    let host = Endpoint { ipv4: 0x0a00_0001, port: -25_126, service_name: "osd.1".to_owned(), ipv6: None };
    let ipv6 = [0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
    let other = Endpoint { ipv4: 0, port: 6789, service_name: "gateway".to_owned(), ipv6: Some(ipv6) };
    Span {
        trace_id: -0x7fff_ffff_ffff_fff1,
        trace_id_high: Some(0x0102_0304_0506_0708),
        name: "osd op".to_owned(),
        id: 0x1122_3344_5566_7788,
        parent_id: Some(42),
        annotations: vec![
            Annotation {
                timestamp: 1_700_000_000_000_001,
                value: "sr".to_owned(),
                host: Some(host.clone()),
                position: Some((3 << 40) | 17),
                source: None,
                nanos: Some(999),
            },
            Annotation { timestamp: 1_700_000_000_000_250, value: "ss".to_owned(), ..Annotation::default() },
        ],
        binary_annotations: vec![
            BinaryAnnotation {
                key: "Object".to_owned(),
                value: "rbd_data.1 – ä".as_bytes().to_vec(),
                kind: AnnotationType::String,
                host: Some(host),
                position: Some(18),
                source: Some(-7),
            },
            BinaryAnnotation {
                key: "ca".to_owned(),
                value: vec![1],
                kind: AnnotationType::Bool,
                host: Some(other),
                position: None,
                source: None,
            },
        ],
        debug: true,
        timestamp: Some(1_700_000_000_000_001),
        duration: Some(249),
        source: Some(0x0f0f),
        left_out: 0,
    }
}

/// An id, or the time of an annotation.
fn not_zero() -> impl Strategy<Value = i64> {
    any::<i64>().prop_filter("0 is none", |number| *number != 0)
}

fn endpoint() -> impl Strategy<Value = Endpoint> {
    (any::<i32>(), any::<i16>(), ".*", option::of(any::<[u8; 16]>()))
        .prop_map(|(ipv4, port, service_name, ipv6)| Endpoint { ipv4, port, service_name, ipv6 })
}

fn annotation() -> impl Strategy<Value = Annotation> {
    let extension = (option::of(any::<i64>()), option::of(any::<i64>()), option::of(any::<i16>()));
    (not_zero(), ".*", option::of(endpoint()), extension).prop_map(
        |(timestamp, value, host, (position, source, nanos))| Annotation {
            timestamp,
            value,
            host,
            position,
            source,
            nanos,
        },
    )
}

fn binary_annotation() -> impl Strategy<Value = BinaryAnnotation> {
    let extension = (option::of(any::<i64>()), option::of(any::<i64>()));
    (".*", vec(any::<u8>(), 0..64), -3..10i32, option::of(endpoint()), extension).prop_map(
        |(key, value, kind, host, (position, source))| BinaryAnnotation {
            key,
            value,
            kind: AnnotationType::from_wire(kind),
            host,
            position,
            source,
        },
    )
}

/// Any span that a decoder accepts.
pub(crate) fn span() -> impl Strategy<Value = Span> {
    let ids = (not_zero(), option::of(any::<i64>()), not_zero(), option::of(any::<i64>()));
    let lists = (vec(annotation(), 0..5), vec(binary_annotation(), 0..5));
    let times = (any::<bool>(), option::of(any::<i64>()), option::of(any::<i64>()), option::of(any::<i64>()));
    (ids, ".*", lists, times).prop_map(
        |((trace_id, trace_id_high, id, parent_id), name, lists, (debug, timestamp, duration, source))| {
            Span {
                trace_id,
                trace_id_high,
                name,
                id,
                parent_id,
                annotations: lists.0,
                binary_annotations: lists.1,
                debug,
                timestamp,
                duration,
                source,
                left_out: 0,
            }
        },
    )
}
