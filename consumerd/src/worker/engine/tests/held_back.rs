//! A program that floods while nothing is shipped.

use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};

use super::unread::{Node, Worker, segment_of_open_spans, segment_of_spans};
use super::*;
use crate::sinks::Feed;

const FLOOD: u64 = 60_000;

/// A program that records so many spans, and counts as alive as long as the returned descriptor is open.
fn attach(worker: &mut Worker, number: u64, spans: u64) -> OwnedFd {
    attach_living(worker, number, segment_of_spans(number, spans))
}

/// A program with this segment, which counts as alive as long as the returned descriptor is open.
pub(super) fn attach_living(worker: &mut Worker, number: u64, segment: OwnedFd) -> OwnedFd {
    let (lives, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    // As long as one of its pages is in use elsewhere, the kernel does not say that nobody can write the segment.
    assert_eq!(splice(&segment, Some(&mut 0), &write, None, 64, SpliceFlags::empty()).unwrap(), 64);
    let control = control(SealFlags::SHRINK | SealFlags::GROW);
    worker.engine.attach(identity(number), segment, control).unwrap();
    lives
}

#[test]
fn a_flood_during_an_outage_evicts_nothing_of_others() {
    let quiet_spans = 100;
    let node = Node::with_staged(quiet_spans, 16 << 20);
    let mut worker = node.worker();
    worker.round();
    let _lives = attach(&mut worker, 2, FLOOD);
    while worker.engine.round().unwrap().drained {}
    worker.round();

    let snapshot = worker.engine.snapshot();
    assert_eq!(snapshot.programs_held_back, 1);
    let pending: Vec<_> = snapshot.programs.iter().map(|(_, totals)| totals.pending).collect();
    assert!(pending[0] == 0 && pending[1] > FLOOD, "the rest of the flood stays in its ring: {pending:?}");
    for (name, sink) in &snapshot.sinks {
        assert_eq!(sink.spool_evicted, 0, "{name}");
        assert!(sink.queue_full > 0 && sink.in_flight > 2 * quiet_spans, "{name}: {sink:?}");
    }
    assert!(
        snapshot.staging_used_bytes < snapshot.staging_limit_bytes / 3 * 2,
        "staging keeps room for other programs"
    );

    // A third program finds room.
    let spans = 50;
    let _lives_too = attach(&mut worker, 3, spans);
    while worker.engine.round().unwrap().drained {}
    let lost_before: u64 = snapshot.sinks.iter().map(|(_, sink)| sink.queue_full).sum();
    let snapshot = worker.engine.snapshot();
    assert_eq!(snapshot.programs[2].1.drain.valid, 2 * spans);
    assert_eq!(snapshot.sinks.iter().map(|(_, sink)| sink.queue_full).sum::<u64>(), lost_before);
}

#[test]
fn a_held_back_program_is_drained_once_a_sink_takes_more() {
    let node = Node::with_staged(1, 16 << 20);
    let mut worker = node.worker();
    worker.round();
    let _lives = attach(&mut worker, 2, FLOOD);
    while worker.engine.round().unwrap().drained {}
    assert_eq!(worker.engine.snapshot().programs_held_back, 1);
    let due = Instant::now() + Duration::from_secs(60);
    while worker.engine.snapshot().programs.last().unwrap().1.pending > 0 {
        assert!(Instant::now() < due);
        (0..2).for_each(|sink| drop(worker.take(sink)));
        worker.round();
    }
    assert_eq!(worker.engine.snapshot().programs_held_back, 0);
}

#[test]
fn a_flood_to_a_slow_upstream_evicts_nothing_of_others() {
    let node = Node::with_staged(100, 16 << 20);
    let mut worker = node.worker_with([("scribe", Feed::Spans)]);
    worker.round();
    let _lives = attach(&mut worker, 2, FLOOD);
    while worker.engine.round().unwrap().drained {}
    let drained = worker.engine.programs[&2].figures.drained;
    for _ in 0..300 {
        worker.take_some(0, 10);
        worker.round();
        let in_use = worker.engine.staging.end() - worker.engine.retired_end;
        assert!(
            in_use < worker.engine.staging_limit_bytes() / 5 * 4,
            "staging keeps room for other programs: {in_use}"
        );
    }
    let (_, sink) = worker.engine.snapshot().sinks[0];
    assert!(sink.acked > 0 && sink.spool_evicted == 0, "{sink:?}");
    assert!(worker.engine.programs[&2].figures.drained > drained, "the flooding program is still drained");
}

/// The sinks of a restarted worker read what is staged, and nothing is given up until staging needs the room.
#[test]
fn a_flood_evicts_nothing_while_sinks_are_catching_up() {
    let quiet_spans = 4000;
    let node = Node::with_staged(quiet_spans, 16 << 20);
    let mut worker = node.worker();
    let _lives = attach(&mut worker, 2, FLOOD);
    while worker.engine.round().unwrap().drained {}
    worker.round();
    let snapshot = worker.engine.snapshot();
    assert_eq!(snapshot.programs_held_back, 1);
    assert!(snapshot.sinks.iter().all(|(_, sink)| sink.spool_evicted == 0), "{:?}", snapshot.sinks);
}

#[test]
fn spans_that_stay_open_leave_before_staging_is_full() {
    let mut node = Node::with_staged(0, 16 << 20);
    node.config.max_open_bytes = 1 << 30;
    let mut worker = node.worker_with([("scribe", Feed::Spans)]);
    let _lives = attach_living(&mut worker, 2, segment_of_open_spans(2, FLOOD));
    while worker.engine.round().unwrap().drained {}
    let snapshot = worker.engine.snapshot();
    assert!(snapshot.spans.split > 0 && snapshot.spans.split < FLOOD, "{:?}", snapshot.spans);
    assert_eq!(snapshot.sinks[0].1.spool_evicted, 0);
}
