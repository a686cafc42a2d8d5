//! With real threads, small rings and holes, and with memory that no writer of ours leaves behind.

use super::*;
use proptest::prelude::*;

/// How many of `count` rounds an interpreter has the time for.
fn times(count: u64) -> u64 {
    if cfg!(miri) { count / 50 } else { count }
}

fn drain_all(memory: &Memory, at: &mut Position, no_writer_left: bool) -> (Vec<u64>, u64) {
    let mut raw = Vec::new();
    let drained = memory.reader().drain(at, u64::MAX, no_writer_left, &mut raw);
    memory.publish(*at);
    let spans = spans(&raw);
    assert_eq!(spans.len() as u64, drained.records);
    (spans, drained.torn)
}

#[test]
fn a_full_ring_counts_the_loss_and_goes_on_when_there_is_room() {
    let memory = Memory::new(4);
    let mut at = Position::default();
    let laps = times(1000);
    for lap in 0..laps {
        let results: Vec<_> = (0..6).map(|n| memory.ring().push(&draft(lap * 6 + n, None), || n)).collect();
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 4);
        assert_eq!(results[5], Err(Refused::Full));
        assert_eq!(drain_all(&memory, &mut at, false).0, (lap * 6..lap * 6 + 4).collect::<Vec<_>>());
    }
    assert_eq!(memory.count(slot::ATTEMPTED), 2 * laps);
    assert_eq!(memory.count(slot::FULL), 2 * laps);
    assert_eq!(at.records, 4 * laps);
}

#[test]
fn a_record_longer_than_the_ring_is_counted_as_too_large() {
    let memory = Memory::new(4);
    let long = draft(1, Some(&[b'x'; 300]));
    assert_eq!(memory.ring().push(&long, || 0), Err(Refused::TooLarge));
    assert_eq!(push_put_together(&memory, &long), Err(Refused::TooLarge));
    assert_eq!(memory.ring().try_push_tail(|| 0, || long.head_words(), &tail_of(&long)), None);
    assert_eq!((memory.count(slot::ATTEMPTED), memory.count(slot::TOO_LARGE)), (2, 2));
}

#[test]
fn a_hole_blocks_the_reader_and_is_torn_once_no_writer_lives() {
    let memory = Memory::new(16);
    let mut at = Position::default();
    memory.ring().push(&draft(1, None), || 0).unwrap();
    memory.leave_a_hole();
    memory.leave_a_hole();
    memory.ring().push(&draft(2, Some(b"value")), || 0).unwrap();
    memory.leave_a_hole();
    let mut raw = Vec::new();
    let drained = memory.reader().drain(&mut at, u64::MAX, false, &mut raw);
    assert!(drained.blocked_on_hole);
    assert_eq!((drained.records, spans(&raw)), (1, vec![1]));
    assert_eq!(drain_all(&memory, &mut at, true), (vec![2], 3));
    assert_eq!(at.records, 5, "every reservation is either read or torn");
}

#[test]
fn reserved_counts_holes_and_rejects_a_head_beyond_the_ring() {
    let memory = Memory::new(8);
    let mut at = Position::default();
    assert_eq!(memory.reader().reserved(at), Some(0));
    memory.ring().push(&draft(1, None), || 1).unwrap();
    memory.leave_a_hole();
    assert_eq!(memory.reader().reserved(at), Some(2));
    drain_all(&memory, &mut at, false);
    assert_eq!((at.grain, memory.reader().reserved(at)), (1, Some(2)));
    memory.ring().header.store(slot::HEAD, 1 << 20, Relaxed);
    assert_eq!(memory.reader().reserved(at), None);
}

#[test]
fn a_ring_that_fills_behind_a_hole_is_stalled() {
    let memory = Memory::new(4);
    memory.leave_a_hole();
    for span in 0..3 {
        memory.ring().push(&draft(span, None), || 0).unwrap();
    }
    assert_eq!(memory.ring().push(&draft(9, None), || 0), Err(Refused::Full));
    memory.control[control::WAITING_AT_HOLE].store(1, Relaxed);
    assert_eq!(memory.ring().push(&draft(9, None), || 0), Err(Refused::Stalled));
    assert_eq!((memory.count(slot::FULL), memory.count(slot::STALLED)), (1, 1));
}

#[test]
#[cfg_attr(miri, ignore = "too many steps for an interpreter: loom and the thread sanitizer see it")]
fn every_record_of_many_threads_is_read_once_or_counted() {
    for (threads, per_thread, grains) in [(4u64, 20_000u64, 64usize), (3, 20_000, 4096), (8, 3_000, 8)] {
        let memory = Memory::new(grains);
        let mut at = Position::default();
        let mut seen = Vec::new();
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..threads)
                .map(|thread| {
                    let memory = &memory;
                    scope.spawn(move || {
                        let long = [b'v'; 100];
                        (0..per_thread)
                            .filter(|n| {
                                let draft = draft(thread << 32 | n, (n % 3 == 0).then_some(&long[..]));
                                if n % 2 == 0 {
                                    push_put_together(memory, &draft).is_ok()
                                } else {
                                    memory.ring().push(&draft, || 0).is_ok()
                                }
                            })
                            .map(|n| thread << 32 | n)
                            .collect::<Vec<u64>>()
                    })
                })
                .collect();
            while writers.iter().any(|writer| !writer.is_finished()) {
                seen.extend(drain_all(&memory, &mut at, false).0);
            }
            let mut written: Vec<u64> =
                writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect();
            let (rest, torn) = drain_all(&memory, &mut at, true);
            assert_eq!(torn, 0);
            seen.extend(rest);
            let lost = memory.count(slot::FULL);
            assert_eq!(threads * per_thread, written.len() as u64 + lost);
            written.sort_unstable();
            seen.sort_unstable();
            assert_eq!(seen, written);
        });
    }
}

#[test]
fn an_overwriting_ring_keeps_the_newest_and_counts_the_rest() {
    let records = times(5000);
    for grains in [1usize, 2, 16, 1024] {
        let memory = Memory::with_mode(grains, RingMode::Overwrite);
        for span in 0..records {
            memory.ring().push(&draft(span, None), || span).unwrap();
            let kept = Head(memory.count(slot::HEAD)).records_since(Head(memory.count(slot::OLDEST)));
            assert_eq!(kept + memory.count(slot::OVERWRITTEN), span + 1);
            assert!(span < 2048 || kept as usize >= grains * 15 / 16);
        }
        let copy = memory.copy();
        let kept = spans(&copy.raw);
        assert_eq!(kept, (memory.count(slot::OVERWRITTEN)..records).collect::<Vec<_>>());
        assert_eq!((memory.count(slot::FULL), memory.count(slot::STALLED)), (0, 0));
    }
}

#[test]
fn a_hole_is_never_overwritten_and_stalls_the_ring() {
    let memory = Memory::with_mode(4, RingMode::Overwrite);
    for span in 0..3 {
        memory.ring().push(&draft(span, None), || 0).unwrap();
    }
    memory.leave_a_hole();
    for span in 4..7 {
        memory.ring().push(&draft(span, None), || 0).unwrap();
    }
    for _ in 0..3 {
        assert_eq!(memory.ring().push(&draft(9, None), || 0), Err(Refused::Stalled));
    }
    assert_eq!((memory.count(slot::OVERWRITTEN), memory.count(slot::STALLED)), (3, 3));
}

/// What a copy says: the number of records before it, and its own records. Only holes may be missing among these, or all of
/// them if the writers were faster than the copy.
fn check_copy(copy: &RingCopy, threads: usize) -> (u64, Vec<u64>) {
    let (from, to) = (Head(copy.from), Head(copy.to));
    let mut raw = Vec::new();
    let mut at = 0;
    let mut seen = Vec::new();
    while at < copy.raw.len() {
        let word = |index: usize| u64::from_le_bytes(copy.raw[at + index * 8..][..8].try_into().unwrap());
        let position = (from.position() + at as u64 / 64) & blkin_record::POSITION_MASK;
        let stamp = blkin_record::Stamp(word(0));
        match stamp.head_length_at(position, COOKIE) {
            Some(grains) => {
                raw.extend_from_slice(&copy.raw[at..at + grains * 64]);
                seen.push(word(7) & blkin_record::ORDINAL_MASK);
                at += grains * 64;
            }
            None => at += 64,
        }
    }
    assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
    assert!(seen.iter().all(|ordinal| (from.records()..to.records()).contains(ordinal)));
    let holes = to.records_since(from) as usize - seen.len();
    assert!(copy.raw.is_empty() || holes <= threads, "{holes} holes");
    (from.records(), spans(&raw))
}

#[test]
#[cfg_attr(miri, ignore = "too many steps for an interpreter: loom and the thread sanitizer see it")]
fn overwritten_and_readable_add_up_under_concurrent_copies() {
    for (threads, per_thread, grains) in
        [(1u64, 60_000u64, 64usize), (4, 20_000, 256), (3, 30_000, 4096), (8, 5000, 16)]
    {
        let memory = Memory::with_mode(grains, RingMode::Overwrite);
        let mut copies = 0;
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..threads)
                .map(|thread| {
                    let memory = &memory;
                    scope.spawn(move || {
                        let long = [b'v'; 100];
                        for n in 0..per_thread {
                            let draft = draft(thread << 32 | n, (n % 3 == 0).then_some(&long[..]));
                            let _ = if n % 2 == 0 {
                                push_put_together(memory, &draft)
                            } else {
                                memory.ring().push(&draft, || 0)
                            };
                        }
                    })
                })
                .collect();
            let mut before = 0;
            while writers.iter().any(|writer| !writer.is_finished()) {
                let copy = memory.copy();
                let (overwritten, seen) = check_copy(&copy, threads as usize);
                // A copy that the writers have overtaken again and again does not tell where the oldest record is.
                if !copy.raw.is_empty() {
                    assert!(overwritten >= before, "{overwritten} overwritten, {before} before");
                    before = overwritten;
                }
                for thread in 0..threads {
                    assert!(seen.iter().filter(|span| *span >> 32 == thread).is_sorted_by(|a, b| a < b));
                }
                copies += 1;
            }
        });
        let (overwritten, seen) = check_copy(&memory.copy(), 0);
        let stalled = memory.count(slot::STALLED);
        assert_eq!(overwritten, memory.count(slot::OVERWRITTEN));
        assert_eq!(overwritten + seen.len() as u64 + stalled, threads * per_thread, "{copies} copies");
        assert_eq!(memory.count(slot::ATTEMPTED), stalled);
    }
}

#[test]
#[cfg_attr(miri, ignore = "too many steps for an interpreter: a copy has pieces of 256 grains")]
fn a_copy_mostly_overwritten_meanwhile_is_made_again() {
    const GRAINS: u64 = 2048;
    let memory = Memory::with_mode(GRAINS as usize, RingMode::Overwrite);
    let ring = memory.ring();
    let push =
        |records: u64| (0..records).for_each(|span| assert!(ring.push(&draft(span, None), || 0).is_ok()));
    push(GRAINS);
    // After the first piece was copied, writers go on for most of a lap.
    let looks = std::cell::Cell::new(0);
    let first = || {
        looks.set(looks.get() + 1);
        push(if looks.get() == 3 { GRAINS * 15 / 16 } else { 0 });
        Head(memory.count(slot::OLDEST))
    };
    let copy = LiveRing { header: ring.header, grains: ring.grains, shape: ring.shape, first }.copy();
    assert_eq!((copy.from, copy.to), (memory.count(slot::OLDEST), memory.count(slot::HEAD)));
    let (overwritten, seen) = check_copy(&copy, 0);
    assert_eq!(overwritten + seen.len() as u64, GRAINS + GRAINS * 15 / 16);
}

#[test]
#[cfg_attr(miri, ignore = "too many steps for an interpreter: a copy has pieces of 256 grains")]
fn a_copy_stays_within_bounds_if_the_oldest_place_moves_back() {
    let memory = Memory::with_mode(2048, RingMode::Overwrite);
    let ring = memory.ring();
    (0..2048).for_each(|span| assert!(ring.push(&draft(span, None), || 0).is_ok()));
    for places in [[0, 0, 1500, 0], [0, 0, 700, 300], [0, 0, u64::MAX, 5]] {
        let mut place = places.iter().cycle();
        let place = std::cell::RefCell::new(&mut place);
        let first = || Head(*place.borrow_mut().next().unwrap());
        let copy = LiveRing { header: ring.header, grains: ring.grains, shape: ring.shape, first }.copy();
        assert!(copy.raw.len() <= 2048 * 64);
    }
}

proptest! {
    #[test]
    fn a_hostile_overwriting_ring_is_copied_within_bounds(
            raw in proptest::collection::vec(any::<u64>(), 8 * GRAIN_WORDS), head: u64, oldest: u64) {
        let memory = Memory::with_mode(8, RingMode::Overwrite);
        for (word, value) in memory.grains.iter().zip(raw) {
            word.store(value, Relaxed);
        }
        memory.header[slot::HEAD].store(head, Relaxed);
        for oldest in [oldest, head.wrapping_sub(oldest % 9)] {
            memory.header[slot::OLDEST].store(oldest, Relaxed);
            let copy = memory.copy();
            prop_assert!(copy.raw.len() <= 8 * 64);
            let _ = memory.ring().push(&draft(1, None), || 0);
        }
    }

    #[test]
    fn a_hostile_ring_is_read_without_a_panic_and_within_bounds(
            raw in proptest::collection::vec(any::<u64>(), 8 * GRAIN_WORDS), head: u64, grain in 0u64..1 << 40,
            plausible in proptest::collection::vec((0usize..8, 1usize..12), 0..8), last: bool) {
        let memory = Memory::new(8);
        for (word, value) in memory.grains.iter().zip(raw) {
            word.store(value, Relaxed);
        }
        for (index, length) in plausible {
            let position = grain + (index as u64).wrapping_sub(grain) % 8;
            let stamp = blkin_record::Stamp::head(position, length, COOKIE);
            memory.grains[index * GRAIN_WORDS].store(stamp.0, Relaxed);
        }
        let near = if head % 2 == 0 { (grain + head % 9) & blkin_record::POSITION_MASK } else { head };
        memory.header[slot::HEAD].store(near, Relaxed);
        let mut at = Position { grain, records: 3 };
        let mut out = Vec::new();
        let drained = memory.reader().drain(&mut at, 100, last, &mut out);
        prop_assert!(out.len() <= 8 * 64);
        prop_assert!(at.grain - grain <= 8);
        prop_assert!(drained.torn <= 16);
        prop_assert_eq!(records(&out, COOKIE).count() as u64, drained.records);
    }
}

#[test]
fn a_ring_is_filling_from_three_eighths_on_unless_it_overwrites() {
    let push_all = |memory: &Memory| {
        let pushed =
            (0..16).map(|n| memory.ring().push(&draft(n, None), || n).map(|_| memory.ring().is_filling()));
        pushed.collect::<Result<Vec<_>, _>>().unwrap()
    };
    let memory = Memory::new(16);
    assert_eq!(push_all(&memory).iter().position(|is_filling| *is_filling), Some(5));
    drain_all(&memory, &mut Position::default(), false);
    assert!(!memory.ring().is_filling());
    let recorder = Memory::with_mode(16, RingMode::Overwrite);
    assert!(!push_all(&recorder).contains(&true));
}
