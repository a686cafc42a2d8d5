//! A piece of a span as Zipkin's v1 span, with the identity of every annotation in extension fields.

use std::collections::HashMap;
use std::net::IpAddr;

use blkin_record::Endpoint;
use blkin_thrift as thrift;
use blkin_thrift::AnnotationType;

use crate::annotation::{Annotation, Content};
use crate::join::SpanPiece;

/// Most annotations of one message: a span with more leaves in several messages.
pub const MAX_ANNOTATIONS: usize = 4096;
/// Most bytes of strings in one message.
const MAX_TEXT_BYTES: usize = 1 << 20;

/// The messages of one piece, each with the annotations that it holds.
///
/// Every service that took part gets a message of its own: of one that tells of several, such as a call's client and
/// server on the same node, Zipkin's Scribe keeps only the first and drops the others' half. Only the first message of
/// a service has start and duration.
pub fn spans(piece: &mut SpanPiece) -> Vec<(thrift::Span, &[Annotation])> {
    sort_by_service(&mut piece.annotations);
    let piece = &*piece;
    let mut out = Vec::new();
    for of_service in piece.annotations.chunk_by(|a, b| a.endpoint.name == b.endpoint.name) {
        let timing = piece.timing_of(of_service);
        let mut rest = of_service;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(fitting(rest));
            let mut span = span(piece, now);
            if rest.len() == of_service.len() {
                span.timestamp = timing.timestamp_us;
                span.duration = timing.duration_us;
            }
            out.push((span, now));
            rest = later;
        }
    }
    out
}

/// Brings the annotations of each service together, services and annotations in the order in which they came.
fn sort_by_service(annotations: &mut [Annotation]) {
    let Some(first) = annotations.first().map(|a| a.endpoint.name.clone()) else { return };
    if annotations.iter().all(|a| a.endpoint.name == first) {
        return;
    }
    let mut ranks: HashMap<String, usize> = HashMap::new();
    for annotation in annotations.iter() {
        let next = ranks.len();
        ranks.entry(annotation.endpoint.name.clone()).or_insert(next);
    }
    annotations.sort_by_key(|a| ranks.get(&a.endpoint.name).copied());
}

fn fitting(annotations: &[Annotation]) -> usize {
    let mut bytes = 0;
    let too_much = |a: &Annotation| {
        bytes += a.cost_bytes() + a.endpoint.name.len();
        bytes > MAX_TEXT_BYTES
    };
    let fitting = annotations.iter().position(too_much).unwrap_or(annotations.len());
    fitting.clamp(1, MAX_ANNOTATIONS).min(annotations.len())
}

fn span(piece: &SpanPiece, annotations: &[Annotation]) -> thrift::Span {
    let source = annotations.first().map(|a| a.origin.source);
    let mut span = thrift::Span {
        trace_id: piece.trace_id.cast_signed(),
        name: piece.name().as_deref().unwrap_or_default().to_owned(),
        id: piece.span_id.cast_signed(),
        parent_id: (piece.parent_span_id != 0).then_some(piece.parent_span_id.cast_signed()),
        source,
        ..thrift::Span::default()
    };
    for annotation in annotations {
        add(&mut span, annotation);
    }
    span
}

fn add(span: &mut thrift::Span, annotation: &Annotation) {
    let origin = annotation.origin;
    let source = (span.source != Some(origin.source)).then_some(origin.source);
    let host = host(&annotation.endpoint);
    let position = Some(origin.position);
    let value = match &annotation.content {
        Content::Event(time_ns) => {
            span.annotations.push(thrift::Annotation {
                timestamp: time_ns.div_euclid(1000),
                value: annotation.key.to_string(),
                host,
                position,
                source,
                nanos: i16::try_from(time_ns.rem_euclid(1000)).ok(),
            });
            return;
        }
        Content::Integer(number) => number.to_string(),
        Content::Text(text) => text.to_string(),
    };
    span.binary_annotations.push(thrift::BinaryAnnotation {
        key: annotation.key.to_string(),
        value: value.into_bytes(),
        kind: AnnotationType::String,
        host,
        position,
        source,
    });
}

fn host(endpoint: &Endpoint) -> Option<thrift::Endpoint> {
    let (ipv4, ipv6) = match endpoint.ip.parse() {
        Ok(IpAddr::V4(v4)) => (u32::from(v4).cast_signed(), None),
        Ok(IpAddr::V6(v6)) => (0, Some(v6.octets())),
        Err(_) => (0, None),
    };
    if ipv4 == 0 && ipv6.is_none() && endpoint.port == 0 && endpoint.name.is_empty() {
        return None;
    }
    Some(thrift::Endpoint {
        ipv4,
        port: endpoint.port.cast_signed(),
        service_name: endpoint.name.clone(),
        ipv6,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::annotation::Origin;
    use std::sync::Arc;

    fn annotation(key: &str, content: Content, source: i64) -> Annotation {
        Annotation {
            trace_id: 1,
            span_id: 2,
            parent_span_id: 3,
            name: "write".into(),
            endpoint: Arc::new(Endpoint { ip: "10.0.0.1".into(), port: 40000, name: "osd.0".into() }),
            key: key.into(),
            content,
            level: 4,
            truncated: false,
            origin: Origin { program: 1, source, position: 77, frame: 0 },
        }
    }

    fn piece(annotations: Vec<Annotation>) -> SpanPiece {
        let mut piece = SpanPiece::new(1, 2, false);
        annotations.into_iter().for_each(|a| piece.add(a));
        piece
    }

    #[test]
    fn events_and_keys_keep_their_identity_and_nanoseconds() {
        let mut piece = piece(vec![
            annotation("start", Content::Event(5_000_123), 9),
            annotation("end", Content::Event(6_000_000), 9),
            annotation("size", Content::Integer(-4), 9),
            annotation("Object", Content::Text("o1".into()), 10),
        ]);
        let spans = spans(&mut piece);
        let span = &spans[0].0;
        assert_eq!((span.trace_id, span.id, span.parent_id, span.name.as_str()), (1, 2, Some(3), "write"));
        assert_eq!((span.timestamp, span.duration, span.source), (Some(5000), Some(1000), Some(9)));
        let first = &span.annotations[0];
        assert_eq!(
            (first.timestamp, first.nanos, first.position, first.source),
            (5000, Some(123), Some(77), None)
        );
        let host = first.host.as_ref().unwrap();
        assert_eq!((host.ipv4, host.port as u16, host.service_name.as_str()), (0x0a00_0001, 40000, "osd.0"));
        let [size, object] = &span.binary_annotations[..] else { panic!() };
        assert_eq!(
            (size.value.as_slice(), size.kind, size.source),
            (&b"-4"[..], AnnotationType::String, None)
        );
        assert_eq!(object.source, Some(10));
    }

    #[test]
    fn each_service_of_a_span_gets_a_message_of_its_own() {
        let at = |service: &str, key: &str, time_us: i64| {
            let endpoint = Arc::new(Endpoint { ip: String::new(), port: 0, name: service.into() });
            Annotation { endpoint, ..annotation(key, Content::Event(time_us * 1000), 9) }
        };
        let mut call = piece(vec![
            at("gateway", "cs", 1),
            at("osd", "sr", 3),
            at("osd", "ss", 5),
            at("gateway", "cr", 9),
        ]);
        let told: Vec<_> = spans(&mut call)
            .iter()
            .map(|(span, held)| (held[0].endpoint.name.clone(), held.len(), span.timestamp, span.duration))
            .collect();
        assert_eq!(told, [("gateway".to_owned(), 2, Some(1), Some(8)), ("osd".to_owned(), 2, None, None)]);

        let mut local =
            piece(vec![at("osd", "a", 1), at("pg", "b", 2), at("pg", "c", 6), at("osd", "end", 9)]);
        let times: Vec<_> =
            spans(&mut local).iter().map(|(span, _)| (span.timestamp, span.duration)).collect();
        assert_eq!(times, [(Some(1), Some(8)), (Some(2), Some(4))]);
    }

    #[test]
    fn a_span_with_very_many_annotations_leaves_in_several_messages() {
        let many = (0..9000).map(|n| annotation("e", Content::Event(n * 1000), 9)).collect();
        let mut piece = piece(many);
        let spans = spans(&mut piece);
        assert_eq!(spans.iter().map(|(_, held)| held.len()).sum::<usize>(), 9000);
        assert!(spans.len() >= 3 && spans.iter().all(|(_, held)| held.len() <= MAX_ANNOTATIONS));
        assert!(spans[0].0.timestamp.is_some() && spans[1].0.timestamp.is_none());
    }

    #[test]
    fn addresses_may_be_ipv6_or_none() {
        let of = |ip: &str, name: &str| host(&Endpoint { ip: ip.into(), port: 0, name: name.into() });
        assert_eq!(of("::1", "x").unwrap().ipv6.unwrap()[15], 1);
        assert_eq!(of("", "x").unwrap().ipv4, 0);
        assert_eq!(of("", ""), None);
    }
}
