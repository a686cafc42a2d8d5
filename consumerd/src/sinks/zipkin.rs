//! A piece of a span as Zipkin's v1 spans, with the identity of every annotation in extension fields.

use blkin_thrift::writer::{SpanFields, append_span};

use crate::join::{Share, SpanPiece, Timing};

/// Encodes spans into a reused buffer.
#[derive(Debug, Default)]
pub struct Encoder {
    span: Vec<u8>,
}

impl Encoder {
    /// Calls `each` with every encoded span of a piece, and the message's annotations from which it was made.
    ///
    /// Every service that took part gets a span of its own. If one span had the annotations of several services, such as a
    /// call's client and server on the same node, Zipkin's Scribe collector would keep only the first service's, and drop the
    /// others. Only the first span of a service has start and duration.
    pub fn spans(&mut self, piece: &SpanPiece, mut each: impl FnMut(&[u8], &Share)) {
        for share in &piece.shares {
            let timing = if share.is_further { Timing::default() } else { piece.timing_of(share) };
            let fields = SpanFields {
                trace_id: piece.trace_id.cast_signed(),
                name: piece.name().unwrap_or_default(),
                id: piece.span_id.cast_signed(),
                parent_id: (piece.parent_span_id != 0).then_some(piece.parent_span_id.cast_signed()),
                timestamp: timing.timestamp_us,
                duration: timing.duration_us,
                source: Some(share.source),
            };
            self.span.clear();
            append_span(&mut self.span, &fields, &share.events, &share.keys);
            each(&self.span, share);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::annotation::{Annotation, Content, Labels, Origin};
    use crate::join::{Join, MAX_ANNOTATIONS, Rules};
    use blkin_record::Endpoint;
    use blkin_thrift::{self as thrift, AnnotationType, Limits};

    fn labels(service: &str, key: &str) -> Labels {
        let endpoint = Endpoint { ip: "10.0.0.1".into(), port: 40000, name: service.into() };
        Labels::new("write".into(), endpoint.into(), key.into())
    }

    fn annotation<'a>(labels: &'a Labels, content: Content<'a>, source: i64) -> Annotation<'a> {
        Annotation {
            trace_id: 1,
            span_id: 2,
            parent_span_id: 3,
            labels,
            content,
            level: 4,
            truncated: false,
            origin: Origin { program: 1, source, position: 77, frame: 0 },
        }
    }

    fn join() -> Join {
        let rules = Rules {
            close_events: vec!["end".into()],
            quiet: Duration::from_secs(1),
            max_spans: 10,
            max_bytes: 1 << 30,
            max_span_bytes: 1 << 30,
        };
        Join::new(rules)
    }

    /// The spans of the piece that leaves complete, each with the number of its annotations.
    fn left(mut join: Join) -> Vec<(thrift::Span, usize)> {
        let (mut pieces, mut out) = (Vec::new(), Vec::new());
        join.leave(Duration::ZERO, usize::MAX, |_, _| true, &mut pieces);
        assert_eq!(pieces.len(), 1);
        Encoder::default().spans(&pieces[0], |span, share| {
            out.push((thrift::span::decode(span, &Limits::default()).unwrap(), share.annotations()));
        });
        out
    }

    fn events(events: &[(&str, &str, i64)]) -> Vec<(thrift::Span, usize)> {
        let mut join = join();
        for (service, key, time_us) in events {
            join.add(
                &annotation(&labels(service, key), Content::Event(time_us * 1000), 9),
                0,
                Duration::ZERO,
            );
        }
        left(join)
    }

    #[test]
    fn events_and_keys_keep_their_identity_and_nanoseconds() {
        let mut join = join();
        for (key, content, source) in [
            ("start", Content::Event(5_000_123), 9),
            ("end", Content::Event(6_000_000), 9),
            ("size", Content::Integer(-4), 9),
            ("Object", Content::Text("o1".into()), 10),
        ] {
            join.add(&annotation(&labels("osd.0", key), content, source), 0, Duration::ZERO);
        }
        let spans = left(join);
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
        assert_eq!(
            (object.value.as_slice(), object.kind, object.source),
            (&b"o1"[..], AnnotationType::String, Some(10))
        );
    }

    #[test]
    fn each_service_of_a_span_gets_a_message_of_its_own() {
        let call = events(&[("gateway", "cs", 1), ("osd", "sr", 3), ("osd", "ss", 5), ("gateway", "cr", 9)]);
        let told: Vec<_> = call
            .iter()
            .map(|(span, held)| {
                let host = span.annotations[0].host.clone().unwrap();
                (host.service_name, *held, span.timestamp, span.duration)
            })
            .collect();
        assert_eq!(told, [("gateway".to_owned(), 2, Some(1), Some(8)), ("osd".to_owned(), 2, None, None)]);

        let local = events(&[("osd", "a", 1), ("pg", "b", 2), ("pg", "c", 6), ("osd", "end", 9)]);
        let times: Vec<_> = local.iter().map(|(span, _)| (span.timestamp, span.duration)).collect();
        assert_eq!(times, [(Some(1), Some(8)), (Some(2), Some(4))]);
    }

    /// With so many services, the service's first message is not found any more.
    #[test]
    fn further_messages_of_a_service_among_many_have_no_timing() {
        let mut join = join();
        for number in 0..100 {
            let labels = labels(&format!("service {number}"), "e");
            join.add(&annotation(&labels, Content::Event(number * 1000), 9), 0, Duration::ZERO);
        }
        for number in 0..MAX_ANNOTATIONS as i64 + 9 {
            let time_ns = (100 + number) * 1000;
            join.add(
                &annotation(&labels("service 99", "end"), Content::Event(time_ns), 9),
                0,
                Duration::ZERO,
            );
        }
        let spans = left(join);
        assert_eq!((spans.len(), spans[99].0.timestamp, spans[100].0.timestamp), (101, Some(99), None));
    }

    #[test]
    fn a_span_with_very_many_annotations_leaves_in_several_messages() {
        let mut join = join();
        let (event, end) = (labels("osd", "e"), labels("osd", "end"));
        for number in 0..9000 {
            let labels = if number == 8999 { &end } else { &event };
            join.add(&annotation(labels, Content::Event(number * 1000), 9), 0, Duration::ZERO);
        }
        let spans = left(join);
        let held: Vec<_> = spans.iter().map(|(_, held)| *held).collect();
        assert_eq!(held, [MAX_ANNOTATIONS, MAX_ANNOTATIONS, 9000 - 2 * MAX_ANNOTATIONS]);
        assert_eq!((spans[0].0.timestamp, spans[0].0.duration), (Some(0), Some(8999)));
        assert_eq!(spans[1].0.timestamp, None);
    }
}
