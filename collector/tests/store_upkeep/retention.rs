//! Which traces are removed by age or size: in which order, at what cost, and what is known of them afterwards.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use blkin_collector::ledger::Figure;
use blkin_collector::merge::Piece;
use blkin_collector::query::{Defaults, Parameters, SearchRequest};
use blkin_collector::store::engine::Engine;
use blkin_collector::store::{Batch, Retention, Store, TO_THE_END, TraceStore, Visited, Wanted};
use blkin_thrift::Span;

use crate::faulty::Faulty;
use crate::{SMALL, batch, open, pieces_of, spans_of};

/// Otherwise, after each step of retention, a trace that goes on for long would be read again as a whole.
#[test]
fn retention_forgets_removed_traces_and_remembers_others() {
    let engine = Faulty::default();
    let store = TraceStore::with_small_segments(engine.clone(), 1 << 20).unwrap();
    let piece = |trace_id, id| {
        let mut batch = Batch::default();
        batch.push(&Piece::V1(Span { trace_id, id, ..Span::default() }));
        batch
    };
    let age_out = |now_ms| {
        let retention = Retention { max_age_ms: 100, max_bytes: 0 };
        while store.expire(&retention, now_ms).unwrap() {}
    };
    let duplicates = || store.ledger().unwrap().get(Figure::Duplicate).spans;
    store.commit(&[piece(1, 1)], 1).unwrap();
    age_out(200);
    // The trace counts as new, even if it was remembered when it was removed.
    store.commit(&[piece(1, 1)], 300).unwrap();
    age_out(500);
    store.commit(&[piece(1, 1)], 600).unwrap();
    assert_eq!((pieces_of(&store, 1), duplicates()), (1, 0));
    age_out(800);
    store.commit(&[piece(2, 1)], 900).unwrap();
    store.freeze();
    store.commit(&[piece(3, 1)], 1000).unwrap();
    store.commit(&[piece(3, 2)], 1050).unwrap();
    age_out(1020);
    assert_eq!((pieces_of(&store, 2), pieces_of(&store, 3)), (0, 2));
    let before = engine.blocks_seen.load(Ordering::Acquire);
    store.commit(&[piece(3, 3), piece(3, 1)], 1060).unwrap();
    assert_eq!(engine.blocks_seen.load(Ordering::Acquire), before, "a trace was read again");
    assert_eq!((pieces_of(&store, 3), duplicates()), (3, 1));
}

/// A program may use few ids again and again. Otherwise the old pieces of an id would be looked for with each new trace.
#[test]
fn old_pieces_of_a_returned_trace_are_not_looked_for() {
    let engine = Faulty::default();
    let store = open(&engine);
    let indexed = |batches: &[Batch], now_ms| {
        store.commit(batches, now_ms).unwrap();
        store.freeze();
        store.upkeep(TO_THE_END).unwrap();
    };
    indexed(&[batch([7, 8])], 1);
    // This piece keeps what is known of both in the index.
    store.commit(&[spans_of(8, 2..3)], 150).unwrap();
    while store.expire(&Retention { max_age_ms: 100, max_bytes: 0 }, 200).unwrap() {}
    indexed(&[batch([7])], 210);
    assert_eq!(store.index_size().segments, 2);
    let store = open(&engine);
    let before = engine.blocks_seen.load(Ordering::Acquire);
    store.commit(&[spans_of(7, 2..3)], 220).unwrap();
    assert_eq!(engine.blocks_seen.load(Ordering::Acquire) - before, 1);
    assert_eq!((pieces_of(&store, 7), pieces_of(&store, 8)), (2, 2));
}

#[test]
fn a_trace_longer_than_the_maximum_age_is_kept_whole() {
    let engine = Faulty::default();
    let store = open(&engine);
    let retention = Retention { max_age_ms: 100, max_bytes: 0 };
    let rounds: i64 = 400;
    for round in 1..=rounds {
        let now_ms = round as u64 * 10;
        let others = batch((1..=15).map(|other| 1000 * round as u64 + other));
        store.commit(&[spans_of(7, round..round + 1), others], now_ms).unwrap();
        while store.expire(&retention, now_ms).unwrap() {}
        store.upkeep(TO_THE_END).unwrap();
    }
    assert_eq!(pieces_of(&store, 7) as i64, rounds);
    let few = store.index_size();
    assert!(few.segments < 40, "{few:?}");
    let store = open(&engine);
    assert_eq!(pieces_of(&store, 7) as i64, rounds);
    let request = |tag: &str| {
        let parameters =
            vec![("annotationQuery".into(), format!("object={tag}")), ("limit".into(), "10".into())];
        let defaults = Defaults { now_ms: 10_000, max_traces: 10 };
        SearchRequest::read(&Parameters(parameters), &defaults).unwrap()
    };
    let found = |tag: &str| {
        let mut found = Vec::new();
        let mut note = |trace: &Visited<'_>| {
            found.push(trace.id.low());
            Ok(ControlFlow::Continue(()))
        };
        store.traces_by_time(&Wanted::by(&request(tag)), 0..=u64::MAX, &mut note).unwrap();
        found
    };
    assert_eq!((found("1"), found("200"), found("400"), found("401")), (vec![7], vec![7], vec![7], vec![]));
    // The trace is removed as a whole, and its place in the index with it.
    while store.expire(&retention, 1 << 30).unwrap() {}
    assert_eq!((pieces_of(&store, 7), store.count().unwrap().spans), (0, 0));
    for round in 1..=8 * SMALL {
        store.commit(&[batch([round])], 1 << 31).unwrap();
        store.upkeep(TO_THE_END).unwrap();
    }
    let ids = store.index_size();
    assert!(ids.bytes < few.bytes, "{ids:?} after {few:?}");
}

#[test]
fn blocks_dated_in_the_future_do_not_delay_retention() {
    const DAY_MS: u64 = 86_400_000;
    let store = open(&Faulty::default());
    let arrivals = [(1, 10), (2, 400), (3, 401), (4, 11), (5, 500)];
    for (trace, day) in arrivals {
        store.commit(&[batch([trace])], day * DAY_MS).unwrap();
    }
    let retention = Retention { max_age_ms: DAY_MS, max_bytes: 0 };
    let left_at = |day: u64| {
        while store.expire(&retention, day * DAY_MS).unwrap() {}
        assert!(store.ledger().unwrap().balances());
        left_on(&store)
    };
    // The last block has none behind it, so it stays until there is one.
    assert_eq!((left_at(11), left_at(12), left_at(13)), (2, 5, 5));
    store.commit(&[batch([6])], 13 * DAY_MS).unwrap();
    assert_eq!((left_at(13), left_at(14)), (5, 7));
}

/// The first trace that is left of those that were stored one after the other.
fn left_on(store: &dyn Store) -> u64 {
    (1..7).find(|&trace| pieces_of(store, trace) > 0).unwrap_or(7)
}

/// Retention passes each block of the trace, and meets the trace in each.
#[test]
fn retention_of_a_trace_reads_linearly_in_its_blocks() {
    let seen_for = |blocks: i64| {
        let engine = Faulty::default();
        let store = open(&engine);
        for id in 1..=blocks {
            store.commit(&[spans_of(7, id..id + 1)], 1).unwrap();
            store.upkeep(TO_THE_END).unwrap();
        }
        // Makes segments, because traces in memory would be found there.
        store.commit(&[batch(1001..=1000 + SMALL)], 2).unwrap();
        store.upkeep(TO_THE_END).unwrap();
        let before = engine.index_seen.load(Ordering::Acquire);
        let retention = Retention { max_age_ms: 1, max_bytes: 0 };
        while store.expire(&retention, 2).unwrap() {}
        assert_eq!((pieces_of(&store, 7), pieces_of(&store, 1001)), (0, 1));
        engine.index_seen.load(Ordering::Acquire) - before
    };
    // So many pieces that all parts of the trace are in one segment.
    let (few, many) = (seen_for(8 * SMALL as i64), seen_for(8 * 8 * SMALL as i64));
    assert!(many < 16 * few, "{few}, then {many} bytes for eight times as many");
}

/// Long traces, for example of whole lives of storage daemons: each block has pieces of all traces that still go on.
#[test]
fn retention_of_parallel_traces_reads_each_block_twice_at_most() {
    const TRACES: i64 = 16;
    let engine = Faulty::default();
    let store = open(&engine);
    for round in 0..TRACES {
        let alive: Vec<Batch> = (round..TRACES).map(|of| spans_of(1 + of, round..round + 1)).collect();
        store.commit(&alive, 1).unwrap();
    }
    let before = engine.blocks_seen.load(Ordering::Acquire);
    assert!(store.expire(&Retention { max_age_ms: 100, max_bytes: 0 }, 1000).unwrap());
    let seen = engine.blocks_seen.load(Ordering::Acquire) - before;
    // Each block is read as it was written, and as its kept rest.
    assert!(seen <= 2 * TRACES as u64, "{seen}");
    assert_eq!(store.count().unwrap().spans, 0);
    assert!(store.ledger().unwrap().balances());
}

#[test]
fn retention_by_size_counts_pieces_kept_from_passed_blocks() {
    let engine = Faulty::default();
    let store = open(&engine);
    for round in 0..8 {
        store.commit(&[spans_of(1, round * 100..(round + 1) * 100)], 1).unwrap();
    }
    (0..6).for_each(|number| store.commit(&[spans_of(2 + number, 0..100)], 1).unwrap());
    let bytes = engine.read().unwrap().get(b"EB").unwrap().unwrap();
    let bytes = u64::from_be_bytes(bytes.try_into().unwrap());
    let expire_beyond = |max_bytes| store.expire(&Retention { max_age_ms: 0, max_bytes }, 1).unwrap();
    assert!(!expire_beyond(bytes), "the store is at its limit, not above it");
    // With a little less room than is used, the trace that ends first is removed with all its kept pieces, and nothing else is.
    while expire_beyond(bytes - 1) {}
    assert_eq!((pieces_of(&store, 1), store.count().unwrap().spans), (0, 600));
}

/// The hash of everything that decides what is read of a trace.
fn state_of(store: &dyn Store, trace: u64) -> u64 {
    let mut state = DefaultHasher::new();
    let mut hash = |visited: &Visited<'_>| {
        if visited.id.low() == trace {
            visited.hash_state(&mut state)?;
        }
        Ok(ControlFlow::Continue(()))
    };
    store.traces_by_time(&Wanted::default(), 0..=u64::MAX, &mut hash).unwrap();
    state.finish()
}

/// A program may use one trace for everything it does.
#[test]
fn an_endless_trace_loses_old_parts_before_others_expire() {
    const MIB: usize = 1 << 20;
    let store = open(&Faulty::default());
    let retention = Retention { max_age_ms: 0, max_bytes: 40 * MIB as u64 };
    for round in 1..=90_u64 {
        let mut both = batch([1000 + round]);
        both.push(&Piece::V1(Span {
            trace_id: 1,
            id: round as i64,
            name: "x".repeat(MIB),
            ..Span::default()
        }));
        store.commit(&[both], 1).unwrap();
        while store.expire(&retention, 1).unwrap() {}
        let others = store.ledger().unwrap().get(Figure::Stored).spans - pieces_of(&store, 1) as u64;
        assert!(others >= round.min(20), "{others} of {round}");
    }
    let of_endless = pieces_of(&store, 1);
    assert!((20..=40).contains(&of_endless), "{of_endless}");
    assert_eq!(store.count().unwrap(), store.ledger().unwrap().get(Figure::Stored));
    // The state of the trace is another one each time that a part of it has been removed.
    let mut seen = BTreeMap::new();
    let less = Retention { max_age_ms: 0, max_bytes: 20 * MIB as u64 };
    while store.expire(&less, 1).unwrap() {
        let left = pieces_of(&store, 1);
        assert_eq!(*seen.entry(state_of(&store, 1)).or_insert(left), left);
    }
    let left = pieces_of(&store, 1);
    assert!(0 < left && left < of_endless, "{left} of {of_endless}");
    assert_eq!(store.damage().pieces(), 0);
}

#[test]
fn retention_keeps_up_with_what_is_written_between_steps() {
    let store = open(&Faulty::default());
    let retention = Retention { max_age_ms: 0, max_bytes: 1 << 20 };
    for round in 0..5 {
        let mut batch = Batch::default();
        // More blocks than a step usually passes: each piece fills one.
        for trace_id in round * 100 + 1..=(round + 1) * 100 {
            batch.push(&Piece::V1(Span { trace_id, id: 1, name: "x".repeat(60_000), ..Span::default() }));
        }
        store.commit(&[batch], 1).unwrap();
        store.expire(&retention, 1).unwrap();
        let in_store = store.ledger().unwrap().get(Figure::Stored).spans;
        assert!(in_store <= 18, "{in_store} after {round} rounds");
    }
}
