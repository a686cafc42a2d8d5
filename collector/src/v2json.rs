//! Zipkin's v2 JSON: what `POST /api/v2/spans` brings and what queries answer.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::json::{EndpointWire, Text, Whole, read_entries};
use crate::model::{Annotation, BadId, Kind, Span, SpanId, TraceId, lower_name};

pub use crate::json::{BadEntry, BadList};

/// Reads a list of spans. Members that are unknown, or optional and null, are skipped.
pub fn read_list(body: &[u8]) -> Result<Vec<Result<Span, BadEntry>>, BadList> {
    read_entries(body, read_span)
}

/// Writes one span.
pub fn write_span(span: &Span) -> String {
    json(span)
}

/// Writes the spans of one trace as a list.
pub fn write_trace(spans: &[Span]) -> String {
    json(spans)
}

/// Writes several traces as a list of lists.
pub fn write_traces(traces: &[Vec<Span>]) -> String {
    json(traces)
}

fn json<T: serde::Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).expect("a span has string keys and fits into memory")
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SpanWire {
    trace_id: Option<Text>,
    id: Option<Text>,
    parent_id: Option<Text>,
    kind: Option<Text>,
    name: Option<Text>,
    timestamp: Option<Whole>,
    duration: Option<Whole>,
    local_endpoint: Option<EndpointWire>,
    remote_endpoint: Option<EndpointWire>,
    annotations: Option<Vec<AnnotationWire>>,
    tags: Option<BTreeMap<String, Text>>,
    debug: Option<bool>,
    shared: Option<bool>,
}

#[derive(Deserialize)]
struct AnnotationWire {
    timestamp: Option<Whole>,
    value: Option<Text>,
}

fn read_span(json: &str) -> Result<Span, BadEntry> {
    let wire: SpanWire = serde_json::from_str(json)?;
    let trace_id = required(wire.trace_id, "traceId")?;
    let id = required(wire.id, "id")?;
    let span = Span {
        trace_id,
        parent_id: wire.parent_id.map_or(Ok(None), read_parent)?,
        id,
        kind: wire.kind.map(read_kind).transpose()?,
        name: wire.name.and_then(|name| lower_name(&name.0)),
        timestamp: wire.timestamp.map(|timestamp| timestamp.0),
        duration: wire.duration.map(|duration| duration.0),
        local_endpoint: wire.local_endpoint.map_or(Ok(None), EndpointWire::read)?,
        remote_endpoint: wire.remote_endpoint.map_or(Ok(None), EndpointWire::read)?,
        annotations: wire
            .annotations
            .unwrap_or_default()
            .into_iter()
            .map(read_annotation)
            .collect::<Result<_, _>>()?,
        tags: wire.tags.unwrap_or_default().into_iter().map(|(key, value)| (key, value.0)).collect(),
        debug: wire.debug.unwrap_or(false),
        shared: wire.shared.unwrap_or(false),
    };
    Ok(span.normalized())
}

fn required<T: std::str::FromStr<Err = BadId>>(
    text: Option<Text>,
    member: &'static str,
) -> Result<T, BadEntry> {
    let Text(text) = text.ok_or(BadEntry::Missing(member))?;
    text.parse().map_err(|cause| BadEntry::Id { member, cause })
}

/// A parent of zeros is no parent.
fn read_parent(text: Text) -> Result<Option<SpanId>, BadEntry> {
    match text.0.parse() {
        Ok(parent) => Ok(Some(parent)),
        Err(BadId::Zero) => Ok(None),
        Err(cause) => Err(BadEntry::Id { member: "parentId", cause }),
    }
}

fn read_kind(text: Text) -> Result<Kind, BadEntry> {
    Kind::from_name(&text.0).ok_or(BadEntry::Kind(text.0))
}

fn read_annotation(wire: AnnotationWire) -> Result<Annotation, BadEntry> {
    match (wire.timestamp, wire.value) {
        (Some(Whole(timestamp)), Some(Text(value))) => Ok(Annotation { timestamp, value }),
        _ => Err(BadEntry::IncompleteAnnotation),
    }
}

/// The trace id of a query's path or argument.
pub fn read_trace_id(text: &str) -> Result<TraceId, BadId> {
    text.parse()
}
