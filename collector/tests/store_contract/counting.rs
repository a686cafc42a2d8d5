//! The store's ledger, duplicates and retention.

use blkin_collector::ledger::{Count, Figure};
use blkin_collector::merge::Piece;
use blkin_collector::store::{Batch, Retention, Room, Store};
use blkin_thrift::{Annotation, AnnotationType, BinaryAnnotation, Span as V1Span};

use super::{
    NOW_MS, NOW_US, check_ledger, found, id, of_service, read, store_pieces, store_pieces_at, store_spans,
};

const HOUR_MS: u64 = 3_600_000;

fn annotation(position: i64) -> Annotation {
    Annotation {
        timestamp: NOW_US as i64,
        value: "event".to_owned(),
        position: Some(position),
        nanos: Some((position % 1000) as i16),
        ..Annotation::default()
    }
}

fn key_value(position: i64) -> BinaryAnnotation {
    BinaryAnnotation {
        key: "key".to_owned(),
        value: b"value".to_vec(),
        kind: AnnotationType::String,
        position: Some(position),
        ..BinaryAnnotation::default()
    }
}

fn piece(trace_id: i64, source: i64, positions: impl IntoIterator<Item = i64>) -> Piece {
    let (even, odd): (Vec<i64>, Vec<i64>) = positions.into_iter().partition(|p| p % 2 == 0);
    Piece::V1(V1Span {
        trace_id,
        id: 1,
        timestamp: Some(NOW_US as i64),
        annotations: even.into_iter().map(annotation).collect(),
        binary_annotations: odd.into_iter().map(key_value).collect(),
        source: Some(source),
        ..V1Span::default()
    })
}

fn count(store: &dyn Store, figure: Figure) -> u64 {
    store.ledger().unwrap().get(figure).annotations
}

pub(crate) fn annotations_with_equal_keys_or_times_are_all_kept(store: &dyn Store) {
    store_pieces(store, vec![piece(1, 7, 0..1000)]);
    assert_eq!(count(store, Figure::Stored), 1000);
    let pieces = store.trace(id(1), true, &mut Room::of(usize::MAX)).unwrap();
    assert_eq!(pieces, [piece(1, 7, 0..1000)]);
}

pub(crate) fn an_annotation_sent_again_is_a_duplicate_however_it_is_grouped(store: &dyn Store) {
    store_pieces(store, vec![piece(1, 7, 0..10), piece(1, 7, 20..30)]);
    store_pieces(store, vec![piece(1, 7, 0..10)]);
    assert_eq!((count(store, Figure::Stored), count(store, Figure::Duplicate)), (20, 10));
    store_pieces(store, vec![piece(1, 7, 5..25), piece(1, 7, 5..31)]);
    assert_eq!((count(store, Figure::Stored), count(store, Figure::Duplicate)), (31, 10 + 10 + 25));
    let pieces = store.trace(id(1), true, &mut Room::of(usize::MAX)).unwrap();
    assert_eq!(pieces.iter().map(Piece::annotation_count).sum::<usize>(), 31);
}

pub(crate) fn identities_are_distinct_between_traces_and_sources(store: &dyn Store) {
    store_pieces(store, vec![piece(1, 7, 0..10), piece(2, 7, 0..10), piece(1, 8, 0..10)]);
    let far = 3_i64 << 40;
    store_pieces(store, vec![piece(1, 7, far..far + 10)]);
    assert_eq!((count(store, Figure::Stored), count(store, Figure::Duplicate)), (40, 0));
}

pub(crate) fn the_same_identity_twice_in_one_piece_is_stored_once(store: &dyn Store) {
    store_pieces(store, vec![piece(1, 7, [2, 4, 2])]);
    assert_eq!((count(store, Figure::Stored), count(store, Figure::Duplicate)), (2, 1));
}

pub(crate) fn annotations_without_an_identity_are_stored_beside_known_ones(store: &dyn Store) {
    let mixed = |value: &str| {
        let mut mixed = piece(1, 7, [2]);
        if let Piece::V1(span) = &mut mixed {
            let foreign = Annotation { position: None, value: value.to_owned(), ..annotation(0) };
            span.annotations.push(foreign);
        }
        mixed
    };
    store_pieces(store, vec![mixed("one")]);
    store_pieces(store, vec![mixed("one")]);
    assert_eq!((count(store, Figure::Stored), count(store, Figure::Duplicate)), (2, 2));
    store_pieces(store, vec![mixed("other")]);
    assert_eq!((count(store, Figure::Stored), count(store, Figure::Duplicate)), (3, 3));
}

pub(crate) fn foreign_pieces_sent_again_are_duplicates(store: &dyn Store) {
    let mut foreign = piece(1, 7, 0..4);
    if let Piece::V1(span) = &mut foreign {
        span.source = None;
    }
    let v2 = Piece::V2(of_service(1, 1, "a", r#""tags":{"a":"1","b":"2"}"#));
    for _ in 0..3 {
        store_pieces(store, vec![foreign.clone(), v2.clone()]);
    }
    assert_eq!((count(store, Figure::Stored), count(store, Figure::Duplicate)), (6, 12));
    assert_eq!(store.ledger().unwrap().get(Figure::Duplicate).spans, 4);
    assert_eq!(read(store, id(1)).len(), 2);
}

pub(crate) fn counts_of_lost_pieces_are_committed_with_the_batch(store: &dyn Store) {
    let mut lost = Batch::default();
    *lost.ledger.get_mut(Figure::ReceivedHttpV1) += Count::piece(3);
    *lost.ledger.get_mut(Figure::SampledOut) += Count::piece(3);
    *lost.ledger.get_mut(Figure::ReceivedHttpV2) += Count::piece(1);
    *lost.ledger.get_mut(Figure::Malformed) += Count::piece(1);
    store.commit(&[lost, super::batch(vec![piece(1, 7, 0..5)])], NOW_MS).unwrap();
    check_ledger(store);
    assert_eq!(store.ledger().unwrap().received(), Count { annotations: 9, spans: 3 });
}

/// Runs retention step by step until nothing is left to remove.
fn expire(store: &dyn Store, retention: Retention, now_ms: u64) {
    while store.expire(&retention, now_ms).unwrap() {
        check_ledger(store);
    }
    check_ledger(store);
}

pub(crate) fn old_traces_expire_and_are_counted(store: &dyn Store) {
    store_pieces(store, (1..=500).map(|trace| piece(trace, 7, 0..3)).collect());
    store_spans(store, &[of_service(1000, 1, "old", "")]);
    store_pieces_at(store, vec![piece(2000, 7, 0..3)], NOW_MS + 2 * HOUR_MS);
    let retention = Retention { max_age_ms: HOUR_MS, max_bytes: 0 };
    expire(store, retention, NOW_MS + HOUR_MS - 60_000);
    assert_eq!(count(store, Figure::Expired), 0);
    expire(store, retention, NOW_MS + 2 * HOUR_MS);
    assert_eq!((count(store, Figure::Expired), count(store, Figure::Stored)), (1500, 3));
    assert_eq!(found(store, &[("limit", "600")]), [2000]);
    assert_eq!(read(store, id(1)), []);
    assert!(store.names(blkin_collector::store::NameKind::Service, "").unwrap().is_empty());
    store_pieces(store, vec![piece(1, 7, 0..3)]);
    assert_eq!(count(store, Figure::Stored), 6);
}

pub(crate) fn the_oldest_traces_expire_beyond_the_size_limit(store: &dyn Store) {
    for trace in 1..=10 {
        let big = of_service(trace, 1, "a", &format!(r#""tags":{{"k":"{}"}}"#, "x".repeat(10_000)));
        store_pieces_at(store, vec![Piece::V2(big)], NOW_MS + trace * 60_000);
    }
    expire(store, Retention { max_age_ms: 0, max_bytes: 35_000 }, NOW_MS + HOUR_MS);
    let mut left = found(store, &[]);
    left.sort_unstable();
    assert_eq!(left, [8, 9, 10]);
    assert_eq!(count(store, Figure::Expired), 7);
}

pub(crate) fn a_trace_with_new_pieces_does_not_expire(store: &dyn Store) {
    store_pieces(store, vec![piece(1, 7, 0..3), piece(2, 7, 0..3)]);
    store_pieces_at(store, vec![piece(1, 7, 3..6)], NOW_MS + HOUR_MS);
    expire(store, Retention { max_age_ms: HOUR_MS, max_bytes: 0 }, NOW_MS + HOUR_MS + 60_000);
    assert_eq!(count(store, Figure::Stored), 6);
    assert_eq!(read(store, id(2)), []);
}
