//! A v2 JSON span read in place: numbers, and slices of the text it came in.
//!
//! Whoever takes in very many spans needs no copies of their texts. A [`V2View`] reads what reporters write, in one
//! pass, into memory that it keeps. It knows nothing of tolerance: at whatever is unusual, such as a member that comes
//! twice, a number as text or an escaped string, it says no, and [`v2json`](crate::v2json), which is the definition,
//! reads the span.

use std::fmt;
use std::marker::PhantomData;

use blkin_thrift::Limits;
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

pub use crate::json::entries;
use crate::json::skip;
use crate::model::{BadId, Kind, SpanId, TraceId};

/// A [`Span`](crate::model::Span) whose texts stay where they are, as written: not in lower case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct V2View<'a> {
    /// The id of the trace; there is one when a span was read.
    pub trace_id: Option<TraceId>,
    /// Whether the span has a parent.
    pub parent: bool,
    /// Whether samplers had to let this span pass.
    pub debug: bool,
    /// What the span does.
    pub name: Option<&'a str>,
    /// Start in microseconds since 1970, above zero.
    pub timestamp: Option<i64>,
    /// Microseconds, above zero.
    pub duration: Option<i64>,
    /// The name of the service that recorded this span.
    pub service: Option<&'a str>,
    /// The name of the service on the other side.
    pub remote_service: Option<&'a str>,
    /// What happened, sorted by time and value, each pair once.
    pub annotations: Vec<(i64, &'a str)>,
    /// What is known, sorted by key, each key once.
    pub tags: Vec<(&'a str, &'a str)>,
}

impl<'a> V2View<'a> {
    /// Reads one entry of a list in place of what was there (the vectors keep their memory). True:
    /// [`v2json`](crate::v2json) reads a span that says the same. False: let that read the entry; the view then holds
    /// nothing of use.
    pub fn read(&mut self, json: &'a str, limits: &Limits) -> bool {
        let (mut annotations, mut tags) =
            (std::mem::take(&mut self.annotations), std::mem::take(&mut self.tags));
        annotations.clear();
        tags.clear();
        *self = V2View { annotations, tags, ..V2View::default() };
        json.len() <= limits.max_span_bytes && self.fill(json, limits.max_annotations).is_some()
    }

    fn fill(&mut self, json: &'a str, max: usize) -> Option<()> {
        let mut entry = Entry {
            members: Members::default(),
            annotations: Annotations { read: &mut self.annotations, max },
            tags: Tags { read: &mut self.tags, max },
        };
        let mut deserializer = serde_json::Deserializer::from_str(json);
        Object(&mut entry).deserialize(&mut deserializer).and_then(|()| deserializer.end()).ok()?;
        let members = entry.members;
        let id = members.id?.parse::<SpanId>().ok()?;
        members.kind.is_none_or(|kind| Kind::from_name(kind).is_some()).then_some(())?;
        self.trace_id = Some(members.trace_id?.parse().ok()?);
        self.parent = members.parent_id.map_or(Ok(false), |parent| is_parent(parent, id)).ok()?;
        self.debug = members.debug.unwrap_or(false);
        self.name = members.name.filter(|name| !name.is_empty());
        self.timestamp = members.timestamp.filter(|timestamp| *timestamp > 0);
        self.duration = members.duration.filter(|duration| *duration > 0);
        self.service = members.local_endpoint.and_then(|endpoint| endpoint.service());
        self.remote_service = members.remote_endpoint.and_then(|endpoint| endpoint.service());
        self.sort().then_some(())
    }

    /// Sorts annotations and tags; false if any comes twice.
    fn sort(&mut self) -> bool {
        self.annotations.sort_unstable();
        self.tags.sort_unstable_by_key(|(key, _)| *key);
        self.annotations.is_sorted_by(|one, next| one < next)
            && self.tags.is_sorted_by(|(one, _), (next, _)| one < next)
    }
}

/// A parent of zeros is no parent, and nor is the span itself.
fn is_parent(text: &str, id: SpanId) -> Result<bool, BadId> {
    match text.parse::<SpanId>() {
        Ok(parent) => Ok(parent != id),
        Err(BadId::Zero) => Ok(false),
        Err(cause) => Err(cause),
    }
}

/// What the members of a JSON object are read into.
trait ReadMember<'a> {
    /// Takes the value of one member.
    fn member<A: MapAccess<'a>>(&mut self, name: &'a str, members: &mut A) -> Result<(), A::Error>;
}

/// A JSON object, and nothing else.
struct Object<'r, T>(&'r mut T);

impl<'a, T: ReadMember<'a>> DeserializeSeed<'a> for Object<'_, T> {
    type Value = ();

    fn deserialize<D: Deserializer<'a>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'a, T: ReadMember<'a>> Visitor<'a> for Object<'_, T> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut members: A) -> Result<(), A::Error> {
        while let Some(name) = members.next_key::<&str>()? {
            self.0.member(name, &mut members)?;
        }
        Ok(())
    }
}

/// Reads a value that must not have been there before.
fn once<'a, S: DeserializeSeed<'a>, A: MapAccess<'a>>(
    place: &mut Option<S::Value>,
    members: &mut A,
    seed: S,
) -> Result<(), A::Error> {
    if place.is_some() {
        return Err(de::Error::custom("a member that comes twice"));
    }
    *place = Some(members.next_value_seed(seed)?);
    Ok(())
}

struct Entry<'v, 'a> {
    members: Members<'a>,
    annotations: Annotations<'v, 'a>,
    tags: Tags<'v, 'a>,
}

#[derive(Default)]
struct Members<'a> {
    trace_id: Option<&'a str>,
    id: Option<&'a str>,
    parent_id: Option<&'a str>,
    kind: Option<&'a str>,
    name: Option<&'a str>,
    timestamp: Option<i64>,
    duration: Option<i64>,
    local_endpoint: Option<PlainEndpoint<'a>>,
    remote_endpoint: Option<PlainEndpoint<'a>>,
    annotations: Option<()>,
    tags: Option<()>,
    debug: Option<bool>,
    shared: Option<bool>,
}

impl<'a> ReadMember<'a> for Entry<'_, 'a> {
    fn member<A: MapAccess<'a>>(&mut self, name: &'a str, members: &mut A) -> Result<(), A::Error> {
        let read = &mut self.members;
        match name {
            "traceId" => once(&mut read.trace_id, members, PhantomData),
            "id" => once(&mut read.id, members, PhantomData),
            "parentId" => once(&mut read.parent_id, members, PhantomData),
            "kind" => once(&mut read.kind, members, PhantomData),
            "name" => once(&mut read.name, members, PhantomData),
            "timestamp" => once(&mut read.timestamp, members, PhantomData),
            "duration" => once(&mut read.duration, members, PhantomData),
            "localEndpoint" => once(&mut read.local_endpoint, members, EndpointSeed),
            "remoteEndpoint" => once(&mut read.remote_endpoint, members, EndpointSeed),
            "annotations" => once(&mut read.annotations, members, &mut self.annotations),
            "tags" => once(&mut read.tags, members, Object(&mut self.tags)),
            "debug" => once(&mut read.debug, members, PhantomData),
            "shared" => once(&mut read.shared, members, PhantomData),
            "binaryAnnotations" => Err(de::Error::custom("a member of the other version")),
            _ => skip(members),
        }
    }
}

/// An endpoint, of which only the service's name is kept.
#[derive(Default)]
struct PlainEndpoint<'a> {
    service_name: Option<&'a str>,
    ipv4: Option<&'a str>,
    ipv6: Option<&'a str>,
    port: Option<i64>,
}

impl<'a> PlainEndpoint<'a> {
    fn service(&self) -> Option<&'a str> {
        self.service_name.filter(|name| !name.is_empty())
    }
}

impl<'a> ReadMember<'a> for PlainEndpoint<'a> {
    fn member<A: MapAccess<'a>>(&mut self, name: &'a str, members: &mut A) -> Result<(), A::Error> {
        match name {
            "serviceName" => once(&mut self.service_name, members, PhantomData),
            "ipv4" => once(&mut self.ipv4, members, PhantomData),
            "ipv6" => once(&mut self.ipv6, members, PhantomData),
            "port" => once(&mut self.port, members, PhantomData),
            _ => skip(members),
        }
    }
}

struct EndpointSeed;

impl<'a> DeserializeSeed<'a> for EndpointSeed {
    type Value = PlainEndpoint<'a>;

    fn deserialize<D: Deserializer<'a>>(self, deserializer: D) -> Result<PlainEndpoint<'a>, D::Error> {
        let mut endpoint = PlainEndpoint::default();
        Object(&mut endpoint).deserialize(deserializer)?;
        match endpoint.port {
            Some(port) if port > i64::from(u16::MAX) => Err(de::Error::custom("a port out of range")),
            _ => Ok(endpoint),
        }
    }
}

struct Annotations<'v, 'a> {
    read: &'v mut Vec<(i64, &'a str)>,
    max: usize,
}

impl<'a> DeserializeSeed<'a> for &mut Annotations<'_, 'a> {
    type Value = ();

    fn deserialize<D: Deserializer<'a>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'a> Visitor<'a> for &mut Annotations<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut elements: A) -> Result<(), A::Error> {
        let mut annotation = PlainAnnotation::default();
        while let Some(()) = elements.next_element_seed(Object(&mut annotation))? {
            match std::mem::take(&mut annotation) {
                PlainAnnotation { timestamp: Some(timestamp), value: Some(value) }
                    if self.read.len() < self.max =>
                {
                    self.read.push((timestamp, value));
                }
                _ => return Err(de::Error::custom("an incomplete annotation, or too many")),
            }
        }
        Ok(())
    }
}

#[derive(Default)]
struct PlainAnnotation<'a> {
    timestamp: Option<i64>,
    value: Option<&'a str>,
}

impl<'a> ReadMember<'a> for PlainAnnotation<'a> {
    fn member<A: MapAccess<'a>>(&mut self, name: &'a str, members: &mut A) -> Result<(), A::Error> {
        match name {
            "timestamp" => once(&mut self.timestamp, members, PhantomData),
            "value" => once(&mut self.value, members, PhantomData),
            _ => skip(members),
        }
    }
}

struct Tags<'v, 'a> {
    read: &'v mut Vec<(&'a str, &'a str)>,
    max: usize,
}

impl<'a> ReadMember<'a> for Tags<'_, 'a> {
    fn member<A: MapAccess<'a>>(&mut self, key: &'a str, members: &mut A) -> Result<(), A::Error> {
        if self.read.len() == self.max {
            return Err(de::Error::custom("too many tags"));
        }
        self.read.push((key, members.next_value()?));
        Ok(())
    }
}
