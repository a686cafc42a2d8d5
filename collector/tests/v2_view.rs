//! A view of a JSON span must hold what the reader reads; spans that it refuses are left to the reader.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use blkin_collector::model::SpanId;
use blkin_collector::v2json;
use blkin_collector::v2view::{List, V2List, V2View, entries};
use blkin_thrift::Limits;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

const FULL: &str = r#"{"traceId":"463ac35c9f6413ad48485a3953bb6124","parentId":"3","id":"2","kind":"SERVER","name":"Get","timestamp":5,"duration":6,"localEndpoint":{"serviceName":"Front","ipv4":"1.2.3.4","ipv6":"2001:db8::1","port":80},"remoteEndpoint":{"serviceName":"back"},"annotations":[{"timestamp":9,"value":"y"},{"timestamp":7,"value":"X"}],"tags":{"b":"2","a":"1"},"debug":true,"shared":true}"#;

/// The members of a view that a span may lack.
fn said(view: &V2View<'_>) -> ([bool; 3], [Option<i64>; 2], Option<SpanId>) {
    let names = [view.name, view.local.service, view.remote.service];
    (names.map(|name| name.is_some()), [view.timestamp, view.duration], view.parent)
}

/// Whether a view reads the entry. If so, the reader reads the same.
fn is_plain(entry: &str, limits: &Limits) -> bool {
    let mut view = V2View::default();
    let plain = view.read(entry, limits);
    if plain {
        let list = v2json::read_list(format!("[{entry}]").as_bytes(), limits).unwrap();
        assert_eq!(list.len(), 1);
        let span = list[0].as_ref().unwrap();
        assert_eq!(view.to_span().as_ref(), Some(span));
        assert_eq!(said(&view), said(&V2View::of(span)));
    }
    plain
}

/// Whether an entry of two ids and these members is plain.
fn is_plain_with(members: &str) -> bool {
    is_plain(&format!(r#"{{"traceId":"1","id":"2",{members}}}"#), &Limits::default())
}

#[test]
fn a_span_with_every_member_is_plain() {
    assert!(is_plain(FULL, &Limits::default()));
    let mut view = V2View::default();
    assert!(view.read(FULL, &Limits::default()));
    assert_eq!(
        (view.name, view.local.service, view.remote.service),
        (Some("Get"), Some("Front"), Some("back"))
    );
    assert_eq!((view.annotations, view.tags), (vec![(7, "X"), (9, "y")], vec![("a", "1"), ("b", "2")]));
}

#[test]
fn a_reused_view_holds_only_the_new_span() {
    let mut view = V2View::default();
    assert!(view.read(FULL, &Limits::default()));
    assert!(!view.local.is_empty() && !view.remote.is_empty());
    assert!(!view.read(&FULL[..300], &Limits::default()));
    assert!(view.read(r#"{"traceId":"1","id":"2"}"#, &Limits::default()));
    assert_eq!(view, V2View { trace_id: "1".parse().ok(), id: "2".parse().ok(), ..V2View::default() });
    assert!(view.local.is_empty() && view.remote.is_empty());
}

#[test]
fn empty_values_are_read_as_by_the_reader() {
    for members in [
        r#""name":"","timestamp":0,"duration":-5"#,
        r#""timestamp":-5,"duration":0"#,
        r#""parentId":"0000000000000000""#,
        r#""parentId":"2""#,
        r#""localEndpoint":{"serviceName":""},"remoteEndpoint":{}"#,
        r#""localEndpoint":{"ipv4":"no address","port":-1}"#,
        r#""kind":"CLIENT","shared":true"#,
        r#""annotations":[],"tags":{}"#,
        " \"debug\" :\tfalse ,\r\n\"annotations\": [ { \"timestamp\" : -1 , \"value\" : \"\" } ] ",
    ] {
        assert!(is_plain_with(members), "{members}");
    }
}

#[test]
fn addresses_are_recognised_by_their_form() {
    for members in [
        r#""ipv4":"1.2.3.4","ipv6":"2001:db8::1","port":80"#,
        r#""ipv4":"2001:db8::1","ipv6":"1.2.3.4""#,
        r#""ipv4":"1.2.3.4","ipv6":"::ffff:5.6.7.8""#,
        r#""ipv6":"::ffff:5.6.7.8","ipv4":"1.2.3.4""#,
        r#""ipv6":"","ipv4":"1.2.3.4","port":0"#,
    ] {
        assert!(is_plain_with(&format!(r#""remoteEndpoint":{{{members}}}"#)), "{members}");
    }
}

#[test]
fn unusual_members_are_not_plain() {
    for members in [
        r#""id":"3""#,
        r#""id":"3","id":"3""#,
        r#""name":"a\u0062""#,
        r#""name":null"#,
        r#""name":5"#,
        r#""n\u0061me":"a""#,
        r#""timestamp":"5""#,
        r#""timestamp":5.0"#,
        r#""timestamp":9223372036854775808"#,
        r#""kind":"BOTH""#,
        r#""parentId":"X""#,
        r#""debug":1"#,
        r#""debug":tru"#,
        r#""timestamp":-0"#,
        r#""timestamp":05"#,
        r#""timestamp":-"#,
        r#""timestamp":1234567890123456789"#,
        r#""new":1"#,
        r#""binaryAnnotations":[]"#,
        r#""localEndpoint":["a"]"#,
        r#""localEndpoint":{"port":65536}"#,
        r#""localEndpoint":{"ipv4":{}}"#,
        r#""annotations":[{"timestamp":1}]"#,
        r#""annotations":[{"value":"a"}]"#,
        r#""annotations":[[1,"a"]]"#,
        r#""annotations":[{"timestamp":1,"value":"a"},{"timestamp":1,"value":"a"}]"#,
        r#""tags":{"a":"1","b":"2","a":"1"}"#,
        r#""tags":{"a":1}"#,
    ] {
        assert!(!is_plain_with(members), "{members}");
    }
    let more = ["", ",", " 5", FULL].map(|rest| format!("{FULL}{rest}"));
    assert_eq!(more.map(|entry| is_plain(&entry, &Limits::default())), [true, false, false, false]);
    for entry in ["", "5", "null", "[]", "{}", r#"{"traceId":"1"}"#, r#"{"id":"1"}"#] {
        assert!(!is_plain(entry, &Limits::default()), "{entry}");
    }
    for (trace_id, id) in [("0", "1"), ("1", "0"), ("A", "1"), ("1", "12345678123456781"), ("", "1")] {
        assert!(!is_plain(&format!(r#"{{"traceId":"{trace_id}","id":"{id}"}}"#), &Limits::default()));
    }
}

#[test]
fn a_span_over_a_limit_is_not_plain() {
    let fits = Limits { max_span_bytes: FULL.len(), max_annotations: 2, ..Limits::default() };
    assert!(is_plain(FULL, &fits));
    assert!(!is_plain(FULL, &Limits { max_span_bytes: FULL.len() - 1, ..fits }));
    assert!(!is_plain(FULL, &Limits { max_annotations: 1, ..fits }));
    let two_tags = r#"{"traceId":"1","id":"2","tags":{"a":"1","b":"2"}}"#;
    assert!(is_plain(two_tags, &fits));
    assert!(!is_plain(two_tags, &Limits { max_annotations: 1, ..fits }));
}

#[test]
fn no_truncated_span_is_plain() {
    for length in 0..FULL.len() {
        assert!(!is_plain(&FULL[..length], &Limits::default()), "{length} bytes");
    }
}

#[test]
fn a_list_is_split_into_the_texts_of_its_entries() {
    let body = format!(" [ {FULL} ,null,\n[1, 2]] ");
    assert_eq!(entries(&body, &Limits::default()).unwrap().entries, [FULL, "null", "[1, 2]"]);
    for odd in ["\t", "\u{1}", r"\x", r"\\", r#"\""#] {
        let entry = format!("{{\"読\":\"a{odd}[\"}}");
        let list = format!("[{FULL},{entry}, {FULL}]");
        let read = entries(&list, &Limits::default()).unwrap();
        assert_eq!(read.entries, [FULL, &entry, FULL], "{odd:?}");
    }
}

/// Reads a list in place, and compares every entry with what the list holds. Returns how many entries were read, and whether
/// these were all.
fn read_in_place(body: &str, limits: &Limits) -> (usize, bool) {
    let (mut list, mut view) = (V2List::new(body), V2View::default());
    let mut texts = Vec::new();
    while let Some(text) = list.next(&mut view, limits) {
        let mut alone = V2View::default();
        assert!(alone.read(text, limits));
        assert_eq!(alone, view);
        texts.push(text);
    }
    assert!(list.next(&mut view, limits).is_none());
    assert_eq!(list.read(), texts.len());
    match entries(body, limits) {
        Ok(List { entries, excess }) => {
            assert_eq!(entries[..texts.len()], texts);
            assert!(!list.is_whole() || entries.len() == texts.len() && excess.is_none());
        }
        Err(_) => assert!(!list.is_whole()),
    }
    (texts.len(), list.is_whole())
}

#[test]
fn a_list_is_read_in_place_up_to_an_unusual_entry() {
    let limits = Limits { max_entries: 3, ..Limits::default() };
    let of = |parts: &[&str]| read_in_place(&parts.concat(), &limits);
    assert_eq!(of(&["[]"]), (0, true));
    assert_eq!(of(&[" [ ] \n"]), (0, true));
    assert_eq!(of(&["[", FULL, "]"]), (1, true));
    assert_eq!(of(&[" [ ", FULL, " ,\n", FULL, ",", FULL, " ] "]), (3, true));
    assert_eq!(of(&["[", FULL, ",", FULL, ",", FULL, ",", FULL, "]"]), (3, false));
    for unusual in ["", "null", "[]", "{}", "{", "]", ",", r#"{"traceId":"1","id":"2","new":1}"#] {
        assert_eq!(of(&["[", FULL, ",", unusual, ",", FULL, "]"]), (1, false), "{unusual}");
    }
    let each_fits = Limits { max_span_bytes: FULL.len(), ..limits };
    assert_eq!(read_in_place(&format!("[{FULL},{FULL}]"), &each_fits), (2, true));
    assert!(!V2List::new("[]").is_whole(), "nothing was read yet");
    for broken in ["", " ", "]", ",", "5", "{}", FULL, "[", "[,]", "[]x", "[],", "[]]"] {
        assert_eq!(of(&[broken]), (0, false), "{broken:?}");
    }
    for end in ["", ",", ",]", "]]", "] x", "}", FULL, " "] {
        assert_eq!(of(&["[", FULL, end]), (1, false), "{end:?}");
    }
}

/// Members as reporters write them, and as they should not.
fn member() -> impl Strategy<Value = String> {
    let name = select(vec![
        "traceId",
        "id",
        "parentId",
        "kind",
        "name",
        "timestamp",
        "duration",
        "localEndpoint",
        "remoteEndpoint",
        "annotations",
        "tags",
        "debug",
        "shared",
        "binaryAnnotations",
        "new",
        "serviceName",
        "ipv4",
        "port",
        "value",
    ]);
    let value = select(vec![
        r#""1""#,
        r#""2""#,
        r#""0""#,
        r#""463ac35c9f6413ad48485a3953bb6124""#,
        r#""CLIENT""#,
        r#""Äb""#,
        r#""\n""#,
        "1",
        "-1",
        "1.5",
        "null",
        "true",
        "{}",
        "[]",
        r#"{"serviceName":"S","port":80}"#,
        r#"{"ipv4":"1.2.3.4","ipv6":"::ffff:5.6.7.8","port":-1}"#,
        r#"{"serviceName":1}"#,
        r#"{"port":"x"}"#,
        r#"{"a":"b","B":"c"}"#,
        r#"[{"timestamp":2,"value":"a"},{"value":"b","timestamp":1}]"#,
        r#"[{"timestamp":2,"value":"a","new":{}}]"#,
    ]);
    (name, value).prop_map(|(name, value)| format!(r#""{name}":{value}"#))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn members_in_any_order_are_read_as_the_reader_reads_them(members in vec(member(), 0..6), ids in any::<bool>()) {
        let ids = if ids { vec![r#""traceId":"a""#.to_owned(), r#""id":"b""#.to_owned()] } else { Vec::new() };
        is_plain(&format!("{{{}}}", [ids, members].concat().join(", ")), &Limits::default());
    }

    #[test]
    fn damaged_lists_are_read_in_place_up_to_the_damage(
        spans in 0usize..4,
        damage in vec((any::<prop::sample::Index>(), r#"[\[\]{}:,"0-9a-f\\n .-]"#), 0..3),
    ) {
        let mut body = format!("[{}]", vec![FULL; spans].join(" , "));
        for (at, text) in damage {
            let at = at.index(body.len());
            body.replace_range(at..=at, &text);
        }
        read_in_place(&body, &Limits::default());
    }

    #[test]
    fn damaged_spans_are_read_as_the_reader_reads_them(
        damage in vec((any::<prop::sample::Index>(), r#"[\[\]{}:,"0-9a-f\\n .-]"#), 1..4),
    ) {
        let mut entry = FULL.to_owned();
        for (at, text) in damage {
            let at = at.index(entry.len());
            entry.replace_range(at..=at, &text);
        }
        // Text that is no longer a single entry of a list never reaches a view.
        if entries(&format!("[{entry}]"), &Limits::default()).is_ok_and(|list| list.entries == [entry.trim()]) {
            is_plain(&entry, &Limits::default());
        }
    }
}
