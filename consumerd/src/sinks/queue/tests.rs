//! The queue by itself, without a sink's thread.

use bytes::Bytes;

use super::*;

fn queue(bytes: usize) -> Queue {
    let linger = Duration::ZERO;
    Queue::new(Limits { bytes, batch_bytes: 1000, batch_entries: 10, linger }).unwrap()
}

fn entry(program: u64, frame: u64) -> Entry {
    Entry { lines: vec![b'x'; 100].into(), messages: 1, refs: Refs::One((frame, 1)), program }
}

fn count(outcomes: &[Settled], outcome: Outcome) -> u32 {
    outcomes.iter().filter(|settled| settled.outcome == outcome).map(|settled| settled.annotations).sum()
}

#[test]
fn a_program_that_floods_leaves_room_for_others() {
    let queue = queue(11 * 212);
    for frame in 0..100 {
        queue.push([entry(1, frame)]);
    }
    let lost = count(&queue.take_outcomes(), Outcome::QueueFull);
    assert_eq!(lost, 94, "six entries of eleven are the most that one program may hold");
    queue.push([entry(2, 100)]);
    assert!(queue.take_outcomes().is_empty());
}

/// The messages of many programs lie one after the other in the same memory.
#[test]
fn an_accepted_entry_does_not_pin_memory_of_refused_ones() {
    let queue = queue(10 * 212);
    queue.push((0..5).map(|frame| entry(1, frame)));
    let portion = Bytes::from(vec![b'x'; 1000]);
    let message = |program, at| Entry { lines: portion.slice(at..at + 100), ..entry(program, 5) };
    queue.push([message(1, 0), message(2, 100), message(1, 200)]);
    assert_eq!(count(&queue.take_outcomes(), Outcome::QueueFull), 2);
    assert_eq!(queue.fill().bytes, 6 * 212);
    assert!(portion.is_unique());
}

#[test]
fn fill_reports_the_room_of_the_largest_program() {
    let queue = queue(10 * 212);
    let fill =
        |bytes: usize, room: usize| Fill { bytes: bytes * 212, limit_bytes: 2120, room_bytes: room * 212 };
    assert_eq!(queue.fill(), fill(0, 5));
    queue.push((0..2).map(|frame| entry(1, frame)));
    queue.push((2..4).map(|frame| entry(2, frame)));
    assert_eq!(queue.fill(), fill(4, 2));
    queue.push((4..6).map(|frame| entry(1, frame)));
    assert_eq!(queue.fill(), fill(6, 0));
    assert!(queue.take_outcomes().is_empty());
    queue.push([entry(1, 6)]);
    assert_eq!(count(&queue.take_outcomes(), Outcome::QueueFull), 1);
}

#[test]
fn a_batch_is_bounded_and_settled_at_once_or_entry_by_entry() {
    let queue = queue(1 << 20);
    queue.push((0..12).map(|frame| entry(1, frame)));
    let batch = queue.next_batch().unwrap().unwrap();
    assert_eq!(batch.entries.len(), 10);
    assert!(queue.holds(&batch));
    let singles = queue.split(batch);
    assert!(singles.len() == 10 && singles.iter().all(|single| queue.holds(single)));
    let (last, others) = singles.split_last().unwrap();
    others.iter().for_each(|single| queue.settle_single(single, Outcome::Acked));
    queue.settle_single(last, Outcome::Rejected);
    let settled = queue.take_outcomes();
    assert_eq!((count(&settled, Outcome::Acked), count(&settled, Outcome::Rejected)), (9, 1));
    queue.end();
    let rest = queue.next_batch().unwrap().unwrap();
    queue.settle(&rest, Outcome::Acked);
    assert!(queue.next_batch().unwrap().is_none());
    assert_eq!((queue.fill().bytes, queue.is_empty()), (0, true));
}

#[test]
fn next_single_takes_the_longest_waiting_entry() {
    let queue = queue(1 << 20);
    assert!(queue.next_single().is_none());
    queue.push((0..3).map(|frame| entry(1, frame)));
    let single = queue.next_single().unwrap();
    assert_eq!(single.entries[..], [entry(1, 0)]);
    let rest = queue.next_batch().unwrap().unwrap();
    assert_eq!(rest.entries[..], [entry(1, 1), entry(1, 2)]);
    queue.evict_up_to_frame(2);
    assert!(!queue.holds(&single) && queue.split(rest).is_empty(), "evicted entries are no longer held");
    assert_eq!(count(&queue.take_outcomes(), Outcome::SpoolEvicted), 3);
    assert_eq!((queue.fill().bytes, queue.is_empty()), (0, true));
}

#[test]
fn eviction_removes_old_entries_even_those_in_flight() {
    let queue = queue(1 << 20);
    queue.push([entry(1, 1)]);
    let batch = queue.next_batch().unwrap().unwrap();
    queue.push([entry(1, 4)]);
    let younger = queue.next_batch().unwrap().unwrap();
    queue.push([entry(1, 2), entry(1, 3)]);
    queue.evict_up_to_frame(2);
    assert!(!queue.holds(&batch) && queue.holds(&younger));
    queue.settle(&batch, Outcome::Acked);
    let settled = queue.take_outcomes();
    assert_eq!((settled.len(), count(&settled, Outcome::SpoolEvicted)), (2, 2));
    assert_eq!(queue.next_batch().unwrap().unwrap().entries[..], [entry(1, 3)]);
}

#[test]
fn a_batch_in_flight_is_resent_without_evicted_entries() {
    let queue = queue(1 << 20);
    queue.push((1..5).map(|frame| entry(1, frame)));
    let batch = queue.next_batch().unwrap().unwrap();
    queue.push([entry(1, 5)]);
    queue.evict_up_to_frame(2);
    assert!(!queue.holds(&batch));
    queue.settle(&batch, Outcome::Acked);
    assert_eq!(count(&queue.take_outcomes(), Outcome::SpoolEvicted), 2);
    let rest = queue.next_batch().unwrap().unwrap();
    assert_eq!(rest.entries[..], [entry(1, 3), entry(1, 4), entry(1, 5)]);
    queue.settle(&rest, Outcome::Acked);
    assert_eq!((count(&queue.take_outcomes(), Outcome::Acked), queue.fill().bytes), (3, 0));
}

#[test]
fn spare_room_is_a_quarter_or_unlimited_in_an_empty_queue() {
    let queue = queue(12 * 212);
    let [one, six] = [1, 6].map(|entries| (0..entries).map(|_| entry(1, 9)).collect::<Vec<_>>());
    assert!(queue.has_room_for(&six), "an empty queue takes entries of any size");
    queue.push((0..2).map(|frame| entry(1, frame)));
    assert!(queue.has_room_for(&one) && !queue.has_room_for(&six));
    queue.push([entry(2, 4)]);
    assert!(!queue.has_room_for(&one));
}

#[test]
fn hurry_and_end_cut_pauses_short_and_stop_lingering() {
    let queue = lingering();
    let linger = queue.limits.linger;
    queue.push([entry(1, 1)]);
    assert!(matches!(queue.next(Instant::now()), Next::Wait(Some(_))));
    for come_nearer in [Queue::hurry, Queue::end] {
        let (begun, stage) = (Instant::now(), queue.stage());
        come_nearer(&queue);
        queue.pause_since(stage, linger).unwrap();
        assert!(begun.elapsed() < linger / 2);
        if stage == Stage::Open {
            assert!(matches!(queue.next(Instant::now()), Next::Batch(_)));
            assert!(matches!(queue.next(Instant::now()), Next::Wait(None)), "the queue has not ended yet");
        }
    }
    assert!(matches!(queue.next(Instant::now()), Next::Ended));
}

#[test]
fn a_partial_batch_lingers_from_its_first_entry() {
    let queue = lingering();
    let now = Instant::now();
    assert!(matches!(queue.next(now), Next::Wait(None)));
    queue.push([entry(1, 1)]);
    let Next::Wait(Some(due)) = queue.next(now) else { panic!("a partial batch must linger") };
    assert!(due >= now + queue.limits.linger);
    queue.push([entry(1, 2)]);
    assert!(matches!(queue.next(now), Next::Wait(Some(still)) if still == due));
    assert!(matches!(queue.next(due), Next::Batch(batch) if batch.entries.len() == 2));
    queue.push((0..10).map(|frame| entry(1, frame)));
    assert!(matches!(queue.next(now), Next::Batch(_)), "a full batch does not linger");
    queue.push([entry(1, 3)]);
    queue.end();
    assert!(matches!(queue.next(now), Next::Batch(_)), "the last batch does not linger");
    assert!(matches!(queue.next(now), Next::Ended));
}

/// Each call wakes the thread; if it were woken only to wait for more, it would wake up twice for each batch.
#[test]
fn the_thread_is_called_only_when_a_batch_is_due() {
    let queue = lingering();
    let is_called = || queue.lock().is_called;
    let now = Instant::now();
    queue.push([entry(1, 1)]);
    queue.call(now + queue.limits.linger / 2);
    assert!(!is_called(), "the batch is not due yet");
    queue.call(now + 2 * queue.limits.linger);
    assert!(is_called());
    assert!(
        matches!(queue.next(Instant::now()), Next::Batch(_)),
        "a called thread gets the batch before it is due"
    );
    assert!(matches!(queue.next(Instant::now()), Next::Wait(None)));
    queue.call(now + 2 * queue.limits.linger);
    assert!(!is_called(), "no entry is queued");
    queue.push((0..9).map(|frame| entry(1, frame)));
    assert!(!is_called());
    queue.push([entry(1, 9)]);
    assert!(is_called(), "a full batch calls the thread");
    queue.next(now);
    queue.hurry();
    queue.push([entry(1, 1)]);
    assert!(is_called(), "after a hurry, entries do not linger");
}

fn lingering() -> Queue {
    let linger = Duration::from_secs(60);
    Queue::new(Limits { bytes: 1 << 20, batch_bytes: 1 << 20, batch_entries: 10, linger }).unwrap()
}

#[test]
fn entries_left_by_a_full_batch_linger_from_then_on() {
    let queue = lingering();
    queue.push((0..11).map(|frame| entry(1, frame)));
    let now = Instant::now() + queue.limits.linger / 2;
    assert!(matches!(queue.next(now), Next::Batch(batch) if batch.entries.len() == 10));
    let due = now + queue.limits.linger;
    assert!(matches!(queue.next(now), Next::Wait(Some(until)) if until == due));
    assert!(matches!(queue.next(due), Next::Batch(_)));
}

#[test]
fn the_first_entry_after_an_eviction_lingers_in_full() {
    let queue = lingering();
    queue.push([entry(1, 1)]);
    queue.evict_up_to_frame(1);
    assert!(matches!(queue.next(Instant::now()), Next::Wait(None)));
    let now = Instant::now();
    queue.push([entry(1, 2)]);
    assert!(matches!(queue.next(now), Next::Wait(Some(due)) if due >= now + queue.limits.linger));
}

#[test]
fn returned_batches_are_resent_smaller_and_in_order() {
    let limits =
        Limits { bytes: 1 << 30, batch_bytes: 16 << 10, batch_entries: 1000, linger: Duration::ZERO };
    let queue = Queue::new(limits).unwrap();
    let long = |frame| Entry { lines: vec![b'x'; 1 << 10].into(), ..entry(1, frame) };
    queue.push((0..48).map(long));
    let next = || queue.next_batch().unwrap().unwrap();
    let frames =
        |batch: &Batch| batch.entries.iter().map(|entry| entry.refs.as_slice()[0].0).collect::<Vec<_>>();
    let (first, gone, third) = (next(), next(), next());
    assert_eq!(first.entries.len(), 16);
    queue.settle(&gone, Outcome::Acked);
    queue.give_back([first, gone, third].into_iter());
    let half = next();
    assert_eq!(frames(&half), Vec::from_iter(0..8));
    queue.give_back([half].into_iter());
    let quarter = next();
    assert_eq!(frames(&quarter), [0, 1, 2, 3]);
    queue.give_back([quarter].into_iter());
    let least = next();
    assert_eq!(frames(&least), [0, 1, 2, 3], "batches do not shrink further");
    queue.settle(&least, Outcome::Acked);
    assert_eq!(frames(&next()), Vec::from_iter(4..12), "an acknowledged batch doubles the next one");
    let rest = next();
    assert_eq!(frames(&rest), Vec::from_iter((12..16).chain(32..36)));
    assert_eq!(count(&queue.take_outcomes(), Outcome::Acked), 20);
}

#[test]
fn evicting_old_frames_keeps_the_order_of_the_rest() {
    let queue = queue(1 << 20);
    queue.push([1, 3, 2, 5, 1, 4].map(|frame| entry(1, frame)));
    queue.evict_up_to_frame(2);
    assert_eq!(count(&queue.take_outcomes(), Outcome::SpoolEvicted), 3);
    assert_eq!(queue.next_batch().unwrap().unwrap().entries[..], [3, 5, 4].map(|frame| entry(1, frame)));
    assert_eq!(queue.fill().bytes, 3 * 212);
}

/// While staging is full, a few frames are too old in each round.
#[test]
fn eviction_looks_at_nothing_behind_the_last_old_entry() {
    const ENTRIES: u64 = 1000;
    let queue = queue(1 << 20);
    // Neighbours have changed places, as happens with spans that end out of order.
    queue.push((0..ENTRIES).map(|number| entry(1, number ^ 1)));
    (0..ENTRIES).for_each(|frame| queue.evict_up_to_frame(frame));
    assert_eq!(count(&queue.take_outcomes(), Outcome::SpoolEvicted), ENTRIES as u32);
    let looks = queue.lock().waiting.looks;
    assert!(looks <= 2 * ENTRIES as usize, "{looks}");
}

/// Otherwise batches would be taken for full, and programs that have gone would be kept for ever.
#[test]
fn entries_that_left_in_any_way_are_no_longer_counted() {
    let queue = queue(40 * 212);
    let next = || queue.next_batch().unwrap().unwrap();
    queue.push((1..=12).map(|frame| entry(frame, frame)));
    queue.settle(&next(), Outcome::Acked);
    queue.evict_up_to_frame(11);
    queue.settle_single(&queue.next_single().unwrap(), Outcome::Rejected);
    queue.push([entry(13, 13)]);
    queue.give_back([next()].into_iter());
    queue.settle(&next(), Outcome::Acked);
    queue.push([Entry { lines: vec![b'x'; 40 * 212].into(), ..entry(14, 14) }]);
    assert_eq!(count(&queue.take_outcomes(), Outcome::QueueFull), 1);
    let state = queue.lock();
    assert_eq!((state.waiting.messages(), state.waiting.bytes(), state.bytes), (0, 0, 0));
    assert!(state.by_program.is_empty(), "{:?}", state.by_program);
}

#[test]
fn batches_that_lose_an_entry_are_resent_in_order() {
    let queue = queue(1 << 20);
    let batch_of = |frames: [u64; 2]| {
        queue.push(frames.map(|frame| entry(1, frame)));
        queue.next_batch().unwrap().unwrap()
    };
    let _under_way = [[1, 4], [2, 5], [1, 6]].map(batch_of);
    queue.push([entry(1, 7)]);
    queue.evict_up_to_frame(2);
    assert_eq!(queue.next_batch().unwrap().unwrap().entries[..], [4, 5, 6, 7].map(|frame| entry(1, frame)));
}

#[test]
fn an_entry_with_one_old_frame_is_evicted_whole() {
    let queue = queue(1 << 20);
    let refs = Refs::from(vec![(1, 2), (9, 3)]);
    queue.push([Entry { refs, ..entry(1, 0) }, entry(1, 9)]);
    assert_eq!(queue.fill().bytes, 2 * 212 + 16, "each further frame of an entry takes room");
    queue.evict_up_to_frame(1);
    let settled = queue.take_outcomes();
    let gone = [(1, 2), (9, 3)].map(|(frame, annotations)| Settled {
        frame,
        annotations,
        outcome: Outcome::SpoolEvicted,
    });
    assert_eq!(settled, gone);
    assert_eq!(queue.next_batch().unwrap().unwrap().entries[..], [entry(1, 9)]);
}

#[test]
fn equal_outcomes_of_neighbours_in_a_frame_are_merged() {
    let queue = queue(1 << 20);
    queue.evict([1, 1, 2].map(|frame| entry(1, frame)));
    queue.push([entry(1, 2)]);
    queue.settle(&queue.next_batch().unwrap().unwrap(), Outcome::Acked);
    let told: Vec<_> =
        queue.take_outcomes().iter().map(|one| (one.frame, one.annotations, one.outcome)).collect();
    let [evicted, acked] = [Outcome::SpoolEvicted, Outcome::Acked];
    assert_eq!(told, [(1, 2, evicted), (2, 1, evicted), (2, 1, acked)]);
    assert_eq!(queue.fill().bytes, 0, "entries that were never queued take no room");
}

#[test]
fn only_a_single_oversized_entry_may_exceed_batch_limits() {
    let queue = queue(1 << 20);
    let of = |messages, bytes| Entry { messages, lines: vec![b'x'; bytes].into(), ..entry(1, 1) };
    queue.push([of(4, 10), of(6, 10), of(1, 10), of(11, 10), of(1, 999), of(1, 1), of(1, 1001)]);
    let batches = std::iter::from_fn(|| match queue.next(Instant::now()) {
        Next::Batch(batch) => Some(batch.entries.len()),
        _ => None,
    });
    assert_eq!(batches.take(9).collect::<Vec<_>>(), [2, 1, 1, 2, 1]);
}

#[test]
fn acknowledging_a_single_does_not_grow_batches() {
    let limits =
        Limits { bytes: 1 << 30, batch_bytes: 16 << 10, batch_entries: 1000, linger: Duration::ZERO };
    let queue = Queue::new(limits).unwrap();
    queue.push((0..32).map(|frame| Entry { lines: vec![b'x'; 1 << 10].into(), ..entry(1, frame) }));
    let next = || queue.next_batch().unwrap().unwrap();
    queue.give_back([next()].into_iter());
    queue.settle_single(&queue.next_single().unwrap(), Outcome::Acked);
    assert_eq!(next().entries.len(), 8);
}

#[test]
fn a_batch_is_full_at_the_current_byte_limit() {
    let linger = Duration::from_secs(60);
    let limits = Limits { bytes: 1 << 30, batch_bytes: 16 << 10, batch_entries: 1000, linger };
    let queue = Queue::new(limits).unwrap();
    let kib = |kib: usize| Entry { lines: vec![b'x'; kib << 10].into(), ..entry(1, 1) };
    let next = || match queue.next(Instant::now()) {
        Next::Batch(batch) => Some(batch),
        _ => None,
    };
    queue.push([kib(15)]);
    assert!(next().is_none());
    queue.push([kib(1)]);
    queue.give_back([next().unwrap()].into_iter());
    assert_eq!(next().unwrap().entries.len(), 1);
    assert!(next().is_none());
    queue.push([kib(7)]);
    assert!(next().is_some(), "a returned batch halves what a full one holds");
}

#[test]
fn a_program_keeps_up_while_at_most_a_sixteenth_waits() {
    let queue = queue(32 * 212);
    queue.push([entry(1, 1), entry(1, 2)]);
    assert!(queue.keeps_up_with(1));
    queue.push([entry(1, 3)]);
    assert!(!queue.keeps_up_with(1) && queue.keeps_up_with(2));
}

#[test]
fn a_queue_is_through_once_it_has_ended_and_is_empty() {
    let queue = queue(1 << 20);
    assert!(queue.is_empty() && !queue.is_through());
    queue.push([entry(1, 1)]);
    queue.end();
    assert!(!queue.is_empty() && !queue.is_through());
    let batch = queue.next_batch().unwrap().unwrap();
    assert!(!queue.is_empty() && !queue.is_through());
    queue.settle(&batch, Outcome::Acked);
    assert!(queue.is_through());
}
