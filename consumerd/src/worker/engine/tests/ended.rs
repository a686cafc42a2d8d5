//! Programs that have ended while an upstream is away.

use rustix::fs::fstat;

use super::held_back::attach_living;
use super::unread::{Node, Worker, segment_of_open_spans, segment_of_spans};
use super::*;
use crate::sinks::Feed;
use crate::worker::engine::room::PATIENCE;

#[test]
fn the_oldest_ended_programs_leave_before_a_quota_is_full() {
    the_oldest_leave(|config, _| config.max_programs_per_uid = 4);
    the_oldest_leave(|config, _| config.max_programs = 4);
}

#[test]
fn the_oldest_large_programs_leave_room_for_another() {
    // Four programs use less than seven eighths of the quota.
    the_oldest_leave(|config, bytes| config.max_shared_bytes_per_uid = 5 * bytes - 1);
}

fn held(engine: &Engine) -> Vec<u64> {
    engine.programs.keys().copied().collect()
}

fn lost(engine: &Engine) -> Vec<u64> {
    engine.ledger.sinks().map(|(_, sink)| sink.spool_evicted).collect()
}

/// Attaches to programs that have recorded ten spans each.
fn attach(worker: &mut Worker, numbers: &[u64]) {
    for number in numbers {
        let control = control(SealFlags::SHRINK | SealFlags::GROW);
        worker.engine.attach(identity(*number), segment_of_spans(*number, 10), control).unwrap();
    }
}

/// Runs rounds that begin with the program `first`, until all of `numbers` have ended.
fn end(worker: &mut Worker, first: u64, numbers: &[u64]) {
    worker.engine.next_program = first;
    while numbers.iter().any(|number| !worker.engine.programs[number].ended) {
        worker.round();
    }
}

/// Asserts which programs leave when four programs nearly use up a quota; `set_quota` gets the bytes of one.
fn the_oldest_leave(set_quota: impl FnOnce(&mut Config, u64)) {
    let mut node = Node::with_staged(0, 16 << 20);
    set_quota(&mut node.config, fstat(segment_of_spans(1, 1)).unwrap().st_size as u64 + CONTROL_BYTES as u64);
    let mut worker = node.worker();
    attach(&mut worker, &[2, 3, 4, 5]);
    end(&mut worker, 4, &[2, 3, 4, 5]);
    assert_eq!(held(&worker.engine), [2, 3, 4, 5], "program 1, which wrote nothing, has left");
    let now = worker.engine.now();
    let later = |engine: &mut Engine, times: u32| {
        engine.hurry_ended(now + times * PATIENCE);
        engine.give_up_ended(now + times * PATIENCE);
        lost(engine)
    };
    assert_eq!(later(&mut worker.engine, 0), [0; 3], "annotations may still be on their way");
    assert_eq!(later(&mut worker.engine, 2), [0; 3], "this call is the first to see how many have ended");
    assert_eq!(later(&mut worker.engine, 3), [20; 3]);
    worker.engine.retire(now).unwrap();
    assert_eq!(held(&worker.engine), [2, 3, 5], "program 4, which was read first, has left");
    assert_eq!(later(&mut worker.engine, 9), [20; 3], "there is room for another");
}

#[test]
fn a_live_program_is_not_given_up_for_new_ones() {
    let mut node = Node::with_staged(0, 16 << 20);
    node.config.max_programs = 4;
    let mut worker = node.worker();
    let _lives = attach_living(&mut worker, 2, segment_of_spans(2, 10));
    worker.round();
    attach(&mut worker, &[3, 4, 5]);
    end(&mut worker, 3, &[3, 4, 5]);
    let now = worker.engine.now();
    for times in [2, 4] {
        worker.engine.hurry_ended(now + times * PATIENCE);
        worker.engine.give_up_ended(now + times * PATIENCE);
    }
    assert_eq!(lost(&worker.engine), [40; 3], "everything up to the oldest ended program is given up");
    worker.engine.retire(now).unwrap();
    assert_eq!(held(&worker.engine), [2, 4, 5]);
}

#[test]
fn a_user_over_quota_costs_other_users_nothing() {
    let mut node = Node::with_staged(0, 16 << 20);
    node.config.max_programs_per_uid = 4;
    let mut worker = node.worker();
    attach(&mut worker, &[2]);
    end(&mut worker, 2, &[2]);
    let others = link::Program { uid: 2, ..identity(3) };
    let control = control(SealFlags::SHRINK | SealFlags::GROW);
    worker.engine.attach(others, segment_of_spans(3, 10), control).unwrap();
    end(&mut worker, 3, &[3]);
    attach(&mut worker, &[4, 5, 6, 7]);
    end(&mut worker, 4, &[4, 5, 6, 7]);
    let now = worker.engine.now();
    for times in [2, 4, 6] {
        worker.engine.hurry_ended(now + times * PATIENCE);
        worker.engine.give_up_ended(now + times * PATIENCE);
        worker.engine.retire(now).unwrap();
    }
    assert_eq!(lost(&worker.engine), [20; 3], "only annotations of the user over quota are given up");
    assert_eq!(held(&worker.engine), [3, 4, 5, 6, 7]);
}

#[test]
fn a_span_left_open_by_an_ended_program_leaves_complete() {
    let node = Node::with_staged(0, 16 << 20);
    let mut worker = node.worker();
    let control = control(SealFlags::SHRINK | SealFlags::GROW);
    worker.engine.attach(identity(2), segment_of_open_spans(2, 10), control).unwrap();
    while !worker.engine.programs[&2].ended {
        worker.round();
    }
    worker.round();
    assert_eq!(worker.engine.snapshot().spans.complete, 10);
}

#[test]
fn ended_programs_over_a_quarter_of_the_quota_split_live_spans() {
    for (have_ended, split) in [(&[4_u64, 5][..], 0), (&[2, 4, 5], 10)] {
        let mut node = Node::with_staged(0, 16 << 20);
        node.config.max_programs_per_uid = 8;
        let mut worker = node.worker();
        let (before, after) = have_ended.split_at(have_ended.len() - 2);
        attach(&mut worker, before);
        let _lives = attach_living(&mut worker, 3, segment_of_open_spans(3, 10));
        attach(&mut worker, after);
        // Program 5, and 2 if there is one, are read before the live program 3, and that is read before program 4.
        end(&mut worker, 5, have_ended);
        worker.round();
        assert_eq!(worker.engine.snapshot().spans.split, split, "{have_ended:?}");
    }
}

/// The fewer rounds this takes, the sooner the place of a short-lived program is free for another.
#[test]
fn a_program_with_empty_rings_leaves_as_soon_as_it_has_ended() {
    let node = Node::with_staged(0, 16 << 20);
    let mut worker = node.worker();
    let control = control(SealFlags::SHRINK | SealFlags::GROW);
    worker.engine.attach(identity(2), segment(0), control).unwrap();
    worker.round();
    while let Some(program) = worker.engine.programs.get(&2) {
        assert!(!program.has_no_writer(), "the program is known to have ended, but has not left");
        worker.round();
    }
}

#[test]
fn the_kernel_is_asked_about_a_program_at_growing_intervals() {
    let node = Node::with_staged(0, 16 << 20);
    let mut worker = node.worker();
    let _lives = attach_living(&mut worker, 2, segment(0));
    let Engine { programs, askers, .. } = &mut worker.engine;
    let program = programs.get_mut(&2).unwrap();
    let mut asked = Vec::new();
    for ms in 0..1500 {
        let now = Duration::from_millis(ms);
        program.ask_at(now, askers);
        if program.is_asked() {
            asked.push(ms);
            program.hear(false, now);
        }
    }
    assert_eq!(asked, [0, 4, 12, 28, 60, 124, 252, 508, 958, 1408]);
}

/// They are all due to leave at once, and are more than a queue can hold.
#[test]
fn open_spans_of_an_ended_program_leave_as_the_queue_has_room() {
    let spans = 2000;
    let mut node = Node::with_staged(0, 16 << 20);
    node.config.max_open_bytes = 1 << 30;
    let mut worker = node.worker_with([("scribe", Feed::Spans)]);
    worker.round();
    let control = control(SealFlags::SHRINK | SealFlags::GROW);
    worker.engine.attach(identity(2), segment_of_open_spans(2, spans), control).unwrap();
    let due = Instant::now() + Duration::from_secs(60);
    let mut taken = 0;
    while worker.engine.programs.contains_key(&2) {
        assert!(Instant::now() < due);
        worker.round();
        taken += worker.take(0).len() as u64;
    }
    let (_, sink) = worker.engine.snapshot().sinks[0];
    assert_eq!((sink.acked, sink.queue_full, taken), (2 * spans, 0, spans));
}

/// Hundreds of programs may end in a second, while a million spans of earlier programs wait for room.
#[test]
fn the_end_of_a_program_does_not_revisit_older_waiting_spans() {
    const WAITING: u64 = 1000;
    let mut node = Node::with_staged(0, 16 << 20);
    (node.config.queue_bytes, node.config.max_open_bytes) = (4096, 64 << 20);
    let mut worker = node.worker();
    for (number, spans) in [(2, WAITING), (3, 10)] {
        let control = control(SealFlags::SHRINK | SealFlags::GROW);
        let before = worker.engine.join.looks();
        worker.engine.attach(identity(number), segment_of_open_spans(number, spans), control).unwrap();
        end(&mut worker, number, &[number]);
        assert!(worker.engine.join.open_spans() as u64 > WAITING / 2);
        let looks = worker.engine.join.looks() - before;
        assert!(number == 2 || looks < WAITING as usize / 2, "{looks}");
    }
}
