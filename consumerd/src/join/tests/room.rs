//! Which spans leave at once, and which wait until sinks have room.

use super::*;

/// A join with so many spans; `key` decides whether they are closed.
fn join_of(rules: Rules, spans: u64, key: &str) -> Join {
    let mut join = Join::new(rules);
    (0..spans).for_each(|span| join.add(&event(1, span, key, 100), 0, SECOND));
    join
}

fn leave(join: &mut Join, now: Duration, room: usize) -> Vec<u64> {
    let mut out = Vec::new();
    join.leave(now, room, |_, _| true, &mut out);
    out.iter().map(|piece| piece.span_id).collect()
}

#[test]
fn complete_and_quiet_spans_leave_in_order_as_room_allows() {
    for key in ["end", "start"] {
        let mut join = join_of(rules(), 8, key);
        let of_one = join.open_bytes() / 8;
        let now = 20 * SECOND;
        assert!(leave(&mut join, now, 0).is_empty(), "{key}");
        assert_eq!(leave(&mut join, now, 1), [0], "{key}: at least one leaves, however large");
        assert_eq!(leave(&mut join, now, 3 * of_one), [1, 2, 3], "{key}");
        assert_eq!(leave(&mut join, now, usize::MAX), [4, 5, 6, 7], "{key}");
    }
}

#[test]
fn closed_spans_wait_for_room_up_to_half_of_max_spans() {
    let mut join = join_of(Rules { max_spans: 8, ..rules() }, 6, "end");
    assert_eq!(leave(&mut join, SECOND, 0), [0, 1]);
    assert!(join.waits_for_room());
    assert_eq!(leave(&mut join, SECOND, usize::MAX), [2, 3, 4, 5]);
    assert!(!join.waits_for_room());
}

#[test]
fn a_span_is_split_each_time_it_exceeds_max_span_bytes() {
    let mut join = Join::new(Rules { max_span_bytes: 4096, ..rules() });
    let mut pieces = Vec::new();
    for number in 0..1000 {
        join.add(&event(1, 5, "tick", number), 0, SECOND);
        pieces.extend(left(&mut join, SECOND));
    }
    assert!(pieces.len() > 1 && pieces.iter().all(|piece| piece.reason == Reason::Split));
    join.leave_all(&mut pieces);
    assert_eq!(pieces.iter().map(annotations).sum::<usize>(), 1000);
    assert!(pieces[0].shares.iter().all(|share| share.events.bytes() <= 2 * 4096));
}

#[test]
fn lists_forget_waiting_spans_that_leave_another_way() {
    let mut join = Join::new(rules());
    for span in 0..10_000 {
        join.add(&event(1, span, "end", 100), 0, SECOND);
        assert!(leave(&mut join, 20 * SECOND, 0).is_empty());
        join.split_up_to_frame(u64::MAX, &mut Vec::new());
    }
    let listed = [join.by_age.len(), join.quiet.len(), join.closed.len(), join.by_program.len()];
    assert!(listed.iter().all(|length| *length < 2000), "{listed:?}");
}

/// While staging is full, a few frames are too old in each round.
#[test]
fn splitting_by_frame_looks_only_at_spans_with_old_frames() {
    const SPANS: u64 = 1000;
    let mut join = Join::new(rules());
    for frame in 0..SPANS {
        let event = event(1, frame, "start", 100);
        join.add(&Annotation { origin: Origin { frame, ..event.origin }, ..event }, 0, SECOND);
    }
    let (mut out, before) = (Vec::new(), join.open.looks);
    (0..SPANS).for_each(|frame| join.split_up_to_frame(frame, &mut out));
    assert_eq!(out.len() as u64, SPANS);
    assert!(join.open.looks - before <= 2 * SPANS as usize, "{}", join.open.looks - before);
}

/// Programs may end in each round, while a million spans of others are open.
#[test]
fn the_end_of_a_program_looks_only_at_its_own_spans() {
    const PROGRAMS: u64 = 1000;
    let mut join = Join::new(rules());
    (1..=PROGRAMS).for_each(|program| join.add(&event(program, program, "start", 100), 0, SECOND));
    let (mut out, before) = (Vec::new(), join.open.looks);
    for program in 1..=PROGRAMS {
        join.programs_ended(|number| number == program);
        join.leave(SECOND, usize::MAX, |_, _| true, &mut out);
    }
    assert_eq!(out.len() as u64, PROGRAMS);
    assert!(join.open.looks - before <= 4 * PROGRAMS as usize, "{}", join.open.looks - before);
}

/// Otherwise staging would stay full.
#[test]
fn a_departed_span_does_not_hide_one_with_an_old_frame() {
    let mut join = Join::new(rules());
    for (span, key) in [(5, "end"), (6, "start")] {
        join.add(&event(1, span, key, 100), 0, SECOND);
    }
    assert_eq!(one(&mut join).span_id, 5);
    let mut out = Vec::new();
    join.split_up_to_frame(u64::MAX, &mut out);
    assert_eq!(out.iter().map(|piece| piece.span_id).collect::<Vec<_>>(), [6]);
}
