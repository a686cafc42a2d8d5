//! Compares a store with a model that keeps everything in a list. Whatever is stored, however it is spread over segments, merged,
//! expired and opened again, both must give the same answers; also during work on the index, and after transactions that failed
//! before or after they were durable.
#![allow(clippy::unwrap_used, reason = "a check that cannot go on has failed")]

mod faulty;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hasher};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use blkin_collector::ledger::{Count, Figure};
use blkin_collector::merge::Piece;
use blkin_collector::model::{Endpoint, Span, SpanId, TraceId};
use blkin_collector::query::{
    self, Defaults, IntervalRequest, Parameters, Reading, RememberedLinks, RememberedTimes, SearchRequest,
};
use blkin_collector::store::disk::Disk;
use blkin_collector::store::engine::Engine;
use blkin_collector::store::{Batch, Retention, Room, Store, StoreError, TraceStore, Visited, Wanted};
use blkin_thrift::{Annotation, Span as V1Span};
use faulty::Faulty;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

const BEGIN_MS: u64 = 1_700_000_000_000;
const BEGIN_US: i64 = 1_700_000_000_000_000;
const HOUR_MS: u64 = 3_600_000;
const READING: Reading = Reading { strict: true, max_bytes: 1 << 30, patience: Duration::from_secs(60) };
const TRACES: u64 = 6;
/// Times of spans are at most this many microseconds after `BEGIN_US`.
const SPREAD_US: i64 = 5000;
/// How many pieces make a segment.
const SEGMENT: u64 = 12;
/// Pieces that may be committed while a segment is made: three times as many as a segment has would have to wait for it.
const MEANWHILE: u64 = 2 * SEGMENT;

/// A step that is done to a store.
#[derive(Debug, Clone)]
enum Step {
    Store(Vec<Piece>),
    /// An earlier batch is sent again.
    Again(prop::sample::Index),
    /// The index in memory becomes a segment; meanwhile other steps are done.
    Segment(Vec<Step>),
    /// Time passes, and traces older than some hours expire.
    Expire {
        hours_later: u64,
        max_hours: u64,
    },
    /// Only so much of the bytes is kept, in percent.
    Shrink(u64),
    Reopen,
    /// So many transactions from now one fails: before it is durable or after.
    Fail {
        before: u64,
        after: u64,
    },
}

fn trace_id(number: u64) -> TraceId {
    // Pairs share their low 64 bits.
    TraceId::new(number % 2, number / 2 + 1).unwrap()
}

fn v2_piece() -> impl Strategy<Value = Piece> {
    let parts = (0..TRACES, 1..20_u64, any::<bool>(), prop::option::of(1..SPREAD_US), 0..3, 1..500_i64);
    parts.prop_map(|(trace, id, is_root, time, service, duration)| {
        Piece::V2(Span {
            parent_id: SpanId::new(u64::from(!is_root) * 99),
            name: Some(format!("name {}", id % 3)),
            timestamp: time.map(|time| BEGIN_US + time),
            duration: Some(duration),
            local_endpoint: Some(Endpoint::service(&format!("service {service}"))),
            remote_endpoint: (service > 0).then(|| Endpoint::service("remote")),
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

fn store_step() -> impl Strategy<Value = Step> {
    prop::collection::vec(prop_oneof![v2_piece(), v1_piece()], 1..6).prop_map(Step::Store)
}

/// Steps that can also be done during work on the index.
fn at_any_time() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => store_step(),
        1 => any::<prop::sample::Index>().prop_map(Step::Again),
        1 => (0..3_u64, 1..4_u64)
            .prop_map(|(hours_later, max_hours)| Step::Expire { hours_later, max_hours }),
        1 => (10..100_u64).prop_map(Step::Shrink),
    ]
}

fn step(fails: bool) -> impl Strategy<Value = Step> {
    let fail = (any::<bool>(), 1..6_u64);
    let fail = fail.prop_map(|(before, writes)| match before {
        true => Step::Fail { before: writes, after: 0 },
        false => Step::Fail { before: 0, after: writes },
    });
    prop_oneof![
        10 => at_any_time(),
        6 => prop::collection::vec(at_any_time(), 0..4).prop_map(Step::Segment),
        1 => Just(Step::Reopen),
        if fails { 2 } else { 0 } => fail,
    ]
}

/// Everything that is stored, in a list for each trace.
#[derive(Default)]
struct Model {
    traces: BTreeMap<TraceId, Vec<Piece>>,
    /// When each trace last got a new piece.
    arrivals: BTreeMap<TraceId, u64>,
}

impl Model {
    /// Returns whether anything of the piece is new.
    fn store(&mut self, piece: &Piece, now_ms: u64) -> bool {
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
        } else if stored.is_empty() {
            self.traces.remove(&piece.trace_id().unwrap());
        }
        is_new
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

/// Where a store keeps its rows.
trait Place: Default {
    type Engine: Engine;
    fn engine(&self) -> Self::Engine;
    fn fail(&self, before: u64, after: u64);
    /// Whether some transaction is about to fail.
    fn fails(&self) -> bool;
}

struct Folder(tempfile::TempDir);

impl Default for Folder {
    fn default() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }
}

impl Place for Folder {
    type Engine = Disk;
    fn engine(&self) -> Disk {
        Disk::open(self.0.path(), 1 << 20).unwrap()
    }
    fn fail(&self, _: u64, _: u64) {}
    fn fails(&self) -> bool {
        false
    }
}

impl Place for Faulty {
    type Engine = Faulty;
    fn engine(&self) -> Faulty {
        self.clone()
    }
    fn fail(&self, before: u64, after: u64) {
        self.fails_before.store(before, Ordering::Release);
        self.fails_after.store(after, Ordering::Release);
    }
    fn fails(&self) -> bool {
        self.fails_before.load(Ordering::Acquire) + self.fails_after.load(Ordering::Acquire) > 0
    }
}

/// Counts of what happened, to make sure that something was checked.
#[derive(Debug, Default)]
struct Seen {
    commits: Cell<u64>,
    failures: Cell<u64>,
    merges: Cell<u64>,
    /// Steps that were done during work on the index.
    meanwhile: Cell<u64>,
    /// Traces that came again after they had expired.
    again: Cell<u64>,
    /// The most parts of the index in which one trace had pieces.
    longest_chain: Cell<u64>,
    /// States of traces that were reported a second time.
    told_again: Cell<u64>,
}

fn add_one(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}

struct Beside<'s, P: Place> {
    place: P,
    store: Option<Arc<TraceStore<P::Engine>>>,
    model: RefCell<Model>,
    batches: RefCell<Vec<Vec<Piece>>>,
    now_ms: Cell<u64>,
    /// An upper bound on the pieces in the head.
    in_head: Cell<u64>,
    /// How often a head was begun.
    heads: Cell<u64>,
    /// For each trace that is there, the heads that got pieces of it.
    chains: RefCell<BTreeMap<TraceId, BTreeSet<u64>>>,
    left: RefCell<BTreeSet<TraceId>>,
    /// For each reported state, what was read then.
    states: RefCell<BTreeMap<u64, Vec<Piece>>>,
    links: RememberedLinks,
    times: RememberedTimes,
    seen: &'s Seen,
}

impl<'s, P: Place> Beside<'s, P> {
    fn new(seen: &'s Seen) -> Self {
        let place = P::default();
        let mut beside = Beside {
            place,
            store: None,
            model: RefCell::default(),
            batches: RefCell::default(),
            now_ms: Cell::new(BEGIN_MS),
            in_head: Cell::new(0),
            heads: Cell::new(0),
            chains: RefCell::default(),
            left: RefCell::default(),
            states: RefCell::default(),
            links: RememberedLinks::default(),
            times: RememberedTimes::default(),
            seen,
        };
        beside.open();
        beside
    }

    fn open(&mut self) {
        self.store = None;
        self.states.borrow_mut().clear();
        self.place.fail(0, 0);
        self.store = Some(Arc::new(TraceStore::with_small_segments(self.place.engine(), SEGMENT).unwrap()));
    }

    fn store(&self) -> &TraceStore<P::Engine> {
        self.store.as_ref().unwrap()
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Segment(meanwhile) => self.segment(meanwhile),
            Step::Reopen => self.open(),
            Step::Fail { before, after } => self.place.fail(before, after),
            other => self.take_any_time(other),
        }
    }

    fn take_any_time(&self, step: Step) {
        // No two commits have the same age.
        self.now_ms.set(self.now_ms.get() + 1);
        match step {
            Step::Store(pieces) => self.commit(pieces),
            Step::Again(index) => {
                let again = {
                    let batches = self.batches.borrow();
                    (!batches.is_empty()).then(|| index.get(&batches).clone())
                };
                again.into_iter().for_each(|pieces| self.commit(pieces));
            }
            Step::Expire { hours_later, max_hours } => {
                self.now_ms.set(self.now_ms.get() + hours_later * HOUR_MS);
                self.expire(Retention { max_age_ms: max_hours * HOUR_MS, max_bytes: 0 });
                self.leave(|model| model.expire(self.now_ms.get() - max_hours * HOUR_MS));
            }
            Step::Shrink(percent) => self.shrink(percent),
            Step::Segment(_) | Step::Reopen | Step::Fail { .. } => unreachable!("{step:?}"),
        }
    }

    fn segment(&self, meanwhile: Vec<Step>) {
        // If a head waited already, a commit of too many pieces would wait for this thread, which waits for the commit.
        if self.upkeep(Vec::new()) {
            self.store().freeze();
            self.in_head.set(0);
            add_one(&self.heads);
            self.upkeep(meanwhile);
        }
    }

    fn upkeep(&self, meanwhile: Vec<Step>) -> bool {
        let before = self.store().index_size().segments;
        let rest = RefCell::new(meanwhile.into_iter());
        let beat = || {
            let may_commit = self.in_head.get() < MEANWHILE && !self.place.fails();
            if let Some(step) = rest.borrow_mut().next().filter(|_| may_commit) {
                add_one(&self.seen.meanwhile);
                self.take_any_time(step);
                self.check();
            }
            ControlFlow::Continue(())
        };
        let done = self.store().upkeep(&beat);
        if done.is_err() {
            add_one(&self.seen.failures);
        }
        if self.store().index_size().segments < before {
            add_one(&self.seen.merges);
        }
        done.is_ok()
    }

    fn commit(&self, pieces: Vec<Piece>) {
        let mut batch = Batch::default();
        for piece in &pieces {
            *batch.ledger.get_mut(Figure::ReceivedScribe) += Count::piece(piece.annotation_count());
            batch.push(piece);
            if self.model.borrow_mut().store(piece, self.now_ms.get()) {
                self.note(piece.trace_id().unwrap());
            }
        }
        // A sender sends again what was not acknowledged.
        self.done(|| self.store().commit(std::slice::from_ref(&batch), self.now_ms.get()));
        add_one(&self.seen.commits);
        self.in_head.set(self.in_head.get() + pieces.len() as u64);
        self.batches.borrow_mut().push(pieces);
    }

    /// Notes that a piece of a trace came.
    fn note(&self, id: TraceId) {
        if self.left.borrow_mut().remove(&id) {
            add_one(&self.seen.again);
        }
        let mut chains = self.chains.borrow_mut();
        let heads = chains.entry(id).or_default();
        heads.insert(self.heads.get());
        let longest = &self.seen.longest_chain;
        longest.set(longest.get().max(heads.len() as u64));
    }

    /// Removes traces from the model.
    fn leave(&self, change: impl FnOnce(&mut Model)) {
        let mut model = self.model.borrow_mut();
        change(&mut model);
        let mut chains = self.chains.borrow_mut();
        let gone: Vec<TraceId> = chains.keys().copied().filter(|id| !model.traces.contains_key(id)).collect();
        gone.iter().for_each(|id| drop(chains.remove(id)));
        self.left.borrow_mut().extend(gone);
    }

    /// Repeats something until it succeeds.
    fn done<T>(&self, work: impl Fn() -> Result<T, StoreError>) -> T {
        loop {
            match work() {
                Ok(done) => return done,
                Err(_) => add_one(&self.seen.failures),
            }
        }
    }

    fn expire(&self, retention: Retention) {
        while self.done(|| self.store().expire(&retention, self.now_ms.get())) {}
    }

    /// Which traces are removed depends on their bytes; but they must be removed whole, and the oldest first.
    fn shrink(&self, percent: u64) {
        const BYTES_PER_PIECE: u64 = 250;
        let pieces = self.model.borrow().traces.values().map(Vec::len).sum::<usize>() as u64;
        let max_bytes = (pieces * BYTES_PER_PIECE * percent / 100).max(1);
        self.expire(Retention { max_age_ms: 0, max_bytes });
        let left = |id| !self.store().trace(id, true, &mut Room::of(usize::MAX)).unwrap().is_empty();
        let ids: Vec<TraceId> = self.model.borrow().traces.keys().copied().collect();
        let left: Vec<TraceId> = ids.into_iter().filter(|id| left(*id)).collect();
        self.leave(|model| {
            let gone = model.arrivals.iter().filter(|(id, _)| !left.contains(id));
            let youngest_gone = gone.map(|(_, arrival)| *arrival).max();
            let oldest_left = left.iter().map(|id| model.arrivals[id]).min();
            assert!(youngest_gone.zip(oldest_left).is_none_or(|(gone, left)| gone <= left));
            model.only(|id| left.contains(&id));
        });
    }

    fn check(&self) {
        let model = self.model.borrow();
        let read = |id, strict| self.store().trace(id, strict, &mut Room::of(usize::MAX)).unwrap();
        for number in 0..TRACES {
            let id = trace_id(number);
            assert_eq!(read(id, true), model.traces.get(&id).cloned().unwrap_or_default(), "{id}");
            let with_low = model.traces.iter().filter(|(other, _)| other.low() == id.low());
            let with_low: Vec<Piece> = with_low.flat_map(|(_, pieces)| pieces.clone()).collect();
            assert_eq!(read(id, false), with_low, "{id}");
        }
        let ledger = self.store().ledger().unwrap();
        assert!(ledger.balances(), "{ledger:?}");
        assert_eq!(ledger.get(Figure::Stored), self.store().count().unwrap());
        assert_eq!(ledger.get(Figure::Stored).annotations, model.annotations());
        assert_eq!(self.store().damage().pieces(), 0);
        self.check_searches(&model);
        self.check_states(&model);
        self.check_remembered();
    }

    /// If the store reports the same state again, the same is read.
    fn check_states(&self, model: &Model) {
        let mut told = Vec::new();
        let mut note = |trace: &Visited<'_>| {
            let mut state = DefaultHasher::new();
            let is_alone = trace.hash_state(&mut state)?;
            told.push((trace.id, state.finish(), is_alone));
            Ok(ControlFlow::Continue(()))
        };
        self.store().traces_by_time(&Wanted::default(), 0..=u64::MAX, &mut note).unwrap();
        assert_eq!(told.len(), model.traces.len());
        for (id, state, is_alone) in told {
            let with_low = model.traces.keys().filter(|other| other.low() == id.low());
            assert_eq!(is_alone, with_low.count() == 1, "{id}");
            let pieces = self.store().trace(id, false, &mut Room::of(usize::MAX)).unwrap();
            if let Some(before) = self.states.borrow_mut().insert(state, pieces.clone()) {
                add_one(&self.seen.told_again);
                assert_eq!(before, pieces, "{id}");
            }
        }
    }

    /// Remembered links and times agree with what is stored.
    fn check_remembered(&self) {
        let window = 0..=u64::MAX;
        let links = |remembered| query::dependencies(self.store(), &window, READING, remembered).unwrap();
        assert_eq!(links(&self.links), links(&RememberedLinks::default()));
        let request = IntervalRequest {
            from: "event 3".to_owned(),
            to: "event 7".to_owned(),
            service: None,
            span_name: None,
            window_us: window.clone(),
        };
        for strict in [true, false] {
            let reading = Reading { strict, ..READING };
            let times = |remembered| query::intervals(self.store(), &request, reading, remembered).unwrap();
            assert_eq!(times(&self.times), times(&RememberedTimes::default()));
        }
    }

    fn check_searches(&self, model: &Model) {
        self.check_loose_search(model, &self.check_search(model, &[]));
        for end in 1..=SPREAD_US / 1000 {
            let end = (BEGIN_MS as i64 + end).to_string();
            let request = self.check_search(model, &[("endTs", &end), ("lookback", "1")]);
            self.check_loose_search(model, &request);
        }
        for service in 0..3 {
            let service = format!("service {service}");
            let request = self.check_search(model, &[("serviceName", &service)]);
            self.check_loose_search(model, &request);
            self.check_search(model, &[("serviceName", &service), ("spanName", "name 1")]);
            self.check_search(model, &[("serviceName", &service), ("minDuration", "250")]);
            self.check_search(model, &[("serviceName", &service), ("annotationQuery", "event 7")]);
            // Conditions that one piece of a trace meets, together with those that another meets, which may have come much later.
            for name in ["name 0", "name 1"] {
                self.check_search(
                    model,
                    &[
                        ("serviceName", &service),
                        ("spanName", name),
                        ("annotationQuery", "event 7 and event 8"),
                    ],
                );
                self.check_search(model, &[("spanName", name), ("annotationQuery", "event 3")]);
            }
        }
    }

    /// Returns what was searched for.
    fn check_search(&self, model: &Model, parameters: &[(&str, &str)]) -> SearchRequest {
        let all = parameters.iter().chain(&[("limit", "100")]);
        let pairs = all.map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let defaults = Defaults { now_ms: BEGIN_MS + SPREAD_US as u64, max_traces: 1000 };
        let request = SearchRequest::read(&Parameters(pairs), &defaults).unwrap();
        let found = query::search(self.store(), &request, READING).unwrap().found;
        let mut found: Vec<TraceId> = found.iter().map(|spans| spans[0].trace_id).collect();
        let times = |id: &TraceId| std::cmp::Reverse(time_of(&model.traces[id]));
        assert!(found.is_sorted_by_key(times), "{parameters:?}: {found:?}");
        let wanted = |pieces: &Vec<Piece>| {
            let spans = blkin_collector::merge::assemble(pieces.clone());
            request.window_us.contains(&time_of(pieces)) && query::matches(&request, &spans)
        };
        found.sort_by_key(|id| (id.high(), id.low()));
        let mut expected: Vec<TraceId> =
            model.traces.iter().filter(|(_, pieces)| wanted(pieces)).map(|(id, _)| *id).collect();
        expected.sort_by_key(|id| (id.high(), id.low()));
        assert_eq!(found, expected, "{parameters:?}");
        request
    }

    /// If ids are not strict, traces that share their low 64 bits are one trace, which is found at the times of its parts.
    fn check_loose_search(&self, model: &Model, request: &SearchRequest) {
        let found = query::search(self.store(), request, Reading { strict: false, ..READING }).unwrap().found;
        let found: Vec<u64> = found.iter().map(|spans| spans[0].trace_id.low()).collect();
        let once: BTreeSet<u64> = found.iter().copied().collect();
        assert_eq!(once.len(), found.len(), "{request:?}: {found:?}");
        for low in 1..=TRACES / 2 {
            let parts = model.traces.iter().filter(|(id, _)| id.low() == low).map(|(_, pieces)| pieces);
            let (mut pieces, mut times) = (Vec::new(), Vec::new());
            parts.for_each(|part| {
                pieces.extend(part.iter().cloned());
                times.push(time_of(part));
            });
            let is_in_window = |time: &u64| request.window_us.contains(time);
            let may_be = times.iter().any(is_in_window)
                && query::matches(request, &blkin_collector::merge::assemble(pieces));
            // Conditions that only a part at another time meets are not checked here.
            let must_be = may_be && times.iter().all(|time| *time == 0 || is_in_window(time));
            let is_found = once.contains(&low);
            assert!(may_be || !is_found, "{request:?}: {low} is found, of {times:?}");
            assert!(!must_be || is_found, "{request:?}: {low} is not found, of {times:?}");
        }
    }
}

/// The time of the first root that has one, else the least time; 0 without any.
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

/// Runs so many cases, or as many as PROPTEST_CASES says.
fn run<P: Place>(cases: u32, fails: bool, steps: usize) -> Seen {
    let set = std::env::var_os("PROPTEST_CASES").is_some();
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    let cases = if set { config.cases } else { cases };
    let seen = Seen::default();
    let take_all = |steps: Vec<Step>| {
        let mut beside = Beside::<P>::new(&seen);
        for step in steps {
            beside.take(step);
            beside.check();
        }
        Ok(())
    };
    let mut runner = TestRunner::new(ProptestConfig { cases, ..config });
    let done = runner.run(&prop::collection::vec(step(fails), 1..steps), take_all);
    done.map_err(|failed| failed.to_string()).unwrap();
    let chain = seen.longest_chain.get();
    let saw_enough =
        seen.merges.get() > 10 && seen.meanwhile.get() > 100 && seen.again.get() > 100 && chain >= 8;
    assert!(saw_enough && seen.told_again.get() > 1000, "{cases} cases: {seen:?}");
    seen
}

#[test]
fn a_store_answers_like_the_list_model() {
    run::<Folder>(64, false, 60);
}

#[test]
fn a_store_with_failing_transactions_answers_like_the_list_model() {
    let seen = run::<Faulty>(64, true, 150);
    assert!(seen.failures.get() > 100);
}
