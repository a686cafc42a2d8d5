//! The short form of a piece: the content of a span, without the names and types of its fields, and without repetitions. It
//! takes about a third of its TBinary or JSON, so less is hashed, copied, written and read.
//!
//! Each piece stands alone: a damaged piece harms no other, and a piece can be read wherever it is found. Numbers without a
//! type here are varints ([`super::varint`]), *signed* ones with their sign in the lowest bit (zigzag); a *text* is its length
//! and its bytes; `i64` and the like have a fixed length and are big-endian. [`v1`] and [`v2`] give the order of the fields.

pub(super) mod v1;
pub(super) mod v2;

use super::varint;

/// Appends the fields of a piece to the bytes that are there.
struct Writing<'b>(&'b mut Vec<u8>);

impl Writing<'_> {
    fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    fn fixed<const N: usize>(&mut self, bytes: [u8; N]) {
        self.0.extend_from_slice(&bytes);
    }

    fn number(&mut self, number: usize) {
        varint::put(number as u64, self.0);
    }

    fn signed(&mut self, number: i64) {
        varint::put((number << 1 ^ number >> 63) as u64, self.0);
    }

    fn text(&mut self, text: &[u8]) {
        self.number(text.len());
        self.0.extend_from_slice(text);
    }
}

/// The part of a piece that was not read yet. Each method reads what it names; none if that is not there.
struct Reading<'a>(&'a [u8]);

impl<'a> Reading<'a> {
    fn byte(&mut self) -> Option<u8> {
        self.fixed().map(u8::from_be_bytes)
    }

    fn fixed<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    fn i64(&mut self) -> Option<i64> {
        self.fixed().map(i64::from_be_bytes)
    }

    fn number(&mut self) -> Option<usize> {
        varint::take(&mut self.0).and_then(|number| usize::try_from(number).ok())
    }

    fn signed(&mut self) -> Option<i64> {
        varint::take(&mut self.0).map(|number| (number >> 1) as i64 ^ -((number & 1) as i64))
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.number()?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.bytes()?).ok()
    }

    fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

/// Reads an optional field, if its bit says that it is there. The outer `Option` is none if the field cannot be read.
fn if_set<T>(flags: u16, bit: u16, read: impl FnOnce() -> Option<T>) -> Option<Option<T>> {
    if flags & bit == 0 { Some(None) } else { read().map(Some) }
}

/// The sum of the bits whose condition holds.
fn flags<const N: usize>(of: [(u16, bool); N]) -> u16 {
    of.iter().fold(0, |flags, &(bit, is_set)| if is_set { flags | bit } else { flags })
}

#[cfg(test)]
mod tests {
    use blkin_thrift::view::SpanView;
    use blkin_thrift::{Annotation, AnnotationType, BinaryAnnotation, Endpoint, Span as V1Span};
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    use super::*;
    use crate::model::{Annotation as V2Annotation, Endpoint as V2Endpoint, Kind, Span, SpanId, TraceId};
    use crate::v2view::V2View;

    fn v1_bytes(span: &V1Span) -> Vec<u8> {
        let mut bytes = Vec::new();
        v1::put(&SpanView::of(span), &mut bytes);
        bytes
    }

    fn v2_bytes(span: &Span) -> Vec<u8> {
        let mut bytes = Vec::new();
        v2::put(span.trace_id, &V2View::of(span), &mut bytes);
        bytes
    }

    fn text() -> impl Strategy<Value = String> {
        "[a-c日]{0,3}"
    }

    /// A host; there are more different hosts than get numbers.
    fn host() -> impl Strategy<Value = Option<Endpoint>> {
        let ipv6 = option::of(any::<[u8; 16]>());
        let any_host = (any::<i32>(), any::<i16>(), text(), ipv6)
            .prop_map(|(ipv4, port, service_name, ipv6)| Endpoint { ipv4, port, service_name, ipv6 });
        let one_of_many = (0..45_i32).prop_map(|ipv4| Endpoint { ipv4, ..Endpoint::default() });
        option::weighted(0.9, prop_oneof![1 => any_host, 4 => one_of_many])
    }

    fn annotation() -> impl Strategy<Value = Annotation> {
        let own = (option::of(any::<i64>()), option::of(any::<i64>()), option::of(any::<i16>()));
        (any::<i64>(), text(), host(), own).prop_map(|(timestamp, value, host, (position, source, nanos))| {
            Annotation { timestamp, value, host, position, source, nanos }
        })
    }

    fn tag() -> impl Strategy<Value = BinaryAnnotation> {
        let kind = any::<i32>().prop_map(AnnotationType::from_wire);
        let own = (option::of(any::<i64>()), option::of(any::<i64>()));
        (text(), vec(any::<u8>(), 0..5), kind, host(), own).prop_map(
            |(key, value, kind, host, (position, source))| BinaryAnnotation {
                key,
                value,
                kind,
                host,
                position,
                source,
            },
        )
    }

    fn v1_span() -> impl Strategy<Value = V1Span> {
        let ids = (any::<i64>(), any::<i64>(), option::of(any::<i64>()), option::of(any::<i64>()));
        let own = (any::<bool>(), text(), option::of(any::<i64>()), option::of(any::<i64>()));
        let more = (option::of(any::<i64>()), vec(annotation(), 0..60), vec(tag(), 0..5));
        (ids, own, more).prop_map(|(ids, (debug, name, timestamp, duration), more)| V1Span {
            trace_id: ids.0,
            id: ids.1,
            parent_id: ids.2,
            trace_id_high: ids.3,
            name,
            debug,
            timestamp,
            duration,
            source: more.0,
            left_out: 0,
            annotations: more.1,
            binary_annotations: more.2,
        })
    }

    fn v2_endpoint() -> impl Strategy<Value = Option<V2Endpoint>> {
        let name = option::of("[a-c日]{1,3}");
        option::of((name, option::of(any::<[u8; 4]>()), option::of(any::<[u8; 16]>()), option::of(1_u16..)))
            .prop_map(|of| {
                of.map(|(service_name, ipv4, ipv6, port)| V2Endpoint {
                    service_name,
                    ipv4: ipv4.map(Into::into),
                    ipv6: ipv6.map(Into::into),
                    port,
                })
            })
    }

    fn v2_span() -> impl Strategy<Value = Span> {
        let kinds = vec![Kind::Client, Kind::Server, Kind::Producer, Kind::Consumer];
        let ids = (any::<u64>(), 1_u64.., 1_u64.., option::of(1_u64..));
        let own = (option::of(prop::sample::select(kinds)), option::of("[a-c]{1,3}"), any::<[bool; 2]>());
        let times = (option::of(1_i64..), option::of(1_i64..));
        let texts = (vec((any::<i64>(), text()), 0..5), vec((text(), text()), 0..5));
        (ids, own, times, (v2_endpoint(), v2_endpoint()), texts).prop_map(
            |((high, low, id, parent), (kind, name, [debug, shared]), times, places, texts)| {
                let mut span = Span::new(TraceId::new(high, low).unwrap(), SpanId::new(id).unwrap());
                span.parent_id = parent.and_then(SpanId::new);
                (span.kind, span.name, span.debug, span.shared) = (kind, name, debug, shared);
                (span.timestamp, span.duration) = times;
                (span.local_endpoint, span.remote_endpoint) = places;
                let annotations = texts.0.into_iter();
                span.annotations =
                    annotations.map(|(timestamp, value)| V2Annotation::new(timestamp, value)).collect();
                span.tags = texts.1.into_iter().collect();
                span.normalized()
            },
        )
    }

    proptest! {
        #[test]
        fn v1_spans_round_trip_and_truncations_are_rejected(span in v1_span()) {
            let bytes = v1_bytes(&span);
            prop_assert_eq!(v1::read(&bytes).map(|view| view.to_span()), Some(span));
            prop_assert!((0..bytes.len()).all(|length| v1::read(&bytes[..length]).is_none()));
        }

        #[test]
        fn v2_spans_round_trip_and_truncations_are_rejected(span in v2_span()) {
            let bytes = v2_bytes(&span);
            prop_assert_eq!(v2::read(&bytes).and_then(|view| view.to_span()), Some(span));
            prop_assert!((0..bytes.len()).all(|length| v2::read(&bytes[..length]).is_none()));
        }

        #[test]
        fn reading_damaged_spans_never_panics(
            v1_span in v1_span(),
            v2_span in v2_span(),
            changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
        ) {
            let (mut of_v1, mut of_v2) = (v1_bytes(&v1_span), v2_bytes(&v2_span));
            for (at, byte) in changes {
                let at_v2 = at.index(of_v2.len());
                of_v2[at_v2] = byte;
                let at_v1 = at.index(of_v1.len());
                of_v1[at_v1] = byte;
            }
            let _of_v1 = v1::read(&of_v1).map(|view| view.to_span());
            let _of_v2 = v2::read(&of_v2).and_then(|view| view.to_span());
        }
    }

    #[test]
    fn a_typical_span_is_less_than_half_as_long_as_in_thrift() {
        let host = Some(Endpoint { ipv4: 1, port: 6800, service_name: "osd.0".to_owned(), ipv6: None });
        let event = |after: i64, value: &str| Annotation {
            timestamp: 1_700_000_000_000_000 + after,
            value: value.to_owned(),
            host: host.clone(),
            ..Annotation::default()
        };
        let span = V1Span {
            trace_id: 1,
            id: 2,
            parent_id: Some(1),
            name: "write".to_owned(),
            annotations: vec![event(0, "sr"), event(500, "journal written"), event(900, "ss")],
            ..V1Span::default()
        };
        assert!(2 * v1_bytes(&span).len() < blkin_thrift::span::encode(&span).len());
        assert_eq!(v1::read(&v1_bytes(&V1Span::default())), Some(SpanView::default()));
    }
}
