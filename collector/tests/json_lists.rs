//! Lists of JSON spans from anybody: one bad entry is refused alone, broken JSON as a whole, nothing panics.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use blkin_collector::model::{Annotation, Endpoint, Kind, Span, SpanId, TraceId};
use blkin_collector::{v1json, v2json};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;

const GOOD: &str = r#"{"traceId":"1","id":"2"}"#;

fn list(entries: &[&str]) -> String {
    format!("[{}]", entries.join(","))
}

/// Which entries were taken, by both readers, which agree on what follows here.
fn taken(body: &[u8]) -> Vec<bool> {
    let v2: Vec<bool> = v2json::read_list(body).unwrap().iter().map(Result::is_ok).collect();
    let v1: Vec<bool> = v1json::read_list(body).unwrap().iter().map(Result::is_ok).collect();
    assert_eq!(v1, v2);
    v2
}

#[test]
fn a_bad_entry_is_refused_alone() {
    let bad = [
        "5",
        "null",
        "[]",
        "{}",
        r#""text""#,
        r#"{"traceId":"1"}"#,
        r#"{"traceId":"X","id":"2"}"#,
        r#"{"traceId":"1","id":"2","timestamp":{}}"#,
        r#"{"traceId":"1","id":"2","annotations":[{"value":"no time"}]}"#,
    ];
    for entry in bad {
        assert_eq!(taken(list(&[GOOD, entry, GOOD]).as_bytes()), [true, false, true], "{entry}");
    }
}

#[test]
fn what_is_wrong_is_said() {
    for (entry, reason) in [
        (r#"{"id":"2"}"#, "failed to read a span: no traceId"),
        (
            r#"{"traceId":"AB","id":"2"}"#,
            "failed to read a span's traceId: an id must be lower-case hexadecimal",
        ),
        (r#"{"traceId":"1","id":"2","kind":"BOTH"}"#, r#"failed to read a span: unknown kind "BOTH""#),
        (r#"{"traceId":"1","id":"2","tags":{"a":null}}"#, "failed to read a span: invalid type: null"),
        (r#"{"traceId":"1","id":"2","localEndpoint":{"port":65536}}"#, "failed to read a span: port 65536"),
    ] {
        let entries = v2json::read_list(list(&[entry]).as_bytes()).unwrap();
        let error = entries[0].as_ref().unwrap_err().to_string();
        assert!(error.starts_with(reason), "{error}");
    }
}

#[test]
fn broken_json_is_refused_as_a_whole() {
    for body in
        ["", "{}", "5", "[", "[{]", r#"[{"traceId":"1","id":"2"}"#, r#"[{"traceId":"1","id":"2"}]x"#, "[,]"]
    {
        assert!(v2json::read_list(body.as_bytes()).is_err(), "{body}");
        assert!(v1json::read_list(body.as_bytes()).is_err(), "{body}");
    }
}

#[test]
fn deep_nesting_is_skipped_where_nobody_reads_it_and_else_refused() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let unknown = format!(r#"{{"traceId":"1","id":"2","x":{deep}}}"#);
    let name = format!(r#"{{"traceId":"1","id":"2","name":{deep}}}"#);
    assert_eq!(taken(list(&[GOOD, &unknown, &name, GOOD]).as_bytes()), [true, true, false, true]);
    let value = format!(r#"{{"traceId":"1","id":"2","binaryAnnotations":[{{"key":"a","value":{deep}}}]}}"#);
    assert!(v1json::read_list(list(&[&value]).as_bytes()).unwrap()[0].is_err());
    for body in ["[".repeat(1_000_000), r#"[{"a":"#.repeat(100_000)] {
        assert!(v2json::read_list(body.as_bytes()).is_err());
    }
}

#[test]
fn a_list_with_too_many_entries_is_refused() {
    let body = list(&vec!["0"; 65_537]);
    let error = v2json::read_list(body.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("more than 65536 spans, send smaller lists"), "{error}");
}

#[test]
fn bytes_that_are_not_utf_8_are_replaced() {
    let body = [&br#"[{"traceId":"1","id":"2","name":"a"#[..], &[0xff], br#""}]"#].concat();
    let entries = v2json::read_list(&body).unwrap();
    assert_eq!(entries[0].as_ref().unwrap().name.as_deref(), Some("a\u{fffd}"));
    assert_eq!(v1json::read_list(&body).unwrap()[0].as_ref().unwrap().name, "a\u{fffd}");
}

#[test]
fn a_member_that_comes_twice_is_refused_and_of_a_tag_the_last_counts() {
    let twice = r#"{"traceId":"9","traceId":"1","id":"2"}"#;
    assert_eq!(taken(list(&[twice, GOOD]).as_bytes()), [false, true]);
    let tags = r#"{"traceId":"1","id":"2","tags":{"k":"1","k":"2"}}"#;
    let entries = v2json::read_list(list(&[tags]).as_bytes()).unwrap();
    assert_eq!(entries[0].as_ref().unwrap().tags["k"], "2");
}

#[test]
fn spans_are_written_in_zipkins_order() {
    let text = concat!(
        r#"{"traceId":"0000000000000001","parentId":"0000000000000003","id":"0000000000000002","kind":"SERVER","#,
        r#""name":"get","timestamp":5,"duration":6,"#,
        r#""localEndpoint":{"serviceName":"a","ipv4":"1.2.3.4","ipv6":"2001:db8::1","port":80},"#,
        r#""remoteEndpoint":{"serviceName":"b"},"annotations":[{"timestamp":7,"value":"x"}],"#,
        r#""tags":{"a":"1","b":"2"},"debug":true,"shared":true}"#
    );
    let entries = v2json::read_list(list(&[text]).as_bytes()).unwrap();
    let span = entries[0].as_ref().unwrap();
    assert_eq!(v2json::write_span(span), text);
    assert_eq!(v2json::write_trace(&[span.clone(), span.clone()]), format!("[{text},{text}]"));
    assert_eq!(v2json::write_traces(&[vec![span.clone()], Vec::new()]), format!("[[{text}],[]]"));
}

fn endpoint() -> impl Strategy<Value = Endpoint> {
    (
        option::of("[a-zäß]{1,8}"),
        option::of(any::<[u8; 4]>()),
        option::of(any::<[u8; 16]>()),
        option::of(1..=u16::MAX),
    )
        .prop_map(|(service_name, ipv4, ipv6, port)| Endpoint {
            service_name,
            ipv4: ipv4.map(Into::into),
            ipv6: ipv6.map(Into::into),
            port,
        })
}

fn span() -> impl Strategy<Value = Span> {
    let kinds = [Kind::Client, Kind::Server, Kind::Producer, Kind::Consumer];
    let ids = (any::<u64>(), 1..u64::MAX, 1..u64::MAX, option::of(1..u64::MAX));
    let times = (option::of(1..i64::MAX), option::of(1..i64::MAX));
    let places = (option::of(endpoint()), option::of(endpoint()));
    let notes = (vec((any::<i64>(), ".*"), 0..5), btree_map(".*", ".*", 0..5));
    let rest = (
        option::of(prop::sample::select(kinds.to_vec())),
        option::of("[a-z /]{1,9}"),
        any::<bool>(),
        any::<bool>(),
    );
    (ids, times, places, notes, rest).prop_map(|(ids, times, places, notes, rest)| {
        let annotation = |(timestamp, value)| Annotation { timestamp, value };
        let span = Span::new(TraceId::new(ids.0, ids.1).unwrap(), SpanId::new(ids.2).unwrap());
        Span {
            parent_id: ids.3.and_then(SpanId::new),
            kind: rest.0,
            name: rest.1,
            timestamp: times.0,
            duration: times.1,
            local_endpoint: places.0,
            remote_endpoint: places.1,
            annotations: notes.0.into_iter().map(annotation).collect(),
            tags: notes.1,
            debug: rest.2,
            shared: rest.3,
            ..span
        }
        .normalized()
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(spans in vec(span(), 0..4)) {
        let read: Result<Vec<Span>, _> =
            v2json::read_list(v2json::write_trace(&spans).as_bytes()).unwrap().into_iter().collect();
        prop_assert_eq!(read.unwrap(), spans);
    }

    #[test]
    fn arbitrary_text_does_not_panic(text in r#"[\[\]{}:,"0-9a-z\\]{0,200}"#, bytes in vec(any::<u8>(), 0..200)) {
        for body in [text.as_bytes(), &bytes, list(&[GOOD, &text]).as_bytes()] {
            let _ = v1json::read_list(body);
            let _ = v2json::read_list(body);
        }
    }

    #[test]
    fn damaged_spans_do_not_panic(span in span(), damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let mut body = v2json::write_trace(&[span]).into_bytes();
        for (at, byte) in damage {
            let at = at.index(body.len());
            body[at] = byte;
        }
        let _ = v1json::read_list(&body);
        let _ = v2json::read_list(&body);
    }
}
