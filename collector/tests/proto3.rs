//! Spans as protocol buffers: what `prost` writes is read, whatever the order of fields, and hostile bytes neither take much
//! memory nor affect their neighbours.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use std::collections::HashMap;

use blkin_collector::proto3::{Entry, read_list};
use blkin_collector::refusal::{BadEntry, BadList, Cause, Refusal};
use blkin_collector::v2json::write_span;
use blkin_thrift::Limits;
use proptest::collection::{hash_map, vec};
use proptest::prelude::*;
use prost::Message;

/// The messages of `proto/zipkin.proto`.
mod zipkin {
    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct ListOfSpans {
        #[prost(message, repeated, tag = "1")]
        pub(crate) spans: Vec<Span>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Span {
        #[prost(bytes = "vec", tag = "1")]
        pub(crate) trace_id: Vec<u8>,
        #[prost(bytes = "vec", tag = "2")]
        pub(crate) parent_id: Vec<u8>,
        #[prost(bytes = "vec", tag = "3")]
        pub(crate) id: Vec<u8>,
        #[prost(int32, tag = "4")]
        pub(crate) kind: i32,
        #[prost(string, tag = "5")]
        pub(crate) name: String,
        #[prost(fixed64, tag = "6")]
        pub(crate) timestamp: u64,
        #[prost(uint64, tag = "7")]
        pub(crate) duration: u64,
        #[prost(message, optional, tag = "8")]
        pub(crate) local_endpoint: Option<Endpoint>,
        #[prost(message, optional, tag = "9")]
        pub(crate) remote_endpoint: Option<Endpoint>,
        #[prost(message, repeated, tag = "10")]
        pub(crate) annotations: Vec<Annotation>,
        #[prost(map = "string, string", tag = "11")]
        pub(crate) tags: std::collections::HashMap<String, String>,
        #[prost(bool, tag = "12")]
        pub(crate) debug: bool,
        #[prost(bool, tag = "13")]
        pub(crate) shared: bool,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Endpoint {
        #[prost(string, tag = "1")]
        pub(crate) service_name: String,
        #[prost(bytes = "vec", tag = "2")]
        pub(crate) ipv4: Vec<u8>,
        #[prost(bytes = "vec", tag = "3")]
        pub(crate) ipv6: Vec<u8>,
        #[prost(int32, tag = "4")]
        pub(crate) port: i32,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Annotation {
        #[prost(fixed64, tag = "1")]
        pub(crate) timestamp: u64,
        #[prost(string, tag = "2")]
        pub(crate) value: String,
    }
}

use zipkin::{Annotation, Endpoint, ListOfSpans, Span};

fn ids() -> Span {
    Span { trace_id: vec![0, 0, 0, 0, 0, 0, 0, 1], id: vec![0, 0, 0, 0, 0, 0, 0, 2], ..Span::default() }
}

fn list(spans: Vec<Span>) -> Vec<u8> {
    ListOfSpans { spans }.encode_to_vec()
}

fn read(body: &[u8]) -> Result<Vec<Result<Entry, BadEntry>>, BadList> {
    read_list(body, &Limits::default())
}

fn one(span: Span) -> Result<Entry, BadEntry> {
    let mut entries = read(&list(vec![span])).unwrap();
    assert_eq!(entries.len(), 1);
    entries.remove(0)
}

fn written(span: Span) -> String {
    write_span(&one(span).unwrap().span)
}

#[test]
fn every_field_is_read() {
    let here = Endpoint {
        service_name: "Front".to_owned(),
        ipv4: vec![1, 2, 3, 4],
        ipv6: vec![0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        port: 80,
    };
    let there = Endpoint { service_name: "back".to_owned(), ..Endpoint::default() };
    let span = Span {
        trace_id: (1..=16).collect(),
        parent_id: vec![0, 0, 0, 0, 0, 0, 0, 3],
        kind: 2,
        name: "GET".to_owned(),
        timestamp: 1_700_000_000_000_000,
        duration: 300,
        local_endpoint: Some(here),
        remote_endpoint: Some(there),
        annotations: vec![Annotation { timestamp: 7, value: "x".to_owned() }],
        tags: HashMap::from([("k".to_owned(), "v".to_owned()), ("empty".to_owned(), String::new())]),
        debug: true,
        shared: true,
        ..ids()
    };
    let expected = concat!(
        r#"{"traceId":"0102030405060708090a0b0c0d0e0f10","parentId":"0000000000000003","id":"0000000000000002","#,
        r#""kind":"SERVER","name":"get","timestamp":1700000000000000,"duration":300,"#,
        r#""localEndpoint":{"serviceName":"front","ipv4":"1.2.3.4","ipv6":"2001:db8::1","port":80},"#,
        r#""remoteEndpoint":{"serviceName":"back"},"annotations":[{"timestamp":7,"value":"x"}],"#,
        r#""tags":{"empty":"","k":"v"},"debug":true,"shared":true}"#
    );
    assert_eq!(written(span), expected);
}

#[test]
fn empty_and_unknown_values_are_absent() {
    let bare = r#"{"traceId":"0000000000000001","id":"0000000000000002"}"#;
    let none = Endpoint { ipv4: vec![1, 2, 3], port: -5, ..Endpoint::default() };
    let edge = Span {
        parent_id: vec![0; 8],
        kind: 99,
        timestamp: u64::MAX,
        duration: 1 << 63,
        local_endpoint: Some(none),
        remote_endpoint: Some(Endpoint::default()),
        ..ids()
    };
    assert_eq!(written(edge), bare);
    assert_eq!(written(Span { trace_id: vec![1], id: vec![2], ..ids() }), bare);
}

#[test]
fn empty_annotations_and_tags_are_left_out_and_counted() {
    let annotation = |timestamp, value: &str| Annotation { timestamp, value: value.to_owned() };
    let entry = one(Span {
        annotations: vec![annotation(0, "x"), annotation(5, ""), annotation(5, "y"), annotation(5, "y")],
        tags: HashMap::from([(String::new(), "x".to_owned()), ("k".to_owned(), "v".to_owned())]),
        ..ids()
    });
    let entry = entry.unwrap();
    assert_eq!((entry.empty, entry.span.annotations.len(), entry.span.tags.len()), (3, 1, 1));
}

#[test]
fn a_bad_span_is_refused_alone_with_its_cause() {
    let bad = [
        (Span { trace_id: Vec::new(), ..ids() }, Cause::BadId),
        (Span { trace_id: vec![0; 16], ..ids() }, Cause::BadId),
        (Span { trace_id: vec![1; 17], ..ids() }, Cause::BadId),
        (Span { id: Vec::new(), ..ids() }, Cause::BadId),
        (Span { id: vec![1; 9], ..ids() }, Cause::BadId),
        (Span { parent_id: vec![1; 9], ..ids() }, Cause::BadId),
        (Span { id: vec![0, 0, 0, 0, 0, 0, 0, 0, 1], ..ids() }, Cause::BadId),
        (Span { parent_id: vec![0; 9], ..ids() }, Cause::BadId),
        (
            Span { local_endpoint: Some(Endpoint { port: 65_536, ..Endpoint::default() }), ..ids() },
            Cause::BadValue,
        ),
    ];
    for (span, cause) in bad {
        let mut entries = read(&list(vec![ids(), span, ids()])).unwrap();
        assert!(entries[0].is_ok() && entries[2].is_ok());
        assert_eq!(entries.remove(1).unwrap_err().cause(), cause);
    }
}

/// A field with these bytes.
fn chunk(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2];
    prost::encoding::encode_varint(bytes.len() as u64, &mut field);
    [field, bytes.to_vec()].concat()
}

#[test]
fn unknown_fields_and_known_ones_of_another_type_are_skipped() {
    let mut span = ids().encode_to_vec();
    span.extend_from_slice(&[5 << 3, 0x96, 0x01]); // name as a varint
    span.extend_from_slice(&[6 << 3 | 5, 1, 2, 3, 4]); // timestamp in 32 bits
    span.extend_from_slice(&chunk(15, b"unknown"));
    span.extend_from_slice(&[4 << 3 | 1, 0, 0, 0, 0, 0, 0, 0, 0]); // kind as a fixed64
    let body = [vec![2 << 3, 7], chunk(1, &span)].concat();
    let entries = read(&body).unwrap();
    assert_eq!(entries.len(), 1);
    assert_eq!(entries[0].as_ref().unwrap().span, one(ids()).unwrap().span);
}

#[test]
fn damage_in_a_span_loses_only_it_and_between_spans_the_rest() {
    let good = chunk(1, &ids().encode_to_vec());
    for inside in [&[0x0b][..], &[0x0a, 200, 1], &[0x30, 0xff], &[0x00, 1], &[0x38, 0xff, 0xff]] {
        let body = [good.clone(), chunk(1, inside), good.clone()].concat();
        let entries = read(&body).unwrap();
        assert_eq!(entries.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true], "{inside:?}");
        assert_eq!(entries[1].as_ref().unwrap_err().cause(), Cause::Syntax);
    }
    for between in [&[0x0a, 0xff, 0xff, 0xff, 0xff, 0x7f][..], &[0x0f], &[0xff; 11], &[0x03]] {
        let entries = read(&[&good, between].concat()).unwrap();
        assert_eq!(entries.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false], "{between:?}");
    }
}

#[test]
fn limits_hold_for_lists_lengths_and_counts() {
    let limits = Limits { max_annotations: 2, max_span_bytes: 300, max_entries: 3, ..Limits::default() };
    let cause =
        |span: Span| read_list(&list(vec![span]), &limits).unwrap().remove(0).err().map(|r| r.cause());
    let annotations = |count| vec![Annotation { timestamp: 1, value: "a".to_owned() }; count];
    assert_eq!(cause(Span { annotations: annotations(2), ..ids() }), None);
    assert_eq!(cause(Span { annotations: annotations(3), ..ids() }), Some(Cause::TooLarge));
    let tags = (0..3).map(|at| (at.to_string(), String::new())).collect();
    assert_eq!(cause(Span { tags, ..ids() }), Some(Cause::TooLarge));
    assert_eq!(cause(Span { name: "x".repeat(400), ..ids() }), Some(Cause::TooLarge));
    assert!(matches!(read_list(&list(vec![ids(); 4]), &limits), Err(BadList::TooMany(3))));
    // Each takes two bytes on the wire and is left out, but counts all the same.
    let empty = [ids().encode_to_vec(), chunk(10, &[]).repeat(3)].concat();
    let entries = read_list(&chunk(1, &empty), &limits).unwrap();
    assert_eq!(entries[0].as_ref().unwrap_err().cause(), Cause::TooLarge);
}

#[test]
fn text_that_is_not_utf_8_is_replaced() {
    let body = chunk(1, &[ids().encode_to_vec(), chunk(5, b"a\xff")].concat());
    assert_eq!(read(&body).unwrap()[0].as_ref().unwrap().span.name.as_deref(), Some("a\u{fffd}"));
}

fn any_endpoint() -> impl Strategy<Value = Endpoint> {
    let ipv4 = prop_oneof![Just(Vec::new()), vec(any::<u8>(), 4)];
    let ipv6 = prop_oneof![Just(Vec::new()), vec(1_u8.., 16)];
    ("[a-z]{0,5}", ipv4, ipv6, 0..65_536).prop_map(|(service_name, ipv4, ipv6, port)| Endpoint {
        service_name,
        ipv4,
        ipv6,
        port,
    })
}

fn any_span() -> impl Strategy<Value = Span> {
    let ids = (vec(1_u8.., 1..=16), vec(any::<u8>(), 0..=8), vec(1_u8.., 1..=8));
    let places = (proptest::option::of(any_endpoint()), proptest::option::of(any_endpoint()));
    let annotation = (1..u64::MAX, ".{1,5}").prop_map(|(timestamp, value)| Annotation { timestamp, value });
    let notes = (vec(annotation, 0..4), hash_map(".{1,5}", ".{0,5}", 0..4));
    let rest = (0..9_i32, "[a-z]{0,5}", any::<u64>(), any::<u64>(), any::<bool>(), any::<bool>());
    (ids, places, notes, rest).prop_map(|(ids, places, notes, rest)| Span {
        trace_id: ids.0,
        parent_id: ids.1,
        id: ids.2,
        kind: rest.0,
        name: rest.1,
        timestamp: rest.2,
        duration: rest.3,
        local_endpoint: places.0,
        remote_endpoint: places.1,
        annotations: notes.0,
        tags: notes.1,
        debug: rest.4,
        shared: rest.5,
    })
}

proptest! {
    #[test]
    fn spans_written_by_prost_are_read(spans in vec(any_span(), 0..5)) {
        let entries = read(&list(spans.clone())).unwrap();
        prop_assert_eq!(entries.len(), spans.len());
        for (entry, sent) in entries.into_iter().zip(spans) {
            let Entry { span, empty } = entry.unwrap();
            prop_assert_eq!(empty, 0);
            prop_assert_eq!(span.name.unwrap_or_default(), sent.name);
            prop_assert_eq!(span.tags.iter().map(|(key, value)| (key.clone(), value.clone())).collect::<HashMap<_, _>>(), sent.tags);
            prop_assert_eq!(span.timestamp.unwrap_or(0), i64::try_from(sent.timestamp).unwrap_or(0));
            prop_assert_eq!(span.duration.unwrap_or(0), i64::try_from(sent.duration).unwrap_or(0));
            let sent_ports = [sent.local_endpoint, sent.remote_endpoint].map(|e| e.map_or(0, |e| e.port));
            let ports = [span.local_endpoint, span.remote_endpoint].map(|e| e.and_then(|e| e.port).unwrap_or(0));
            prop_assert_eq!(ports.map(i32::from), sent_ports);
        }
    }

    #[test]
    fn arbitrary_and_damaged_bytes_do_not_panic(
        bytes in vec(any::<u8>(), 0..200),
        span in any_span(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let _ = read(&bytes);
        let mut body = list(vec![span]);
        for (at, byte) in damage {
            let at = at.index(body.len());
            body[at] = byte;
        }
        let _ = read(&body);
    }
}
