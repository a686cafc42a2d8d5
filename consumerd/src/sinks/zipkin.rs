//! A piece of a span as Zipkin's v1 span, with the identity of every annotation in extension fields.

use std::collections::HashMap;
use std::io::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use blkin_record::Endpoint;
use blkin_thrift as thrift;
use blkin_thrift::AnnotationType;
use blkin_thrift::scribe::append_message;
use blkin_thrift::writer::{Provenance, SpanHead, SpanWriter, encode_endpoint};

use crate::annotation::{Annotation, Content};
use crate::join::{SpanPiece, Timing};

/// Most annotations of one message: a span with more leaves in several messages.
pub const MAX_ANNOTATIONS: usize = 4096;
/// Most bytes of strings in one message.
const MAX_TEXT_BYTES: usize = 1 << 20;

/// Writes messages into memory that is used again.
#[derive(Debug, Default)]
pub struct Encoder {
    span: Vec<u8>,
    message: Vec<u8>,
    number: Vec<u8>,
    host: Host,
}

/// The endpoint that was met last, encoded: nearly all annotations of a span have the same.
#[derive(Debug, Default)]
struct Host {
    of: Option<Arc<Endpoint>>,
    bytes: Option<Vec<u8>>,
}

impl Encoder {
    /// The messages of one piece, each with the annotations that it holds: base64, ended by a line feed.
    ///
    /// Every service that took part gets a message of its own: of one that tells of several, such as a call's client
    /// and server on the same node, Zipkin's Scribe keeps only the first and drops the others' half. Only the first
    /// message of a service has start and duration.
    pub fn messages(&mut self, piece: &mut SpanPiece, mut each: impl FnMut(&[u8], &[Annotation])) {
        sort_by_service(&mut piece.annotations);
        let piece = &*piece;
        for of_service in piece.annotations.chunk_by(is_same_service) {
            let mut timing = piece.timing_of(of_service);
            let mut rest = of_service;
            while !rest.is_empty() {
                let (now, later) = rest.split_at(fitting(rest));
                self.span(piece, now, std::mem::take(&mut timing));
                self.message.clear();
                append_message(&self.span, &mut self.message);
                self.message.push(b'\n');
                each(&self.message, now);
                rest = later;
            }
        }
    }

    fn span(&mut self, piece: &SpanPiece, annotations: &[Annotation], timing: Timing) {
        let source = annotations.first().map(|a| a.origin.source);
        let head = SpanHead {
            trace_id: piece.trace_id.cast_signed(),
            name: piece.name().unwrap_or_default(),
            id: piece.span_id.cast_signed(),
            parent_id: (piece.parent_span_id != 0).then_some(piece.parent_span_id.cast_signed()),
        };
        let Self { span, number, host, .. } = self;
        let events = annotations.iter().filter(|a| a.time_ns().is_some()).count();
        span.clear();
        let mut writer = SpanWriter::begin(span, &head, events);
        for annotation in annotations {
            if let Content::Event(time_ns) = annotation.content {
                let (us, nanos) = (time_ns.div_euclid(1000), i16::try_from(time_ns.rem_euclid(1000)).ok());
                writer.annotation(us, nanos, &annotation.labels.key, &host.provenance(annotation, source));
            }
        }
        writer.begin_binary(annotations.len() - events);
        for annotation in annotations {
            let value = match &annotation.content {
                Content::Event(_) => continue,
                Content::Integer(integer) => decimal(*integer, number),
                Content::Text(text) => text.as_bytes(),
            };
            let from = host.provenance(annotation, source);
            writer.binary(&annotation.labels.key, value, AnnotationType::String, &from);
        }
        writer.end(timing.timestamp_us, timing.duration_us, source);
    }
}

impl Host {
    #[inline]
    fn provenance(&mut self, annotation: &Annotation, of_span: Option<i64>) -> Provenance<'_> {
        if !self.of.as_ref().is_some_and(|known| Arc::ptr_eq(known, &annotation.labels.endpoint)) {
            self.of = Some(annotation.labels.endpoint.clone());
            self.bytes = host(&annotation.labels.endpoint).as_ref().map(encode_endpoint);
        }
        let origin = annotation.origin;
        let source = (of_span != Some(origin.source)).then_some(origin.source);
        Provenance { host: self.bytes.as_deref(), position: origin.position, source }
    }
}

fn decimal(integer: i64, digits: &mut Vec<u8>) -> &[u8] {
    digits.clear();
    // Writing to a vector cannot fail.
    let _ = write!(digits, "{integer}");
    digits
}

#[inline]
fn is_same_service(a: &Annotation, b: &Annotation) -> bool {
    Arc::ptr_eq(&a.labels.endpoint, &b.labels.endpoint) || a.labels.endpoint.name == b.labels.endpoint.name
}

/// Brings the annotations of each service together, services and annotations in the order in which they came.
fn sort_by_service(annotations: &mut [Annotation]) {
    if annotations.windows(2).all(|two| is_same_service(&two[0], &two[1])) {
        return;
    }
    let mut ranks: HashMap<String, usize> = HashMap::new();
    for annotation in annotations.iter() {
        let next = ranks.len();
        ranks.entry(annotation.labels.endpoint.name.clone()).or_insert(next);
    }
    annotations.sort_by_key(|a| ranks.get(&a.labels.endpoint.name).copied());
}

fn fitting(annotations: &[Annotation]) -> usize {
    let mut bytes = 0;
    let too_much = |a: &Annotation| {
        bytes += a.cost_bytes() + a.labels.endpoint.name.len();
        bytes > MAX_TEXT_BYTES
    };
    let fitting = annotations.iter().position(too_much).unwrap_or(annotations.len());
    fitting.clamp(1, MAX_ANNOTATIONS).min(annotations.len())
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
    use crate::annotation::{Labels, Origin};
    use blkin_thrift::Limits;
    use blkin_thrift::scribe::decode_message;

    fn annotation(key: &str, content: Content, source: i64) -> Annotation {
        Annotation {
            trace_id: 1,
            span_id: 2,
            parent_span_id: 3,
            labels: Arc::new(Labels {
                name: "write".into(),
                endpoint: Arc::new(Endpoint { ip: "10.0.0.1".into(), port: 40000, name: "osd.0".into() }),
                key: key.into(),
            }),
            content,
            level: 4,
            truncated: false,
            origin: Origin { program: 1, source, position: 77, frame: 0 },
        }
    }

    fn piece(annotations: Vec<Annotation>) -> SpanPiece {
        let mut piece = SpanPiece::new(1, 2, Vec::new());
        annotations.into_iter().for_each(|a| piece.add(a));
        piece
    }

    fn spans(piece: &mut SpanPiece) -> Vec<(thrift::Span, Vec<Annotation>)> {
        let mut out = Vec::new();
        Encoder::default().messages(piece, |message, held| {
            let message = message.strip_suffix(b"\n").unwrap();
            out.push((decode_message(message, &Limits::default()).unwrap(), held.to_vec()));
        });
        out
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
            let mut one = annotation(key, Content::Event(time_us * 1000), 9);
            let endpoint = Arc::new(Endpoint { ip: String::new(), port: 0, name: service.into() });
            Arc::make_mut(&mut one.labels).endpoint = endpoint;
            one
        };
        let mut call = piece(vec![
            at("gateway", "cs", 1),
            at("osd", "sr", 3),
            at("osd", "ss", 5),
            at("gateway", "cr", 9),
        ]);
        let told: Vec<_> = spans(&mut call)
            .iter()
            .map(|(span, held)| {
                (held[0].labels.endpoint.name.clone(), held.len(), span.timestamp, span.duration)
            })
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
