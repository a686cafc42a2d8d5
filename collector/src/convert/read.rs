//! What of a thrift span counts.

use std::borrow::Cow;

use blkin_thrift::{Annotation, AnnotationType, BinaryAnnotation};

use crate::model::{Endpoint, SpanId, TraceId, lower_name};

/// A v1 span as Zipkin understands it: zeros and empty texts are absent, what Zipkin ignores is gone, and all is
/// sorted as Zipkin sorts it.
pub(super) struct V1<'a> {
    pub(super) trace_id: TraceId,
    pub(super) parent_id: Option<SpanId>,
    pub(super) id: SpanId,
    pub(super) name: Option<String>,
    /// 0 is none.
    pub(super) timestamp: i64,
    /// 0 is none.
    pub(super) duration: i64,
    pub(super) events: Vec<Event<'a>>,
    pub(super) tags: Vec<Tag<'a>>,
    pub(super) debug: bool,
}

/// An annotation.
pub(super) struct Event<'a> {
    pub(super) timestamp: i64,
    pub(super) value: &'a str,
    pub(super) endpoint: Option<Endpoint>,
}

/// A binary annotation.
pub(super) struct Tag<'a> {
    pub(super) key: &'a str,
    pub(super) value: Cow<'a, str>,
    pub(super) endpoint: Option<Endpoint>,
}

impl<'a> V1<'a> {
    pub(super) fn read(span: &'a blkin_thrift::Span) -> Option<V1<'a>> {
        let high = span.trace_id_high.unwrap_or(0);
        let mut events: Vec<_> = span.annotations.iter().filter_map(read_event).collect();
        events.sort_by(|left, right| (left.timestamp, left.value).cmp(&(right.timestamp, right.value)));
        let mut tags: Vec<_> = span.binary_annotations.iter().filter_map(read_tag).collect();
        tags.sort_by(|left, right| left.key.cmp(right.key));
        Some(V1 {
            trace_id: TraceId::new(high as u64, span.trace_id as u64)?,
            parent_id: SpanId::new(span.parent_id.unwrap_or(0) as u64),
            id: SpanId::new(span.id as u64)?,
            name: lower_name(&span.name),
            timestamp: span.timestamp.unwrap_or(0),
            duration: span.duration.unwrap_or(0),
            events,
            tags,
            debug: span.debug,
        })
    }
}

fn read_event(annotation: &Annotation) -> Option<Event<'_>> {
    let Annotation { timestamp, value, host, .. } = annotation;
    (*timestamp != 0).then(|| Event { timestamp: *timestamp, value, endpoint: read_host(host.as_ref()) })
}

fn read_tag(annotation: &BinaryAnnotation) -> Option<Tag<'_>> {
    let BinaryAnnotation { key, host, .. } = annotation;
    let endpoint = read_host(host.as_ref());
    let value = match (annotation.kind, annotation.value.as_slice()) {
        (AnnotationType::Bool, [1]) if endpoint.is_some() && is_address(key) => Cow::Borrowed("true"),
        (kind, value) => read_value(kind, value)?,
    };
    Some(Tag { key, value, endpoint })
}

/// Whether a key tells who is on the other side: of the server, the client, the message.
pub(super) fn is_address(key: &str) -> bool {
    matches!(key, "ca" | "sa" | "ma")
}

fn read_value(kind: AnnotationType, value: &[u8]) -> Option<Cow<'_, str>> {
    let number = match kind {
        AnnotationType::String => return Some(String::from_utf8_lossy(value)),
        AnnotationType::I16 => i16::from_be_bytes(value.try_into().ok()?).to_string(),
        AnnotationType::I32 => i32::from_be_bytes(value.try_into().ok()?).to_string(),
        AnnotationType::I64 => i64::from_be_bytes(value.try_into().ok()?).to_string(),
        AnnotationType::Double => f64::from_be_bytes(value.try_into().ok()?).to_string(),
        AnnotationType::Bool | AnnotationType::Bytes | AnnotationType::Other(_) => return None,
    };
    Some(Cow::Owned(number))
}

/// Reads an endpoint; one of which nothing is known is none.
pub(super) fn read_host(host: Option<&blkin_thrift::Endpoint>) -> Option<Endpoint> {
    let host = host?;
    let mut endpoint = Endpoint::service(&host.service_name);
    endpoint.port = Some(host.port as u16).filter(|&port| port != 0);
    if host.ipv4 != 0 {
        endpoint.ipv4 = Some((host.ipv4 as u32).into());
    }
    if let Some(address) = host.ipv6 {
        endpoint.set_ipv6(address.into());
    }
    Some(endpoint).filter(|endpoint| !endpoint.is_empty())
}
