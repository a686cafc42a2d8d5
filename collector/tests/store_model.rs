//! A store beside a model of it that keeps everything in a list: whatever is stored, however it is spread over segments,
//! merged, expired and opened again, both give the same answers.
#![allow(clippy::unwrap_used, reason = "a check that cannot go on has failed")]

use std::collections::BTreeMap;
use std::time::Duration;

use blkin_collector::ledger::{Count, Figure};
use blkin_collector::merge::Piece;
use blkin_collector::model::{Endpoint, Span, SpanId, TraceId};
use blkin_collector::query::{self, Defaults, Parameters, Reading, SearchRequest};
use blkin_collector::store::disk::Disk;
use blkin_collector::store::{Batch, Retention, Room, Store, TO_THE_END, TraceStore};
use blkin_thrift::{Annotation, Span as V1Span};
use proptest::prelude::*;

const BEGIN_MS: u64 = 1_700_000_000_000;
const BEGIN_US: i64 = 1_700_000_000_000_000;
const HOUR_MS: u64 = 3_600_000;
const READING: Reading = Reading { strict: true, max_bytes: 1 << 30, patience: Duration::from_secs(60) };
const TRACES: u64 = 6;

/// Something that is done to a store.
#[derive(Debug, Clone)]
enum Step {
    Store(Vec<Piece>),
    /// What was stored before is sent again.
    Again(prop::sample::Index),
    /// What is in memory becomes a segment.
    Segment,
    /// Time goes by, and what is older than some hours leaves.
    Expire {
        hours_later: u64,
        max_hours: u64,
    },
    /// Only so much of the bytes is kept, in percent.
    Shrink(u64),
    Reopen,
}

fn trace_id(number: u64) -> TraceId {
    // Pairs share their low 64 bits.
    TraceId::new(number % 2, number / 2 + 1).unwrap()
}

fn v2_piece() -> impl Strategy<Value = Piece> {
    let parts = (0..TRACES, 1..20_u64, any::<bool>(), prop::option::of(1..1000_i64), 0..3, 1..500_i64);
    parts.prop_map(|(trace, id, is_root, time, service, duration)| {
        Piece::V2(Span {
            parent_id: SpanId::new(u64::from(!is_root) * 99),
            name: Some(format!("name {}", id % 3)),
            timestamp: time.map(|time| BEGIN_US + time),
            duration: Some(duration),
            local_endpoint: Some(Endpoint::service(&format!("service {service}"))),
            ..Span::new(trace_id(trace), SpanId::new(id).unwrap())
        })
    })
}

fn v1_piece() -> impl Strategy<Value = Piece> {
    let parts = (0..TRACES, 1..5_i64, prop::collection::btree_set(0..40_i64, 1..5), 0..3);
    parts.prop_map(|(trace, id, positions, service)| {
        let trace = trace_id(trace);
        let host = Some(blkin_thrift::Endpoint {
            service_name: format!("service {service}"),
            ..blkin_thrift::Endpoint::default()
        });
        let annotation = |position: i64| Annotation {
            timestamp: BEGIN_US + position,
            value: format!("event {position}"),
            host: host.clone(),
            position: Some(position),
            ..Annotation::default()
        };
        Piece::V1(V1Span {
            trace_id: trace.low() as i64,
            trace_id_high: Some(trace.high() as i64),
            id,
            source: Some(7),
            annotations: positions.into_iter().map(annotation).collect(),
            ..V1Span::default()
        })
    })
}

fn step() -> impl Strategy<Value = Step> {
    let pieces = prop::collection::vec(prop_oneof![v2_piece(), v1_piece()], 1..6);
    prop_oneof![
        6 => pieces.prop_map(Step::Store),
        1 => any::<prop::sample::Index>().prop_map(Step::Again),
        5 => Just(Step::Segment),
        1 => (0..3_u64, 1..4_u64)
            .prop_map(|(hours_later, max_hours)| Step::Expire { hours_later, max_hours }),
        1 => (10..100_u64).prop_map(Step::Shrink),
        1 => Just(Step::Reopen),
    ]
}

/// Everything that is stored, in a list for each trace.
#[derive(Default)]
struct Model {
    traces: BTreeMap<TraceId, Vec<Piece>>,
    /// When each trace last got something.
    arrivals: BTreeMap<TraceId, u64>,
}

impl Model {
    fn store(&mut self, piece: &Piece, now_ms: u64) {
        let stored = self.traces.entry(piece.trace_id().unwrap()).or_default();
        let mut new = piece.clone();
        if let Piece::V1(span) = &mut new {
            let known = |position| {
                stored.iter().any(|piece| match piece {
                    Piece::V1(span) => span.annotations.iter().any(|a| a.position == position),
                    Piece::V2(_) => false,
                })
            };
            span.annotations.retain(|annotation| !known(annotation.position));
        }
        let is_new = match &new {
            Piece::V1(span) => !span.annotations.is_empty(),
            Piece::V2(_) => !stored.contains(&new),
        };
        if is_new {
            stored.push(new);
            self.arrivals.insert(piece.trace_id().unwrap(), now_ms);
        }
    }

    fn expire(&mut self, before_ms: u64) {
        let arrivals = &mut self.arrivals;
        arrivals.retain(|_, arrival| *arrival > before_ms);
        self.traces.retain(|id, _| arrivals.contains_key(id));
    }

    fn only(&mut self, left: impl Fn(TraceId) -> bool) {
        self.traces.retain(|id, _| left(*id));
        self.arrivals.retain(|id, _| left(*id));
    }

    fn annotations(&self) -> u64 {
        self.traces.values().flatten().map(|piece| piece.annotation_count() as u64).sum()
    }
}

struct Beside {
    folder: tempfile::TempDir,
    store: Option<TraceStore<Disk>>,
    model: Model,
    batches: Vec<Vec<Piece>>,
    now_ms: u64,
}

fn open(folder: &tempfile::TempDir) -> TraceStore<Disk> {
    TraceStore::with_small_segments(Disk::open(folder.path(), 1 << 20).unwrap(), 4).unwrap()
}

impl Beside {
    fn new() -> Beside {
        let folder = tempfile::tempdir().unwrap();
        let store = Some(open(&folder));
        Beside { folder, store, model: Model::default(), batches: Vec::new(), now_ms: BEGIN_MS }
    }

    fn store(&self) -> &TraceStore<Disk> {
        self.store.as_ref().unwrap()
    }

    fn take(&mut self, step: Step) {
        // No two commits have the same age.
        self.now_ms += 1;
        match step {
            Step::Store(pieces) => self.commit(pieces),
            Step::Again(index) if !self.batches.is_empty() => {
                let pieces = index.get(&self.batches).clone();
                self.commit(pieces);
            }
            Step::Again(_) => {}
            Step::Segment => {
                self.store().freeze();
                self.store().upkeep(TO_THE_END).unwrap();
            }
            Step::Expire { hours_later, max_hours } => {
                self.now_ms += hours_later * HOUR_MS;
                self.expire(Retention { max_age_ms: max_hours * HOUR_MS, max_bytes: 0 });
                self.model.expire(self.now_ms - max_hours * HOUR_MS);
            }
            Step::Shrink(percent) => self.shrink(percent),
            Step::Reopen => {
                drop(self.store.take());
                self.store = Some(open(&self.folder));
            }
        }
    }

    fn commit(&mut self, pieces: Vec<Piece>) {
        let mut batch = Batch::default();
        for piece in &pieces {
            *batch.ledger.get_mut(Figure::ReceivedScribe) += Count::piece(piece.annotation_count());
            batch.push(piece);
            self.model.store(piece, self.now_ms);
        }
        self.store().commit(&[batch], self.now_ms).unwrap();
        self.batches.push(pieces);
    }

    fn expire(&self, retention: Retention) {
        while self.store().expire(&retention, self.now_ms).unwrap() {}
    }

    /// Which traces leave depends on their bytes; that they leave whole, and the oldest first, does not.
    fn shrink(&mut self, percent: u64) {
        const BYTES_PER_PIECE: u64 = 250;
        let pieces = self.model.traces.values().map(Vec::len).sum::<usize>() as u64;
        let max_bytes = (pieces * BYTES_PER_PIECE * percent / 100).max(1);
        self.expire(Retention { max_age_ms: 0, max_bytes });
        let left = |id| !self.store().trace(id, true, &mut Room::of(usize::MAX)).unwrap().is_empty();
        let left: Vec<TraceId> = self.model.traces.keys().copied().filter(|id| left(*id)).collect();
        let youngest_gone = self
            .model
            .arrivals
            .iter()
            .filter(|(id, _)| !left.contains(id))
            .map(|(_, arrival)| *arrival)
            .max();
        let oldest_left = left.iter().map(|id| self.model.arrivals[id]).min();
        assert!(youngest_gone.zip(oldest_left).is_none_or(|(gone, left)| gone <= left));
        self.model.only(|id| left.contains(&id));
    }

    fn check(&self) {
        for number in 0..TRACES {
            let id = trace_id(number);
            let pieces = self.store().trace(id, true, &mut Room::of(usize::MAX)).unwrap();
            assert_eq!(pieces, self.model.traces.get(&id).cloned().unwrap_or_default(), "{id}");
        }
        let ledger = self.store().ledger().unwrap();
        assert!(ledger.balances(), "{ledger:?}");
        assert_eq!(ledger.get(Figure::Stored), self.store().count().unwrap());
        assert_eq!(ledger.get(Figure::Stored).annotations, self.model.annotations());
        assert_eq!(self.store().damage().pieces(), 0);
        let no_service: &[(&str, &str)] = &[("limit", "100")];
        self.check_search(no_service);
        for service in 0..3 {
            let service = format!("service {service}");
            self.check_search(&[("serviceName", &service), ("limit", "100")]);
            self.check_search(&[("serviceName", &service), ("spanName", "name 1"), ("limit", "100")]);
            self.check_search(&[("serviceName", &service), ("minDuration", "250"), ("limit", "100")]);
            self.check_search(&[("serviceName", &service), ("annotationQuery", "event 7"), ("limit", "100")]);
            // What one piece of a trace has, and another, which may have come long after it.
            for name in ["name 0", "name 1"] {
                self.check_search(&[
                    ("serviceName", &service),
                    ("spanName", name),
                    ("annotationQuery", "event 7 and event 8"),
                    ("limit", "100"),
                ]);
                self.check_search(&[("spanName", name), ("annotationQuery", "event 3"), ("limit", "100")]);
            }
        }
    }

    fn check_search(&self, parameters: &[(&str, &str)]) {
        let pairs = parameters.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let defaults = Defaults { now_ms: BEGIN_MS + 1, max_traces: 1000 };
        let request = SearchRequest::read(&Parameters(pairs), &defaults).unwrap();
        let found = query::search(self.store(), &request, READING).unwrap();
        let found: Vec<TraceId> = found.iter().map(|spans| spans[0].trace_id).collect();
        let times = |id: &TraceId| std::cmp::Reverse(time_of(&self.model.traces[id]));
        assert!(found.is_sorted_by_key(times), "{parameters:?}: {found:?}");
        let wanted = |pieces: &Vec<Piece>| {
            let spans = blkin_collector::merge::assemble(pieces.clone());
            request.window_us.contains(&time_of(pieces)) && query::matches(&request, &spans)
        };
        let mut found = found;
        found.sort_by_key(|id| (id.high(), id.low()));
        let mut expected: Vec<TraceId> =
            self.model.traces.iter().filter(|(_, pieces)| wanted(pieces)).map(|(id, _)| *id).collect();
        expected.sort_by_key(|id| (id.high(), id.low()));
        assert_eq!(found, expected, "{parameters:?}");
    }
}

/// The time of the first root that has one, else the least; 0 without any.
fn time_of(pieces: &[Piece]) -> u64 {
    let spans = pieces.iter().flat_map(|piece| match piece {
        Piece::V1(span) => blkin_collector::convert::v1_to_v2(span),
        Piece::V2(span) => vec![span.clone()],
    });
    let timed: Vec<(bool, i64)> =
        spans.filter_map(|span| Some((span.parent_id.is_none(), span.timestamp?))).collect();
    let root = timed.iter().find(|(is_root, _)| *is_root).map(|(_, time)| *time);
    root.or(timed.iter().map(|(_, time)| *time).min()).unwrap_or(0) as u64
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn a_store_answers_as_a_list_of_all_that_was_stored_does(steps in prop::collection::vec(step(), 1..50)) {
        let mut beside = Beside::new();
        for step in steps {
            beside.take(step);
            beside.check();
        }
    }
}
