//! Pieces of a span that arrive apart, twice, or in any order make the same spans.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod any_pieces;

use std::collections::HashSet;
use std::slice;

use blkin_collector::convert::v1_to_v2;
use blkin_collector::merge::{Piece, assemble};
use blkin_collector::model::{Kind, Span, SpanId, TraceId};
use blkin_collector::v2json::{read_list, write_span};
use blkin_thrift::{
    Annotation, AnnotationType, BinaryAnnotation, Endpoint, Limits, Span as V1Span, position,
};

fn at(service: &str) -> Option<Endpoint> {
    Some(Endpoint { ipv4: 0x7f00_0001, service_name: service.to_owned(), ..Endpoint::default() })
}

fn event(timestamp: i64, value: &str, service: &str) -> Annotation {
    Annotation { timestamp, value: value.to_owned(), host: at(service), ..Annotation::default() }
}

fn tag(key: &str, value: &str, host: Option<Endpoint>) -> BinaryAnnotation {
    let (key, value) = (key.to_owned(), value.as_bytes().to_vec());
    BinaryAnnotation { key, value, kind: AnnotationType::String, host, ..BinaryAnnotation::default() }
}

fn piece(name: &str, annotations: Vec<Annotation>) -> V1Span {
    V1Span { trace_id: 1, id: 2, parent_id: Some(3), name: name.to_owned(), annotations, ..V1Span::default() }
}

fn assemble_v1(pieces: &[V1Span]) -> Vec<Span> {
    assemble(pieces.iter().cloned().map(Piece::V1).collect())
}

fn as_set(spans: Vec<Span>) -> HashSet<Span> {
    spans.into_iter().collect()
}

#[test]
fn separate_begin_and_end_of_a_call_become_one_span() {
    let pieces = [piece("op", vec![event(70, "ss", "osd")]), piece("op", vec![event(20, "sr", "osd")])];
    let spans = assemble_v1(&pieces);
    assert_eq!(spans.len(), 1);
    let span = &spans[0];
    assert_eq!((span.kind, span.timestamp, span.duration), (Some(Kind::Server), Some(20), Some(50)));
    assert!(span.shared && span.annotations.is_empty(), "{span:?}");
}

#[test]
fn each_service_of_a_local_span_keeps_its_reported_time() {
    let of = |service, start, duration| V1Span {
        timestamp: Some(start),
        duration: Some(duration),
        ..piece("handling", vec![event(start, "begin", service), event(start + duration, "end", service)])
    };
    let spans = assemble_v1(&[of("pg 1.1", 100, 70), of("osd.0", 100, 90)]);
    let times: HashSet<_> =
        spans.iter().map(|span| (span.local_service(), span.timestamp, span.duration)).collect();
    let expected = [(Some("pg 1.1"), Some(100), Some(70)), (Some("osd.0"), Some(100), Some(90))];
    assert_eq!(times, expected.into_iter().collect());
}

#[test]
fn a_late_piece_lengthens_the_span() {
    let first = V1Span {
        timestamp: Some(100),
        duration: Some(50),
        ..piece("write", vec![event(100, "start", "osd")])
    };
    let late = V1Span { timestamp: Some(180), ..piece("write", vec![event(180, "flushed", "osd")]) };
    let later =
        V1Span { timestamp: Some(200), duration: Some(5), ..piece("write", vec![event(205, "end", "osd")]) };
    let spans = assemble_v1(&[late.clone(), first.clone()]);
    assert_eq!((spans[0].timestamp, spans[0].duration), (Some(100), Some(80)));
    let spans = assemble_v1(&[later, late, first]);
    assert_eq!(
        (spans[0].timestamp, spans[0].duration, spans[0].annotations.len()),
        (Some(100), Some(105), 3)
    );
}

#[test]
fn impossible_times_are_ignored_and_ends_do_not_overflow() {
    let of = |timestamp, duration, value| V1Span {
        timestamp: Some(timestamp),
        duration: Some(duration),
        ..piece("op", vec![event(100, value, "osd")])
    };
    let usual = of(100, 5, "x");
    let cases = [((0, 50), 5), ((-5, 200), 5), ((200, -150), 100), ((100, i64::MAX), i64::MAX - 100)];
    for ((timestamp, duration), whole) in cases {
        let spans = assemble_v1(&[usual.clone(), of(timestamp, duration, "y")]);
        assert_eq!(
            (spans[0].timestamp, spans[0].duration),
            (Some(100), Some(whole)),
            "{timestamp} {duration}"
        );
    }
}

#[test]
fn a_span_whose_pieces_know_no_end_has_no_duration() {
    for duration in [None, Some(0), Some(-3)] {
        let of = |timestamp, value| V1Span {
            timestamp: Some(timestamp),
            duration,
            ..piece("op", vec![event(100, value, "osd")])
        };
        let [span] = assemble_v1(&[of(100, "x"), of(180, "y")]).try_into().unwrap();
        assert_eq!((span.timestamp, span.duration), (Some(100), None), "{duration:?}");
    }
}

#[test]
fn a_record_shipped_twice_appears_once() {
    let placed = |timestamp, value, position| Annotation {
        position: Some(position),
        source: None,
        ..event(timestamp, value, "osd")
    };
    let placed_tag =
        |position, value| BinaryAnnotation { position: Some(position), ..tag("Object", value, at("osd")) };
    let mut first = V1Span { source: Some(9), ..piece("op", vec![placed(1, "a", 1), placed(2, "b", 2)]) };
    first.binary_annotations = vec![placed_tag(3, "first")];
    let mut again =
        V1Span { source: Some(8), ..piece("op", vec![placed(2, "b again", 2), placed(4, "c", 4)]) };
    again.annotations[0].source = Some(9);
    again.binary_annotations = vec![BinaryAnnotation { source: Some(9), ..placed_tag(3, "again") }];
    let spans = assemble_v1(&[first, again]);
    let values: Vec<_> = spans[0].annotations.iter().map(|annotation| annotation.value.as_str()).collect();
    assert_eq!(values, ["a", "b", "c"]);
    assert_eq!(spans[0].tags["Object"], "first");
}

#[test]
fn the_same_place_in_another_ring_is_another_record() {
    let of = |source| V1Span {
        source: Some(source),
        ..piece("op", vec![Annotation { position: Some(1), ..event(source, "x", "osd") }])
    };
    assert_eq!(assemble_v1(&[of(1), of(2)])[0].annotations.len(), 2);
}

/// Each piece names its ring segment once, for all its annotations.
#[test]
fn the_later_of_two_values_is_shown_whichever_piece_it_came_in() {
    let placed = |slot, grain: u64, start, value: &str| V1Span {
        source: Some(9),
        annotations: vec![Annotation {
            position: Some(position::of(slot, grain)),
            ..event(start, "x", "osd")
        }],
        binary_annotations: vec![BinaryAnnotation {
            value: value.into(),
            position: Some(position::of(slot, grain + 1)),
            ..tag("state", "", at("osd"))
        }],
        ..piece("op", Vec::new())
    };
    let (earlier, later) = (placed(1, 4, 5, "earlier"), placed(0, 2, 7, "later"));
    let before = V1Span { annotations: vec![event(1, "begin", "osd")], ..later.clone() };
    let timed = V1Span { binary_annotations: Vec::new(), ..later };
    let told_by_each = |piece: V1Span| V1Span {
        source: Some(8),
        annotations: piece.annotations.into_iter().map(|a| Annotation { source: Some(9), ..a }).collect(),
        ..piece
    };
    for timed in [timed.clone(), told_by_each(timed)] {
        for pieces in [[&before, &earlier, &timed], [&timed, &before, &earlier]] {
            assert_eq!(assemble_v1(&pieces.map(V1Span::clone))[0].tags["state"], "later");
        }
    }
}

#[test]
fn each_side_of_a_call_keeps_its_name() {
    let client = V1Span {
        timestamp: Some(10),
        duration: Some(90),
        ..piece("Put Object", vec![event(10, "cs", "gateway"), event(100, "cr", "gateway")])
    };
    let server = piece("osd op", vec![event(30, "sr", "osd"), event(80, "ss", "osd")]);
    let names = |spans: Vec<Span>| -> Vec<_> {
        spans.into_iter().map(|span| (span.local_service().unwrap().to_owned(), span.name.unwrap())).collect()
    };
    let expected = [("gateway".to_owned(), "put object".to_owned()), ("osd".to_owned(), "osd op".to_owned())];
    assert_eq!(names(assemble_v1(&[client.clone(), server.clone()])), expected);
    assert_eq!(names(assemble_v1(&[server, client])), expected);
}

/// The annotations of each service, sorted.
fn told_by_service(pieces: &[V1Span]) -> Vec<(Option<String>, Vec<String>, Vec<String>)> {
    let told = |span: Span| {
        let values = span.annotations.iter().map(|annotation| annotation.value.clone()).collect();
        (
            span.local_service().map(str::to_owned),
            values,
            span.tags.iter().map(|(key, _)| key.to_owned()).collect(),
        )
    };
    let mut all: Vec<_> = assemble_v1(pieces).into_iter().map(told).collect();
    all.sort();
    all
}

fn told_of(service: &str, values: &[&str], keys: &[&str]) -> (Option<String>, Vec<String>, Vec<String>) {
    let owned = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
    (Some(service.to_owned()), owned(values), owned(keys))
}

#[test]
fn items_without_a_host_belong_to_their_pieces_first_service() {
    let near = piece("op", vec![event(10, "near", "gateway")]);
    for nowhere in [None, Some(Endpoint::default())] {
        let unknown = Annotation { host: nowhere.clone(), ..event(30, "unknown", "") };
        let far = V1Span {
            binary_annotations: vec![tag("k", "v", nowhere.clone()), tag("of", "v", at("gateway"))],
            ..piece("op", vec![unknown, event(40, "far", "osd"), event(50, "of gateway", "gateway")])
        };
        let with_tags_alone = V1Span {
            binary_annotations: vec![tag("size", "v", nowhere), tag("place", "v", at("disk"))],
            ..piece("op", Vec::new())
        };
        let expected = [
            told_of("disk", &[], &["place", "size"]),
            told_of("gateway", &["near", "of gateway"], &["of"]),
            told_of("osd", &["unknown", "far"], &["k"]),
        ];
        assert_eq!(told_by_service(&[near.clone(), far, with_tags_alone]), expected);
    }
}

/// An address names the other side.
#[test]
fn items_without_a_host_never_belong_to_the_remote_side() {
    let near = piece("op", vec![event(10, "near", "gateway")]);
    let far = V1Span {
        binary_annotations: vec![tag("sa", "", at("database")), tag("k", "v", None)],
        ..piece("op", Vec::new())
    };
    assert_eq!(told_by_service(&[near, far]), [told_of("gateway", &["near"], &["k"])]);
}

#[test]
fn marks_and_addresses_without_a_host_are_ignored() {
    let served = Annotation { host: None, ..event(20, "sr", "") };
    let pieces = [
        V1Span {
            binary_annotations: vec![tag("ca", "", None)],
            ..piece("op", vec![served, event(30, "x", "osd")])
        },
        piece("op", vec![event(40, "y", "osd")]),
    ];
    let spans = assemble_v1(&pieces);
    assert_eq!((spans[0].kind, &spans[0].remote_endpoint), (None, &None));
    assert_eq!(told_by_service(&pieces), [told_of("osd", &["sr", "x", "y"], &[])]);
}

#[test]
fn a_span_in_one_piece_is_converted_as_by_zipkin() {
    let whole = V1Span {
        annotations: vec![
            event(30, "late", "osd"),
            Annotation { host: None, ..event(20, "unknown", "") },
            event(10, "early", "gateway"),
        ],
        ..piece("op", Vec::new())
    };
    assert_eq!(assemble_v1(slice::from_ref(&whole)), v1_to_v2(&whole));
    let expected = [told_of("gateway", &["early", "unknown"], &[]), told_of("osd", &["late"], &[])];
    assert_eq!(told_by_service(&[whole]), expected);
}

#[test]
fn the_earliest_of_a_services_span_names_is_kept() {
    let with_tag = |timestamp| V1Span {
        timestamp,
        binary_annotations: vec![tag("k", "v", at("osd"))],
        ..piece("", Vec::new())
    };
    let with_event = |timestamp| piece("", vec![event(timestamp, "x", "osd")]);
    let cases = [
        (with_event(5), with_event(10)),
        (with_tag(Some(5)), with_event(10)),
        (with_event(10), with_tag(None)),
        (with_event(10), with_tag(Some(0))),
    ];
    for (early, late) in cases {
        let early = V1Span { name: "early".to_owned(), ..early };
        let late = V1Span { name: "late".to_owned(), ..late };
        for pieces in [[&early, &late], [&late, &early]] {
            let spans = assemble_v1(&pieces.map(V1Span::clone));
            assert_eq!(spans[0].name.as_deref(), Some("early"), "{early:?} {late:?}");
        }
    }
}

#[test]
fn a_span_name_belongs_to_its_writer_not_to_the_service_called() {
    let client = V1Span {
        binary_annotations: vec![tag("sa", "", at("osd"))],
        ..piece("call", vec![event(10, "cs", "gateway"), event(100, "cr", "gateway")])
    };
    let server = piece("serve", vec![event(30, "sr", "osd"), event(80, "ss", "osd")]);
    let disk = V1Span { binary_annotations: vec![tag("k", "v", at("disk"))], ..piece("flush", Vec::new()) };
    let names: HashSet<_> = assemble_v1(&[client, server, disk])
        .iter()
        .map(|span| (span.local_service().unwrap().to_owned(), span.name.clone().unwrap()))
        .collect();
    let expected = [("gateway", "call"), ("osd", "serve"), ("disk", "flush")];
    assert_eq!(names, expected.map(|(service, name)| (service.to_owned(), name.to_owned())).into());
}

#[test]
fn a_call_keeps_its_time_despite_times_of_its_parts() {
    let served = piece("op", vec![event(10, "sr", "osd"), event(90, "ss", "osd")]);
    for service in ["osd", "gateway"] {
        let part =
            V1Span { timestamp: Some(30), duration: Some(5), ..piece("op", vec![event(30, "x", service)]) };
        let spans = assemble_v1(&[served.clone(), part]);
        let server = spans.iter().find(|span| span.kind == Some(Kind::Server)).unwrap();
        assert_eq!(
            (server.timestamp, server.duration, server.shared),
            (Some(10), Some(80), true),
            "{service}"
        );
        let local: Vec<_> = spans.iter().filter(|span| span.kind.is_none()).collect();
        let times: Vec<_> = local.iter().map(|span| (span.timestamp, span.duration)).collect();
        let own = if service == "osd" { vec![] } else { vec![(Some(30), Some(5))] };
        assert_eq!(times, own, "{service}");
    }
}

#[test]
fn a_calls_time_is_not_given_to_other_services_in_its_piece() {
    for [begin, end] in [["cs", "cr"], ["sr", "ss"]] {
        let marks = vec![event(5, "x", "osd"), event(10, begin, "gw"), event(20, end, "gw")];
        let call = V1Span { timestamp: Some(10), duration: Some(10), ..piece("op", marks) };
        let spans = assemble_v1(&[call, piece("op", vec![event(15, "y", "osd")])]);
        let times: HashSet<_> = spans.iter().map(|span| (span.local_service(), span.timestamp)).collect();
        assert_eq!(times, HashSet::from([(Some("gw"), Some(10)), (Some("osd"), None)]), "{begin}");
    }
}

#[test]
fn a_mark_without_a_service_makes_no_side_of_a_call() {
    let nowhere = Annotation { timestamp: 10, value: "sr".into(), ..Annotation::default() };
    let part = |timestamp, duration, annotations| V1Span {
        timestamp: Some(timestamp),
        duration: Some(duration),
        ..piece("op", annotations)
    };
    let parts =
        [part(10, 5, vec![nowhere, event(12, "x", "osd")]), part(20, 30, vec![event(20, "y", "osd")])];
    let times: Vec<_> = assemble_v1(&parts).iter().map(|span| (span.timestamp, span.duration)).collect();
    assert_eq!(times, [(Some(10), Some(40))]);
}

#[test]
fn a_server_without_a_client_keeps_its_time_and_is_not_shared() {
    let served = V1Span {
        timestamp: Some(9),
        duration: Some(83),
        ..piece("op", vec![event(10, "sr", "osd"), event(90, "ss", "osd")])
    };
    let [server] = assemble_v1(&[served, piece("op", vec![event(50, "x", "osd")])]).try_into().unwrap();
    assert_eq!((server.timestamp, server.duration, server.shared), (Some(9), Some(83), false));
}

#[test]
fn the_servers_own_time_does_not_become_the_clients() {
    let server = V1Span {
        timestamp: Some(30),
        duration: Some(50),
        ..piece("op", vec![event(30, "sr", "osd"), event(80, "ss", "osd")])
    };
    let (send, receive) =
        (piece("op", vec![event(10, "cs", "gw")]), piece("op", vec![event(100, "cr", "gw")]));
    let spans = assemble_v1(&[server, send, receive]);
    let times: Vec<_> =
        spans.iter().map(|span| (span.kind.unwrap(), span.timestamp, span.duration)).collect();
    assert_eq!(times, [(Kind::Client, Some(10), Some(90)), (Kind::Server, Some(30), Some(50))]);
}

#[test]
fn a_service_that_calls_itself_has_both_sides() {
    let client = piece("op", vec![event(10, "cs", "osd"), event(100, "cr", "osd")]);
    let server = piece("op", vec![event(30, "sr", "osd"), event(80, "ss", "osd")]);
    let kinds: Vec<_> =
        assemble_v1(&[client, server]).iter().map(|span| (span.kind.unwrap(), span.shared)).collect();
    assert_eq!(kinds, [(Kind::Client, false), (Kind::Server, true)]);
}

/// A side of a call from its beginning to its end, with a tag.
fn whole_side(name: &str, ends: [&str; 2], from: i64, service: &str, tag_value: &str) -> V1Span {
    let annotations = vec![event(from, ends[0], service), event(from + 50, ends[1], service)];
    V1Span {
        timestamp: Some(from),
        duration: Some(50),
        binary_annotations: vec![tag("n", tag_value, at(service))],
        ..piece(name, annotations)
    }
}

fn told(pieces: &[V1Span]) -> HashSet<(Kind, String, String, String, Option<i64>)> {
    let told = |span: &Span| {
        let name = span.name.clone().unwrap_or_default();
        let service = span.local_service().unwrap_or_default().to_owned();
        (span.kind.unwrap(), name, service, span.tags["n"].clone(), span.duration)
    };
    assemble_v1(pieces).iter().map(told).collect()
}

#[test]
fn contradicting_sides_become_separate_spans() {
    const CLIENT: [&str; 2] = ["cs", "cr"];
    const SERVER: [&str; 2] = ["sr", "ss"];
    let cases = [
        [whole_side("call", CLIENT, 100, "osd", "1"), whole_side("serve", SERVER, 110, "osd", "2")],
        [whole_side("serve1", SERVER, 100, "osd", "1"), whole_side("serve2", SERVER, 110, "osd", "2")],
        [whole_side("serve", SERVER, 100, "x", "1"), whole_side("serve", SERVER, 100, "y", "2")],
        [whole_side("call", CLIENT, 100, "a", "1"), whole_side("call", CLIENT, 200, "b", "2")],
    ];
    for [one, other] in cases {
        let alone = |piece: &V1Span| told(slice::from_ref(piece));
        let expected: HashSet<_> = alone(&one).union(&alone(&other)).cloned().collect();
        assert_eq!(told(&[one.clone(), other.clone()]), expected);
        assert_eq!(told(&[other, one]), expected);
    }
}

#[test]
fn a_piece_without_marks_joins_the_side_of_its_service() {
    let servers = ["x", "y"].map(|service| whole_side("serve", ["sr", "ss"], 100, service, "1"));
    let late = piece("serve", vec![event(170, "flushed", "y")]);
    let spans = assemble_v1(&[servers.as_slice(), &[late]].concat());
    let flushed: HashSet<_> =
        spans.iter().map(|span| (span.local_service(), span.annotations.len())).collect();
    assert_eq!(flushed, HashSet::from([(Some("x"), 0), (Some("y"), 1)]));
}

/// If each piece were compared with all others, this would take minutes.
#[test]
fn very_many_pieces_of_one_call_become_one_span() {
    const PIECES: usize = 200_000;
    let pieces: Vec<V1Span> = (0..PIECES)
        .map(|number| {
            piece(
                "put",
                vec![event(10, "cs", "a"), event(30, "cr", "a"), event(20, &format!("{number}"), "a")],
            )
        })
        .collect();
    let spans = assemble_v1(&pieces);
    assert_eq!(spans.len(), 1);
    assert_eq!((spans[0].duration, spans[0].annotations.len()), (Some(20), PIECES));
}

#[test]
fn assembled_spans_keep_the_full_trace_id_parent_and_debug_flag() {
    let of = |parent_id, value| V1Span {
        trace_id_high: Some(7),
        debug: value == "b",
        parent_id,
        ..piece("op", vec![event(1, value, "osd")])
    };
    let pieces = [of(None, "a"), of(Some(0), "b"), of(Some(3), "c"), of(None, "d")];
    let [span] = assemble_v1(&pieces).try_into().unwrap();
    assert_eq!((span.trace_id.high(), span.parent_id, span.debug), (7, SpanId::new(3), true));
}

#[test]
fn traces_that_share_the_low_half_of_their_ids_stay_apart() {
    let low = piece("op", vec![event(1, "a", "osd")]);
    let high = V1Span { trace_id_high: Some(7), ..low.clone() };
    let spans = assemble_v1(&[low, high]);
    assert_eq!(spans.iter().map(|span| span.trace_id.high()).collect::<Vec<_>>(), [0, 7]);
}

#[test]
fn whole_v2_spans_stay_unchanged_but_are_deduplicated() {
    let span = Span::new(TraceId::new(0, 1).unwrap(), SpanId::new(2).unwrap());
    let named = Span { name: Some("x".to_owned()), ..span.clone() };
    let pieces = [&span, &named, &span].map(|span| Piece::V2(span.clone()));
    assert_eq!(assemble(pieces.to_vec()), [span, named]);
}

#[test]
fn spans_are_ordered_by_their_first_pieces() {
    let whole = |id| Piece::V2(Span::new(TraceId::new(0, 1).unwrap(), SpanId::new(id).unwrap()));
    let part = |id, value| Piece::V1(V1Span { id, ..piece("op", vec![event(10, value, "osd")]) });
    let pieces =
        vec![whole(1), part(2, "a"), whole(3), part(4, "a"), whole(5), part(2, "b"), part(6, "a"), whole(7)];
    let ids: Vec<_> = assemble(pieces).iter().map(|span| span.id.get()).collect();
    assert_eq!(ids, [1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn a_span_sent_back_as_it_was_read_appears_once() {
    let at = |nanos, value| Annotation { nanos: Some(nanos), ..event(7, value, "osd") };
    let recorded = piece("op", vec![at(10, "b"), at(20, "a")]);
    let answered = assemble_v1(slice::from_ref(&recorded)).remove(0);
    let list = format!("[{}]", write_span(&answered));
    let again = read_list(list.as_bytes(), &Limits::default()).unwrap().remove(0).unwrap();
    let other = Span { name: Some("other".to_owned()), ..answered.clone() };
    let [recorded, again, other_piece] = [Piece::V1(recorded), Piece::V2(again), Piece::V2(other.clone())];
    for order in [[&recorded, &again, &other_piece], [&again, &recorded, &other_piece]] {
        let found = assemble(order.map(Piece::clone).to_vec());
        assert_eq!(
            found,
            [answered.clone(), other.clone()],
            "the recorded span is kept, whichever comes first"
        );
    }
}

#[test]
fn the_copy_of_a_call_with_known_marks_is_kept() {
    for (marks, has_end) in [(&["cs", "cr"][..], true), (&["sr"], false)] {
        let called = piece("op", marks.iter().map(|mark| event(7, mark, "rbd")).collect());
        let answered = assemble_v1(slice::from_ref(&called)).remove(0);
        assert_eq!((answered.marks.begin.is_some(), answered.marks.end.is_some()), (true, has_end));
        let copy = Piece::V2(answered.clone().as_by_json());
        assert_eq!(assemble(vec![copy.clone(), Piece::V1(called), copy]), [answered]);
    }
}

#[test]
fn no_pieces_make_no_spans() {
    assert!(assemble(Vec::new()).is_empty());
}
