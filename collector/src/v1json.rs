//! Zipkin's v1 JSON: the older body of `POST /api/v1/spans`. It is read into the same v1 span as thrift, so that both
//! are merged and converted by the same rules.

use blkin_thrift::{Annotation, AnnotationType, BinaryAnnotation, Span};
use serde::Deserialize;
use serde_json::Value;

use crate::json::{EndpointWire, Text, Whole, read_entries};
use crate::model::{BadId, Endpoint, lower_hex};

pub use crate::json::{BadEntry, BadList};

/// Reads a list of v1 spans. Members that are unknown, or optional and null, are skipped.
pub fn read_list(body: &[u8]) -> Result<Vec<Result<Span, BadEntry>>, BadList> {
    read_entries(body, read_span)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SpanWire {
    trace_id: Option<Text>,
    id: Option<Text>,
    parent_id: Option<Text>,
    name: Option<Text>,
    timestamp: Option<Whole>,
    duration: Option<Whole>,
    annotations: Option<Vec<AnnotationWire>>,
    binary_annotations: Option<Vec<BinaryAnnotationWire>>,
    debug: Option<bool>,
}

#[derive(Deserialize)]
struct AnnotationWire {
    timestamp: Option<Whole>,
    value: Option<Text>,
    endpoint: Option<EndpointWire>,
}

#[derive(Deserialize)]
struct BinaryAnnotationWire {
    key: Option<Text>,
    value: Option<Value>,
    endpoint: Option<EndpointWire>,
}

fn read_span(json: &str) -> Result<Span, BadEntry> {
    let wire: SpanWire = serde_json::from_str(json)?;
    let trace_id = read_id(&wire.trace_id.ok_or(BadEntry::Missing("traceId"))?, "traceId")?;
    let id = read_id(&wire.id.ok_or(BadEntry::Missing("id"))?, "id")?;
    for (member, low) in [("traceId", trace_id as u64), ("id", id as u64)] {
        if low == 0 {
            return Err(BadEntry::Id { member, cause: BadId::Zero });
        }
    }
    let high = (trace_id >> 64) as i64;
    let parent_id = wire.parent_id.map(|text| read_id(&text, "parentId")).transpose()?;
    Ok(Span {
        trace_id: trace_id as i64,
        trace_id_high: (high != 0).then_some(high),
        name: wire.name.map_or(String::new(), |name| name.0),
        id: id as i64,
        parent_id: parent_id.map(|parent| parent as i64),
        annotations: collect(wire.annotations, read_annotation)?,
        binary_annotations: collect(wire.binary_annotations, read_binary_annotation)?,
        debug: wire.debug.unwrap_or(false),
        timestamp: wire.timestamp.map(|timestamp| timestamp.0),
        duration: wire.duration.map(|duration| duration.0),
        source: None,
    })
}

fn read_id(text: &Text, member: &'static str) -> Result<u128, BadEntry> {
    lower_hex(&text.0, 32).map_err(|cause| BadEntry::Id { member, cause })
}

fn collect<W, T>(list: Option<Vec<W>>, read: impl Fn(W) -> Result<T, BadEntry>) -> Result<Vec<T>, BadEntry> {
    list.unwrap_or_default().into_iter().map(read).collect()
}

fn read_annotation(wire: AnnotationWire) -> Result<Annotation, BadEntry> {
    let (Some(Whole(timestamp)), Some(Text(value))) = (wire.timestamp, wire.value) else {
        return Err(BadEntry::IncompleteAnnotation);
    };
    Ok(Annotation { timestamp, value, host: read_host(wire.endpoint)?, ..Annotation::default() })
}

/// A value is a string or, for an address, true; others mean nothing, and become a type that no reader shows.
fn read_binary_annotation(wire: BinaryAnnotationWire) -> Result<BinaryAnnotation, BadEntry> {
    let Text(key) = wire.key.ok_or(BadEntry::Missing("key of a binary annotation"))?;
    let (kind, value) = match wire.value {
        Some(Value::String(text)) => (AnnotationType::String, text.into_bytes()),
        Some(Value::Bool(flag)) => (AnnotationType::Bool, vec![u8::from(flag)]),
        _ => (AnnotationType::Bytes, Vec::new()),
    };
    Ok(BinaryAnnotation { key, value, kind, host: read_host(wire.endpoint)?, ..BinaryAnnotation::default() })
}

fn read_host(wire: Option<EndpointWire>) -> Result<Option<blkin_thrift::Endpoint>, BadEntry> {
    let endpoint = wire.map_or(Ok(None), EndpointWire::read)?;
    Ok(endpoint.map(|Endpoint { service_name, ipv4, ipv6, port }| blkin_thrift::Endpoint {
        ipv4: ipv4.map_or(0, |ip| u32::from(ip) as i32),
        port: port.unwrap_or(0) as i16,
        service_name: service_name.unwrap_or_default(),
        ipv6: ipv6.map(|ip| ip.octets()),
    }))
}
