//! Reading traces by id.

use serde_json::json;

use super::{NOW_US, Names, Subject, found, hex, nothing, read, sorted, span};

pub(crate) fn an_id_is_matched_exactly_and_an_unknown_one_gives_nothing(subject: &dyn Subject) {
    subject.store(&[span(1, 1, 0, "a", NOW_US, nothing()), span(2, 1, 0, "a", NOW_US, nothing())]);
    assert_eq!(read(subject, 1).len(), 1);
    assert!(read(subject, 3).is_empty());
}

pub(crate) fn identical_spans_sent_again_are_returned_once(subject: &dyn Subject) {
    let spans = [span(1, 1, 0, "a", NOW_US, nothing()), span(1, 2, 1, "a", NOW_US, nothing())];
    subject.store(&spans);
    subject.store(&spans);
    assert_eq!(read(subject, 1), sorted(&spans));
}

pub(crate) fn debug_and_shared_spans_stay_distinct_and_unmerged(subject: &dyn Subject) {
    let spans = [
        span(1, 1, 0, "a", NOW_US, json!({"kind": "CLIENT", "debug": true})),
        span(1, 1, 0, "b", NOW_US, json!({"kind": "SERVER", "shared": true})),
        span(1, 1, 0, "a", 0, json!({"kind": "CLIENT", "tags": {"k": "v"}})),
    ];
    subject.store(&spans);
    assert_eq!(read(subject, 1), sorted(&spans));
}

pub(crate) fn traces_that_share_low_bits_stay_apart(subject: &dyn Subject) {
    for high in ["", "0000000000000001", "0000000000000002", "ffffffffffffffff"] {
        let mut span = span(7, 1, 0, "a", NOW_US, nothing());
        span["traceId"] = json!(format!("{high}{}", hex(7)));
        subject.store(&[span]);
    }
    assert_eq!(read(subject, 7).len(), 1);
    assert_eq!(subject.trace(&format!("{}{}", hex(1), hex(7))).len(), 1);
    assert_eq!(found(subject, &[]), [7; 4]);
}

pub(crate) fn long_values_read_back_untruncated(subject: &dyn Subject) {
    let (name, long) = ("n".repeat(1500), "x".repeat(100_000));
    let stored = span(
        1,
        1,
        0,
        &name,
        NOW_US,
        json!({"name": name, "annotations": [{"timestamp": NOW_US, "value": long}], "tags": {"k": long}}),
    );
    subject.store(std::slice::from_ref(&stored));
    assert_eq!(read(subject, 1), [stored]);
    assert_eq!(found(subject, &[("serviceName", &name)]), [1]);
}

pub(crate) fn an_empty_store_answers_everything(subject: &dyn Subject) {
    assert!(read(subject, 1).is_empty());
    assert!(subject.traces(&[&hex(1), &hex(2)]).is_empty());
    assert!(found(subject, &[]).is_empty());
    assert!(found(subject, &[("serviceName", "a")]).is_empty());
    for kind in [Names::Services, Names::Spans, Names::RemoteServices] {
        let of = if kind == Names::Services { "" } else { "a" };
        assert!(subject.names(kind, of).is_empty());
    }
    assert!(subject.links().is_empty());
}

pub(crate) fn a_span_that_holds_only_ids_is_stored(subject: &dyn Subject) {
    let bare = json!({"traceId": hex(1), "id": hex(2)});
    subject.store(std::slice::from_ref(&bare));
    assert_eq!(read(subject, 1), [bare]);
    assert!(found(subject, &[]).is_empty());
}

pub(crate) fn several_traces_are_read_at_once_and_misses_left_out(subject: &dyn Subject) {
    let spans = [span(1, 1, 0, "a", NOW_US, nothing()), span(2, 1, 0, "a", NOW_US, nothing())];
    subject.store(&spans);
    let mut traces = subject.traces(&[&hex(2), &hex(3), &hex(1)]);
    traces.sort_by_key(|trace| trace[0].to_string());
    assert_eq!(traces, spans.map(|span| vec![span]));
}
