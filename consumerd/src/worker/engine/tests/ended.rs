//! Programs that have ended while an upstream is away.

use rustix::fs::fstat;

use super::unread::{Node, segment_of_spans};
use super::*;
use crate::worker::engine::room::PATIENCE;

#[test]
fn the_oldest_that_wait_for_an_upstream_leave_before_they_fill_a_quota() {
    the_oldest_leave(|config, _| config.max_programs_per_uid = 4);
    the_oldest_leave(|config, _| config.max_programs = 4);
}

#[test]
fn the_oldest_of_few_large_ones_leave_before_another_finds_no_room() {
    // Less than seven eighths of it are used by four.
    the_oldest_leave(|config, bytes| config.max_shared_bytes_per_uid = 5 * bytes - 1);
}

/// Four programs of so many bytes each use up a quota.
fn the_oldest_leave(set_quota: impl FnOnce(&mut Config, u64)) {
    let mut node = Node::with_staged(0, 16 << 20);
    set_quota(&mut node.config, fstat(segment_of_spans(1, 1)).unwrap().st_size as u64 + CONTROL_BYTES as u64);
    let mut worker = node.worker();
    for number in 2..=5 {
        let control = control(SealFlags::SHRINK | SealFlags::GROW);
        worker.engine.attach(identity(number), segment_of_spans(number, 10), control).unwrap();
    }
    while worker.engine.programs.values().any(|program| !program.ended) {
        worker.round();
    }
    let held = |engine: &Engine| engine.programs.keys().copied().collect::<Vec<_>>();
    let lost =
        |engine: &Engine| engine.ledger.sinks().map(|(_, sink)| sink.spool_evicted).collect::<Vec<_>>();
    assert_eq!(held(&worker.engine), [2, 3, 4, 5], "the one that wrote nothing has left");
    let now = worker.engine.now();
    let later = |engine: &mut Engine, times: u32| {
        engine.hurry_ended(now + times * PATIENCE);
        engine.give_up_ended(now + times * PATIENCE);
        lost(engine)
    };
    assert_eq!(later(&mut worker.engine, 0), [0; 3], "it may be on its way");
    assert_eq!(later(&mut worker.engine, 2), [0; 3], "only now it is seen how many have ended");
    assert_eq!(later(&mut worker.engine, 3), [20; 3]);
    worker.engine.retire(now).unwrap();
    assert_eq!(held(&worker.engine), [3, 4, 5]);
    assert_eq!(later(&mut worker.engine, 9), [20; 3], "there is room for another");
}
