//! The lists of open spans: how long they become, and that the spans in them are found.

use super::*;

/// Nothing else would remove a span from these lists that left another way.
#[test]
fn lists_of_open_spans_do_not_grow_with_those_that_left() {
    let mut join = Join::new(rules());
    for span in 0..10_000 {
        join.add(&event(1, span, "end", 100), 0, SECOND);
        one(&mut join);
    }
    assert!(join.by_age.len() <= 1025 && join.quiet.len() <= 1025);
}

/// The lists are searched for spans that left, which must not remove the others.
#[test]
fn an_old_open_span_is_found_by_every_way_of_leaving() {
    let ways: [fn(&mut Join, &mut Vec<SpanPiece>); 4] = [
        |join, out| join.leave(100 * SECOND, usize::MAX, |_, _| true, out),
        |join, out| join.split_up_to_frame(u64::MAX, out),
        |join, out| {
            join.programs_ended(|program| program == 1);
            join.leave(SECOND, usize::MAX, |_, _| true, out);
        },
        Join::leave_all,
    ];
    for (number, way) in ways.into_iter().enumerate() {
        let (mut join, mut out) = (Join::new(rules()), Vec::new());
        join.add(&event(1, 0, "start", 100), 0, SECOND);
        for span in 1..5000 {
            join.add(&event(1, span, "end", 100), 0, SECOND);
            one(&mut join);
        }
        let lists = [join.by_age.len(), join.quiet.len(), join.by_program.len()];
        assert!(lists.iter().all(|length| (2..4000).contains(length)), "{lists:?}");
        way(&mut join, &mut out);
        assert_eq!(out.iter().map(|piece| piece.span_id).collect::<Vec<_>>(), [0], "way {number}");
    }
}

#[test]
fn a_span_closed_repeatedly_is_listed_once() {
    let mut join = Join::new(rules());
    (0..1000).for_each(|time_us| join.add(&event(1, 5, "end", time_us), 0, SECOND));
    assert_eq!(join.closed.len(), 1);
}

#[test]
fn a_closed_span_waiting_for_room_outlasts_many_that_leave() {
    let mut join = Join::new(Rules { max_span_bytes: 2048, ..rules() });
    join.add(&event(1, 0, "end", 100), 0, SECOND);
    let leave = |join: &mut Join, room| {
        let mut out = Vec::new();
        join.leave(SECOND, room, |_, _| true, &mut out);
        out.iter().map(|piece| piece.span_id).collect::<Vec<_>>()
    };
    let text = "x".repeat(4096);
    for span in 1..3000 {
        join.add(
            &Annotation { content: Content::Text((&text).into()), ..event(1, span, "key", 0) },
            0,
            SECOND,
        );
        join.add(&event(1, span, "end", 100), 0, SECOND);
        assert_eq!(leave(&mut join, 0), [span]);
    }
    assert!(join.closed.len() < 2000);
    assert_eq!(leave(&mut join, usize::MAX), [0]);
}
