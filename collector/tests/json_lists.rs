//! Lists of JSON spans from any sender: one bad entry is refused alone, broken JSON as a whole, and nothing panics.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use blkin_collector::model::{Annotation, Endpoint, Kind, Span, SpanId, TraceId};
use blkin_collector::refusal::{BadEntry, BadList, Cause, Refusal};
use blkin_collector::{v1json, v2json};
use blkin_thrift::Limits;
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;

const GOOD: &str = r#"{"traceId":"1","id":"2"}"#;

fn read_v1(body: &[u8]) -> Result<Vec<Result<blkin_thrift::Span, BadEntry>>, BadList> {
    v1json::read_list(body, &Limits::default())
}

fn read_v2(body: &[u8]) -> Result<Vec<Result<Span, BadEntry>>, BadList> {
    v2json::read_list(body, &Limits::default())
}

fn list(entries: &[&str]) -> String {
    format!("[{}]", entries.join(","))
}

/// Which entries were accepted by both readers, which must agree on the cases below.
fn taken(body: &[u8]) -> Vec<bool> {
    let v2: Vec<bool> = read_v2(body).unwrap().iter().map(Result::is_ok).collect();
    let v1: Vec<bool> = read_v1(body).unwrap().iter().map(Result::is_ok).collect();
    assert_eq!(v1, v2);
    v2
}

#[test]
fn a_zero_address_in_v1_is_ignored() {
    for address in [r#""ipv4":"0.0.0.0""#, r#""ipv6":"::""#] {
        let annotation =
            format!(r#"{{"timestamp":9,"value":"x","endpoint":{{"serviceName":"a",{address}}}}}"#);
        let body = list(&[&format!(r#"{{"traceId":"1","id":"2","annotations":[{annotation}]}}"#)]);
        let span = read_v1(body.as_bytes()).unwrap().remove(0).unwrap();
        let spans = blkin_collector::convert::v1_to_v2(&span);
        let expected = Endpoint::service("a");
        assert_eq!(spans[0].local_endpoint, Some(expected), "{address}");
    }
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
        r#"{"traceId":"1","id":"2","name":"\x"}"#,
        r#"{"traceId":"1","id":"2","name":"\ud83"}"#,
        "{\"traceId\":\"1\",\u{1}\"id\":\"2\"}",
    ];
    for entry in bad {
        assert_eq!(taken(list(&[GOOD, entry, GOOD]).as_bytes()), [true, false, true], "{entry}");
    }
}

#[test]
fn refusals_state_what_is_wrong() {
    for (entry, reason) in [
        (r#"{"id":"2"}"#, "failed to read a span: no traceId"),
        (
            r#"{"traceId":"AB","id":"2"}"#,
            "failed to read a span's traceId: an id must be lower-case hexadecimal",
        ),
        (r#"{"traceId":"1","id":"2","kind":"BOTH"}"#, r#"failed to read a span: unknown kind "BOTH""#),
        (r#"{"traceId":"1","id":"2","tags":{"a":null}}"#, "failed to read a span: tags: invalid type: null"),
        (r#"{"traceId":"1","id":"2","localEndpoint":{"port":65536}}"#, "failed to read a span: port 65536"),
    ] {
        let entries = read_v2(list(&[entry]).as_bytes()).unwrap();
        let error = entries[0].as_ref().unwrap_err().to_string();
        assert!(error.starts_with(reason), "{error}");
    }
}

#[test]
fn a_tag_without_a_key_is_not_reported_as_a_bad_id() {
    let entry = r#"{"traceId":"1","id":"2","binaryAnnotations":[{"value":"v"}]}"#;
    let error = read_v1(list(&[entry]).as_bytes()).unwrap().remove(0).unwrap_err();
    assert_eq!(error.to_string(), "failed to read a span: no key of a binary annotation");
    assert_eq!(error.cause(), Cause::EmptyAnnotation);
}

#[test]
fn broken_json_is_refused_as_a_whole() {
    for body in
        ["", "{}", "5", "[", "[{]", r#"[{"traceId":"1","id":"2"}"#, r#"[{"traceId":"1","id":"2"}\]"#, "[,]"]
    {
        assert!(read_v2(body.as_bytes()).is_err(), "{body}");
        assert!(read_v1(body.as_bytes()).is_err(), "{body}");
    }
}

#[test]
fn deep_nesting_is_skipped_in_unread_members_and_else_refused() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let unknown = format!(r#"{{"traceId":"1","id":"2","x":{deep}}}"#);
    let name = format!(r#"{{"traceId":"1","id":"2","name":{deep}}}"#);
    assert_eq!(taken(list(&[GOOD, &unknown, &name, GOOD]).as_bytes()), [true, true, false, true]);
    let value = format!(r#"{{"traceId":"1","id":"2","binaryAnnotations":[{{"key":"a","value":{deep}}}]}}"#);
    assert!(read_v1(list(&[&value]).as_bytes()).unwrap()[0].is_ok());
    for body in ["[".repeat(1_000_000), r#"[{"a":"#.repeat(100_000)] {
        assert!(read_v2(body.as_bytes()).is_err());
    }
}

#[test]
fn a_list_with_too_many_entries_is_refused() {
    let body = list(&vec!["0"; 65_537]);
    let error = read_v2(body.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("more than 65536 spans: send smaller lists"), "{error}");
}

#[test]
fn bytes_that_are_not_utf_8_are_replaced() {
    let body = [&br#"[{"traceId":"1","id":"2","name":"a"#[..], &[0xff], br#""}]"#].concat();
    let entries = read_v2(&body).unwrap();
    assert_eq!(entries[0].as_ref().unwrap().name.as_deref(), Some("a\u{fffd}"));
    assert_eq!(read_v1(&body).unwrap()[0].as_ref().unwrap().name, "a\u{fffd}");
}

/// JavaScript writes half a surrogate pair for a text that was cut within one; and not every writer escapes what JSON requires to
/// be escaped.
#[test]
fn nearly_valid_json_strings_are_read_as_meant() {
    for (written, read) in [
        (r"cut \ud83d", "cut \u{fffd}"),
        (r"\ude00\ud83d\ud83d\ude00", "\u{fffd}\u{fffd}😀"),
        ("a\tb\n", "a\tb\n"),
        ("\0\u{1}", "\0\u{1}"),
        (r"it\'s", "it's"),
    ] {
        let odd = format!(
            r#"{{"traceId":"1","id":"2","x{written}":["{written}"],"name":"{written}","annotations":[{{"timestamp":1,"value":"{written}"}}]"#
        );
        let v2 = list(&[GOOD, &format!(r#"{odd},"tags":{{"{written}":"{written}"}}}}"#), GOOD]);
        let spans: Vec<Span> = read_v2(v2.as_bytes()).unwrap().into_iter().map(Result::unwrap).collect();
        assert_eq!((spans.len(), spans[1].name.as_deref()), (3, Some(read)));
        assert_eq!(spans[1].annotations[0].value, read);
        assert_eq!(spans[1].tags, [(read.to_owned(), read.to_owned())].into());
        let v1 = list(&[
            GOOD,
            &format!(r#"{odd},"binaryAnnotations":[{{"key":"{written}","value":"{written}"}}]}}"#),
            GOOD,
        ]);
        let spans: Vec<_> = read_v1(v1.as_bytes()).unwrap().into_iter().map(Result::unwrap).collect();
        assert_eq!((spans.len(), &*spans[1].name), (3, read));
        assert_eq!(spans[1].annotations[0].value, read);
        let tag = &spans[1].binary_annotations[0];
        assert_eq!((&*tag.key, &*tag.value), (read, read.as_bytes()));
    }
}

#[test]
fn a_number_for_a_text_keeps_its_spelling() {
    for number in ["7", "17.0", "1.10", "-0", "1e3", "1E400", "123456789012345678901234567890"] {
        let body = format!(
            r#"[{{"traceId":"1","id":"2","name":{number},"annotations":[{{"timestamp":1,"value":{number}}}]}}]"#
        );
        let (v1, v2) = (read_v1(body.as_bytes()).unwrap(), read_v2(body.as_bytes()).unwrap());
        let (v1, v2) = (v1[0].as_ref().unwrap(), v2[0].as_ref().unwrap());
        assert_eq!((&*v1.annotations[0].value, &*v2.annotations[0].value), (number, number));
        assert_eq!(v2.name, Some(number.to_lowercase()));
    }
    let body = br#"[{"traceId":"1","id":"2","tags":{"size":1.10}}]"#;
    assert_eq!(read_v2(body).unwrap()[0].as_ref().unwrap().tags["size"], "1.10");
}

/// Scripts in dynamic languages write times with a decimal point. Every whole number that a 64-bit float can hold stays exact.
#[test]
fn a_time_that_is_written_with_a_point_is_exact() {
    for time in [1_810_000_000_000_001_i64, 1_801_439_850_948_199, 4_102_444_800_000_003, (1 << 53) - 1] {
        for text in [format!("{time}.0"), format!("{time}.000"), format!("\"{time}.0\"")] {
            let body = list(&[&format!(r#"{{"traceId":"1","id":"2","timestamp":{text}}}"#)]);
            let read = read_v2(body.as_bytes()).unwrap().remove(0).map(|span| span.timestamp);
            assert_eq!(read.unwrap(), Some(time), "{text}");
        }
    }
}

#[test]
fn a_numeric_v1_tag_value_of_any_size_is_accepted() {
    for value in ["1e400", "-1E999", "123456789012345678901234567890"] {
        let odd = format!(r#"{{"key":"k","value":{value}}}"#);
        let body = list(&[&format!(r#"{{"traceId":"1","id":"2","binaryAnnotations":[{odd}]}}"#)]);
        let read = read_v1(body.as_bytes()).unwrap().remove(0).unwrap();
        assert_eq!(read.binary_annotations[0].kind, blkin_thrift::AnnotationType::Bytes, "{value}");
    }
}

#[test]
fn text_after_the_list_is_refused_as_one_more_entry() {
    for excess in ["x", "]", "\0", r#"[{"traceId":"1","id":"2"}]"#] {
        assert_eq!(
            taken(format!("{}{excess}", list(&[GOOD, GOOD])).as_bytes()),
            [true, true, false],
            "{excess}"
        );
    }
    let refusal = read_v2(b"[] []").unwrap().remove(0).unwrap_err();
    assert_eq!(refusal.cause(), Cause::Syntax);
    assert!(
        refusal.to_string().starts_with("failed to read what comes after the list of spans"),
        "{refusal}"
    );
    assert!(read_v1(b" [ ]\r\n").unwrap().is_empty());
}

#[test]
fn repeated_members_are_combined_and_null_is_ignored() {
    let twice = concat!(
        r#"{"traceId":"9","traceId":"1","id":"2","name":"a","name":"b","name":null,"timestamp":1,"timestamp":2,"#,
        r#""localEndpoint":{"serviceName":"x","port":1},"localEndpoint":{"serviceName":"a","serviceName":"b"},"#,
        r#""annotations":[{"timestamp":1,"value":"a"}],"annotations":[{"timestamp":2,"value":"b"}],"#,
        r#""tags":{"k":"1","k":"2"},"tags":{"l":"3"},"debug":true,"debug":false}"#
    );
    let written = concat!(
        r#"{"traceId":"0000000000000001","id":"0000000000000002","name":"b","timestamp":2,"#,
        r#""localEndpoint":{"serviceName":"b"},"annotations":[{"timestamp":1,"value":"a"},{"timestamp":2,"value":"b"}],"#,
        r#""tags":{"k":"2","l":"3"},"debug":true}"#
    );
    let entries = read_v2(list(&[twice]).as_bytes()).unwrap();
    assert_eq!(v2json::write_span(entries[0].as_ref().unwrap()), written);
    let entry =
        r#"{"traceId":"1","id":"2","id":"3","annotations":[{"timestamp":0,"timestamp":5,"value":"a"}]}"#;
    let entries = read_v1(list(&[entry]).as_bytes()).unwrap();
    let span = entries[0].as_ref().unwrap();
    assert_eq!((span.id, span.annotations[0].timestamp), (3, 5));
}

#[test]
fn an_id_that_is_null_is_refused() {
    for entry in [r#"{"traceId":null,"id":"2"}"#, r#"{"traceId":"1","id":null}"#] {
        assert_eq!(taken(list(&[entry, GOOD]).as_bytes()), [false, true], "{entry}");
    }
}

#[test]
fn a_span_of_the_other_version_is_refused_naming_its_endpoint() {
    let v1 = r#"{"traceId":"1","id":"2","binaryAnnotations":[]}"#;
    let refusal = read_v2(list(&[v1]).as_bytes()).unwrap().remove(0).unwrap_err();
    assert_eq!(refusal.cause(), Cause::OtherVersion);
    assert!(refusal.to_string().contains("post v1 to /api/v1/spans"), "{refusal}");
    for member in [r#""localEndpoint":{}"#, r#""remoteEndpoint":{}"#, r#""tags":{}"#] {
        let v2 = format!(r#"{{"traceId":"1","id":"2",{member}}}"#);
        let refusal = read_v1(list(&[&v2]).as_bytes()).unwrap().remove(0).unwrap_err();
        assert_eq!(refusal.cause(), Cause::OtherVersion, "{member}");
    }
}

#[test]
fn limits_on_lengths_and_counts_are_enforced() {
    let limits = Limits { max_annotations: 2, max_span_bytes: 300, max_entries: 3, ..Limits::default() };
    let items = |member: &str, open: char, item: fn(usize) -> String, close: char, count: usize| {
        let items: Vec<String> = (0..count).map(item).collect();
        format!(r#"[{{"traceId":"1","id":"2","{member}":{open}{}{close}}}]"#, items.join(","))
    };
    let annotation = |at: usize| format!(r#"{{"timestamp":{at},"value":"a"}}"#);
    let tag = |at: usize| format!(r#""{at}":"""#);
    let binary = |at: usize| format!(r#"{{"key":"{at}"}}"#);
    for count in [2, 3, 1000] {
        let v2 = |body: String| v2json::read_list(body.as_bytes(), &limits).unwrap().remove(0).map(drop);
        let v1 = |body: String| v1json::read_list(body.as_bytes(), &limits).unwrap().remove(0).map(drop);
        let read = [
            v2(items("annotations", '[', annotation, ']', count)),
            v2(items("tags", '{', tag, '}', count)),
            v1(items("annotations", '[', annotation, ']', count)),
            v1(items("binaryAnnotations", '[', binary, ']', count)),
        ];
        for read in read {
            let cause = read.err().map(|refusal| refusal.cause());
            assert_eq!(cause, (count > 2).then_some(Cause::TooLarge), "{count}");
        }
    }
    let long = format!(r#"[{{"traceId":"1","id":"2","name":"{}"}}]"#, "x".repeat(400));
    assert_eq!(
        v2json::read_list(long.as_bytes(), &limits).unwrap()[0].as_ref().unwrap_err().cause(),
        Cause::TooLarge
    );
    let refusal = v2json::read_list(list(&[GOOD; 4]).as_bytes(), &limits).unwrap_err();
    assert_eq!(refusal.cause(), Cause::TooLarge);
}

#[test]
fn line_separators_are_escaped_as_javascript_needs_it() {
    let text = "a\u{2028}b\u{2029}\u{2028}";
    let entry = format!(r#"{{"traceId":"1","id":"2","tags":{{"{text}":"{text}"}}}}"#);
    let entries = read_v2(list(&[&entry]).as_bytes()).unwrap();
    let written = v2json::write_span(entries[0].as_ref().unwrap());
    assert!(written.contains(r#""tags":{"a\u2028b\u2029\u2028":"a\u2028b\u2029\u2028"}"#), "{written}");
    assert_eq!(
        read_v2(list(&[&written]).as_bytes()).unwrap()[0].as_ref().unwrap(),
        entries[0].as_ref().unwrap()
    );
}

#[test]
fn span_members_are_written_in_zipkins_order() {
    let text = concat!(
        r#"{"traceId":"0000000000000001","parentId":"0000000000000003","id":"0000000000000002","kind":"SERVER","#,
        r#""name":"get","timestamp":5,"duration":6,"#,
        r#""localEndpoint":{"serviceName":"a","ipv4":"1.2.3.4","ipv6":"2001:db8::1","port":80},"#,
        r#""remoteEndpoint":{"serviceName":"b"},"annotations":[{"timestamp":7,"value":"x"}],"#,
        r#""tags":{"a":"1","b":"2"},"debug":true,"shared":true}"#
    );
    let entries = read_v2(list(&[text]).as_bytes()).unwrap();
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
        let annotation = |(timestamp, value): (i64, String)| Annotation::new(timestamp, value);
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
            tags: notes.1.into_iter().collect(),
            debug: rest.2,
            shared: rest.3,
            ..span
        }
        .normalized()
    })
}

proptest! {
    #[test]
    fn written_spans_are_read_back(spans in vec(span(), 0..4)) {
        let read: Result<Vec<Span>, _> =
            read_v2(v2json::write_trace(&spans).as_bytes()).unwrap().into_iter().collect();
        prop_assert_eq!(read.unwrap(), spans);
    }

    #[test]
    fn arbitrary_text_does_not_panic(text in r#"[\[\]{}:,"0-9a-z\\]{0,200}"#, bytes in vec(any::<u8>(), 0..200)) {
        for body in [text.as_bytes(), &bytes, list(&[GOOD, &text]).as_bytes()] {
            let _ = read_v1(body);
            let _ = read_v2(body);
        }
    }

    #[test]
    fn damaged_spans_do_not_panic(span in span(), damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let mut body = v2json::write_trace(&[span]).into_bytes();
        for (at, byte) in damage {
            let at = at.index(body.len());
            body[at] = byte;
        }
        let _ = read_v1(&body);
        let _ = read_v2(&body);
    }
}

#[test]
fn a_member_of_the_wrong_type_is_named_with_its_position() {
    for (members, reason) in [
        (r#""id":null"#, "id: invalid type: null, expected a string at line 1 column 25"),
        (
            r#""id":"2","name":true"#,
            "name: invalid type: boolean `true`, expected a string at line 1 column 36",
        ),
        (r#""id":"2","timestamp":"soon""#, "timestamp: not a whole number of 64 bits at line 1 column 42"),
        ("\"id\":\"2\",\n\"duration\":1.5", "duration: not a whole number of 64 bits at line 2 column 14"),
        (
            r#""id":"2","localEndpoint":{"port":"http"}"#,
            "localEndpoint: port: not a whole number of 64 bits at line 1 column 54",
        ),
        (
            r#""id":"2","annotations":[{"timestamp":"soon","value":"x"}]"#,
            "annotations: timestamp: not a whole number of 64 bits at line 1 column 58",
        ),
    ] {
        let entry = format!(r#"{{"traceId":"1",{members}}}"#);
        let error = read_v2(format!("[\n{entry}]").as_bytes()).unwrap()[0].as_ref().unwrap_err().to_string();
        assert_eq!(error, format!("failed to read a span: {reason} of the span"));
    }
}

#[test]
fn invalid_bytes_outside_strings_hide_nothing_after_the_list() {
    for body in [&b"[2\0\0]\\]"[..], b"[2]\0\\]", br#"[{"traceId":"1","id":"2"}]\]"#] {
        let hides =
            read_v2(body).is_ok_and(|entries| !matches!(entries.last(), Some(Err(BadEntry::AfterList(_)))));
        assert!(!hides, "{}", body.escape_ascii());
    }
}
