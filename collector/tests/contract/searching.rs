//! Searching traces by time and conditions.

use serde_json::json;

use super::{NOW_MS, NOW_US, Subject, found, nothing, span};

const NONE: [u64; 0] = [];

/// The traces found in a window of one millisecond that ends `ms` before now.
fn in_window(subject: &dyn Subject, ms: u64) -> Vec<u64> {
    found(subject, &[("endTs", &(NOW_MS - ms).to_string()), ("lookback", "1")])
}

pub(crate) fn the_time_of_a_trace_is_that_of_its_first_span_without_parent(subject: &dyn Subject) {
    let at = |ms: u64| NOW_US - ms * 1000;
    subject.store(&[
        span(1, 2, 1, "a", at(50), nothing()),
        span(1, 1, 0, "a", at(20), nothing()),
        span(1, 3, 0, "a", at(80), nothing()),
        span(2, 2, 1, "a", at(50), nothing()),
        span(2, 3, 1, "a", at(80), nothing()),
    ]);
    assert_eq!(
        (in_window(subject, 20), in_window(subject, 50), in_window(subject, 80)),
        (vec![1], vec![], vec![2])
    );
}

pub(crate) fn a_trace_without_any_time_is_never_found(subject: &dyn Subject) {
    subject.store(&[span(1, 1, 0, "a", 0, nothing()), span(1, 2, 1, "a", 0, nothing())]);
    assert_eq!(found(subject, &[]), NONE);
    assert_eq!(found(subject, &[("serviceName", "a")]), NONE);
}

pub(crate) fn a_root_that_comes_late_moves_the_trace_in_time(subject: &dyn Subject) {
    let at = |ms: u64| NOW_US - ms * 1000;
    subject.store(&[span(1, 2, 1, "a", at(50), nothing())]);
    assert_eq!(in_window(subject, 50), [1]);
    subject.store(&[span(1, 3, 1, "b", at(60), nothing())]);
    subject.store(&[span(1, 1, 0, "c", at(70), nothing())]);
    assert_eq!(
        (in_window(subject, 50), in_window(subject, 60), in_window(subject, 70)),
        (vec![], vec![], vec![1])
    );
    for service in ["a", "b", "c"] {
        assert_eq!(found(subject, &[("serviceName", service)]), [1], "{service}");
    }
}

pub(crate) fn both_ends_of_the_window_are_inside(subject: &dyn Subject) {
    subject.store(&[
        span(1, 1, 0, "a", NOW_US, nothing()),
        span(2, 1, 0, "a", NOW_US - 5000, nothing()),
        span(3, 1, 0, "a", NOW_US + 1, nothing()),
        span(4, 1, 0, "a", NOW_US - 5001, nothing()),
    ]);
    assert_eq!(found(subject, &[("lookback", "5")]), [1, 2]);
}

pub(crate) fn a_found_trace_is_returned_whole(subject: &dyn Subject) {
    let hour_us = 3_600_000_000;
    subject
        .store(&[span(1, 1, 0, "a", NOW_US, nothing()), span(1, 2, 1, "b", NOW_US + 2 * hour_us, nothing())]);
    assert_eq!(subject.search(&[("serviceName", "b")])[0].len(), 2);
}

pub(crate) fn the_limit_counts_traces_and_the_latest_come_first(subject: &dyn Subject) {
    for trace in 1..=20 {
        let time = NOW_US - trace * 1000;
        subject.store(&[span(trace, 1, 0, "a", time, nothing()), span(trace, 2, 1, "a", time, nothing())]);
    }
    assert_eq!(found(subject, &[("limit", "3")]), [1, 2, 3]);
    assert_eq!(found(subject, &[("limit", "2"), ("endTs", &(NOW_MS - 10).to_string())]), [10, 11]);
    assert_eq!(found(subject, &[]).len(), 10);
}

pub(crate) fn every_condition_is_met_by_a_span_of_the_service(subject: &dyn Subject) {
    subject.store(&[
        span(1, 1, 0, "a", NOW_US, json!({"name":"get","remoteEndpoint":{"serviceName":"db"}})),
        span(1, 2, 1, "a", NOW_US, json!({"name":"put","duration":7,"tags":{"error":"x"}})),
        span(1, 3, 1, "b", NOW_US, json!({"name":"other","duration":9000})),
    ]);
    let with = |service, name, value| found(subject, &[("serviceName", service), (name, value)]).len();
    assert_eq!((with("a", "spanName", "get"), with("a", "spanName", "other")), (1, 0));
    assert_eq!((with("a", "remoteServiceName", "db"), with("b", "remoteServiceName", "db")), (1, 0));
    assert_eq!((with("a", "minDuration", "8"), with("b", "minDuration", "8")), (0, 1));
    assert_eq!((with("a", "annotationQuery", "error=x"), with("b", "annotationQuery", "error=x")), (1, 0));
    let different_spans =
        [("serviceName", "a"), ("spanName", "get"), ("annotationQuery", "error"), ("minDuration", "7")];
    assert_eq!(found(subject, &different_spans), [1]);
    assert_eq!(found(subject, &[("spanName", "other"), ("remoteServiceName", "db")]), [1]);
    assert_eq!(found(subject, &[("serviceName", "a"), ("spanName", "all")]), [1]);
}

pub(crate) fn names_are_lower_cased(subject: &dyn Subject) {
    let more = json!({"name": "GET", "remoteEndpoint": {"serviceName": "DB"}});
    subject.store(&[span(1, 1, 0, "Front", NOW_US, more)]);
    let query = [("serviceName", "FRONT"), ("spanName", "Get"), ("remoteServiceName", "dB")];
    assert_eq!(found(subject, &query), [1]);
}

pub(crate) fn durations_include_both_ends(subject: &dyn Subject) {
    subject.store(&[span(1, 1, 0, "a", NOW_US, json!({"duration":100}))]);
    let within = |least, most| found(subject, &[("minDuration", least), ("maxDuration", most)]);
    assert_eq!(within("100", "100"), [1]);
    assert_eq!((within("101", "200"), within("1", "99")), (vec![], vec![]));
}

pub(crate) fn an_empty_tag_value_can_be_searched(subject: &dyn Subject) {
    subject.store(&[span(1, 1, 0, "a", NOW_US, json!({"tags":{"error":""}}))]);
    assert_eq!(found(subject, &[("annotationQuery", "error=")]), [1]);
    assert_eq!(found(subject, &[("annotationQuery", "error")]), [1]);
    assert_eq!(found(subject, &[("annotationQuery", "error=x")]), NONE);
}

pub(crate) fn annotations_and_tag_keys_are_found_by_text(subject: &dyn Subject) {
    let event = json!({"timestamp": NOW_US, "value": "journal written"});
    subject.store(&[span(1, 1, 0, "a", NOW_US, json!({"annotations": [event], "tags": {"object": "o1"}}))]);
    assert_eq!(found(subject, &[("annotationQuery", "journal written and object and object=o1")]), [1]);
    assert_eq!(found(subject, &[("annotationQuery", "journal written and object=o2")]), NONE);
    assert_eq!(found(subject, &[("annotationQuery", "journal")]), NONE);
}
