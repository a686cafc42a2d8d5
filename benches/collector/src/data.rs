//! The spans that are sent: traces of a storage system with distinct ids. Every server gets the same spans.

use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

use blkin_thrift::{Annotation, AnnotationType, BinaryAnnotation, Endpoint, Span};
use serde_json::{Value, json};

/// Number of services in the traces.
pub(crate) const SERVICES: u64 = 20;
/// Number of different names of spans.
pub(crate) const NAMES: u64 = 40;
/// Microseconds from the begin of one trace to that of the next.
const APART_US: i64 = 100;

/// Scatters consecutive numbers over all 64 bits, so that they look like ids.
pub(crate) fn scatter(number: u64) -> u64 {
    let mut z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x1234_5678_9abc_def1);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)).max(1)
}

/// The service of a span of a trace.
pub(crate) fn service(trace: u64, span: u64) -> String {
    format!("osd.{}", scatter(trace ^ span << 40) % SERVICES)
}

/// The name of a span of a trace.
pub(crate) fn name(trace: u64, span: u64) -> String {
    format!("operation {}", scatter(trace << 8 ^ span) % NAMES)
}

/// The value of a span's tag `object`, which few other spans share.
pub(crate) fn object(trace: u64, span: u64) -> String {
    format!("rbd_data.{:x}.{:04x}", scatter(trace) % 100_000, span)
}

/// The current time.
pub(crate) fn now_us() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as i64)
}

/// When a trace begins, if the first one began at `first_us`.
pub(crate) fn begin_us(first_us: i64, trace: u64) -> i64 {
    first_us + trace as i64 * APART_US
}

/// The contents of a span, in any format.
struct Told {
    trace_id: u64,
    id: u64,
    parent: Option<u64>,
    service: String,
    name: String,
    begin_us: i64,
    duration_us: i64,
    object: String,
}

fn told(trace: u64, span: u64, first_us: i64) -> Told {
    let trace_id = scatter(trace) & i64::MAX as u64;
    let id = |span: u64| scatter(trace_id ^ span << 32) & i64::MAX as u64;
    Told {
        trace_id,
        id: id(span),
        parent: (span > 0).then(|| id((span - 1) / 3)),
        service: service(trace, span),
        name: name(trace, span),
        begin_us: begin_us(first_us, trace) + span as i64,
        duration_us: 100 + (scatter(trace ^ span) % 10_000) as i64,
        object: object(trace, span),
    }
}

/// Spans of a trace in the v1 format.
pub(crate) fn thrift(trace: u64, spans: Range<u64>, first_us: i64) -> Vec<Span> {
    spans.map(|span| thrift_span(&told(trace, span, first_us))).collect()
}

fn thrift_span(told: &Told) -> Span {
    let host =
        Some(Endpoint { ipv4: 0x0a00_0001, port: 6800, service_name: told.service.clone(), ipv6: None });
    let event = |after: i64, value: &str| Annotation {
        timestamp: told.begin_us + after,
        value: value.to_owned(),
        host: host.clone(),
        ..Annotation::default()
    };
    let tag = |key: &str, value: &str| BinaryAnnotation {
        key: key.to_owned(),
        value: value.as_bytes().to_vec(),
        kind: AnnotationType::String,
        host: host.clone(),
        ..BinaryAnnotation::default()
    };
    Span {
        trace_id: told.trace_id as i64,
        id: told.id as i64,
        parent_id: told.parent.map(|parent| parent as i64),
        name: told.name.clone(),
        timestamp: Some(told.begin_us),
        duration: Some(told.duration_us),
        annotations: vec![
            event(0, "sr"),
            event(told.duration_us / 2, "journal written"),
            event(told.duration_us, "ss"),
        ],
        binary_annotations: vec![tag("object", &told.object), tag("pool", "ssd")],
        ..Span::default()
    }
}

/// The spans of a trace in the v2 format.
pub(crate) fn v2(trace: u64, spans: u64, first_us: i64) -> Vec<Value> {
    (0..spans).map(|span| v2_span(&told(trace, span, first_us))).collect()
}

fn v2_span(told: &Told) -> Value {
    let hex = |id: u64| format!("{id:016x}");
    let mut span = json!({
        "traceId": hex(told.trace_id), "id": hex(told.id), "kind": "SERVER", "name": told.name,
        "timestamp": told.begin_us, "duration": told.duration_us,
        "localEndpoint": {"serviceName": told.service, "ipv4": "10.0.0.1", "port": 6800},
        "annotations": [{"timestamp": told.begin_us + told.duration_us / 2, "value": "journal written"}],
        "tags": {"object": told.object, "pool": "ssd"},
    });
    if let Some(parent) = told.parent {
        span["parentId"] = json!(hex(parent));
    }
    span
}

/// The id of a trace, as written in queries.
pub(crate) fn trace_id(trace: u64) -> String {
    format!("{:016x}", scatter(trace) & i64::MAX as u64)
}
