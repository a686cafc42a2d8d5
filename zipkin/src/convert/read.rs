//! Reads the parts of a thrift span that count.

use std::borrow::Cow;
use std::rc::Rc;

use blkin_thrift::AnnotationType;
use blkin_thrift::view::{AnnotationView, BinaryView, EndpointView, SpanView};

use super::order::{Place, place, settle_repeats};
use crate::model::{self, Endpoint, SpanId, TraceId, lower_name};

/// A v1 span as Zipkin understands it: zeros and empty texts are absent, parts that Zipkin ignores are left out, and the rest
/// is sorted as Zipkin sorts it. Nanoseconds, which Zipkin does not know, also count for the order.
pub(super) struct V1<'a> {
    pub(super) trace_id: TraceId,
    pub(super) parent_id: Option<SpanId>,
    pub(super) id: SpanId,
    pub(super) name: Option<String>,
    /// Microseconds since 1970; 0: none.
    pub(super) timestamp: i64,
    /// Microseconds; 0: none.
    pub(super) duration: i64,
    pub(super) events: Vec<Event<'a>>,
    pub(super) tags: Vec<Tag<'a>>,
    pub(super) debug: bool,
}

/// An annotation.
pub(super) struct Event<'a> {
    pub(super) timestamp: i64,
    /// Nanoseconds below the microsecond; 0 if not known.
    pub(super) nanos: u16,
    pub(super) value: &'a str,
    pub(super) endpoint: Option<Rc<Endpoint>>,
    /// The annotation's place in a ring; only if its nanoseconds are known too.
    place: Option<Place>,
}

impl<'a> Event<'a> {
    /// The event as an annotation of the v2 model.
    pub(super) fn annotation(&self) -> model::Annotation {
        model::Annotation { timestamp: self.timestamp, nanos: self.nanos, value: self.value.to_owned() }
    }

    /// The sort key. A clock may give the same time twice: then the place in the ring tells which event came first.
    fn order(&self) -> (i64, u16, Option<Place>, &'a str) {
        (self.timestamp, self.nanos, self.place, self.value)
    }
}

/// A binary annotation.
pub(super) struct Tag<'a> {
    pub(super) key: &'a str,
    pub(super) value: Cow<'a, str>,
    pub(super) endpoint: Option<Rc<Endpoint>>,
    /// The annotation's place in a ring.
    pub(super) place: Option<Place>,
}

impl<'a> V1<'a> {
    pub(super) fn read(span: &SpanView<'a>) -> Option<V1<'a>> {
        let high = span.trace_id_high.unwrap_or(0);
        let mut hosts = Hosts::default();
        let mut events: Vec<_> =
            span.annotations.iter().map(|event| read_event(span, event, &mut hosts)).collect();
        events.sort_by(|left, right| left.order().cmp(&right.order()));
        let tags = span.binary_annotations.iter();
        let mut tags: Vec<_> = tags.filter_map(|tag| read_tag(span, tag, &mut hosts)).collect();
        tags.sort_by(|left, right| left.key.cmp(right.key));
        settle_repeats(span, &mut tags);
        Some(V1 {
            trace_id: TraceId::new(high as u64, span.trace_id as u64)?,
            parent_id: SpanId::new(span.parent_id.unwrap_or(0) as u64),
            id: SpanId::new(span.id as u64)?,
            name: lower_name(span.name),
            timestamp: span.timestamp.unwrap_or(0),
            duration: span.duration.unwrap_or(0),
            events,
            tags,
            debug: span.debug,
        })
    }
}

/// Remembers the endpoint that was read last: nearly all annotations of a span have the same endpoint.
#[derive(Default)]
struct Hosts<'a> {
    last: Option<(EndpointView<'a>, Option<Rc<Endpoint>>)>,
}

impl<'a> Hosts<'a> {
    /// As [`read_host`].
    fn read(&mut self, host: Option<EndpointView<'a>>) -> Option<Rc<Endpoint>> {
        let host = host?;
        if self.last.as_ref().is_none_or(|(last, _)| *last != host) {
            self.last = Some((host, read_host(Some(host)).map(Rc::new)));
        }
        self.last.as_ref()?.1.clone()
    }
}

fn read_event<'a>(span: &SpanView<'a>, annotation: &AnnotationView<'a>, hosts: &mut Hosts<'a>) -> Event<'a> {
    let AnnotationView { timestamp, value, host, nanos, source, position } = *annotation;
    let place = nanos.and_then(|_| place(span, source, position));
    Event { timestamp, nanos: read_nanos(nanos), value, endpoint: hosts.read(host), place }
}

/// Numbers that are not nanoseconds below a microsecond count as not known: 0.
fn read_nanos(nanos: Option<i16>) -> u16 {
    nanos.and_then(|nanos| u16::try_from(nanos).ok()).filter(|&nanos| nanos < 1000).unwrap_or(0)
}

fn read_tag<'a>(span: &SpanView<'a>, annotation: &BinaryView<'a>, hosts: &mut Hosts<'a>) -> Option<Tag<'a>> {
    let BinaryView { key, host, .. } = *annotation;
    let endpoint = hosts.read(host);
    let value = match (annotation.kind, annotation.value) {
        (AnnotationType::Bool, [1]) if endpoint.is_some() && is_address(key) => Cow::Borrowed("true"),
        (kind, value) => shown_value(kind, value)?,
    };
    Some(Tag { key, value, endpoint, place: place(span, annotation.source, annotation.position) })
}

/// Whether this is the key of an address annotation: it tells the client's, server's or message broker's endpoint.
pub(super) fn is_address(key: &str) -> bool {
    matches!(key, "ca" | "sa" | "ma")
}

/// A value as text; `None` if its type is not shown, or if its length does not fit its type.
pub fn shown_value(kind: AnnotationType, value: &[u8]) -> Option<Cow<'_, str>> {
    let number = match kind {
        // The lossy conversion is slower: it is used only for text that is not UTF-8.
        AnnotationType::String => {
            return Some(
                str::from_utf8(value).map_or_else(|_| String::from_utf8_lossy(value), Cow::Borrowed),
            );
        }
        AnnotationType::I16 => i16::from_be_bytes(value.try_into().ok()?).to_string(),
        AnnotationType::I32 => i32::from_be_bytes(value.try_into().ok()?).to_string(),
        AnnotationType::I64 => i64::from_be_bytes(value.try_into().ok()?).to_string(),
        AnnotationType::Double => f64::from_be_bytes(value.try_into().ok()?).to_string(),
        AnnotationType::Bool | AnnotationType::Bytes | AnnotationType::Other(_) => return None,
    };
    Some(Cow::Owned(number))
}

/// Reads an endpoint; `None` if nothing is known of it.
pub(super) fn read_host(host: Option<EndpointView<'_>>) -> Option<Endpoint> {
    let host = host?;
    let mut endpoint = Endpoint::service(host.service_name);
    endpoint.port = Some(host.port as u16).filter(|&port| port != 0);
    if host.ipv4 != 0 {
        endpoint.ipv4 = Some((host.ipv4 as u32).into());
    }
    if let Some(address) = host.ipv6 {
        endpoint.set_ipv6(address.into());
    }
    Some(endpoint).filter(|endpoint| !endpoint.is_empty())
}

#[cfg(test)]
mod tests {
    use blkin_thrift::{Annotation, Span, position};

    use super::*;
    use crate::convert::v1_to_v2;

    fn tag<'a>(
        key: &'a str,
        value: &'a [u8],
        kind: AnnotationType,
        host: Option<EndpointView<'a>>,
    ) -> BinaryView<'a> {
        BinaryView { key, value, kind, host, position: None, source: None }
    }

    #[test]
    fn numbers_and_text_are_shown_and_other_values_are_not() {
        let cases: [(AnnotationType, &[u8], Option<&str>); 12] = [
            (AnnotationType::String, b"text", Some("text")),
            (AnnotationType::String, b"\xff", Some("\u{fffd}")),
            (AnnotationType::I16, &[0xff, 0xfe], Some("-2")),
            (AnnotationType::I32, &[0, 1, 0, 0], Some("65536")),
            (AnnotationType::I64, &[0x80, 0, 0, 0, 0, 0, 0, 0], Some("-9223372036854775808")),
            (AnnotationType::Double, &0.25_f64.to_be_bytes(), Some("0.25")),
            (AnnotationType::I64, &[0, 1], None),
            (AnnotationType::I16, &[], None),
            (AnnotationType::Bytes, b"text", None),
            (AnnotationType::Bool, &[1], None),
            (AnnotationType::Bool, &[0], None),
            (AnnotationType::Other(9), b"text", None),
        ];
        for (kind, value, shown) in cases {
            let tag = tag("key", value, kind, None);
            let read = read_tag(&SpanView::default(), &tag, &mut Hosts::default());
            assert_eq!(read.map(|tag| tag.value.into_owned()).as_deref(), shown, "{kind:?}");
        }
    }

    #[test]
    fn events_of_one_nanosecond_keep_the_order_of_their_ring() {
        let order = |nanos| {
            let event = |grain, value: &str| Annotation {
                timestamp: 7,
                nanos,
                value: value.to_owned(),
                position: Some(position::of(0, grain)),
                ..Annotation::default()
            };
            let annotations = vec![event(3, "end"), event(1, "mid"), event(2, "late")];
            let span = Span { trace_id: 1, id: 1, source: Some(9), annotations, ..Span::default() };
            let [span] = v1_to_v2(&span).try_into().expect("one side");
            span.annotations.into_iter().map(|annotation| annotation.value).collect::<Vec<_>>()
        };
        assert_eq!(order(Some(20)), ["mid", "late", "end"]);
        assert_eq!(order(None), ["end", "late", "mid"], "Zipkin's order without nanoseconds");
    }

    #[test]
    fn invalid_nanoseconds_are_read_as_unknown() {
        let read = [None, Some(0), Some(999), Some(1000), Some(-1)].map(read_nanos);
        assert_eq!(read, [0, 0, 999, 0, 0]);
    }

    #[test]
    fn a_boolean_address_counts_only_with_a_key_and_an_endpoint() {
        let host = Some(EndpointView { port: -1, ..EndpointView::default() });
        for (key, host, counts) in [("sa", host, true), ("sa", None, false), ("xx", host, false)] {
            let tag = tag(key, &[1], AnnotationType::Bool, host);
            let read = read_tag(&SpanView::default(), &tag, &mut Hosts::default());
            assert_eq!(read.is_some(), counts);
        }
    }

    #[test]
    fn an_all_zero_endpoint_is_none_and_ports_are_unsigned() {
        assert_eq!(read_host(Some(EndpointView::default())), None);
        let host = EndpointView { ipv4: 0xc0a8_0102_u32 as i32, port: -1, service_name: "OSD.1", ipv6: None };
        let endpoint = read_host(Some(host)).unwrap();
        assert_eq!(endpoint.service_name.as_deref(), Some("osd.1"));
        assert_eq!(endpoint.ipv4.unwrap().to_string(), "192.168.1.2");
        assert_eq!(endpoint.port, Some(65_535));
    }

    #[test]
    fn ipv4_compatible_ipv6_addresses_become_ipv4() {
        let read = |ipv6: &str| {
            let ipv6 = Some(ipv6.parse::<std::net::Ipv6Addr>().unwrap().octets());
            let endpoint = read_host(Some(EndpointView { ipv6, ..EndpointView::default() })).unwrap();
            (endpoint.ipv4.map(|ip| ip.to_string()), endpoint.ipv6.map(|ip| ip.to_string()))
        };
        assert_eq!(read("2001:db8::1"), (None, Some("2001:db8::1".to_owned())));
        assert_eq!(read("::1.2.3.4"), (Some("1.2.3.4".to_owned()), None));
    }
}
