//! Reading traces by id.

use blkin_collector::merge::Piece;
use blkin_collector::model::TraceId;
use blkin_collector::query::{self, Reading};
use blkin_collector::store::{NameKind, Store};
use blkin_thrift::{Annotation, Endpoint, Span as V1Span};

use super::{NOW_US, STRICT, found, id, of_service, read, span, store_pieces, store_spans};

pub(crate) fn an_id_is_matched_exactly_and_an_unknown_one_gives_nothing(store: &dyn Store) {
    store_spans(store, &[of_service(1, 1, 0, "a", NOW_US, ""), of_service(2, 1, 0, "a", NOW_US, "")]);
    assert_eq!(read(store, id(1)).len(), 1);
    assert_eq!(read(store, id(3)), []);
}

pub(crate) fn identical_spans_sent_again_are_returned_once(store: &dyn Store) {
    let spans = [of_service(1, 1, 0, "a", NOW_US, ""), of_service(1, 2, 1, "a", NOW_US, "")];
    store_spans(store, &spans);
    store_spans(store, &spans);
    assert_eq!(read(store, id(1)), spans);
}

pub(crate) fn debug_and_shared_spans_stay_distinct_and_unmerged(store: &dyn Store) {
    let client = of_service(1, 1, 0, "a", NOW_US, r#""kind":"CLIENT","debug":true"#);
    let server = of_service(1, 1, 0, "b", NOW_US, r#""kind":"SERVER","shared":true"#);
    let late = of_service(1, 1, 0, "a", 0, r#""kind":"CLIENT","tags":{"k":"v"}"#);
    let spans = [client, server, late];
    store_spans(store, &spans);
    assert_eq!(read(store, id(1)), spans);
}

pub(crate) fn traces_that_share_low_bits_stay_apart_if_strict_and_are_one_if_not(store: &dyn Store) {
    for high in ["", "1", "2", "ffffffffffffffff"] {
        let trace = format!("{high}0000000000000007");
        store_spans(store, &[span(&format!(r#""traceId":"{trace}","id":"1","timestamp":{NOW_US}"#))]);
    }
    let one = TraceId::new(1, 7).unwrap();
    assert_eq!(read(store, one).len(), 1);
    assert_eq!(query::trace(store, one, Reading { strict: false, ..STRICT }).unwrap().len(), 4);
    assert_eq!(found(store, &[]).len(), 4);
}

pub(crate) fn long_values_read_back_untruncated(store: &dyn Store) {
    let long = "x".repeat(100_000);
    let rest =
        format!(r#""tags":{{"k":"{long}"}},"annotations":[{{"timestamp":{NOW_US},"value":"{long}"}}]"#);
    let stored = of_service(1, 1, 0, &long, NOW_US, &rest);
    store_spans(store, std::slice::from_ref(&stored));
    assert_eq!(read(store, id(1)), [stored]);
    assert_eq!(found(store, &[("serviceName", &long)]), [1]);
}

pub(crate) fn an_empty_store_answers_everything(store: &dyn Store) {
    assert_eq!(read(store, id(1)), []);
    assert_eq!(found(store, &[("serviceName", "a")]), [] as [u64; 0]);
    for kind in [NameKind::Service, NameKind::Span, NameKind::RemoteService, NameKind::TagValue] {
        assert!(store.names(kind, "").unwrap().is_empty());
    }
    assert!(query::dependencies(store, &(1..=NOW_US), STRICT).unwrap().is_empty());
    super::check_ledger(store);
}

pub(crate) fn a_span_that_holds_only_ids_is_stored(store: &dyn Store) {
    let bare = span(r#""traceId":"1","id":"2""#);
    store_spans(store, std::slice::from_ref(&bare));
    assert_eq!(read(store, id(1)), [bare]);
    assert_eq!(found(store, &[]), [] as [u64; 0]);
}

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

pub(crate) fn several_traces_are_read_at_once_and_misses_left_out(store: &dyn Store) {
    store_spans(store, &[of_service(1, 1, 0, "a", NOW_US, ""), of_service(2, 1, 0, "a", NOW_US, "")]);
    let traces = query::traces(store, &[id(2), id(3), id(1)], STRICT).unwrap();
    assert_eq!(traces.iter().map(|t| t[0].trace_id).collect::<Vec<_>>(), [id(2), id(1)]);
}

pub(crate) fn what_has_no_room_in_an_answer_stays_in_the_store(store: &dyn Store) {
    let rest = format!(r#""tags":{{"k":"{}"}}"#, "x".repeat(1000));
    let spans: Vec<_> = (1..=10).map(|n| of_service(1, n, 0, "a", NOW_US, &rest)).collect();
    store_spans(store, &spans);
    store_spans(store, &[of_service(2, 1, 0, "a", NOW_US - 1, "")]);
    let small = Reading { max_bytes: 5000, ..STRICT };
    assert_eq!(query::trace(store, id(1), small).unwrap().len(), 4);
    assert_eq!(query::traces(store, &[id(2), id(1)], small).unwrap().len(), 1);
    assert_eq!(query::trace(store, id(1), STRICT).unwrap().len(), 10);
}
