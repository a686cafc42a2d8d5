//! Listing names, and links between services.

use serde_json::{Value, json};

use super::{NOW_US, Names, Subject, hex, span};

pub(crate) fn services_are_local_names_only_and_all_of_them(subject: &dyn Subject) {
    let remote = json!({"remoteEndpoint": {"serviceName": "remote"}});
    let spans: Vec<_> =
        (1..=600).map(|n| span(n, 1, 0, &format!("service{n:03}"), NOW_US, remote.clone())).collect();
    subject.store(&spans);
    let names = subject.names(Names::Services, "");
    assert_eq!(names.len(), 600);
    assert!(names.is_sorted() && !names.contains(&"remote".to_owned()));
}

pub(crate) fn span_names_and_remote_services_belong_to_a_service(subject: &dyn Subject) {
    let more = |name: &str, remote: &str| json!({"name": name, "remoteEndpoint": {"serviceName": remote}});
    subject.store(&[
        span(1, 1, 0, "a", NOW_US, more("put", "db")),
        span(1, 2, 1, "a", NOW_US, more("get", "cache")),
        span(1, 3, 1, "ab", NOW_US, more("other", "disk")),
    ]);
    assert_eq!(subject.names(Names::Spans, "a"), ["get", "put"]);
    assert_eq!(subject.names(Names::RemoteServices, "a"), ["cache", "db"]);
    assert_eq!(subject.names(Names::Spans, "ab"), ["other"]);
    assert!(subject.names(Names::Spans, "nobody").is_empty());
}

fn chain(trace: u64) -> [Value; 3] {
    let server = json!({"kind": "SERVER"});
    [
        span(trace, 1, 0, "gateway", NOW_US, server.clone()),
        span(trace, 2, 1, "osd", NOW_US, server),
        span(trace, 3, 2, "disk", NOW_US, json!({"kind": "SERVER", "tags": {"error": ""}})),
    ]
}

pub(crate) fn two_hundred_and_fifty_six_traces_give_all_their_links(subject: &dyn Subject) {
    let spans: Vec<_> = (1..=256).flat_map(chain).collect();
    subject.store(&spans);
    let links = subject.links();
    assert_eq!(links.iter().map(|link| link.calls).sum::<u64>(), 512);
    assert_eq!(links.iter().map(|link| link.errors).sum::<u64>(), 256);
    assert_eq!(links.len(), 2);
}

pub(crate) fn links_are_not_doubled_by_a_replay_or_by_long_ids(subject: &dyn Subject) {
    subject.store(&chain(7));
    subject.store(&chain(7));
    let mut below = span(7, 4, 3, "platter", NOW_US, json!({"kind": "SERVER"}));
    below["traceId"] = json!(format!("{}{}", hex(1), hex(7)));
    subject.store(&[below]);
    let mut pairs: Vec<_> =
        subject.links().into_iter().map(|link| (link.parent, link.child, link.calls)).collect();
    pairs.sort();
    let link = |parent: &str, child: &str| (parent.to_owned(), child.to_owned(), 1);
    assert_eq!(pairs, [link("disk", "platter"), link("gateway", "osd"), link("osd", "disk")]);
}
