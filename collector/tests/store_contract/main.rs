//! What every store must do: the rules for anything that answers, and those for the collector's own stores, each run over each
//! store.
#![allow(clippy::unwrap_used, reason = "a check that cannot go on has failed")]

#[macro_use]
#[path = "../contract/mod.rs"]
mod contract;
mod counting;
mod own;

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use blkin_collector::ledger::{Count, Figure};
use blkin_collector::merge::Piece;
use blkin_collector::model::{Span, TraceId};
use blkin_collector::query::{self, Answer, Defaults, Parameters, Reading, RememberedLinks, SearchRequest};
use blkin_collector::store::disk::Disk;
use blkin_collector::store::memory::Memory;
use blkin_collector::store::{Batch, NameKind, Store, TraceStore};
use blkin_collector::trace::DependencyLink;
use blkin_collector::v2json;
use serde_json::Value;

use contract::{Link, NOW_MS, NOW_US, Names, Rule, Subject};

/// How traces are read unless a check says otherwise.
const STRICT: Reading = Reading { strict: true, max_bytes: 1 << 30, patience: Duration::from_secs(60) };

/// One of the collector's stores, asked in this process.
struct Direct<'a>(&'a dyn Store);

impl Subject for Direct<'_> {
    fn store(&self, spans: &[Value]) {
        let list = serde_json::to_vec(spans).unwrap();
        let spans = v2json::read_list(&list, &blkin_thrift::Limits::default()).unwrap();
        store_spans(self.0, &spans.into_iter().map(Result::unwrap).collect::<Vec<_>>());
    }

    fn trace(&self, id: &str) -> Vec<Value> {
        values(&query::trace(self.0, id.parse().unwrap(), STRICT).unwrap().found)
    }

    fn traces(&self, ids: &[&str]) -> Vec<Vec<Value>> {
        let ids: Vec<TraceId> = ids.iter().map(|id| id.parse().unwrap()).collect();
        query::traces(self.0, &ids, STRICT).unwrap().found.iter().map(|trace| values(trace)).collect()
    }

    fn search(&self, parameters: &[(&str, &str)]) -> Vec<Vec<Value>> {
        search(self.0, parameters).iter().map(|trace| values(trace)).collect()
    }

    fn names(&self, kind: Names, service: &str) -> Vec<String> {
        let kind = match kind {
            Names::Services => NameKind::Service,
            Names::Spans => NameKind::Span,
            Names::RemoteServices => NameKind::RemoteService,
        };
        self.0.names(kind, service).unwrap()
    }

    fn links(&self) -> Vec<Link> {
        let links = links_of(self.0, &(NOW_US - 86_400_000_000..=NOW_US), STRICT).found;
        let link = |link: DependencyLink| Link {
            parent: link.parent,
            child: link.child,
            calls: link.call_count,
            errors: link.error_count,
        };
        links.into_iter().map(link).collect()
    }
}

/// The links between services, without anything remembered.
fn links_of(
    store: &dyn Store,
    window_us: &RangeInclusive<u64>,
    reading: Reading,
) -> Answer<Vec<DependencyLink>> {
    query::dependencies(store, window_us, reading, &RememberedLinks::default()).unwrap()
}

fn values(spans: &[Span]) -> Vec<Value> {
    serde_json::from_str(&v2json::write_trace(spans)).unwrap()
}

/// A span from JSON, given without its braces.
fn span(json: &str) -> Span {
    let list = format!("[{{{json}}}]");
    v2json::read_list(list.as_bytes(), &blkin_thrift::Limits::default()).unwrap().remove(0).unwrap()
}

/// A root of a service at [`NOW_US`]: trace, id, further members.
fn of_service(trace: u64, id: u64, service: &str, rest: &str) -> Span {
    let rest = if rest.is_empty() { String::new() } else { format!(",{rest}") };
    span(&format!(
        r#""traceId":"{trace:x}","id":"{id:x}","localEndpoint":{{"serviceName":"{service}"}},"timestamp":{NOW_US}{rest}"#
    ))
}

fn id(low: u64) -> TraceId {
    TraceId::new(0, low).unwrap()
}

/// A batch as ingest makes it: every piece is counted as received.
fn batch(pieces: Vec<Piece>) -> Batch {
    let mut batch = Batch::new(keys());
    for piece in &pieces {
        *batch.ledger.get_mut(Figure::ReceivedScribe) += Count::piece(piece.annotation_count());
        batch.push(piece);
    }
    batch
}

fn store_pieces(store: &dyn Store, pieces: Vec<Piece>) {
    store_pieces_at(store, pieces, NOW_MS);
}

fn store_pieces_at(store: &dyn Store, pieces: Vec<Piece>, now_ms: u64) {
    store.commit(&[batch(pieces)], now_ms).unwrap();
    check_ledger(store);
}

/// The ledger balances, and an independent count finds what it says.
fn check_ledger(store: &dyn Store) {
    let ledger = store.ledger().unwrap();
    assert!(ledger.balances(), "{ledger:?}");
    assert_eq!(ledger.get(Figure::Stored), store.count().unwrap());
}

fn store_spans(store: &dyn Store, spans: &[Span]) {
    store_pieces(store, spans.iter().cloned().map(Piece::V2).collect());
}

fn read(store: &dyn Store, id: TraceId) -> Vec<Span> {
    query::trace(store, id, STRICT).unwrap().found
}

/// Searches with these parameters; unless given, the window ends now.
fn search(store: &dyn Store, parameters: &[(&str, &str)]) -> Vec<Vec<Span>> {
    search_as(store, parameters, STRICT)
}

fn search_as(store: &dyn Store, parameters: &[(&str, &str)], reading: Reading) -> Vec<Vec<Span>> {
    query::search(store, &request(parameters), reading).unwrap().found
}

fn request(parameters: &[(&str, &str)]) -> SearchRequest {
    let pairs = parameters.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let defaults = Defaults { now_ms: NOW_MS, max_traces: 1000 };
    SearchRequest::read(&Parameters(pairs), &defaults).unwrap()
}

/// The ids of the traces found, latest first.
fn found(store: &dyn Store, parameters: &[(&str, &str)]) -> Vec<u64> {
    search(store, parameters).iter().map(|trace| trace[0].trace_id.low()).collect()
}

fn keys() -> Arc<[String]> {
    ["environment".to_owned()].into()
}

fn in_memory(check: fn(&dyn Store)) {
    check(&TraceStore::new(Memory::default()).unwrap());
}

/// Runs a check on a new file; afterwards, the same must be read from the reopened file.
fn on_disk(check: impl FnOnce(&dyn Store)) {
    let folder = tempfile::tempdir().unwrap();
    let open = || TraceStore::new(Disk::open(folder.path(), 1 << 20).unwrap()).unwrap();
    let store = open();
    check(&store);
    let before = (store.ledger().unwrap(), store.count().unwrap());
    drop(store);
    let store: Arc<dyn Store> = Arc::new(open());
    assert_eq!((store.ledger().unwrap(), store.count().unwrap()), before);
}

fn rule(name: &str) -> Rule {
    contract::RULES.iter().find(|(found, _)| *found == name).unwrap().1
}

macro_rules! rules_of_all {
    ($($module:ident: $($rule:ident)*;)*) => {
        mod memory {
            $($(#[test] fn $rule() {
                super::check_in_memory(super::rule(stringify!($rule)));
            })*)*
        }
        mod disk {
            $($(#[test] fn $rule() {
                super::on_disk(|store| super::rule(stringify!($rule))(&super::Direct(store)));
            })*)*
        }
    };
}
each_rule!(rules_of_all);

fn check_in_memory(rule: Rule) {
    rule(&Direct(&TraceStore::new(Memory::default()).unwrap()));
}

macro_rules! rules_of_ours {
    ($($module:ident: $($rule:ident)*;)*) => {
        mod our_memory {
            $($(#[test] fn $rule() { super::in_memory(super::$module::$rule); })*)*
        }
        mod our_disk {
            $($(#[test] fn $rule() { super::on_disk(super::$module::$rule); })*)*
        }
    };
}

rules_of_ours! {
    own:
        pieces_of_a_v1_span_that_arrive_apart_become_one_span
        traces_that_share_low_bits_are_one_if_not_strict
        loosely_joined_traces_meet_search_conditions_together
        loosely_joined_parts_without_a_time_are_found_by_the_others
        an_answer_is_cut_at_its_limit_and_the_store_keeps_the_rest
        a_huge_trace_hides_no_earlier_traces_from_a_search
        a_search_shows_as_much_of_a_huge_trace_as_fits
        a_search_omits_a_huge_trace_whose_shown_part_does_not_match
        an_answer_names_the_limit_that_cut_it
        links_report_a_cut_in_any_trace
        annotations_within_a_microsecond_are_ordered_by_nanoseconds
        only_configured_tags_are_offered;
    counting:
        annotations_with_equal_keys_or_times_are_all_kept
        an_annotation_sent_again_is_a_duplicate_however_it_is_grouped
        identities_are_distinct_between_traces_and_sources
        the_same_identity_twice_in_one_piece_is_stored_once
        annotations_without_an_identity_are_stored_beside_known_ones
        foreign_pieces_sent_again_are_duplicates
        counts_of_lost_pieces_are_committed_with_the_batch
        old_traces_expire_and_are_counted
        the_oldest_traces_expire_beyond_the_size_limit
        a_trace_with_new_pieces_does_not_expire;
}
