//! Properties that hold for any pieces.

use std::collections::HashSet;
use std::time::Duration;

use blkin_collector::convert::{Texts, v1_to_v2};
use blkin_collector::ledger::{Count, Figure};
use blkin_collector::merge::{Piece, assemble, assemble_stored};
use blkin_collector::model::{Span, Tags, TraceId};
use blkin_collector::query::{self, Reading};
use blkin_collector::store::memory::Memory;
use blkin_collector::store::{Batch, Pieces, Room, Store, TraceStore};
use blkin_collector::v2json::{write_span, write_trace};
use blkin_thrift::scribe::{decode_message, span_message};
use blkin_thrift::{Annotation, BinaryAnnotation, Limits, Span as V1Span};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{as_set, assemble_v1, at, event, piece, tag};

/// Plain events and tags of a side, some of which do not say where they happened.
fn extras(service: &'static str) -> impl Strategy<Value = (Vec<Annotation>, Vec<BinaryAnnotation>)> {
    let host = move |known| if known { at(service) } else { None };
    let events = vec((20..90i64, "[a-c]", any::<bool>()), 0..4).prop_map(move |events| {
        let with_host = |(timestamp, value, known): (i64, String, bool)| Annotation {
            timestamp,
            value,
            host: host(known),
            ..Annotation::default()
        };
        events.into_iter().map(with_host).collect()
    });
    let tags = vec(("[a-c]", "[x-z]", any::<bool>()), 0..4)
        .prop_map(move |tags| tags.iter().map(|(key, value, known)| tag(key, value, host(*known))).collect());
    (events, tags)
}

fn halves() -> impl Strategy<Value = (V1Span, V1Span)> {
    (extras("gateway"), extras("osd"), "[a-c]{0,2}", "[a-c]{0,2}").prop_map(
        |(near, far, near_name, far_name)| {
            let mut client = piece(&near_name, vec![event(10, "cs", "gateway"), event(100, "cr", "gateway")]);
            client.timestamp = Some(10);
            client.duration = Some(90);
            client.annotations.extend(near.0);
            client.binary_annotations = near.1;
            let mut server = piece(&far_name, vec![event(15, "sr", "osd"), event(95, "ss", "osd")]);
            server.annotations.extend(far.0);
            server.binary_annotations = far.1;
            (client, server)
        },
    )
}

/// Pieces of one span that began at different times.
fn pieces() -> impl Strategy<Value = Vec<V1Span>> {
    let piece_of = |(start, values, name): (i64, Vec<(i64, String, bool)>, String)| {
        let events = values.into_iter().map(|(after, value, first)| {
            event(start * 100 + after, &value, if first { "gateway" } else { "osd" })
        });
        let begin = event(start * 100, "begin", "osd");
        V1Span {
            timestamp: Some(start * 100),
            duration: Some(7),
            ..piece(&name, events.chain([begin]).collect())
        }
    };
    let values = vec((1..100i64, "(cs|cr|sr|ss|ms|mr|ws|wr|foo)", any::<bool>()), 0..4);
    proptest::collection::hash_set(1..50i64, 1..5).prop_flat_map(move |starts| {
        let count = starts.len();
        let starts = Just(starts.into_iter().collect::<Vec<_>>());
        (starts, vec((values.clone(), "[a-c]{0,2}"), count)).prop_map(move |(starts, rest)| {
            starts
                .into_iter()
                .zip(rest)
                .map(|(start, (values, name))| piece_of((start, values, name)))
                .collect()
        })
    })
}

/// Events of few microseconds and names, each at its own nanosecond, and in which of three pieces each arrives.
fn dense() -> impl Strategy<Value = Vec<(i64, String, usize)>> {
    let event = ("[a-d]", 0..3usize);
    proptest::collection::btree_map(1_000..4_000i64, event, 1..30)
        .prop_map(|events| events.into_iter().map(|(at, (value, piece))| (at, value, piece)).collect())
}

/// The three pieces in which the events arrive; in each, the last events come first.
fn dense_pieces(events: &[(i64, String, usize)]) -> Vec<V1Span> {
    let annotation = |(at, value, _): &(i64, String, usize)| Annotation {
        nanos: Some((at % 1000) as i16),
        ..event(at / 1000, value, "osd")
    };
    let of = |place: usize| events.iter().rev().filter(move |(_, _, piece)| *piece == place).map(annotation);
    (0..3).map(|place| piece("op", of(place).collect())).collect()
}

/// Pieces of both versions, of few spans: some have several pieces.
fn mixed() -> impl Strategy<Value = Vec<Piece>> {
    let tags = vec(("[a-c]|error", "[x-z]?"), 0..3);
    // Some pieces twice, as if they were sent again.
    let places = (any::<u32>(), vec(proptest::option::of(0..3i64), 1..4));
    let of_one =
        (pieces(), tags, 1..9i64, places, any::<bool>()).prop_map(|(pieces, tags, id, places, as_v2)| {
            let mut piece = V1Span { id, source: Some(1), ..pieces[0].clone() };
            let at_place = |place| i64::from(places.0) * 4 + place;
            let positions = places.1.into_iter().map(|place| place.map(at_place));
            piece.annotations.iter_mut().zip(positions).for_each(|(event, place)| event.position = place);
            piece.binary_annotations = tags.iter().map(|(key, value)| tag(key, value, at(key))).collect();
            let by_json = |span: Span| Piece::V2(span.as_by_json());
            if as_v2 { v1_to_v2(&piece).into_iter().map(by_json).collect() } else { vec![Piece::V1(piece)] }
        });
    vec(of_one, 1..6).prop_map(|pieces: Vec<Vec<Piece>>| pieces.concat())
}

fn stored(pieces: impl Iterator<Item = Piece>) -> TraceStore<Memory> {
    let store = TraceStore::new(Memory::default()).unwrap();
    for piece in pieces {
        let mut batch = Batch::new([].into());
        *batch.ledger.get_mut(Figure::ReceivedScribe) += Count::piece(piece.annotation_count());
        batch.push(&piece);
        store.commit(&[batch], 1).unwrap();
    }
    store
}

fn through_a_store(pieces: &[V1Span]) -> Vec<Span> {
    let arrived = |piece| decode_message(&span_message(piece), &Limits::default()).unwrap();
    let store = stored(pieces.iter().map(|piece| Piece::V1(arrived(piece))));
    let reading = Reading { strict: true, max_bytes: usize::MAX, patience: Duration::from_secs(60) };
    query::trace(&store, TraceId::new(0, 1).unwrap(), reading).unwrap().found
}

/// The members of a span other than annotations and tags.
fn without_texts(span: &Span) -> Span {
    Span { annotations: Vec::new(), tags: Tags::default(), ..span.clone() }
}

proptest! {
    #[test]
    fn reading_only_wanted_texts_gives_the_same_spans(pieces in mixed()) {
        let mut held = Pieces::default();
        let store = stored(pieces.iter().cloned());
        store.read_trace(TraceId::new(0, 1).unwrap(), true, &mut Room::of(usize::MAX), &mut held).unwrap();
        let all = assemble_stored(&held, Texts::All);
        prop_assert_eq!(&all, &assemble(pieces));
        let wanted = ["error", "foo"];
        let few = assemble_stored(&held, Texts::Only(&wanted));
        prop_assert_eq!(few.len(), all.len());
        for (few, all) in few.iter().zip(&all) {
            prop_assert_eq!(without_texts(few), without_texts(all));
            prop_assert!(few.annotations.iter().all(|annotation| all.annotations.contains(annotation)));
            prop_assert!(few.tags.iter().all(|(key, value)| all.tags.get(key) == Some(value)));
            let foos = |span: &Span| span.annotations.iter().filter(|event| event.value == "foo").count();
            prop_assert_eq!((foos(few), few.tags.get("error")), (foos(all), all.tags.get("error")));
        }
    }

    #[test]
    fn events_are_answered_in_the_order_in_which_they_were_recorded(events in dense()) {
        let mut seen = HashSet::new();
        let expected = events.iter().filter(|(at, value, _)| seen.insert((at / 1000, value)));
        let expected: Vec<_> = expected.map(|(at, value, _)| json!({"timestamp": at / 1000, "value": value})).collect();
        let spans = through_a_store(&dense_pieces(&events));
        let answered: Value = serde_json::from_str(&write_trace(&spans)).unwrap();
        prop_assert_eq!(&answered[0]["annotations"], &Value::from(expected));
    }

    #[test]
    fn halves_of_a_call_convert_as_zipkin_converts_each_alone((client, server) in halves()) {
        let mut alone = v1_to_v2(&client);
        alone.extend(v1_to_v2(&server));
        for (span, other) in [(0, 1), (1, 0)] {
            if alone[span].name.is_none() {
                alone[span].name = alone[other].name.clone();
            }
        }
        prop_assert_eq!(as_set(assemble_v1(&[server, client])), as_set(alone));
    }

    #[test]
    fn order_and_repetition_of_pieces_do_not_matter(pieces in pieces(), seed in any::<u64>()) {
        let expected: HashSet<String> = assemble_v1(&pieces).iter().map(write_span).collect();
        let mut shuffled = [pieces.clone(), pieces].concat();
        let mut state = seed | 1;
        for index in (1..shuffled.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            shuffled.swap(index, (state >> 33) as usize % (index + 1));
        }
        let spans: HashSet<String> = assemble_v1(&shuffled).iter().map(write_span).collect();
        prop_assert_eq!(spans, expected);
    }
}
