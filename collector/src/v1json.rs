//! Zipkin's v1 JSON: the older body of `POST /api/v1/spans`. It is read into the same v1 span as thrift, so that both
//! are merged and converted by the same rules.

use blkin_thrift::{Annotation, AnnotationType, BinaryAnnotation, Limits, Span};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess};
use serde_json::value::RawValue;

use crate::json::{
    Common, EndpointWire, Moment, Object, Reading, Text, read_entries, required, set, skip, within,
};
use crate::model::{BadId, Endpoint, lower_hex};
use crate::refusal::{BadEntry, BadList};

/// Reads a list of v1 spans. Members that are unknown, or optional and null, are skipped.
///
/// # Errors
/// When the body is not a JSON list, or has too many entries.
pub fn read_list(body: &[u8], limits: &Limits) -> Result<Vec<Result<Span, BadEntry>>, BadList> {
    read_entries(body, limits)
}

#[derive(Default)]
pub(crate) struct SpanParts {
    common: Common,
    annotations: Vec<Annotation>,
    binary_annotations: Vec<BinaryAnnotation>,
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
            "annotations" => reading.extend(&mut parts.annotations, "annotations", members)?,
            "binaryAnnotations" => {
                reading.extend(&mut parts.binary_annotations, "binary annotations", members)?;
            }
            "localEndpoint" => reading.check(Err(BadEntry::OtherVersion("localEndpoint")))?,
            "remoteEndpoint" => reading.check(Err(BadEntry::OtherVersion("remoteEndpoint")))?,
            "tags" => reading.check(Err(BadEntry::OtherVersion("tags")))?,
            _ => skip(members)?,
        }
        Ok(())
    }

    fn finish(SpanParts { common, annotations, binary_annotations }: SpanParts) -> Result<Self, BadEntry> {
        let trace_id = required(common.trace_id.map(|text| read_id(&text)), "traceId")?;
        let id = required(common.id.map(|text| read_id(&text)), "id")?;
        for (member, low) in [("traceId", trace_id as u64), ("id", id as u64)] {
            if low == 0 {
                return Err(BadEntry::Id { member, cause: BadId::Zero });
            }
        }
        let high = (trace_id >> 64) as i64;
        let parent_id =
            common.parent_id.map(|text| required(Some(read_id(&text)), "parentId")).transpose()?;
        Ok(Span {
            trace_id: trace_id as i64,
            trace_id_high: (high != 0).then_some(high),
            name: common.name.map_or(String::new(), |name| name.0),
            id: id as i64,
            parent_id: parent_id.map(|parent| parent as i64),
            annotations,
            binary_annotations,
            debug: common.debug,
            timestamp: common.timestamp.map(|timestamp| timestamp.0),
            duration: common.duration.map(|duration| duration.0),
            source: None,
            left_out: 0,
        })
    }
}

fn read_id(text: &Text) -> Result<u128, BadId> {
    lower_hex(&text.0, 32)
}

#[derive(Default)]
pub(crate) struct AnnotationParts {
    moment: Moment,
    endpoint: Option<EndpointWire>,
}

impl Object for Annotation {
    type Parts = AnnotationParts;

    fn member<'de, A: MapAccess<'de>>(
        parts: &mut AnnotationParts,
        name: &str,
        members: &mut A,
        reading: &Reading<'_>,
    ) -> Result<(), A::Error> {
        if parts.moment.member(name, members)? {
            return Ok(());
        }
        match name {
            "endpoint" => parts.endpoint = reading.optional(members)?.or(parts.endpoint.take()),
            _ => skip(members)?,
        }
        Ok(())
    }

    fn finish(parts: AnnotationParts) -> Result<Self, BadEntry> {
        let (timestamp, value) = parts.moment.finish()?;
        Ok(Annotation { timestamp, value, host: thrift_endpoint(parts.endpoint), ..Annotation::default() })
    }
}

#[derive(Default)]
pub(crate) struct BinaryAnnotationParts {
    key: Option<Text>,
    text: Option<String>,
    flag: Option<bool>,
    endpoint: Option<EndpointWire>,
}

impl Object for BinaryAnnotation {
    type Parts = BinaryAnnotationParts;

    fn member<'de, A: MapAccess<'de>>(
        parts: &mut BinaryAnnotationParts,
        name: &str,
        members: &mut A,
        reading: &Reading<'_>,
    ) -> Result<(), A::Error> {
        match name {
            "key" => set(&mut parts.key, members)?,
            "value" => match members.next_value()? {
                Value::Text(text) => parts.text = Some(text),
                Value::Flag(flag) => parts.flag = Some(flag),
                Value::Other => {}
            },
            "endpoint" => parts.endpoint = reading.optional(members)?.or(parts.endpoint.take()),
            _ => skip(members)?,
        }
        Ok(())
    }

    /// A value is a string or, for an address, `true`. Other values have no meaning, and get a type that no reader shows.
    fn finish(parts: BinaryAnnotationParts) -> Result<Self, BadEntry> {
        let Text(key) = parts.key.ok_or(BadEntry::MissingKey)?;
        let (kind, value) = match (parts.text, parts.flag) {
            (Some(text), _) => (AnnotationType::String, text.into_bytes()),
            (None, Some(flag)) => (AnnotationType::Bool, vec![u8::from(flag)]),
            (None, None) => (AnnotationType::Bytes, Vec::new()),
        };
        let host = thrift_endpoint(parts.endpoint);
        Ok(BinaryAnnotation { key, value, kind, host, ..BinaryAnnotation::default() })
    }
}

/// The value of a binary annotation.
enum Value {
    Text(String),
    Flag(bool),
    Other,
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = <&RawValue>::deserialize(deserializer)?;
        Ok(match json.get().as_bytes().first() {
            Some(b'"') => Value::Text(within(json)?),
            Some(b't' | b'f') => Value::Flag(within(json)?),
            // The value is not read, so it may even be a number that no type here could hold.
            _ => Value::Other,
        })
    }
}

fn thrift_endpoint(wire: Option<EndpointWire>) -> Option<blkin_thrift::Endpoint> {
    let Endpoint { service_name, ipv4, ipv6, port } = wire?.0?;
    Some(blkin_thrift::Endpoint {
        ipv4: ipv4.map_or(0, |ip| u32::from(ip) as i32),
        port: port.unwrap_or(0) as i16,
        service_name: service_name.unwrap_or_default(),
        // In a thrift span, an IPv6 address of zeros would count as an IPv4 address.
        ipv6: ipv6.filter(|ip| !ip.is_unspecified()).map(|ip| ip.octets()),
    })
}
