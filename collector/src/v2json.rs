//! Zipkin's v2 JSON: what `POST /api/v2/spans` brings and what queries answer.

use std::collections::BTreeMap;
use std::fmt;

use blkin_thrift::Limits;
pub use blkin_zipkin::write::{write_span, write_trace, write_trace_with_nanos, write_traces};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, Visitor};

use crate::json::{EndpointWire, Name, Object, Reading, Text, Whole, read_entries, required, set, skip};
use crate::model::{Annotation, BadId, Kind, Span, SpanId, TraceId, lower_name};
use crate::refusal::{BadEntry, BadList};

/// Reads a list of spans. Members that are unknown, or optional and null, are skipped.
///
/// # Errors
/// When the body is no JSON list, or has too many entries.
pub fn read_list(body: &[u8], limits: &Limits) -> Result<Vec<Result<Span, BadEntry>>, BadList> {
    let entries = read_entries::<SpanWire>(body, limits)?;
    Ok(entries.into_iter().map(|entry| entry.map(|SpanWire(span)| span)).collect())
}

/// Reads one entry of a list.
///
/// # Errors
/// When it is no span, or beyond a limit.
pub(crate) fn read_one(json: &str, limits: &Limits) -> Result<Span, BadEntry> {
    crate::json::read_entry(json, limits).map(|SpanWire(span)| span)
}

struct SpanWire(Span);

#[derive(Default)]
struct SpanParts {
    trace_id: Option<Text>,
    id: Option<Text>,
    parent_id: Option<Text>,
    kind: Option<Text>,
    name: Option<Text>,
    timestamp: Option<Whole>,
    duration: Option<Whole>,
    local_endpoint: Option<EndpointWire>,
    remote_endpoint: Option<EndpointWire>,
    annotations: Vec<AnnotationWire>,
    tags: BTreeMap<String, String>,
    debug: bool,
    shared: bool,
}

impl Object for SpanWire {
    type Parts = SpanParts;

    fn member<'de, A: MapAccess<'de>>(
        parts: &mut SpanParts,
        name: &str,
        members: &mut A,
        reading: &Reading<'_>,
    ) -> Result<(), A::Error> {
        match name {
            "traceId" => parts.trace_id = Some(members.next_value()?),
            "id" => parts.id = Some(members.next_value()?),
            "parentId" => set(&mut parts.parent_id, members)?,
            "kind" => set(&mut parts.kind, members)?,
            "name" => set(&mut parts.name, members)?,
            "timestamp" => set(&mut parts.timestamp, members)?,
            "duration" => set(&mut parts.duration, members)?,
            "localEndpoint" => {
                parts.local_endpoint = reading.optional(members)?.or(parts.local_endpoint.take());
            }
            "remoteEndpoint" => {
                parts.remote_endpoint = reading.optional(members)?.or(parts.remote_endpoint.take());
            }
            "annotations" => reading.extend(&mut parts.annotations, "annotations", members)?,
            "tags" => members.next_value_seed(Tags { reading, tags: &mut parts.tags })?,
            "debug" => parts.debug |= members.next_value::<Option<bool>>()?.unwrap_or(false),
            "shared" => parts.shared |= members.next_value::<Option<bool>>()?.unwrap_or(false),
            "binaryAnnotations" => reading.check(Err(BadEntry::OtherVersion("binaryAnnotations")))?,
            _ => skip(members)?,
        }
        Ok(())
    }

    fn finish(parts: SpanParts) -> Result<Self, BadEntry> {
        let span = Span {
            trace_id: required(parts.trace_id.map(|text| text.0.parse::<TraceId>()), "traceId")?,
            parent_id: parts.parent_id.map_or(Ok(None), read_parent)?,
            id: required(parts.id.map(|text| text.0.parse::<SpanId>()), "id")?,
            kind: parts.kind.map(read_kind).transpose()?,
            name: parts.name.and_then(|name| lower_name(&name.0)),
            timestamp: parts.timestamp.map(|timestamp| timestamp.0),
            duration: parts.duration.map(|duration| duration.0),
            local_endpoint: parts.local_endpoint.and_then(|wire| wire.0),
            remote_endpoint: parts.remote_endpoint.and_then(|wire| wire.0),
            annotations: parts.annotations.into_iter().map(|wire| wire.0).collect(),
            tags: parts.tags,
            debug: parts.debug,
            shared: parts.shared,
        };
        Ok(SpanWire(span.normalized()))
    }
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

struct AnnotationWire(Annotation);

#[derive(Default)]
struct AnnotationParts {
    timestamp: Option<Whole>,
    value: Option<Text>,
}

impl Object for AnnotationWire {
    type Parts = AnnotationParts;

    fn member<'de, A: MapAccess<'de>>(
        parts: &mut AnnotationParts,
        name: &str,
        members: &mut A,
        _: &Reading<'_>,
    ) -> Result<(), A::Error> {
        match name {
            "timestamp" => parts.timestamp = Some(members.next_value()?),
            "value" => parts.value = Some(members.next_value()?),
            _ => skip(members)?,
        }
        Ok(())
    }

    fn finish(parts: AnnotationParts) -> Result<Self, BadEntry> {
        match (parts.timestamp, parts.value) {
            (Some(Whole(timestamp)), Some(Text(value))) => {
                Ok(AnnotationWire(Annotation::new(timestamp, value)))
            }
            _ => Err(BadEntry::IncompleteAnnotation),
        }
    }
}

/// The tags of a span; null is none.
struct Tags<'r> {
    reading: &'r Reading<'r>,
    tags: &'r mut BTreeMap<String, String>,
}

impl<'de> DeserializeSeed<'de> for Tags<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Tags<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tags")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        while let Some((Name(key), Text(value))) = members.next_entry()? {
            self.reading.one_more("tags", self.tags.len())?;
            self.tags.insert(key.into_owned(), value);
        }
        Ok(())
    }
}
