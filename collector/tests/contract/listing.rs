//! Names, and links between services.

use blkin_collector::query;
use blkin_collector::store::{NameKind, Store};

use super::{NOW_US, STRICT, of_service, span, store_spans};

pub(crate) fn services_are_local_names_only_and_all_of_them(store: &dyn Store) {
    let remote = r#""remoteEndpoint":{"serviceName":"remote"}"#;
    let spans: Vec<_> =
        (1..=600).map(|n| of_service(n, 1, 0, &format!("service{n:03}"), NOW_US, remote)).collect();
    store_spans(store, &spans);
    let names = store.names(NameKind::Service, "").unwrap();
    assert_eq!(names.len(), 600);
    assert!(names.is_sorted() && !names.contains(&"remote".to_owned()));
}

pub(crate) fn span_names_and_remote_services_belong_to_a_service(store: &dyn Store) {
    let rest = |name: &str, remote: &str| {
        format!(r#""name":"{name}","remoteEndpoint":{{"serviceName":"{remote}"}}"#)
    };
    store_spans(
        store,
        &[
            of_service(1, 1, 0, "a", NOW_US, &rest("put", "db")),
            of_service(1, 2, 1, "a", NOW_US, &rest("get", "cache")),
            of_service(1, 3, 1, "ab", NOW_US, &rest("other", "disk")),
        ],
    );
    assert_eq!(store.names(NameKind::Span, "a").unwrap(), ["get", "put"]);
    assert_eq!(store.names(NameKind::RemoteService, "a").unwrap(), ["cache", "db"]);
    assert_eq!(store.names(NameKind::Span, "ab").unwrap(), ["other"]);
    assert!(store.names(NameKind::Span, "").unwrap().is_empty());
}

pub(crate) fn only_configured_tags_are_offered(store: &dyn Store) {
    let rest = r#""tags":{"environment":"prod","object":"o1"}"#;
    store_spans(store, &[of_service(1, 1, 0, "a", NOW_US, rest)]);
    assert_eq!(store.names(NameKind::TagValue, "environment").unwrap(), ["prod"]);
    assert!(store.names(NameKind::TagValue, "object").unwrap().is_empty());
}

fn chain(trace: u64) -> [blkin_collector::model::Span; 3] {
    [
        of_service(trace, 1, 0, "gateway", NOW_US, r#""kind":"SERVER""#),
        of_service(trace, 2, 1, "osd", NOW_US, r#""kind":"SERVER""#),
        of_service(trace, 3, 2, "disk", NOW_US, r#""kind":"SERVER","tags":{"error":""}"#),
    ]
}

pub(crate) fn two_hundred_and_fifty_six_traces_give_all_their_links(store: &dyn Store) {
    let spans: Vec<_> = (1..=256).flat_map(chain).collect();
    store_spans(store, &spans);
    let links = query::dependencies(store, &(1..=NOW_US), STRICT).unwrap();
    assert_eq!(links.iter().map(|link| link.call_count).sum::<u64>(), 512);
    assert_eq!(links.iter().map(|link| link.error_count).sum::<u64>(), 256);
    assert_eq!(links.len(), 2);
}

pub(crate) fn links_are_not_doubled_by_a_replay_or_by_long_ids(store: &dyn Store) {
    store_spans(store, &chain(7));
    store_spans(store, &chain(7));
    let long = r#""traceId":"10000000000000007","id":"4","parentId":"3","kind":"SERVER""#;
    store_spans(
        store,
        &[span(&format!(r#"{long},"localEndpoint":{{"serviceName":"platter"}},"timestamp":{NOW_US}"#))],
    );
    let links = query::dependencies(store, &(1..=NOW_US), STRICT).unwrap();
    let mut pairs: Vec<_> =
        links.iter().map(|l| (l.parent.as_str(), l.child.as_str(), l.call_count)).collect();
    pairs.sort_unstable();
    assert_eq!(pairs, [("disk", "platter", 1), ("gateway", "osd", 1), ("osd", "disk", 1)]);
}
