//! The conversion of v1 spans, rule by rule. The collector's corpus has the results of Zipkin's own library for random spans;
//! here each rule is tested by itself.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use blkin_thrift::view::SpanView;
use blkin_thrift::{Annotation, AnnotationType, BinaryAnnotation, Endpoint, Span};
use blkin_zipkin::convert::{
    Texts, has_call_mark, is_plain_key, is_plain_value, service_of, v1_to_v2, view_to_v2,
};
use blkin_zipkin::model;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

/// An endpoint as "service", "service:port", or ":port" for one without a name.
fn host(place: &str) -> Endpoint {
    let (service, port) = place.split_once(':').unwrap_or((place, "0"));
    Endpoint { service_name: service.to_owned(), port: port.parse().unwrap(), ..Endpoint::default() }
}

fn at(timestamp: i64, value: &str, place: &str) -> Annotation {
    Annotation { host: Some(host(place)), ..nowhere(timestamp, value) }
}

fn nowhere(timestamp: i64, value: &str) -> Annotation {
    Annotation { timestamp, value: value.to_owned(), ..Annotation::default() }
}

fn tag(key: &str, value: &str, place: &str) -> BinaryAnnotation {
    BinaryAnnotation {
        key: key.to_owned(),
        value: value.as_bytes().to_vec(),
        kind: AnnotationType::String,
        host: Some(host(place)),
        ..BinaryAnnotation::default()
    }
}

fn v1(annotations: &[Annotation], tags: &[BinaryAnnotation]) -> Span {
    let (annotations, binary_annotations) = (annotations.to_vec(), tags.to_vec());
    Span { trace_id: 1, id: 2, annotations, binary_annotations, ..Span::default() }
}

/// A span with a time of its own.
fn timed(timestamp: i64, duration: i64, annotations: &[Annotation]) -> Span {
    Span { timestamp: Some(timestamp), duration: Some(duration), ..v1(annotations, &[]) }
}

/// A span in one line: kind, endpoint, start and duration, the other side, annotations, tags. Absent parts are left out.
fn line(span: &model::Span) -> String {
    let place = |endpoint: &model::Endpoint| {
        let service = endpoint.service_name.as_deref().unwrap_or("");
        endpoint.port.map_or(service.to_owned(), |port| format!("{service}:{port}"))
    };
    let words = [
        span.kind.map(|kind| format!("{kind:?}").to_uppercase()),
        span.local_endpoint.as_ref().map(place),
        span.timestamp.map(|timestamp| format!("at {timestamp}")),
        span.duration.map(|duration| format!("for {duration}")),
        span.shared.then(|| "shared".to_owned()),
        span.remote_endpoint.as_ref().map(|remote| format!("with {}", place(remote))),
    ];
    let annotations = span.annotations.iter().map(|one| format!("[{} {}]", one.timestamp, one.value));
    let tags = span.tags.iter().map(|(key, value)| format!("{key}={value}"));
    words.into_iter().flatten().chain(annotations).chain(tags).collect::<Vec<_>>().join(" ")
}

fn lines(span: &Span) -> Vec<String> {
    v1_to_v2(span).iter().map(line).collect()
}

/// Spans, and the sides into which they are divided.
fn check(cases: &[(Span, &[&str])]) {
    for (span, sides) in cases {
        assert_eq!(lines(span), *sides, "{span:?}");
    }
}

#[test]
fn each_service_has_a_side_and_the_first_gets_what_has_no_host() {
    check(&[
        (v1(&[], &[]), &[""]),
        (
            v1(&[nowhere(1, "a"), at(2, "b", "web:80"), at(3, "c", "web:81")], &[]),
            &["web:80 [1 a] [2 b] [3 c]"],
        ),
        (v1(&[at(1, "a", "web"), at(2, "b", "db"), nowhere(3, "c")], &[]), &["web [1 a] [3 c]", "db [2 b]"]),
        (v1(&[at(1, "a", ":1"), at(2, "b", ":2"), at(3, "c", "web")], &[]), &[":1 [1 a] [2 b]", "web [3 c]"]),
        (
            v1(&[at(1, "a", "web")], &[tag("k", "v", "db"), tag("k", "w", "web")]),
            &["web [1 a] k=w", "db k=v"],
        ),
    ]);
}

#[test]
fn every_side_has_the_ids_name_and_debug_flag_of_the_span() {
    let annotations = [at(1, "a", "web"), at(2, "b", "db")];
    let ids = Span { parent_id: Some(3), trace_id_high: Some(4), debug: true, ..v1(&annotations, &[]) };
    let sides = v1_to_v2(&Span { name: "GET".to_owned(), ..ids });
    assert_eq!(sides.len(), 2);
    for side in sides {
        assert_eq!((side.trace_id.high(), side.trace_id.low(), side.id.get()), (4, 1, 2));
        assert_eq!(side.parent_id.map(model::SpanId::get), Some(3));
        assert_eq!((side.name.as_deref(), side.debug), (Some("get"), true));
    }
}

#[test]
fn spans_without_ids_have_no_side_and_zero_parents_are_dropped() {
    assert!(v1_to_v2(&Span { trace_id: 0, ..v1(&[], &[]) }).is_empty());
    assert!(v1_to_v2(&Span { id: 0, ..v1(&[], &[]) }).is_empty());
    let zeros = Span { parent_id: Some(0), trace_id_high: Some(0), ..v1(&[], &[]) };
    let own_parent = Span { parent_id: Some(2), ..v1(&[], &[]) };
    for span in [zeros, own_parent] {
        assert_eq!(v1_to_v2(&span), v1_to_v2(&v1(&[], &[])));
    }
}

#[test]
fn core_annotations_set_the_kind_and_times_of_their_side() {
    check(&[
        (v1(&[at(10, "cs", "web"), at(30, "cr", "web")], &[]), &["CLIENT web at 10 for 20"]),
        (v1(&[at(10, "ms", "web")], &[]), &["PRODUCER web at 10"]),
        (v1(&[at(10, "mr", "web")], &[]), &["CONSUMER web at 10"]),
        (timed(7, 50, &[at(10, "cs", "web"), at(30, "cr", "web")]), &["CLIENT web at 7 for 50"]),
        (timed(7, 50, &[at(10, "sr", "web"), at(30, "ss", "web")]), &["SERVER web at 7 for 50"]),
        (timed(7, 0, &[at(10, "cs", "web"), at(30, "cr", "web")]), &["CLIENT web at 10 for 20"]),
        (timed(0, 50, &[at(10, "cs", "web"), at(30, "cr", "web")]), &["CLIENT web at 10 for 20"]),
        (timed(0, 50, &[at(10, "ms", "web")]), &["PRODUCER web at 10"]),
    ]);
}

#[test]
fn core_annotations_need_an_endpoint_and_the_later_of_two_counts() {
    check(&[
        (v1(&[nowhere(10, "cs"), at(30, "cr", "")], &[]), &["[10 cs] [30 cr]"]),
        (
            v1(&[at(10, "cs", "web"), at(15, "cs", "web"), at(30, "cr", "web")], &[]),
            &["CLIENT web at 15 for 15"],
        ),
        (v1(&[at(10, "CS", "web")], &[]), &["web [10 CS]"]),
    ]);
}

#[test]
fn an_end_at_the_end_of_the_span_takes_the_spans_start() {
    check(&[
        (timed(10, 20, &[at(30, "cr", "web")]), &["CLIENT web at 10 for 20"]),
        (timed(10, 20, &[at(30, "ss", "db")]), &["SERVER db at 10 for 20"]),
        (timed(10, 20, &[at(31, "cr", "web")]), &["CLIENT web at 10 for 20 [31 cr]"]),
        (timed(0, 30, &[at(30, "cr", "web")]), &["CLIENT web [30 cr]"]),
        (timed(30, 0, &[at(30, "cr", "web")]), &["CLIENT web at 30 [30 cr]"]),
        // A start that is given stays.
        (
            timed(10, 20, &[at(12, "cs", "web"), at(30, "cr", "web"), at(13, "sr", "db")]),
            &["CLIENT web at 10 for 20", "SERVER db at 13 shared"],
        ),
        (
            timed(10, 20, &[at(12, "cs", "web"), at(13, "sr", "db"), at(30, "ss", "db")]),
            &["CLIENT web at 10 for 20", "SERVER db at 13 for 17 shared"],
        ),
    ]);
}

#[test]
fn the_client_gets_the_spans_times_and_the_server_its_own() {
    let call = |client: &str, server: &str| {
        [at(10, "cs", client), at(12, "sr", server), at(20, "ss", server), at(30, "cr", client)]
    };
    let one_way = || call("web", "db")[..2].to_vec();
    check(&[
        (v1(&call("web", "db"), &[]), &["CLIENT web at 10 for 20", "SERVER db at 12 for 8 shared"]),
        (timed(5, 40, &call("web", "db")), &["CLIENT web at 5 for 40", "SERVER db at 12 for 8 shared"]),
        // A service that calls itself.
        (v1(&call("web:1", "web:2"), &[]), &["CLIENT web:1 at 10 for 20", "SERVER web:2 at 12 for 8 shared"]),
        (v1(&one_way(), &[]), &["CLIENT web at 10", "SERVER db at 12 shared"]),
        (timed(5, 0, &one_way()), &["CLIENT web at 10", "SERVER db at 12 shared"]),
        (timed(5, 40, &one_way()), &["CLIENT web at 5 for 40", "SERVER db at 12 shared"]),
    ]);
}

#[test]
fn unmatched_ends_of_calls_stay_annotations() {
    check(&[
        (v1(&[at(10, "cs", "web")], &[]), &["CLIENT web at 10"]),
        (v1(&[at(30, "cr", "web")], &[]), &["CLIENT web [30 cr]"]),
        (v1(&[at(20, "ss", "db")], &[]), &["SERVER db [20 ss]"]),
        (v1(&[at(10, "cs", "web"), at(20, "ss", "db")], &[]), &["CLIENT web at 10", "SERVER db [20 ss]"]),
        (
            v1(&[at(12, "sr", "db"), at(30, "cr", "web")], &[]),
            &["SERVER db at 12 shared", "CLIENT web [30 cr]"],
        ),
        (timed(7, 0, &[at(10, "cs", "web")]), &["CLIENT web at 7"]),
        (
            timed(7, 5, &[at(1, "a", "web"), at(30, "cr", "db")]),
            &["web at 7 for 5 [1 a]", "CLIENT db [30 cr]"],
        ),
        (timed(0, 5, &[at(1, "a", "web")]), &["web [1 a]"]),
        (timed(-7, -5, &[at(1, "a", "web")]), &["web [1 a]"]),
    ]);
}

#[test]
fn a_server_is_shared_unless_the_span_has_its_start() {
    let (receive, send) = (at(12, "sr", "db"), at(20, "ss", "db"));
    let both = [receive.clone(), send];
    check(&[
        (v1(&both, &[]), &["SERVER db at 12 for 8 shared"]),
        (timed(12, 8, &both), &["SERVER db at 12 for 8"]),
        (timed(12, 0, &both), &["SERVER db at 12 for 8 shared"]),
        (timed(12, 0, std::slice::from_ref(&receive)), &["SERVER db at 12"]),
        (v1(&[receive], &[]), &["SERVER db at 12 shared"]),
    ]);
}

#[test]
fn wire_annotations_time_messages_and_consumers_are_shared() {
    let (send, receive) = (|| at(10, "ms", "web"), || at(30, "mr", "db"));
    let (wire_send, wire_receive) = (|| at(12, "ws", "web"), || at(25, "wr", "db"));
    check(&[
        (v1(&[send(), receive()], &[]), &["PRODUCER web at 10", "CONSUMER db at 30 shared"]),
        (
            v1(&[send(), wire_send(), wire_receive(), receive()], &[]),
            &["PRODUCER web at 10 for 2", "CONSUMER db at 25 for 5 shared"],
        ),
        (
            v1(&[at(10, "ms", "web:1"), at(30, "mr", "web:2")], &[]),
            &["PRODUCER web:1 at 10", "CONSUMER web:2 at 30 shared"],
        ),
        (timed(7, 50, &[send(), receive()]), &["PRODUCER web at 10", "CONSUMER db at 30 shared"]),
        (v1(&[send(), wire_send()], &[]), &["PRODUCER web at 10 for 2"]),
        (v1(&[wire_receive(), receive()], &[]), &["CONSUMER db at 25 for 5"]),
        (v1(&[wire_send(), wire_receive()], &[]), &["web [12 ws]", "db [25 wr]"]),
    ]);
}

#[test]
fn tags_go_to_the_side_of_their_host_and_an_empty_lc_is_dropped() {
    check(&[
        (v1(&[], &[tag("lc", "", "web")]), &["web"]),
        (v1(&[], &[tag("lc", "fs", "web")]), &["web lc=fs"]),
        (v1(&[], &[tag("k", "", "web")]), &["web k="]),
        (v1(&[], &[tag("k", "1", "web"), tag("k", "2", "web"), tag("a", "3", "")]), &["web a=3 k=2"]),
    ]);
}

#[test]
fn without_core_annotations_addresses_determine_the_sides() {
    check(&[
        (v1(&[], &[tag("ca", "1", "web"), tag("sa", "", "db")]), &["web with db"]),
        (v1(&[], &[tag("sa", "1", "db")]), &["with db"]),
        (v1(&[], &[tag("ca", "1", "web")]), &["SERVER with web"]),
        (
            v1(&[at(10, "ms", "db")], &[tag("ca", "1", "web"), tag("ma", "1", "mq")]),
            &["SERVER db at 10 with web"],
        ),
        (v1(&[], &[tag("ma", "1", "mq")]), &[""]),
        (v1(&[], &[tag("ca", "1", "")]), &[""]),
    ]);
}

#[test]
fn each_side_of_a_call_has_the_others_address_as_remote() {
    let client = [at(10, "cs", "web:1"), at(30, "cr", "web:1")];
    let server = [at(12, "sr", "db:2"), at(20, "ss", "db:2")];
    let addresses = [tag("ca", "1", "web:3"), tag("sa", "1", "db:4")];
    let both: Vec<_> = client.iter().chain(&server).cloned().collect();
    check(&[
        (
            v1(&both, &addresses),
            &["CLIENT web:1 at 10 for 20 with db:4", "SERVER db:2 at 12 for 8 shared with web:3"],
        ),
        (v1(&client, &addresses), &["CLIENT web:1 at 10 for 20 with db:4"]),
        (v1(&client[1..], &addresses), &["CLIENT web:1 with db:4 [30 cr]"]),
        (v1(&server, &addresses), &["SERVER db:2 at 12 for 8 shared with web:3"]),
        (v1(&server[1..], &addresses), &["SERVER db:2 with web:3 [20 ss]"]),
    ]);
}

#[test]
fn a_server_is_not_its_own_remote_endpoint() {
    let server = [at(12, "sr", "db:2"), at(20, "ss", "db:2")];
    check(&[
        (v1(&server, &[tag("ca", "1", "db:2")]), &["SERVER db:2 at 12 for 8 shared"]),
        (v1(&server, &[tag("ca", "1", "db:3")]), &["SERVER db:2 at 12 for 8 shared with :3"]),
        (v1(&server, &[tag("ca", "1", "db")]), &["SERVER db:2 at 12 for 8 shared"]),
    ]);
}

#[test]
fn the_broker_is_the_remote_of_producer_and_consumer() {
    let broker = [tag("ma", "1", "mq")];
    check(&[
        (
            v1(&[at(10, "ms", "web"), at(30, "mr", "db")], &broker),
            &["PRODUCER web at 10 with mq", "CONSUMER db at 30 shared with mq"],
        ),
        (v1(&[at(30, "mr", "db")], &broker), &["CONSUMER db at 30 with mq"]),
        (v1(&[at(10, "cs", "web")], &broker), &["CLIENT web at 10"]),
    ]);
}

#[test]
fn sides_keep_the_nanoseconds_of_their_begin_and_end() {
    let fine = |annotation: Annotation, nanos| Annotation { nanos: Some(nanos), ..annotation };
    let marks = |annotations: &[Annotation], side: usize| {
        let marks = v1_to_v2(&v1(annotations, &[]))[side].marks;
        (marks.begin.map(|m| (m.us, m.nanos)), marks.end.map(|m| (m.us, m.nanos)))
    };
    let call = [
        fine(at(10, "cs", "web"), 1),
        fine(at(12, "sr", "db"), 2),
        fine(at(20, "ss", "db"), 3),
        fine(at(30, "cr", "web"), 4),
    ];
    assert_eq!(marks(&call, 0), (Some((10, 1)), Some((30, 4))));
    assert_eq!(marks(&call, 1), (Some((12, 2)), Some((20, 3))));
    assert_eq!(marks(&call[..1], 0), (Some((10, 1)), None), "a call that has not ended");
    assert_eq!(marks(&call[3..], 0), (None, None), "an end alone stays an annotation");
    let message = [
        fine(at(10, "ms", "web"), 1),
        fine(at(12, "ws", "web"), 2),
        fine(at(25, "wr", "db"), 3),
        fine(at(30, "mr", "db"), 4),
    ];
    assert_eq!(marks(&message, 0), (Some((10, 1)), Some((12, 2))));
    assert_eq!(marks(&message, 1), (Some((25, 3)), Some((30, 4))));
    assert_eq!(v1_to_v2(&v1(&call[3..], &[]))[0].annotations[0].nanos, 4);
}

#[test]
fn core_values_and_address_keys_are_not_plain() {
    let values = ["cs", "cr", "sr", "ss", "ms", "mr", "ws", "wr", "foo", ""];
    assert_eq!(
        values.map(is_plain_value),
        [false, false, false, false, false, false, false, false, true, true]
    );
    assert_eq!(["ca", "sa", "ma", "lc", ""].map(is_plain_key), [false, false, false, true, true]);
    for (annotation, is_mark) in [
        (at(1, "cs", "web"), true),
        (at(1, "cr", ":1"), true),
        (at(1, "cs", ""), false),
        (nowhere(1, "cs"), false),
        (at(1, "sr", "web"), false),
    ] {
        assert_eq!(
            has_call_mark(&v1(&[nowhere(1, "a"), annotation.clone()], &[])),
            is_mark,
            "{annotation:?}"
        );
    }
    assert_eq!(service_of(Some(&host("OSD:1"))), Some(Some("osd".to_owned())));
    assert_eq!(service_of(Some(&host(":1"))), Some(None));
    assert_eq!((service_of(Some(&host(""))), service_of(None)), (None, None));
}

const VALUES: [&str; 10] = ["cs", "cr", "sr", "ss", "ms", "mr", "ws", "wr", "a", "b"];
const KEYS: [&str; 6] = ["ca", "sa", "ma", "lc", "k", "l"];
const PLACES: [&str; 6] = ["", "web:1", "web:2", "db", ":1", ":2"];

prop_compose! {
    fn any_v1()(
        timestamp in option::of(-5..40_i64),
        duration in option::of(-5..40_i64),
        annotations in vec((1..40_i64, select(&VALUES[..]), select(&PLACES[..])), 0..12),
        tags in vec((select(&KEYS[..]), select(&["", "x"][..]), select(&PLACES[..])), 0..6),
    ) -> Span {
        let annotations: Vec<_> = annotations.into_iter().map(|(us, value, place)| at(us, value, place)).collect();
        let tags: Vec<_> = tags.into_iter().map(|(key, value, place)| tag(key, value, place)).collect();
        Span { timestamp, duration, ..v1(&annotations, &tags) }
    }
}

proptest! {
    #[test]
    fn conversion_neither_loses_nor_invents_plain_annotations(span in any_v1()) {
        let sides = v1_to_v2(&span);
        let held = |host: Option<&Endpoint>, holds: &dyn Fn(&model::Span) -> bool| {
            let service = service_of(host);
            sides.iter().any(|side| {
                service.as_ref().is_none_or(|name| side.local_service() == name.as_deref()) && holds(side)
            })
        };
        for one in span.annotations.iter().filter(|one| is_plain_value(&one.value)) {
            let expected = model::Annotation::new(one.timestamp, &*one.value);
            prop_assert!(held(one.host.as_ref(), &|side| side.annotations.contains(&expected)), "{one:?} in {sides:?}");
        }
        for one in span.binary_annotations.iter().filter(|one| is_plain_key(&one.key) && one.key != "lc") {
            prop_assert!(held(one.host.as_ref(), &|side| side.tags.contains_key(&one.key)), "{one:?} in {sides:?}");
        }
        let told = |us: i64, value: &str| span.annotations.iter().any(|one| (one.timestamp, &*one.value) == (us, value));
        for side in &sides {
            prop_assert!(side.annotations.iter().all(|one| told(one.timestamp, &one.value)), "{side:?}");
            prop_assert_eq!(side, &side.clone().normalized());
        }
    }
    #[test]
    fn conversion_without_unwanted_texts_keeps_everything_else(span in any_v1()) {
        let wanted = ["a", "k", "lc"];
        let (mut all, mut some) = (v1_to_v2(&span), view_to_v2(&SpanView::of(&span), Texts::Only(&wanted)));
        for side in &some {
            let unwanted = side.annotations.iter().find(|one| is_plain_value(&one.value) && one.value != "a");
            prop_assert_eq!(unwanted, None);
        }
        // Core annotations without an endpoint are texts like others, but no search asks for them.
        for side in all.iter_mut().chain(&mut some) {
            side.annotations.retain(|one| wanted.contains(&&*one.value));
        }
        for side in &mut all {
            let tags = side.tags.iter().filter(|(key, _)| wanted.contains(&key.as_str()));
            side.tags = tags.map(|(key, value)| (key.clone(), value.clone())).collect();
        }
        prop_assert_eq!(all, some);
    }
}
