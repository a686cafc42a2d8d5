//! Work on the index when things go wrong: transactions fail, before or after they are durable, and senders send spans again.
#![allow(clippy::unwrap_used, reason = "a check that cannot go on has failed")]

#[path = "../faulty/mod.rs"]
mod faulty;
mod retention;

use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use blkin_collector::ledger::{Count, Figure};
use blkin_collector::merge::Piece;
use blkin_collector::model::TraceId;
use blkin_collector::store::engine::Engine;
use blkin_collector::store::indexer::Indexer;
use blkin_collector::store::{
    Batch, Retention, Room, Store, StoreError, TO_THE_END, TraceStore, Visited, Wanted,
};
use blkin_daemon::Health;
use blkin_thrift::{AnnotationType, BinaryAnnotation, Span};
use faulty::Faulty;

const SMALL: u64 = 20;
/// Transactions that turn a small head into a segment after an unfinished one: the unfinished rows are removed, then the rows are
/// written, then the manifest.
const FLUSH_WRITES: u64 = 3;

fn open(engine: &Faulty) -> TraceStore<Faulty> {
    TraceStore::with_small_segments(engine.clone(), SMALL).unwrap()
}

fn batch(traces: impl IntoIterator<Item = u64>) -> Batch {
    let mut batch = Batch::default();
    for trace in traces {
        let piece = Piece::V1(Span { trace_id: trace as i64, id: 1, ..Span::default() });
        *batch.ledger.get_mut(Figure::ReceivedScribe) += Count::piece(0);
        batch.push(&piece);
    }
    batch
}

fn pieces_of(store: &dyn Store, trace: u64) -> usize {
    store.trace(TraceId::new(0, trace).unwrap(), true, &mut Room::of(usize::MAX)).unwrap().len()
}

/// How many traces have this time.
fn found_at(store: &dyn Store, time: i64) -> u64 {
    let mut found = 0;
    let mut count = |_: &Visited<'_>| {
        found += 1;
        Ok(ControlFlow::Continue(()))
    };
    store.traces_by_time(&Wanted::default(), time as u64..=time as u64, &mut count).unwrap();
    found
}

fn check(store: &dyn Store, traces: std::ops::RangeInclusive<u64>) {
    let ledger = store.ledger().unwrap();
    assert!(ledger.balances(), "{ledger:?}");
    assert_eq!(ledger.get(Figure::Stored), store.count().unwrap());
    let mut ever_stored = ledger.get(Figure::Stored);
    ever_stored += ledger.get(Figure::Expired);
    assert_eq!(ledger.get(Figure::Committed), ever_stored);
    let wrong: Vec<u64> = traces.filter(|&trace| pieces_of(store, trace) != 1).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn a_durable_commit_reported_as_failed_is_not_stored_twice() {
    let engine = Faulty::default();
    let store = open(&engine);
    store.commit(&[batch(1..=3)], 1).unwrap();
    engine.fails_after.store(1, Ordering::Release);
    assert!(store.commit(&[batch(4..=6)], 2).is_err());
    store.commit(&[batch(4..=6)], 3).unwrap();
    check(&store, 1..=6);
    assert_eq!(store.ledger().unwrap().get(Figure::Duplicate).spans, 3);
}

#[test]
fn after_a_failed_commit_a_returned_trace_has_its_new_time() {
    let engine = Faulty::default();
    let store = open(&engine);
    let at = |time: i64| {
        let mut batch = Batch::default();
        batch.push(&Piece::V1(Span { trace_id: 7, id: 1, timestamp: Some(time), ..Span::default() }));
        batch
    };
    store.commit(&[at(1000)], 1).unwrap();
    while store.expire(&Retention { max_age_ms: 1, max_bytes: 0 }, 10).unwrap() {}
    engine.fails_after.store(1, Ordering::Release);
    assert!(store.commit(&[at(5000)], 11).is_err());
    // This commit finds out what became of the failed one.
    store.commit(&[batch([8])], 12).unwrap();
    assert_eq!([1000, 5000].map(|time| found_at(&store, time)), [0, 1]);
}

#[test]
fn an_unfinished_segment_leaves_nothing_in_the_next_one() {
    // So many traces that their filter takes two rows, and that of a small segment after them one.
    const EACH: u64 = 6000;
    let engine = Faulty::default();
    let store = TraceStore::with_small_segments(engine.clone(), 1 << 20).unwrap();
    for eighth in 0..8 {
        store.commit(&[batch(eighth * EACH + 1..=(eighth + 1) * EACH)], 1).unwrap();
        store.freeze();
        // The eighth makes all of them merge: the rows are written, and then writing the manifest fails.
        engine.fails_before.store(if eighth == 7 { 4 } else { 0 }, Ordering::Release);
        assert_eq!(store.upkeep(TO_THE_END).is_err(), eighth == 7);
    }
    store.commit(&[batch(8 * EACH + 1..=8 * EACH + 10)], 2).unwrap();
    store.freeze();
    // The small segment gets the id of the one that failed; merging is postponed once more.
    engine.fails_before.store(FLUSH_WRITES + 1, Ordering::Release);
    assert!(store.upkeep(TO_THE_END).is_err());
    let size = store.index_size();
    drop(store);
    let store = open(&engine);
    assert_eq!(store.index_size(), size, "the index was made anew");
    let few = (0..8 * EACH).step_by(997).map(|trace| trace + 1).chain([8 * EACH + 10]);
    assert!(few.into_iter().all(|trace| pieces_of(&store, trace) == 1));
}

#[test]
fn a_durable_failed_manifest_never_names_a_rewritten_segment() {
    const EIGHTH: u64 = 2;
    let mut failed = 0;
    for writes in 1..=FLUSH_WRITES + 1 {
        let engine = Faulty::default();
        let store = open(&engine);
        for eighth in 0..8 {
            store.commit(&[batch(eighth * EIGHTH + 1..=(eighth + 1) * EIGHTH)], 1).unwrap();
            store.freeze();
            // The eighth makes all of them merge, which writes the rows and the manifest.
            engine.fails_after.store(if eighth == 7 { 4 } else { 0 }, Ordering::Release);
            assert_eq!(store.upkeep(TO_THE_END).is_err(), eighth == 7);
        }
        // As many traces as all of them have, which all go into the next segment.
        store.commit(&[batch(8 * EIGHTH + 1..=16 * EIGHTH)], 2).unwrap();
        store.freeze();
        engine.fails_before.store(writes, Ordering::Release);
        failed += u64::from(store.upkeep(TO_THE_END).is_err());
        engine.fails_before.store(0, Ordering::Release);
        drop(store);
        check(&open(&engine), 1..=16 * EIGHTH);
    }
    assert_eq!(failed, FLUSH_WRITES + 1);
}

#[test]
fn interrupted_upkeep_leaves_the_store_intact_and_resumes() {
    let engine = Faulty::default();
    let mut ended = 0;
    for sixteenth in 0..16 {
        open(&engine).commit(&[batch(sixteenth * 15 + 1..=(sixteenth + 1) * 15)], 1).unwrap();
        for most_beats in 0.. {
            let beats = Cell::new(0);
            let beat = || {
                beats.set(beats.get() + 1);
                if beats.get() > most_beats { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            let store = open(&engine);
            store.freeze();
            let done = store.upkeep(&beat);
            check(&store, 1..=(sixteenth + 1) * 15);
            match done {
                Ok(()) => break,
                Err(StoreError::Ended) => ended += 1,
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(ended > 2 * 16, "{ended}");
    assert_eq!(open(&engine).index_size().segments, 2);
}

#[test]
fn repeatedly_sent_pieces_take_no_more_memory() {
    let store = open(&Faulty::default());
    for _ in 0..10 {
        for ten in 0..20 {
            store.commit(&[batch(ten * 10 + 1..=ten * 10 + 10)], 1).unwrap();
            store.upkeep(TO_THE_END).unwrap();
            let in_memory = store.index_size().traces_in_memory;
            assert!(in_memory <= SMALL, "{in_memory}");
        }
    }
    check(&store, 1..=200);
}

/// Spans of one trace, each with a tag of its own.
fn spans_of(trace_id: i64, ids: std::ops::Range<i64>) -> Batch {
    let mut batch = Batch::default();
    for id in ids {
        let tag = BinaryAnnotation { key: "object".to_owned(), value: format!("{id}").into(), ..tag() };
        *batch.ledger.get_mut(Figure::ReceivedScribe) += Count::piece(1);
        batch.push(&Piece::V1(Span { trace_id, id, binary_annotations: vec![tag], ..Span::default() }));
    }
    batch
}

fn tag() -> BinaryAnnotation {
    BinaryAnnotation { kind: AnnotationType::String, ..BinaryAnnotation::default() }
}

#[test]
fn the_cost_of_an_ongoing_trace_does_not_grow_with_its_size() {
    const EACH: i64 = 10;
    const ROUNDS: i64 = 8 * 8 * 2;
    let engine = Faulty::default();
    let store = open(&engine);
    let (mut blocks, mut index) = (Vec::new(), Vec::new());
    for round in 0..2 * ROUNDS {
        store.commit(&[spans_of(7, round * EACH..(round + 1) * EACH)], 1).unwrap();
        store.upkeep(TO_THE_END).unwrap();
        blocks.push(engine.blocks_seen.load(Ordering::Acquire));
        index.push(engine.index_bytes.load(Ordering::Acquire));
    }
    // The first segment's pieces are read once, and nothing after them.
    let at = |round: i64, counted: &[u64]| counted[round as usize - 1];
    assert_eq!(at(2 * ROUNDS, &blocks), at(8, &blocks), "blocks were read again: {blocks:?}");
    // A place takes one or two bytes more, the later it is.
    let (first, second) = (at(ROUNDS, &index), at(2 * ROUNDS, &index) - at(ROUNDS, &index));
    assert!(second < first * 3 / 2, "{first}, then {second} bytes");
    assert_eq!(pieces_of(&store, 7) as i64, 2 * ROUNDS * EACH);
    // And pieces that came long ago are still known.
    store.commit(&[spans_of(7, 0..EACH)], 1).unwrap();
    assert_eq!(at(2 * ROUNDS, &blocks), engine.blocks_seen.load(Ordering::Acquire));
    assert_eq!(store.ledger().unwrap().get(Figure::Duplicate).spans, EACH as u64);
    assert!(store.ledger().unwrap().balances());
}

/// A span at a time, so large that it takes a block of its own.
fn bulky(id: i64, parent_id: Option<i64>, timestamp: i64) -> Batch {
    let tag = BinaryAnnotation { key: "object".to_owned(), value: vec![b'x'; 60_000], ..tag() };
    let mut batch = Batch::default();
    *batch.ledger.get_mut(Figure::ReceivedScribe) += Count::piece(1);
    batch.push(&Piece::V1(Span {
        trace_id: 7,
        id,
        parent_id,
        timestamp: Some(timestamp),
        binary_annotations: vec![tag],
        ..Span::default()
    }));
    batch
}

#[test]
fn only_the_ends_of_a_very_long_trace_are_read_after_a_start() {
    const ROOT_TIME: i64 = 1 << 40;
    const SPANS: i64 = 400;
    // Later pieces have earlier times, which changes the time of a trace only if it has no root. A root in the middle is not
    // read.
    let cases = [(1, ROOT_TIME), (SPANS, ROOT_TIME), (SPANS / 2, ROOT_TIME - 5)];
    for (root, time) in cases {
        let span = |id| match id == root {
            true => bulky(id, None, ROOT_TIME),
            false => bulky(id, Some(1000), ROOT_TIME + id),
        };
        let engine = Faulty::default();
        let open = || TraceStore::with_small_segments(engine.clone(), 1 << 20).unwrap();
        let store = open();
        (1..=SPANS).for_each(|id| store.commit(&[span(id)], 1).unwrap());
        store.freeze();
        store.upkeep(TO_THE_END).unwrap();
        drop(store);
        let store = open();
        let before = engine.blocks_seen.load(Ordering::Acquire);
        store.commit(&[bulky(SPANS + 1, Some(1000), ROOT_TIME - 5)], 1).unwrap();
        let seen = engine.blocks_seen.load(Ordering::Acquire) - before;
        assert!((50..150).contains(&seen), "{seen} blocks");
        store.commit(&[span(SPANS), span(1)], 1).unwrap();
        assert_eq!(store.ledger().unwrap().get(Figure::Duplicate).spans, 2);
        assert_eq!((pieces_of(&store, 7) as i64, store.damage().pieces()), (SPANS + 1, 0));
        assert_eq!(found_at(&store, time), 1, "with its root at {root}");
    }
}

#[test]
fn a_trace_across_heads_is_found_at_the_time_of_all_its_parts() {
    const TIME: i64 = 1 << 40;
    let store = TraceStore::with_small_segments(Faulty::default(), 1 << 20).unwrap();
    for (id, time) in [(1, TIME), (2, TIME - 5), (3, TIME + 5)] {
        store.commit(&[bulky(id, Some(1000), time)], 1).unwrap();
        store.freeze();
        store.upkeep(TO_THE_END).unwrap();
    }
    assert_eq!([TIME - 5, TIME, TIME + 5].map(|time| found_at(&store, time)), [1, 0, 0]);
}

#[test]
fn pieces_with_many_tags_become_a_segment_sooner() {
    let store = open(&Faulty::default());
    let tags = |trace_id: i64| {
        let mut batch = Batch::default();
        let of = |number| BinaryAnnotation { key: format!("key {number}"), ..tag() };
        let binary_annotations = (0..200).map(of).collect();
        batch.push(&Piece::V1(Span { trace_id, id: 1, binary_annotations, ..Span::default() }));
        batch
    };
    let few = SMALL as i64 / 4;
    (1..=few).for_each(|trace_id| store.commit(&[tags(trace_id)], 1).unwrap());
    store.upkeep(TO_THE_END).unwrap();
    assert_eq!(store.index_size().segments, 1);
    // A start counts alike.
    let engine = Faulty::default();
    let large = TraceStore::with_small_segments(engine.clone(), 1 << 20).unwrap();
    (1..=few).for_each(|trace_id| large.commit(&[tags(trace_id)], 1).unwrap());
    drop(large);
    assert_eq!(open(&engine).index_size().segments, 1);
}

#[test]
fn a_store_opened_on_a_full_disk_answers_and_recovers() {
    let engine = Faulty::default();
    let large = TraceStore::with_small_segments(engine.clone(), 1 << 20).unwrap();
    (1..=100).for_each(|trace| large.commit(&[batch([trace])], 1).unwrap());
    // Rows of an unfinished segment, too.
    large.freeze();
    engine.fails_before.store(FLUSH_WRITES - 1, Ordering::Release);
    assert!(large.upkeep(TO_THE_END).is_err());
    drop(large);
    engine.is_full.store(true, Ordering::Release);
    let store = open(&engine);
    check(&store, 1..=100);
    assert!(matches!(store.commit(&[batch([101])], 2), Err(StoreError::Full)));
    assert!(matches!(store.upkeep(TO_THE_END), Err(StoreError::Full)));
    check(&store, 1..=100);
    assert!(store.index_size().is_overfull && store.index_size().traces_in_memory == 100);
    engine.is_full.store(false, Ordering::Release);
    store.commit(&[batch([101])], 2).unwrap();
    store.upkeep(TO_THE_END).unwrap();
    assert!(store.index_size().segments > 0 && !store.index_size().is_overfull);
    check(&store, 1..=101);
}

#[test]
fn a_trial_write_has_the_given_size_and_leaves_nothing() {
    const BYTES: usize = 100_000;
    let engine = Faulty::default();
    let store = open(&engine);
    let left = || engine.read().unwrap().get(b"T").unwrap().map(|row| row.len());
    engine.is_full.store(true, Ordering::Release);
    assert!(matches!(store.try_out(BYTES), Err(StoreError::Full)));
    engine.is_full.store(false, Ordering::Release);
    // The transaction that removes what was written for the trial fails.
    engine.fails_before.store(2, Ordering::Release);
    assert!(store.try_out(BYTES).is_err());
    assert!(left().is_some_and(|bytes| (BYTES..BYTES + 100).contains(&bytes)));
    store.try_out(BYTES).unwrap();
    assert_eq!(left(), None);
    assert_eq!(store.count().unwrap(), Count::default());
}

fn until(what: &str, holds: impl Fn() -> bool) {
    const LONG: Duration = Duration::from_secs(60);
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < LONG, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_failing_index_is_unhealthy_until_it_is_written() {
    let engine = Faulty::default();
    let store = Arc::new(open(&engine));
    store.commit(&[batch(1..=3)], 1).unwrap();
    store.freeze();
    engine.is_full.store(true, Ordering::Release);
    let health = Health::new();
    let indexer = Indexer::start(store, health.worker("index")).unwrap();
    let standing = indexer.standing();
    let failures = || standing.trouble().map_or(0, |trouble| trouble.failures);
    until("the index is unhealthy", || !health.report().healthy);
    let before = failures();
    until("it was tried again", || failures() > before);
    assert!(!health.report().healthy, "a failed try does not make it healthy");
    engine.is_full.store(false, Ordering::Release);
    until("the index is healthy", || health.report().healthy);
}

#[test]
fn a_commit_waiting_for_the_index_beats() {
    let engine = Faulty::default();
    let store = open(&engine);
    store.commit(&[batch(1..=4 * SMALL)], 1).unwrap();
    store.commit(&[batch(101..=100 + 4 * SMALL)], 2).unwrap();
    assert!(beats_of_commit(&store, &batch([500])) > 1);
    assert_eq!(beats_of_commit(&store, &batch([501])), 1, "a commit that waits for nothing beats once");
    check(&store, 1..=4 * SMALL);
}

/// How often a commit calls its beat.
fn beats_of_commit(store: &dyn Store, batch: &Batch) -> u64 {
    let beats = Cell::new(0);
    let beat = || {
        beats.set(beats.get() + 1);
        ControlFlow::Continue(())
    };
    store.commit_beating(std::slice::from_ref(batch), 2, &beat).unwrap();
    beats.get()
}

/// Several large traces that go on after a start are read one by one, which together takes longer than a thread may be silent.
#[test]
fn a_commit_reading_stored_traces_beats_and_can_be_ended() {
    const TRACES: u64 = 3;
    const SPANS: i64 = 10;
    let engine = Faulty::default();
    let store = open(&engine);
    let spans = |from: i64| {
        let of_trace = |trace| spans_of(trace, from..from + SPANS);
        (1..=TRACES as i64).map(of_trace).collect::<Vec<_>>()
    };
    spans(0).into_iter().for_each(|batch| store.commit(&[batch], 1).unwrap());
    store.upkeep(TO_THE_END).unwrap();
    drop(store);
    let store = open(&engine);
    let left = Cell::new(TRACES * SPANS as u64 / 2);
    let beat = || match left.replace(left.get().saturating_sub(1)) {
        0 => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    };
    let ended = store.commit_beating(&spans(SPANS), 2, &beat);
    assert!(matches!(ended, Err(StoreError::Ended)), "{ended:?}");
    assert_eq!(pieces_of(&store, 1) as i64, SPANS, "nothing is stored of a commit that was ended");
    for (trace, batch) in (1..=TRACES).zip(spans(SPANS)) {
        assert!(beats_of_commit(&store, &batch) > SPANS as u64, "of trace {trace}");
        assert_eq!(pieces_of(&store, trace) as i64, 2 * SPANS);
    }
}

#[test]
fn a_search_stops_at_its_deadline() {
    let store = open(&Faulty::default());
    let mut batch = Batch::default();
    for trace in 1..=200 {
        let span = Span { trace_id: trace, id: 1, timestamp: Some(trace), ..Span::default() };
        batch.push(&Piece::V1(span));
    }
    store.commit(&[batch], 1).unwrap();
    store.upkeep(TO_THE_END).unwrap();
    let visited = |wanted: &Wanted| {
        let mut visited = 0;
        let count = &mut |_: &Visited<'_>| {
            visited += 1;
            Ok(ControlFlow::Continue(()))
        };
        store.traces_by_time(wanted, 1..=u64::MAX, count).unwrap();
        visited
    };
    let now = Instant::now();
    assert_eq!(visited(&Wanted::default().until(now + Duration::from_secs(3600))), 200);
    assert_eq!(visited(&Wanted::default().until(now)), 0);
}
