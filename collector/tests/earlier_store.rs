//! Opens the file of a store that a collector of format 5 wrote (088fcfd, by `fill` on a [`Disk`]). It has a merged segment,
//! other segments, a head, and blocks that retention had passed. It must answer and go on like a store that is filled today.
#![allow(clippy::unwrap_used, reason = "a check that cannot go on has failed")]

use std::collections::BTreeSet;
use std::io::Read;
use std::ops::ControlFlow;

use blkin_collector::ledger::{Count, Figure, Ledger};
use blkin_collector::model::TraceId;
use blkin_collector::query::{Defaults, Parameters, SearchRequest};
use blkin_collector::store::disk::{Disk, FILE_NAME};
use blkin_collector::store::engine::Engine;
use blkin_collector::store::memory::Memory;
use blkin_collector::store::{
    Batch, NameKind, Piece, Retention, Room, Store, TO_THE_END, TraceStore, Visited, Wanted,
};
use blkin_collector::v2json;
use blkin_thrift::{Annotation, AnnotationType, BinaryAnnotation, Endpoint, Limits, Span};

const BEGIN_MS: u64 = 1_700_000_000_000;
const MINUTE_MS: u64 = 60_000;
/// How many minutes `fill` covers, and after how many of them the head becomes a segment.
const FILLED: u64 = 63;
const SEGMENT: u64 = 6;
/// How many traces go on in every minute; traces that come once have higher ids.
const LONG: u64 = 4;

fn host(number: u64) -> Option<Endpoint> {
    let service_name = format!("osd.{}", number % 3);
    Some(Endpoint { ipv4: 0x0a00_0001, port: 6800, service_name, ipv6: None })
}

fn time_us(minute: u64) -> i64 {
    ((BEGIN_MS + minute * MINUTE_MS) * 1000) as i64
}

/// A piece of a trace that goes on: each annotation has an identity, and the first of them came a minute before already.
fn of_long(trace: u64, minute: u64) -> Piece {
    let event = |minute: u64| Annotation {
        timestamp: time_us(minute) + trace as i64,
        value: format!("event {}", minute % 7),
        host: host(trace),
        position: Some(minute as i64),
        nanos: Some(7),
        ..Annotation::default()
    };
    let tag = BinaryAnnotation {
        key: "object".to_owned(),
        value: format!("rbd.{}", minute % 5).into_bytes(),
        kind: AnnotationType::String,
        host: host(trace),
        position: Some(minute as i64),
        source: Some(6),
    };
    Piece::V1(Span {
        trace_id: trace as i64,
        id: 1 + (minute / 2) as i64,
        name: format!("scrub {trace}"),
        annotations: vec![event(minute.saturating_sub(1)), event(minute)],
        binary_annotations: vec![tag],
        source: Some(5),
        ..Span::default()
    })
}

/// A piece of a trace that comes once, as Zipkin's clients send it.
fn of_short(trace: u64, minute: u64) -> Piece {
    let json = format!(
        r#"[{{"traceId":"a{trace:016x}","id":"{trace:x}","kind":"CLIENT","name":"write","timestamp":{},"duration":{},
        "localEndpoint":{{"serviceName":"gateway"}},"remoteEndpoint":{{"serviceName":"osd.{}"}},
        "tags":{{"pool":"pool {}"}}}}]"#,
        time_us(minute) + trace as i64,
        1 + trace * 10,
        trace % 3,
        trace % 4
    );
    Piece::V2(v2json::read_list(json.as_bytes(), &Limits::default()).unwrap().remove(0).unwrap())
}

fn shorts(minute: u64) -> std::ops::Range<u64> {
    100 + minute * 3..100 + minute * 3 + 3
}

fn batch(pieces: impl Iterator<Item = Piece>) -> Batch {
    let mut batch = Batch::new(["pool".to_owned()].into());
    for piece in pieces {
        *batch.ledger.get_mut(Figure::ReceivedScribe) += Count::piece(piece.annotation_count());
        batch.push(&piece);
    }
    batch
}

fn minute<E: Engine>(store: &TraceStore<E>, minute: u64) {
    let now_ms = BEGIN_MS + minute * MINUTE_MS;
    let long = (1..=LONG).map(|trace| of_long(trace, minute));
    store.commit(&[batch(long), batch(shorts(minute).map(|trace| of_short(trace, minute)))], now_ms).unwrap();
    if minute % 4 == 3 {
        // The pieces of a minute before are sent again.
        let again = shorts(minute - 1).map(|trace| of_short(trace, minute - 1));
        store.commit(&[batch(again)], now_ms).unwrap();
    }
    if minute % SEGMENT == SEGMENT - 1 {
        store.freeze();
        store.upkeep(TO_THE_END).unwrap();
    }
    if minute % 30 == 29 {
        let retention = Retention { max_age_ms: 20 * MINUTE_MS, max_bytes: 0 };
        while store.expire(&retention, now_ms).unwrap() {}
    }
}

fn fill<E: Engine>(store: &TraceStore<E>) {
    (0..FILLED).for_each(|at| minute(store, at));
}

/// The answers to everything that a store can be asked.
#[derive(Debug, PartialEq)]
struct Answers {
    traces: Vec<(TraceId, Vec<Piece>)>,
    found: Vec<BTreeSet<(u64, u64)>>,
    names: Vec<Vec<String>>,
    ledger: Ledger,
    count: Count,
}

fn ids(minutes: u64) -> Vec<TraceId> {
    let short = (0..minutes).flat_map(shorts).map(|low| TraceId::new(0xa, low).unwrap());
    (1..=LONG).map(|low| TraceId::new(0, low).unwrap()).chain(short).collect()
}

fn found<E: Engine>(store: &TraceStore<E>, pairs: &[(&str, &str)]) -> BTreeSet<(u64, u64)> {
    let pairs = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let defaults = Defaults { now_ms: BEGIN_MS, max_traces: 1000 };
    let wanted = Wanted::by(&SearchRequest::read(&Parameters(pairs), &defaults).unwrap());
    let mut found = BTreeSet::new();
    let mut note = |trace: &Visited<'_>| {
        found.insert((trace.id.high(), trace.id.low()));
        Ok(ControlFlow::Continue(()))
    };
    store.traces_by_time(&wanted, 0..=u64::MAX, &mut note).unwrap();
    found
}

fn answers<E: Engine>(store: &TraceStore<E>, minutes: u64) -> Answers {
    let read = |id| (id, store.trace(id, true, &mut Room::of(usize::MAX)).unwrap());
    let searches: [&[(&str, &str)]; 6] = [
        &[],
        &[("serviceName", "osd.1")],
        &[("serviceName", "gateway"), ("remoteServiceName", "osd.2")],
        &[("spanName", "scrub 2"), ("annotationQuery", "event 3 and object=rbd.4")],
        &[("annotationQuery", "pool=pool 3")],
        &[("minDuration", "2000")],
    ];
    let names = [
        (NameKind::Service, ""),
        (NameKind::Span, "osd.0"),
        (NameKind::RemoteService, "gateway"),
        (NameKind::TagValue, "pool"),
    ];
    assert_eq!(store.damage().pieces(), 0);
    Answers {
        traces: ids(minutes).into_iter().map(read).collect(),
        found: searches.map(|search| found(store, search)).into(),
        names: names.map(|(kind, of)| store.names(kind, of).unwrap()).into(),
        ledger: store.ledger().unwrap(),
        count: store.count().unwrap(),
    }
}

/// The file as it was written, in a folder.
fn earlier() -> tempfile::TempDir {
    const PACKED: &[u8] = include_bytes!("golden/traces-v5.redb.gz");
    let folder = tempfile::tempdir().unwrap();
    let mut file = Vec::new();
    flate2::read::GzDecoder::new(PACKED).read_to_end(&mut file).unwrap();
    std::fs::write(folder.path().join(FILE_NAME), file).unwrap();
    folder
}

fn open<E: Engine>(engine: E) -> TraceStore<E> {
    // Segments are made only when this test makes them.
    TraceStore::with_small_segments(engine, 1 << 20).unwrap()
}

#[test]
fn a_format_5_file_answers_and_continues_like_a_new_store() {
    let folder = earlier();
    let open_earlier = || open(Disk::open(folder.path(), 1 << 20).unwrap());
    let today = open(Memory::default());
    fill(&today);
    let expected = answers(&today, FILLED);
    assert!(expected.traces.iter().any(|(_, pieces)| pieces.is_empty()), "nothing has expired");
    assert!(expected.found.iter().all(|found| !found.is_empty()), "{:?}", expected.found);
    let store = open_earlier();
    assert!(store.index_size().segments > 1);
    assert_eq!(answers(&store, FILLED), expected);
    // Segments of both formats are merged; traces from before go on, and expire.
    for at in FILLED..3 * FILLED {
        minute(&store, at);
        minute(&today, at);
    }
    assert_eq!(answers(&store, 3 * FILLED), answers(&today, 3 * FILLED));
    drop(store);
    assert_eq!(answers(&open_earlier(), 3 * FILLED), answers(&today, 3 * FILLED));
}
