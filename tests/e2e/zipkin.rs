//! The real Zipkin server as consumerd's upstream: it returns what the object store recorded.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result};
use blkin_cli::span::Span;
use blkin_cli::tree;
use blkin_tests::daemons::{LIMIT, Node, Setup};
use blkin_tests::objectstore::ObjectStore;
use blkin_tests::wait;
use blkin_tests::zipkin::Zipkin;
use serde::Deserialize;

const PUTS: usize = 3;
/// Annotations and spans of the reference trace of a put.
const ANNOTATIONS: i64 = 98;
const SPANS: usize = 17;
const DEPTH: usize = 10;

/// One line of consumerd's JSON sink: an annotation as it was recorded.
#[derive(Debug, Deserialize)]
struct Recorded {
    trace_id: u64,
    span_id: u64,
    parent_span_id: u64,
    name: String,
    service_name: String,
    event: Option<String>,
    timestamp: Option<i64>,
    key: Option<String>,
    value: Option<serde_json::Value>,
}

/// What one service recorded of a span.
#[derive(Debug, Default, PartialEq, Eq)]
struct Told {
    name: String,
    parent: String,
    keys: BTreeMap<String, String>,
    /// First and last event in microseconds.
    extent: Option<(i64, i64)>,
}

/// What is known by trace, span and service.
type Known = BTreeMap<(String, String, String), Told>;

fn hex(id: u64) -> String {
    if id == 0 { String::new() } else { format!("{id:016x}") }
}

fn recorded(lines: &str) -> Result<Known> {
    let mut known = Known::new();
    for line in lines.lines() {
        let one: Recorded = serde_json::from_str(line)?;
        let place = (hex(one.trace_id), hex(one.span_id), one.service_name.to_lowercase());
        let told = known.entry(place).or_default();
        told.name = one.name.to_lowercase();
        told.parent = hex(one.parent_span_id);
        if let (Some(key), Some(value)) = (one.key, one.value) {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            told.keys.insert(key, text);
        } else if let (Some(_), Some(time_ns)) = (one.event, one.timestamp) {
            let at = time_ns.div_euclid(1_000);
            let (first, last) = told.extent.unwrap_or((at, at));
            told.extent = Some((first.min(at), last.max(at)));
        }
    }
    Ok(known)
}

fn answered(traces: &[Vec<Span>]) -> Known {
    let mut known = Known::new();
    for span in traces.iter().flatten() {
        let place = (span.trace_id.clone(), span.id.clone(), span.service().to_owned());
        let told = known.entry(place).or_default();
        told.name = span.name.clone().unwrap_or_default();
        told.parent = span.parent_id.clone().unwrap_or_default();
        told.keys.extend(span.tags.clone());
        let start = span.timestamp.map(u64::cast_signed);
        let own = start.map(|start| (start, start + span.duration.unwrap_or(0).cast_signed()));
        // If client and server are the same service, their times are joined, as in `recorded`.
        let both = told.extent.into_iter().chain(own);
        told.extent = both.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
    }
    known
}

/// The depth of the tree of spans; the server half of a call is not a level of its own.
fn depth(spans: &[Span]) -> usize {
    let one_of_each: Vec<Span> = spans.iter().filter(|span| !span.shared).cloned().collect();
    tree::rows(&one_of_each).iter().map(|row| row.depth() + 1).max().unwrap_or(0)
}

#[test]
fn zipkin_returns_the_object_stores_traces_unchanged() -> Result<()> {
    let zipkin = Zipkin::start()?;
    let folder = tempfile::TempDir::new()?;
    let lines = folder.path().join("annotations");
    let setup = Setup {
        upstream: Some(zipkin.scribe.clone()),
        consumerd: vec![
            "--json-lines".into(),
            lines.to_str().context("the path is not UTF-8")?.into(),
            "--quiet-ms".into(),
            "1000".into(),
        ],
        ..Setup::default()
    };
    let node = Node::start(setup)?;
    let store = ObjectStore::start(&node.socket())?;
    store.put(PUTS as u32)?;
    node.settled(PUTS as i64 * ANNOTATIONS)?;

    let expected = recorded(&fs::read_to_string(&lines)?)?;
    let read = || {
        let body = zipkin.http.get_ok("/api/v2/traces", &[("serviceName", "bench")]).ok()?;
        let traces: Vec<Vec<Span>> = serde_json::from_str(&body).ok()?;
        // Zipkin answers OK before it has stored the spans.
        (answered(&traces).len() == expected.len()).then_some(traces)
    };
    let traces = wait::until(LIMIT, "every span to be in Zipkin", read).with_context(|| zipkin.log())?;

    assert_eq!(traces.len(), PUTS);
    for spans in &traces {
        let ids: BTreeSet<&str> = spans.iter().map(|span| span.id.as_str()).collect();
        assert_eq!((ids.len(), depth(spans)), (SPANS, DEPTH));
        assert!(spans.iter().filter(|span| span.tags.contains_key("Object")).count() >= 2);
    }
    for (place, told) in &answered(&traces) {
        let expected = &expected[place];
        assert_eq!(
            (&told.name, &told.parent, &told.keys),
            (&expected.name, &expected.parent, &expected.keys),
            "{place:?}"
        );
        let ((first, last), (from, to)) =
            (expected.extent.context("no events")?, told.extent.context("no time")?);
        // To Zipkin a duration of 0 means no duration, so consumerd sends at least 1.
        assert_eq!((from, to), (first, last.max(first + 1)), "{place:?}: {told:?}, recorded {expected:?}");
    }
    Ok(())
}
