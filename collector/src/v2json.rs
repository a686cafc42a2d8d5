//! Zipkin's v2 JSON: the body of `POST /api/v2/spans`, and the answers to queries.

use std::collections::BTreeMap;
use std::fmt;

use blkin_thrift::Limits;
pub use blkin_zipkin::write::{write_span, write_trace, write_trace_with_nanos, write_traces};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, Visitor};

use crate::json::{
    Common, EndpointWire, Moment, Name, Object, Reading, Text, read_entries, required, set, skip,
};
use crate::model::{Annotation, BadId, Kind, Marks, Span, SpanId, TraceId, lower_name};
use crate::refusal::{BadEntry, BadList};

/// Reads a list of spans. Members that are unknown, or optional and null, are skipped.
///
/// # Errors
/// When the body is not a JSON list, or has too many entries.
pub fn read_list(body: &[u8], limits: &Limits) -> Result<Vec<Result<Span, BadEntry>>, BadList> {
    read_entries(body, limits)
}

/// Reads one entry of a list.
///
/// # Errors
/// When it is not a span, or exceeds a limit.
pub(crate) fn read_one(json: &str, limits: &Limits) -> Result<Span, BadEntry> {
    crate::json::read_entry(json, limits)
}

#[derive(Default)]
pub(crate) struct SpanParts {
    common: Common,
    kind: Option<Text>,
    local_endpoint: Option<EndpointWire>,
    remote_endpoint: Option<EndpointWire>,
    annotations: Vec<Annotation>,
    tags: BTreeMap<String, String>,
    shared: bool,
}

impl Object for Span {
    type Parts = SpanParts;

    fn member<'de, A: MapAccess<'de>>(
        parts: &mut SpanParts,
        name: &str,
        members: &mut A,
        reading: &Reading<'_>,
    ) -> Result<(), A::Error> {
        if parts.common.member(name, members)? {
            return Ok(());
        }
        match name {
            "kind" => set(&mut parts.kind, members)?,
            "localEndpoint" => {
                parts.local_endpoint = reading.optional(members)?.or(parts.local_endpoint.take());
            }
            "remoteEndpoint" => {
                parts.remote_endpoint = reading.optional(members)?.or(parts.remote_endpoint.take());
            }
            "annotations" => reading.extend(&mut parts.annotations, "annotations", members)?,
            "tags" => members.next_value_seed(Tags { reading, tags: &mut parts.tags })?,
            "shared" => parts.shared |= members.next_value::<Option<bool>>()?.unwrap_or(false),
            "binaryAnnotations" => reading.check(Err(BadEntry::OtherVersion("binaryAnnotations")))?,
            _ => skip(members)?,
        }
        Ok(())
    }

    fn finish(parts: SpanParts) -> Result<Self, BadEntry> {
        let common = parts.common;
        let span = Span {
            trace_id: required(common.trace_id.map(|text| text.0.parse::<TraceId>()), "traceId")?,
            parent_id: common.parent_id.map_or(Ok(None), read_parent)?,
            id: required(common.id.map(|text| text.0.parse::<SpanId>()), "id")?,
            kind: parts.kind.map(read_kind).transpose()?,
            name: common.name.and_then(|name| lower_name(&name.0)),
            timestamp: common.timestamp.map(|timestamp| timestamp.0),
            duration: common.duration.map(|duration| duration.0),
            local_endpoint: parts.local_endpoint.and_then(|wire| wire.0),
            remote_endpoint: parts.remote_endpoint.and_then(|wire| wire.0),
            annotations: parts.annotations,
            tags: parts.tags.into_iter().collect(),
            debug: common.debug,
            shared: parts.shared,
            marks: Marks::default(),
        };
        Ok(span.normalized())
    }
}

/// Reads a parent's id; an id of zeros means no parent.
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

impl Object for Annotation {
    type Parts = Moment;

    fn member<'de, A: MapAccess<'de>>(
        moment: &mut Moment,
        name: &str,
        members: &mut A,
        _: &Reading<'_>,
    ) -> Result<(), A::Error> {
        if moment.member(name, members)? { Ok(()) } else { skip(members) }
    }

    fn finish(moment: Moment) -> Result<Self, BadEntry> {
        moment.finish().map(|(timestamp, value)| Annotation::new(timestamp, value))
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
