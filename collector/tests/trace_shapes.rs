//! Trees and links of traces of any shape: building them ends, and every span is in at most one place.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use std::collections::HashSet;
use std::time::{Duration, Instant};

use blkin_collector::model::{Endpoint, Kind, Span, SpanId, TraceId};
use blkin_collector::trace::{DependencyLink, Linker, Tree};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

fn span(id: u64, parent: Option<u64>, kind: Option<Kind>, service: &str) -> Span {
    let span = Span::new(TraceId::new(0, 1).unwrap(), SpanId::new(id).unwrap());
    let local_endpoint = Some(Endpoint::service(service));
    Span { parent_id: parent.and_then(SpanId::new), kind, local_endpoint, ..span }.normalized()
}

fn links(spans: Vec<Span>) -> Vec<(String, String, u64, u64)> {
    let mut linker = Linker::default();
    linker.add_trace(spans);
    let fields = |link: DependencyLink| (link.parent, link.child, link.call_count, link.error_count);
    linker.links().into_iter().map(fields).collect()
}

fn link(parent: &str, child: &str, calls: u64, errors: u64) -> (String, String, u64, u64) {
    (parent.to_owned(), child.to_owned(), calls, errors)
}

#[test]
fn a_chain_of_shared_calls_links_each_service_to_the_next() {
    let shared = |span: Span| Span { shared: true, ..span };
    let failed = |mut span: Span| {
        span.tags.insert("error".to_owned(), String::new());
        span
    };
    let spans = vec![
        span(1, None, Some(Kind::Client), "client"),
        shared(span(1, None, Some(Kind::Server), "gateway")),
        failed(span(2, Some(1), Some(Kind::Client), "gateway")),
        failed(shared(span(2, Some(1), Some(Kind::Server), "osd.1"))),
        span(3, Some(2), None, "osd.1"),
        span(4, Some(3), Some(Kind::Client), "osd.1"),
        shared(span(4, Some(3), Some(Kind::Server), "osd.2")),
    ];
    let expected =
        [link("client", "gateway", 1, 0), link("gateway", "osd.1", 1, 1), link("osd.1", "osd.2", 1, 0)];
    assert_eq!(links(spans), expected);
}

#[test]
fn a_trace_without_its_root_still_has_links() {
    let server = Span {
        remote_endpoint: Some(Endpoint::service("gateway")),
        ..span(5, Some(4), Some(Kind::Server), "osd")
    };
    assert_eq!(links(vec![server]), [link("gateway", "osd", 1, 0)]);
    assert_eq!(links(Vec::new()), []);
}

#[test]
fn children_are_ordered_by_time() {
    let timed = |id, timestamp| Span { timestamp: Some(timestamp), ..span(id, Some(1), None, "osd") };
    let tree = Tree::build(vec![timed(2, 30), timed(3, 10), span(1, None, None, "osd"), timed(4, 20)]);
    let ids: Vec<u64> = tree.breadth_first().map(|(span, _)| span.id.get()).collect();
    assert_eq!(ids, [1, 3, 4, 2]);
    assert!(tree.root().has_children());
}

#[test]
fn a_long_chain_does_not_exhaust_the_stack() {
    let chain: Vec<Span> = (1..=50_000).map(|id| span(id, (id > 1).then(|| id - 1), None, "osd")).collect();
    let tree = Tree::build(chain);
    assert_eq!(tree.breadth_first().count(), 50_000);
}

/// No span has a kind, so each would look for its caller up to the root.
#[test]
fn links_of_a_long_chain_take_linear_time() {
    const LENGTH: u64 = 400_000;
    let both = |id: u64| Span {
        remote_endpoint: Some(Endpoint::service("disk")),
        ..span(id, (id > 1).then(|| id - 1), None, "osd")
    };
    let begun = Instant::now();
    assert_eq!(links((1..=LENGTH).map(both).collect()), [link("osd", "disk", LENGTH, 0)]);
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}: not linear", begun.elapsed());
}

fn any_span() -> impl Strategy<Value = Span> {
    let kinds =
        vec![None, Some(Kind::Client), Some(Kind::Server), Some(Kind::Producer), Some(Kind::Consumer)];
    (1..7u64, option::of(1..7u64), prop::sample::select(kinds), "[ab]?", any::<bool>(), option::of(1..9i64))
        .prop_map(|(id, parent, kind, service, shared, timestamp)| {
            Span { shared, timestamp, ..span(id, parent, kind, &service) }.normalized()
        })
}

proptest! {
    #[test]
    fn any_spans_make_a_finite_tree(spans in vec(any_span(), 0..12)) {
        let tree = Tree::build(spans.clone());
        let nodes: Vec<_> = tree.breadth_first().map(|(_, node)| std::ptr::from_ref(node)).collect();
        prop_assert_eq!(nodes.iter().collect::<HashSet<_>>().len(), nodes.len());
        prop_assert!(nodes.len() <= spans.len());
        let caller = |node| -> Option<Option<Kind>> { Some(tree.caller(node)?.kind) };
        let mut waiting = vec![(tree.root(), None)];
        while let Some((node, expected)) = waiting.pop() {
            prop_assert_eq!(caller(node), expected);
            let own = node.span().and_then(|span| span.kind).map(Some);
            waiting.extend(tree.children(node).map(|child| (child, own.or(expected))));
        }
        links(spans);
    }
}
