//! What the collector's own stores must do beyond the rules for others.

use std::time::Duration;

use blkin_collector::merge::Piece;
use blkin_collector::model::TraceId;
use blkin_collector::query::{self, Answer, Cut, IntervalRequest, Reading, RememberedTimes};
use blkin_collector::store::{NameKind, Store};
use blkin_thrift::{Annotation, Endpoint, Span as V1Span};

use super::{
    NOW_MS, NOW_US, STRICT, found, id, links_of, of_service, read, request, search_as, span, store_pieces,
    store_spans,
};

pub(crate) fn pieces_of_a_v1_span_that_arrive_apart_become_one_span(store: &dyn Store) {
    let host = Endpoint { service_name: "osd.0".to_owned(), ..Endpoint::default() };
    let piece = |value: &str, offset: i64| {
        let annotation = Annotation {
            timestamp: NOW_US as i64 + offset,
            value: value.to_owned(),
            host: Some(host.clone()),
            ..Annotation::default()
        };
        let annotations = vec![annotation];
        Piece::V1(V1Span { trace_id: 1, id: 1, name: "write".to_owned(), annotations, ..V1Span::default() })
    };
    for piece in [piece("ss", 500), piece("journal", 200), piece("sr", 0)] {
        store_pieces(store, vec![piece]);
    }
    let spans = read(store, id(1));
    assert_eq!(spans.len(), 1);
    assert_eq!((spans[0].timestamp, spans[0].duration), (Some(NOW_US as i64), Some(500)));
    assert_eq!(spans[0].annotations.len(), 1);
    assert_eq!(found(store, &[("serviceName", "osd.0"), ("minDuration", "500")]), [1]);
}

pub(crate) fn annotations_within_a_microsecond_are_ordered_by_nanoseconds(store: &dyn Store) {
    let at = |nanos: Option<i16>, value: &str| Annotation {
        timestamp: NOW_US as i64,
        value: value.to_owned(),
        nanos,
        ..Annotation::default()
    };
    let store_trace = |trace_id, pieces: [Vec<Annotation>; 2]| {
        let piece = |annotations| Piece::V1(V1Span { trace_id, id: 1, annotations, ..V1Span::default() });
        store_pieces(store, pieces.map(piece).to_vec());
        let spans = read(store, id(trace_id as u64));
        spans.iter().flat_map(|span| span.annotations.iter().map(|a| a.value.clone())).collect::<Vec<_>>()
    };
    let known =
        [vec![at(Some(990), "Dequeued op"), at(Some(7), "Enqueuing op")], vec![at(Some(33), "Enqueued op")]];
    assert_eq!(store_trace(1, known), ["Enqueuing op", "Enqueued op", "Dequeued op"]);
    // Without nanoseconds, the order is Zipkin's.
    let unknown = [vec![at(None, "Enqueuing op"), at(None, "Dequeued op")], vec![at(None, "Enqueued op")]];
    assert_eq!(store_trace(2, unknown), ["Dequeued op", "Enqueued op", "Enqueuing op"]);
}

pub(crate) fn traces_that_share_low_bits_are_one_if_not_strict(store: &dyn Store) {
    for high in ["", "1", "2", "ffffffffffffffff"] {
        let trace = format!("{high}0000000000000007");
        store_spans(store, &[span(&format!(r#""traceId":"{trace}","id":"1","timestamp":{NOW_US}"#))]);
    }
    let one = TraceId::new(1, 7).unwrap();
    assert_eq!(read(store, one).len(), 1);
    let loose = Reading { strict: false, ..STRICT };
    assert_eq!(query::trace(store, one, loose).unwrap().found.len(), 4);
    let lengths = |reading| {
        let ids = [one, TraceId::new(2, 7).unwrap()];
        query::traces(store, &ids, reading).unwrap().found.iter().map(Vec::len).collect::<Vec<_>>()
    };
    assert_eq!((lengths(STRICT), lengths(loose)), (vec![1, 1], vec![4]));
}

pub(crate) fn loosely_joined_traces_meet_search_conditions_together(store: &dyn Store) {
    let part = |trace: &str, service: &str, rest: &str| {
        let at = format!(r#""timestamp":{NOW_US},"localEndpoint":{{"serviceName":"{service}"}}"#);
        span(&format!(r#""traceId":"{trace}","id":"1",{at},{rest}"#))
    };
    // A part from a program that knows only 64-bit ids, and one from a program with longer ids.
    let short = part("0000000000000007", "a", r#""duration":900,"tags":{"error":"","k":"v"}"#);
    let long =
        part("00000000000000010000000000000007", "b", r#""name":"get","remoteEndpoint":{"serviceName":"c"}"#);
    store_spans(store, &[short, long, of_service(8, 1, "a", "")]);
    let found = |strict, parameters: &[(&str, &str)]| {
        search_as(store, parameters, Reading { strict, ..STRICT }).iter().map(Vec::len).collect::<Vec<_>>()
    };
    let across: [&[(&str, &str)]; 4] = [
        &[("spanName", "get"), ("annotationQuery", "error")],
        &[("remoteServiceName", "c"), ("annotationQuery", "k=v")],
        &[("spanName", "get"), ("minDuration", "800")],
        &[("remoteServiceName", "c"), ("minDuration", "900"), ("annotationQuery", "error and k=v")],
    ];
    for parameters in across {
        assert_eq!((found(false, parameters), found(true, parameters)), (vec![2], vec![]), "{parameters:?}");
    }
    assert_eq!(found(false, &[("minDuration", "800")]), [2]);
    assert!(found(false, &[("spanName", "get"), ("annotationQuery", "other")]).is_empty());
    assert_eq!(
        found(false, &[("serviceName", "b"), ("annotationQuery", "error")]),
        [0; 0],
        "the tag is another service's"
    );
}

pub(crate) fn loosely_joined_parts_without_a_time_are_found_by_the_others(store: &dyn Store) {
    let part = |trace: &str, service: &str, rest: &str| {
        span(&format!(
            r#""traceId":"{trace}","id":"1","localEndpoint":{{"serviceName":"{service}"}},"duration":900{rest}"#
        ))
    };
    let timed = format!(r#","timestamp":{NOW_US}"#);
    let long_ago = format!(r#","timestamp":{}"#, NOW_US / 2);
    store_spans(
        store,
        &[
            part("7", "a", r#","tags":{"k":"v"}"#),
            part("10000000000000007", "b", &timed),
            part("8", "a", ""),
            part("10000000000000008", "b", &long_ago),
            part("9", "a", ""),
            of_service(10, 1, "a", ""),
        ],
    );
    let found = |strict, parameters: &[(&str, &str)]| {
        let traces = search_as(store, parameters, Reading { strict, ..STRICT });
        traces.iter().map(|trace| (trace[0].trace_id.low(), trace.len())).collect::<Vec<_>>()
    };
    assert_eq!(found(false, &[("serviceName", "a")]), [(10, 1), (7, 2)]);
    assert_eq!(found(false, &[("annotationQuery", "k=v")]), [(7, 2)]);
    assert_eq!(found(false, &[("serviceName", "b")]), [(7, 2)]);
    assert_eq!(found(false, &[("minDuration", "900")]), [(7, 2)]);
    assert_eq!(found(false, &[("serviceName", "a"), ("limit", "1")]), [(10, 1)]);
    assert_eq!(found(true, &[("serviceName", "a")]), [(10, 1)]);
}

pub(crate) fn an_answer_is_cut_at_its_limit_and_the_store_keeps_the_rest(store: &dyn Store) {
    let rest = format!(r#""tags":{{"k":"{}"}}"#, "x".repeat(1000));
    let spans: Vec<_> = (1..=10).map(|n| of_service(1, n, "a", &rest)).collect();
    store_spans(store, &spans);
    store_spans(store, &[of_service(2, 1, "a", "")]);
    let small = Reading { max_bytes: 5000, ..STRICT };
    assert_eq!(query::trace(store, id(1), small).unwrap().found.len(), 4);
    let lengths = |ids: &[TraceId]| {
        query::traces(store, ids, small).unwrap().found.iter().map(Vec::len).collect::<Vec<_>>()
    };
    assert_eq!(lengths(&[id(2), id(1)]), [1]);
    assert_eq!(lengths(&[id(3), id(1), id(2)]), [4], "a huge trace does not look like a missing one");
    assert_eq!(query::trace(store, id(1), STRICT).unwrap().found.len(), 10);
}

pub(crate) fn a_huge_trace_hides_no_earlier_traces_from_a_search(store: &dyn Store) {
    let at = |trace: u64, ms: u64, rest: &str| {
        of_service(trace, 1, "a", &format!(r#""timestamp":{},{rest}"#, NOW_US + ms * 1000))
    };
    let huge = format!(r#""tags":{{"k":"{}"}}"#, "x".repeat(9000));
    let half = format!(r#""tags":{{"k":"{}"}}"#, "x".repeat(2800));
    let little = r#""debug":true"#;
    store_spans(
        store,
        &[at(1, 1, little), at(2, 2, &huge), at(3, 3, little), at(4, 4, &half), at(5, 5, &half)],
    );
    let small = Reading { max_bytes: 5000, ..STRICT };
    let found = |until_ms: u64| {
        let end = (NOW_MS + until_ms).to_string();
        let Answer { found, cut } = query::search(store, &request(&[("endTs", &end)]), small).unwrap();
        (found.iter().map(|trace| trace[0].trace_id.low()).collect::<Vec<_>>(), cut)
    };
    assert_eq!(found(3), (vec![3, 1], Some(Cut::Bytes)));
    assert_eq!(
        found(5),
        (vec![5], Some(Cut::Bytes)),
        "a full answer is not filled up with traces that would still fit"
    );
}

pub(crate) fn a_search_shows_as_much_of_a_huge_trace_as_fits(store: &dyn Store) {
    let at = |trace: u64, id: u64, rest: &str| {
        of_service(trace, id, "a", &format!(r#""timestamp":{}{rest}"#, NOW_US + trace * 1000))
    };
    let tag = format!(r#","tags":{{"k":"{}"}}"#, "x".repeat(1000));
    for (trace, is_huge) in [(1, false), (2, true), (3, false), (4, true)] {
        let spans =
            if is_huge { (1..=10).map(|id| at(trace, id, &tag)).collect() } else { vec![at(trace, 1, "")] };
        store_spans(store, &spans);
    }
    let small = Reading { max_bytes: 5000, ..STRICT };
    let found = |until_ms: u64, limit: &str| {
        let end = (NOW_MS + until_ms).to_string();
        let request = request(&[("endTs", &end), ("limit", limit)]);
        let Answer { found, cut } = query::search(store, &request, small).unwrap();
        assert_eq!(cut, Some(Cut::Bytes));
        found.iter().map(|trace| (trace[0].trace_id.low(), trace.len())).collect::<Vec<_>>()
    };
    assert_eq!(found(2, "10"), [(2, 4), (1, 1)], "an earlier trace is shown too");
    assert_eq!(found(3, "10"), [(3, 1), (2, 4), (1, 1)], "and so is a later one");
    assert_eq!(found(4, "10"), [(4, 4), (3, 1), (1, 1)], "only the later of two huge traces");
    assert_eq!(found(4, "2"), [(4, 4), (3, 1)], "the huge trace counts towards the limit");
}

pub(crate) fn an_answer_names_the_limit_that_cut_it(store: &dyn Store) {
    store_spans(store, &[of_service(1, 1, "a", ""), of_service(2, 1, "a", "")]);
    let small = Reading { max_bytes: 1, ..STRICT };
    let late = Reading { patience: Duration::ZERO, ..STRICT };
    let ids = [id(1), id(2)];
    let request = request(&[]);
    let window_us = &request.window_us;
    let intervals = IntervalRequest {
        from: "sr".to_owned(),
        to: "ss".to_owned(),
        service: None,
        span_name: None,
        window_us: window_us.clone(),
    };
    for (reading, key) in [(STRICT, None), (small, Some("query_max_mib")), (late, Some("query_seconds"))] {
        let key_of = |cut: Option<Cut>| cut.map(Cut::key);
        assert_eq!(key_of(query::search(store, &request, reading).unwrap().cut), key);
        assert_eq!(key_of(links_of(store, window_us, reading).cut), key);
        let times = query::intervals(store, &intervals, reading, &RememberedTimes::default()).unwrap();
        assert_eq!((key_of(times.cut), times.found.complete), (key, key.is_none()));
        // Reading a trace by its id has no time limit.
        let key = key.filter(|_| reading.max_bytes == small.max_bytes);
        assert_eq!(key_of(query::trace(store, id(1), reading).unwrap().cut), key);
        assert_eq!(key_of(query::traces(store, &ids, reading).unwrap().cut), key);
    }
    assert!(query::search(store, &request, late).unwrap().found.is_empty(), "no trace was reached in time");
}

pub(crate) fn links_report_a_cut_in_any_trace(store: &dyn Store) {
    let huge = format!(r#""tags":{{"k":"{}"}}"#, "x".repeat(5000));
    let earlier = format!(r#""timestamp":{}"#, NOW_US - 1);
    store_spans(store, &[of_service(1, 1, "a", &huge), of_service(2, 1, "a", &earlier)]);
    let small = Reading { max_bytes: 2000, ..STRICT };
    let links = links_of(store, &(NOW_US - 1..=NOW_US), small);
    assert_eq!(links.cut, Some(Cut::Bytes));
}

pub(crate) fn a_search_omits_a_huge_trace_whose_shown_part_does_not_match(store: &dyn Store) {
    let long = "x".repeat(1000);
    let numbered = |trace: u64, number: u64| {
        let at_us = NOW_US - 2 + trace;
        let rest = format!(r#""timestamp":{at_us},"tags":{{"number {number}":"","long":"{long}"}}"#);
        of_service(trace, number, "a", &rest)
    };
    let huge: Vec<_> = (1..=10).map(|number| numbered(2, number)).collect();
    store_spans(store, &huge);
    store_spans(store, &[numbered(1, 4)]);
    let small = Reading { max_bytes: 5000, ..STRICT };
    let found = |number: u64| {
        let traces = search_as(store, &[("annotationQuery", &format!("number {number}"))], small);
        traces.iter().map(|trace| (trace[0].trace_id.low(), trace.len())).collect::<Vec<_>>()
    };
    assert_eq!(found(3), [(2, 4)]);
    assert_eq!(found(4), [(1, 1)], "a trace that does not match takes no room from one that does");
}

pub(crate) fn only_configured_tags_are_offered(store: &dyn Store) {
    store_spans(store, &[of_service(1, 1, "a", r#""tags":{"environment":"prod","object":"o1"}"#)]);
    assert_eq!(store.names(NameKind::TagValue, "environment").unwrap(), ["prod"]);
    assert!(store.names(NameKind::TagValue, "object").unwrap().is_empty());
}
