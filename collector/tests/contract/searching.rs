//! Searching traces by time and conditions.

use blkin_collector::store::Store;

use super::{NOW_MS, NOW_US, found, of_service, search, store_spans};

const NONE: [u64; 0] = [];

/// A window of one millisecond that ends `ms` before now.
fn in_window(store: &dyn Store, ms: u64) -> Vec<u64> {
    found(store, &[("endTs", &(NOW_MS - ms).to_string()), ("lookback", "1")])
}

pub(crate) fn the_time_of_a_trace_is_that_of_its_first_span_without_parent(store: &dyn Store) {
    let at = |ms: u64| NOW_US - ms * 1000;
    store_spans(
        store,
        &[
            of_service(1, 2, 1, "a", at(50), ""),
            of_service(1, 1, 0, "a", at(20), ""),
            of_service(1, 3, 0, "a", at(80), ""),
            of_service(2, 2, 1, "a", at(50), ""),
            of_service(2, 3, 1, "a", at(80), ""),
        ],
    );
    assert_eq!(
        (in_window(store, 20), in_window(store, 50), in_window(store, 80)),
        (vec![1], vec![], vec![2])
    );
}

pub(crate) fn a_trace_without_any_time_is_never_found(store: &dyn Store) {
    store_spans(store, &[of_service(1, 1, 0, "a", 0, ""), of_service(1, 2, 1, "a", 0, "")]);
    assert_eq!(found(store, &[]), NONE);
    assert_eq!(found(store, &[("serviceName", "a")]), NONE);
}

pub(crate) fn a_root_that_comes_late_moves_the_trace_in_time(store: &dyn Store) {
    let at = |ms: u64| NOW_US - ms * 1000;
    store_spans(store, &[of_service(1, 2, 1, "a", at(50), "")]);
    assert_eq!(in_window(store, 50), [1]);
    store_spans(store, &[of_service(1, 3, 1, "b", at(60), "")]);
    store_spans(store, &[of_service(1, 1, 0, "c", at(70), "")]);
    assert_eq!((in_window(store, 50), in_window(store, 60), in_window(store, 70)), (vec![], vec![], vec![1]));
    for service in ["a", "b", "c"] {
        assert_eq!(found(store, &[("serviceName", service)]), [1], "{service}");
    }
}

pub(crate) fn both_ends_of_the_window_are_inside(store: &dyn Store) {
    store_spans(
        store,
        &[
            of_service(1, 1, 0, "a", NOW_US, ""),
            of_service(2, 1, 0, "a", NOW_US - 5000, ""),
            of_service(3, 1, 0, "a", NOW_US + 1, ""),
            of_service(4, 1, 0, "a", NOW_US - 5001, ""),
        ],
    );
    assert_eq!(found(store, &[("lookback", "5")]), [1, 2]);
}

pub(crate) fn a_found_trace_is_returned_whole(store: &dyn Store) {
    let hour_us = 3_600_000_000;
    store_spans(
        store,
        &[of_service(1, 1, 0, "a", NOW_US, ""), of_service(1, 2, 1, "b", NOW_US + 2 * hour_us, "")],
    );
    assert_eq!(search(store, &[("serviceName", "b")])[0].len(), 2);
}

pub(crate) fn the_limit_counts_traces_and_the_latest_come_first(store: &dyn Store) {
    for trace in 1..=20 {
        let time = NOW_US - trace * 1000;
        store_spans(store, &[of_service(trace, 1, 0, "a", time, ""), of_service(trace, 2, 1, "a", time, "")]);
    }
    assert_eq!(found(store, &[("limit", "3")]), [1, 2, 3]);
    assert_eq!(found(store, &[("limit", "2"), ("endTs", &(NOW_MS - 10).to_string())]), [10, 11]);
    assert_eq!(found(store, &[]).len(), 10);
}

pub(crate) fn every_condition_is_met_by_a_span_of_the_service(store: &dyn Store) {
    store_spans(
        store,
        &[
            of_service(1, 1, 0, "a", NOW_US, r#""name":"get","remoteEndpoint":{"serviceName":"db"}"#),
            of_service(1, 2, 1, "a", NOW_US, r#""name":"put","duration":7,"tags":{"error":"x"}"#),
            of_service(1, 3, 1, "b", NOW_US, r#""name":"other","duration":9000"#),
        ],
    );
    let with = |service, name, value| found(store, &[("serviceName", service), (name, value)]).len();
    assert_eq!((with("a", "spanName", "get"), with("a", "spanName", "other")), (1, 0));
    assert_eq!((with("a", "remoteServiceName", "db"), with("b", "remoteServiceName", "db")), (1, 0));
    assert_eq!((with("a", "minDuration", "8"), with("b", "minDuration", "8")), (0, 1));
    assert_eq!((with("a", "annotationQuery", "error=x"), with("b", "annotationQuery", "error=x")), (1, 0));
    let different_spans =
        [("serviceName", "a"), ("spanName", "get"), ("annotationQuery", "error"), ("minDuration", "7")];
    assert_eq!(found(store, &different_spans), [1]);
    assert_eq!(found(store, &[("spanName", "other"), ("remoteServiceName", "db")]), [1]);
    assert_eq!(found(store, &[("serviceName", "a"), ("spanName", "all")]), [1]);
}

pub(crate) fn names_are_lower_cased(store: &dyn Store) {
    let rest = r#""name":"GET","remoteEndpoint":{"serviceName":"DB"}"#;
    store_spans(store, &[of_service(1, 1, 0, "Front", NOW_US, rest)]);
    let query = [("serviceName", "FRONT"), ("spanName", "Get"), ("remoteServiceName", "dB")];
    assert_eq!(found(store, &query), [1]);
}

pub(crate) fn durations_include_both_ends(store: &dyn Store) {
    store_spans(store, &[of_service(1, 1, 0, "a", NOW_US, r#""duration":100"#)]);
    let within = |least, most| found(store, &[("minDuration", least), ("maxDuration", most)]);
    assert_eq!(within("100", "100"), [1]);
    assert_eq!((within("101", "200"), within("1", "99")), (vec![], vec![]));
}

pub(crate) fn an_empty_tag_value_can_be_searched(store: &dyn Store) {
    store_spans(store, &[of_service(1, 1, 0, "a", NOW_US, r#""tags":{"error":""}"#)]);
    assert_eq!(found(store, &[("annotationQuery", "error=")]), [1]);
    assert_eq!(found(store, &[("annotationQuery", "error")]), [1]);
    assert_eq!(found(store, &[("annotationQuery", "error=x")]), NONE);
}

pub(crate) fn annotations_and_tag_keys_are_found_by_text(store: &dyn Store) {
    let rest = format!(
        r#""annotations":[{{"timestamp":{NOW_US},"value":"journal written"}}],"tags":{{"object":"o1"}}"#
    );
    store_spans(store, &[of_service(1, 1, 0, "a", NOW_US, &rest)]);
    assert_eq!(found(store, &[("annotationQuery", "journal written and object and object=o1")]), [1]);
    assert_eq!(found(store, &[("annotationQuery", "journal written and object=o2")]), NONE);
    assert_eq!(found(store, &[("annotationQuery", "journal")]), NONE);
}
