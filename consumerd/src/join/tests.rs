use std::sync::Arc;
use std::time::Duration;

use blkin_record::Endpoint;
use proptest::prelude::*;

use super::{Join, Reason, Rules, Share, SpanPiece, Timing};
use crate::annotation::{Annotation, Content, Labels, Origin};
use crate::sinks::zipkin::Encoder;

mod lists;
mod room;

const SECOND: Duration = Duration::from_secs(1);

fn rules() -> Rules {
    Rules {
        close_events: vec!["end".into(), "Span ended".into(), "mr".into()],
        quiet: 10 * SECOND,
        max_spans: 100,
        max_bytes: 1 << 20,
        max_span_bytes: 1 << 20,
    }
}

/// Labels with the endpoint of all annotations in these tests.
fn labels(name: &str, key: &str) -> &'static Labels {
    Box::leak(Box::new(Labels::new(name.into(), Arc::default(), key.into())))
}

fn event(program: u64, span: u64, key: &str, time_us: i64) -> Annotation<'static> {
    Annotation {
        trace_id: 1,
        span_id: span,
        parent_span_id: 9,
        labels: labels("op", key),
        content: Content::Event(time_us * 1000),
        level: 4,
        truncated: false,
        origin: Origin { program, ..Origin::default() },
    }
}

fn annotations(piece: &SpanPiece) -> usize {
    piece.shares.iter().map(|share| share.annotations()).sum()
}

fn timing(piece: &SpanPiece) -> Timing {
    assert_eq!(piece.shares.len(), 1);
    piece.timing_of(&piece.shares[0])
}

fn positions(piece: &SpanPiece) -> Vec<i64> {
    let mut positions = Vec::new();
    // A span with id 0 would not be decoded.
    let mut piece = piece.clone();
    piece.span_id += 1;
    Encoder::default().spans(&piece, |span, _| {
        let span = blkin_thrift::span::decode(span, &blkin_thrift::Limits::default()).unwrap();
        positions.extend(span.annotations.iter().filter_map(|annotation| annotation.position));
    });
    positions
}

fn left(join: &mut Join, now: Duration) -> Vec<SpanPiece> {
    let mut out = Vec::new();
    join.leave(now, usize::MAX, |_, _| true, &mut out);
    out
}

fn one(join: &mut Join) -> SpanPiece {
    let mut out = left(join, SECOND);
    assert_eq!(out.len(), 1);
    out.remove(0)
}

#[test]
fn a_client_span_leaves_at_cr_with_its_timing() {
    let mut join = Join::new(rules());
    join.add(&event(1, 5, "cs", 100), 0, SECOND);
    assert!(left(&mut join, SECOND).is_empty());
    join.add(&event(1, 5, "cr", 350), 0, SECOND);
    let piece = one(&mut join);
    assert_eq!((piece.reason, piece.parent_span_id), (Reason::Complete, 9));
    assert_eq!(timing(&piece), Timing { timestamp_us: Some(100), duration_us: Some(250) });
    assert_eq!((join.open_spans(), join.open_bytes()), (0, 0));
}

#[test]
fn a_server_span_leaves_at_ss_without_timing() {
    let mut join = Join::new(rules());
    join.add(&event(1, 5, "sr", 100), 0, SECOND);
    join.add(&event(1, 5, "ss", 200), 0, SECOND);
    assert_eq!(timing(&one(&mut join)), Timing::default());
}

#[test]
fn timing_comes_from_the_call_or_first_and_last_local_event() {
    let check = |events: &[(&str, i64)], timestamp_us, duration_us| {
        let mut join = Join::new(rules());
        events.iter().for_each(|(key, time_us)| join.add(&event(1, 5, key, *time_us), 0, SECOND));
        assert_eq!(timing(&one(&mut join)), Timing { timestamp_us, duration_us }, "{events:?}");
    };
    check(&[("cs", 100), ("cr", 350)], Some(100), Some(250));
    check(&[("cs", 120), ("cs", 100), ("cr", 350), ("cr", 300)], Some(100), Some(250));
    check(&[("before", 50), ("cs", 100), ("cr", 350), ("after", 400)], Some(100), Some(250));
    check(&[("start", 110), ("earlier", 100), ("end", 150)], Some(100), Some(50));
    // A span that ends when it begins, or earlier, gets the shortest duration that Zipkin shows.
    check(&[("cs", 100), ("cr", 100)], Some(100), Some(1));
    check(&[("cr", 90), ("cs", 100)], Some(100), Some(1));
    check(&[("start", 100), ("end", 100)], Some(100), Some(1));
    check(&[("end", 100)], Some(100), None);
    // Another service knows the span's times.
    check(&[("start", 100), ("ss", 150)], None, None);
    check(&[("ms", 100), ("end", 150)], None, None);
}

#[test]
fn a_part_stays_open_until_each_begun_side_has_ended() {
    let cases: [(&[&str], bool); 12] = [
        (&["cs", "cr"], true),
        (&["sr", "ss"], true),
        (&["cr"], true),
        (&["cs", "sr", "cr"], false),
        (&["cs", "sr", "ss"], false),
        (&["cs", "sr", "cr", "ss"], true),
        (&["cs", "ss"], false),
        (&["csf", "end"], false),
        (&["csf", "crf", "cr"], true),
        (&["srf", "end"], false),
        (&["ms", "end"], true),
        // A side that was closed does not open again: what follows comes late.
        (&["cr", "cs"], true),
    ];
    for (keys, leaves) in cases {
        let mut join = Join::new(rules());
        keys.iter().for_each(|key| join.add(&event(1, 5, key, 100), 0, SECOND));
        assert_eq!(left(&mut join, SECOND).len(), usize::from(leaves), "{keys:?}");
    }
}

#[test]
fn a_value_named_like_an_event_neither_closes_nor_times() {
    let mut join = Join::new(rules());
    for key in ["cs", "cr", "end"] {
        let value = Annotation { content: Content::Integer(7), ..event(1, 5, key, 0) };
        join.add(&value, 0, SECOND);
    }
    assert!(left(&mut join, SECOND).is_empty());
    assert_eq!(timing(&left(&mut join, 20 * SECOND)[0]), Timing::default());
}

#[test]
fn a_local_span_leaves_at_a_configured_closing_event() {
    for closing in ["end", "Span ended", "mr"] {
        let mut join = Join::new(rules());
        join.add(&event(1, 5, "start", 100), 0, SECOND);
        join.add(&event(1, 5, closing, 150), 0, SECOND);
        let piece = one(&mut join);
        // For a message, another service knows the times.
        if closing != "mr" {
            assert_eq!(timing(&piece), Timing { timestamp_us: Some(100), duration_us: Some(50) });
        }
    }
}

#[test]
fn a_closing_event_does_not_close_a_client_that_still_waits() {
    let mut join = Join::new(rules());
    join.add(&event(1, 5, "cs", 100), 0, SECOND);
    join.add(&event(1, 5, "end", 150), 0, SECOND);
    assert!(left(&mut join, SECOND).is_empty());
}

#[test]
fn every_side_seen_on_this_node_must_be_closed() {
    let mut join = Join::new(rules());
    join.add(&event(1, 5, "cs", 100), 0, SECOND);
    join.add(&event(2, 5, "sr", 120), 0, SECOND);
    join.add(&event(1, 5, "cr", 350), 0, SECOND);
    assert!(left(&mut join, SECOND).is_empty());
    join.add(&event(2, 5, "ss", 300), 0, SECOND);
    let piece = one(&mut join);
    assert_eq!(annotations(&piece), 4);
    assert_eq!(timing(&piece), Timing { timestamp_us: Some(100), duration_us: Some(250) });
}

#[test]
fn a_closing_event_closes_only_its_programs_part() {
    let mut join = Join::new(rules());
    for (program, key) in [(1, "start"), (2, "start"), (2, "end")] {
        join.add(&event(program, 5, key, 100), 0, SECOND);
        assert!(left(&mut join, SECOND).is_empty());
    }
    join.add(&event(1, 5, "end", 150), 0, SECOND);
    assert_eq!(annotations(&one(&mut join)), 4);
}

#[test]
fn a_closed_span_waits_until_every_ring_is_drained_past_it() {
    let mut join = Join::new(rules());
    join.add(&event(1, 5, "end", 100), 7, SECOND);
    let mut out = Vec::new();
    join.leave(SECOND, usize::MAX, |program, sweep| !(program == 1 && sweep == 7), &mut out);
    assert!(out.is_empty());
    join.add(&event(1, 5, "start", 90), 8, SECOND);
    assert_eq!(annotations(&one(&mut join)), 2);
}

#[test]
fn a_span_closed_twice_waits_for_the_later_sweep() {
    let mut join = Join::new(rules());
    // The second annotation comes from another ring, and was in it already when the round began.
    join.add(&event(1, 5, "cr", 100), 8, SECOND);
    join.add(&event(1, 5, "ss", 90), 7, SECOND);
    let mut out = Vec::new();
    join.leave(SECOND, usize::MAX, |_, sweep| sweep <= 7, &mut out);
    assert!(out.is_empty());
    join.leave(SECOND, usize::MAX, |_, sweep| sweep <= 8, &mut out);
    assert_eq!(out.len(), 1);
}

#[test]
fn a_span_waits_only_for_the_sweep_of_its_closing_event() {
    for keys in [["cr", "other"], ["cr", "cs"], ["other", "cr"], ["cs", "cr"]] {
        let mut join = Join::new(rules());
        keys.iter()
            .for_each(|key| join.add(&event(1, 5, key, 100), if *key == "cr" { 7 } else { 8 }, SECOND));
        let mut out = Vec::new();
        join.leave(SECOND, usize::MAX, |_, sweep| sweep <= 7, &mut out);
        assert_eq!(out.len(), 1, "{keys:?}");
    }
}

#[test]
fn a_closed_span_waits_for_a_program_that_joins_it() {
    let mut join = Join::new(rules());
    join.add(&event(1, 5, "cr", 100), 7, SECOND);
    join.leave(SECOND, usize::MAX, |_, _| false, &mut Vec::new());
    join.add(&event(2, 5, "sr", 90), 7, SECOND);
    assert!(left(&mut join, SECOND).is_empty());
    join.add(&event(2, 5, "ss", 95), 7, SECOND);
    let piece = one(&mut join);
    assert_eq!((piece.reason, annotations(&piece)), (Reason::Complete, 3));
    assert!(join.waiting.is_empty());
}

#[test]
fn a_quiet_span_leaves_as_it_is() {
    let mut join = Join::new(rules());
    join.add(&event(1, 5, "a", 100), 0, SECOND);
    join.add(&event(1, 5, "b", 110), 0, 6 * SECOND);
    assert!(left(&mut join, 12 * SECOND).is_empty());
    let out = left(&mut join, 16 * SECOND);
    assert_eq!((out.len(), out[0].reason), (1, Reason::Quiet));
}

#[test]
fn late_annotations_leave_in_a_further_piece_without_timing() {
    let mut join = Join::new(rules());
    join.add(&event(1, 5, "end", 100), 0, SECOND);
    assert!(!one(&mut join).late);
    join.add(&event(1, 5, "afterwards", 200), 0, SECOND);
    let out = left(&mut join, 20 * SECOND);
    assert!(out[0].late);
    assert_eq!(timing(&out[0]), Timing::default());
}

#[test]
fn too_many_spans_or_bytes_split_the_oldest() {
    let mut join = Join::new(Rules { max_spans: 2, ..rules() });
    for (span, key) in [(1, "start"), (1, "more"), (2, "start"), (3, "start")] {
        join.add(&event(1, span, key, 100), 0, SECOND);
    }
    let out = left(&mut join, SECOND);
    assert_eq!((out.len(), out[0].span_id, out[0].reason), (1, 1, Reason::Split));
    assert_eq!(timing(&out[0]).duration_us, None);

    let mut join = Join::new(Rules { max_bytes: 1500, ..rules() });
    for span in 1..=10 {
        join.add(&event(1, span, "start", 100), 0, SECOND);
    }
    assert_eq!(left(&mut join, SECOND)[0].span_id, 1);
    assert!(join.open_bytes() <= 1500);
}

#[test]
fn half_full_means_over_half_of_the_spans_or_bytes() {
    let is_half_full = |rules, spans| {
        let mut join = Join::new(rules);
        (0..spans).for_each(|span| join.add(&event(1, span, "start", 100), 0, SECOND));
        join.is_half_full()
    };
    let few = || Rules { max_spans: 4, ..rules() };
    assert!(!is_half_full(few(), 2) && is_half_full(few(), 3));
    let small = || Rules { max_bytes: 4000, ..rules() };
    assert!(!is_half_full(small(), 1) && is_half_full(small(), 8));
}

#[test]
fn each_service_adds_to_the_bytes_of_its_span() {
    let mut join = Join::new(rules());
    let of = |service: &str| -> &'static Labels {
        let endpoint = Endpoint { name: service.into(), ..Endpoint::default() };
        Box::leak(Box::new(Labels::new("op".into(), endpoint.into(), "key".into())))
    };
    let mut bytes_of = |service| {
        let before = join.open_bytes();
        join.add(&Annotation { labels: of(service), ..event(1, 5, "", 100) }, 0, SECOND);
        join.open_bytes() - before
    };
    bytes_of("first");
    let of_known = bytes_of("first");
    assert!(of_known > 0 && bytes_of("other") >= of_known + size_of::<Share>());
}

#[test]
fn spans_with_an_old_frame_are_split_and_the_others_stay_open() {
    let mut join = Join::new(rules());
    for (span, frame) in [(5, 3), (6, 4), (5, 9)] {
        let event = event(1, span, "start", 100);
        join.add(&Annotation { origin: Origin { frame, ..event.origin }, ..event }, 0, SECOND);
    }
    let mut split_up_to = |frame| {
        let mut out = Vec::new();
        join.split_up_to_frame(frame, &mut out);
        out.iter().map(|piece| (piece.span_id, piece.reason)).collect::<Vec<_>>()
    };
    assert_eq!(split_up_to(2), []);
    assert_eq!(split_up_to(3), [(5, Reason::Split)]);
    assert_eq!(split_up_to(4), [(6, Reason::Split)]);
}

#[test]
fn annotations_are_counted_per_frame() {
    let mut join = Join::new(rules());
    for (key, frame) in [("a", 3), ("b", 3), ("c", 4), ("end", 6)] {
        let event = event(1, 5, key, 100);
        join.add(&Annotation { origin: Origin { frame, ..event.origin }, ..event }, 0, SECOND);
    }
    assert_eq!(one(&mut join).shares[0].frames, [(3, 2), (4, 1), (6, 1)]);
}

#[test]
fn a_message_of_a_mebibyte_takes_no_more_annotations() {
    let mut join = Join::new(Rules { max_bytes: 1 << 30, ..rules() });
    let text = "x".repeat(4096);
    let value = Annotation { content: Content::Text((&text).into()), ..event(1, 5, "key", 0) };
    (0..600).for_each(|_| join.add(&value, 0, SECOND));
    let mut out = Vec::new();
    join.leave_all(&mut out);
    assert_eq!((annotations(&out[0]), out[0].shares.len()), (600, 3));
    assert!(out[0].shares.iter().all(|share| share.keys.bytes() < (1 << 20) + 2 * text.len()));
}

#[test]
fn spans_open_at_the_end_leave_with_reason_ending() {
    let (mut join, mut out) = (Join::new(rules()), Vec::new());
    join.add(&event(1, 5, "cs", 100), 0, SECOND);
    join.leave_all(&mut out);
    assert_eq!((out.len(), out[0].reason, join.open_spans()), (1, Reason::Ending, 0));
}

#[test]
fn the_end_of_programs_closes_their_parts() {
    let mut join = Join::new(rules());
    join.add(&event(1, 5, "cs", 100), 0, SECOND);
    join.add(&event(3, 5, "start", 100), 0, SECOND);
    join.add(&event(4, 5, "sr", 100), 0, SECOND);
    // Of one span, only some of the programs have ended; of the other, none.
    [1, 2].into_iter().for_each(|program| join.add(&event(program, 6, "start", 100), 0, SECOND));
    join.add(&event(2, 7, "start", 100), 0, SECOND);
    join.programs_ended(|program| program != 2);
    assert_eq!(one(&mut join).span_id, 5);
}

/// A restarted worker learns of a program's end before it has read all that was staged.
#[test]
fn parts_read_after_a_programs_end_close_at_the_next_check() {
    let mut join = Join::new(rules());
    join.add(&event(1, 5, "start", 100), 0, SECOND);
    join.programs_ended(|program| program == 1);
    join.add(&event(1, 5, "cs", 200), 0, SECOND);
    assert!(left(&mut join, SECOND).is_empty(), "the client side of the span is still open");
    join.programs_ended(|program| program == 1);
    assert_eq!(one(&mut join).span_id, 5);
}

#[test]
fn the_earliest_event_names_the_span() {
    let mut join = Join::new(rules());
    for (name, key, time_us) in [("second", "end", 200), ("first", "start", 100)] {
        let mut event = event(1, 5, key, time_us);
        event.labels = labels(name, key);
        join.add(&event, 0, SECOND);
    }
    assert_eq!(one(&mut join).name(), Some("first"));
}

#[test]
fn events_outrank_values_as_name_and_the_first_parent_stays() {
    let named = |name, key, parent_span_id, content| Annotation {
        labels: labels(name, key),
        parent_span_id,
        content,
        ..event(1, 5, key, 0)
    };
    let annotations = [
        (named("value", "size", 0, Content::Integer(7)), "value", 0),
        (named("other value", "size", 8, Content::Integer(8)), "value", 8),
        (named("late", "b", 9, Content::Event(2000)), "late", 8),
        (named("value", "size", 0, Content::Integer(9)), "late", 8),
        (named("early", "a", 0, Content::Event(1000)), "early", 8),
        (named("as early", "a", 0, Content::Event(1000)), "early", 8),
    ];
    for count in 1..=annotations.len() {
        let (given, expected) = (&annotations[..count], &annotations[count - 1]);
        let (mut join, mut out) = (Join::new(rules()), Vec::new());
        given.iter().for_each(|(annotation, ..)| join.add(annotation, 0, SECOND));
        join.leave_all(&mut out);
        assert_eq!((out[0].name(), out[0].parent_span_id), (Some(expected.1), expected.2), "{count}");
    }
}

proptest! {
    #[test]
    fn every_annotation_leaves_exactly_once(
        steps in proptest::collection::vec((0_u64..3, 0_u64..8, 0_usize..7, 0_u64..4), 1..300),
        max_spans in 1_usize..6,
    ) {
        let names = ["start", "cs", "cr", "sr", "ss", "end", "other"];
        let mut join = Join::new(Rules { max_spans, quiet: 3 * SECOND, ..rules() });
        let (mut out, mut now) = (Vec::new(), SECOND);
        for (number, (program, span, name, pause)) in steps.iter().enumerate() {
            let mut annotation = event(*program, *span, names[*name], 1);
            annotation.origin.position = number as i64;
            join.add(&annotation, number as u64, now);
            now += u32::try_from(*pause).unwrap() * SECOND;
            join.leave(now, usize::MAX, |_, sweep| sweep + 3 < number as u64, &mut out);
            prop_assert!(join.open_spans() <= max_spans);
        }
        join.programs_ended(|program| program == 1);
        join.leave_all(&mut out);
        let mut seen: Vec<_> = out.iter().flat_map(positions).collect();
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..steps.len() as i64).collect::<Vec<_>>());
        prop_assert_eq!((join.open_spans(), join.open_bytes()), (0, 0));
    }
}

#[test]
fn only_some_shares_of_a_span_with_many_services_are_searched() {
    let service = |number: usize| {
        let endpoint = Endpoint { name: format!("service {number}"), ..Endpoint::default() };
        let labels: &'static Labels =
            Box::leak(Box::new(Labels::new("op".into(), endpoint.into(), "key".into())));
        Annotation { labels, ..event(1, 1, "key", 1) }
    };
    let mut join = Join::new(rules());
    let mut add = |number| join.add(&service(number), 0, Duration::ZERO);
    (0..200).for_each(&mut add);
    [0, 63, 136, 199].into_iter().for_each(&mut add);
    add(100);
    let mut out = Vec::new();
    join.leave_all(&mut out);
    let shares: Vec<_> = out[0].shares.iter().map(|share| (share.service(), share.annotations())).collect();
    assert_eq!(shares.len(), 201);
    assert_eq!((shares[100], shares[200]), (("service 100", 1), ("service 100", 1)));
    assert!([0, 63, 136, 199].iter().all(|number| shares[*number].1 == 2), "{shares:?}");
}
