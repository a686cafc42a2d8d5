//! The rules of "what a store must do", each a check on an empty store.

pub(crate) mod counting;
pub(crate) mod listing;
pub(crate) mod reading;
pub(crate) mod searching;

use blkin_collector::ledger::{Count, Figure};
use blkin_collector::merge::Piece;
use blkin_collector::model::{Span, TraceId};
use blkin_collector::query::{self, Defaults, Parameters, Reading, SearchRequest};
use blkin_collector::store::{Batch, Store};
use blkin_collector::v2json;

/// When every check takes place, in milliseconds since 1970.
pub(crate) const NOW_MS: u64 = 1_700_000_000_000;
/// The same in microseconds.
pub(crate) const NOW_US: u64 = NOW_MS * 1000;

/// How traces are read unless a check says otherwise.
pub(crate) const STRICT: Reading = Reading { strict: true, max_bytes: 1 << 30 };

/// A span from JSON without its brackets.
pub(crate) fn span(json: &str) -> Span {
    let list = format!("[{{{json}}}]");
    v2json::read_list(list.as_bytes(), &blkin_thrift::Limits::default()).unwrap().remove(0).unwrap()
}

/// A span of a service: trace, id, parent (0 is none), time in microseconds (0 is none).
pub(crate) fn of_service(trace: u64, id: u64, parent: u64, service: &str, time_us: u64, rest: &str) -> Span {
    let parent = if parent == 0 { String::new() } else { format!(r#","parentId":"{parent:x}""#) };
    let time = if time_us == 0 { String::new() } else { format!(r#","timestamp":{time_us}"#) };
    let rest = if rest.is_empty() { String::new() } else { format!(",{rest}") };
    span(&format!(
        r#""traceId":"{trace:x}","id":"{id:x}","localEndpoint":{{"serviceName":"{service}"}}{parent}{time}{rest}"#
    ))
}

pub(crate) fn id(low: u64) -> TraceId {
    TraceId::new(0, low).unwrap()
}

/// A batch as ingest makes it: every piece is counted as received.
pub(crate) fn batch(pieces: Vec<Piece>) -> Batch {
    let mut batch = Batch::default();
    for piece in &pieces {
        *batch.ledger.get_mut(Figure::ReceivedScribe) += Count::piece(piece.annotation_count());
    }
    batch.pieces = pieces;
    batch
}

pub(crate) fn store_pieces(store: &dyn Store, pieces: Vec<Piece>) {
    store_pieces_at(store, pieces, NOW_MS);
}

pub(crate) fn store_pieces_at(store: &dyn Store, pieces: Vec<Piece>, now_ms: u64) {
    store.commit(&[batch(pieces)], now_ms).unwrap();
    check_ledger(store);
}

/// The ledger balances, and an independent count finds what it says.
pub(crate) fn check_ledger(store: &dyn Store) {
    let ledger = store.ledger().unwrap();
    assert!(ledger.balances(), "{ledger:?}");
    assert_eq!(ledger.get(Figure::Stored), store.count().unwrap());
}

pub(crate) fn store_spans(store: &dyn Store, spans: &[Span]) {
    store_pieces(store, spans.iter().cloned().map(Piece::V2).collect());
}

pub(crate) fn read(store: &dyn Store, id: TraceId) -> Vec<Span> {
    query::trace(store, id, STRICT).unwrap()
}

/// Searches with these parameters; unless given, the window ends now.
pub(crate) fn search(store: &dyn Store, parameters: &[(&str, &str)]) -> Vec<Vec<Span>> {
    let pairs = parameters.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let defaults = Defaults { now_ms: NOW_MS, max_traces: 1000 };
    let request = SearchRequest::read(&Parameters(pairs), &defaults).unwrap();
    query::search(store, &request, STRICT).unwrap()
}

/// The ids of the traces found, latest first.
pub(crate) fn found(store: &dyn Store, parameters: &[(&str, &str)]) -> Vec<u64> {
    search(store, parameters).iter().map(|trace| trace[0].trace_id.low()).collect()
}
