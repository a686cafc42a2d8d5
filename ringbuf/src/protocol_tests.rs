//! The protocols on ordinary memory: threads, small rings, holes; and under loom (`--cfg loom`), the same code in
//! every order that the memory model allows.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use blkin_record::{Draft, GRAIN_WORDS, Payload, Record, Source, records};

use crate::drain::{Position, RingReader};
use crate::layout::{RingMode, SLOT_HEADER_WORDS, control, slot};
use crate::recorder::{LiveRing, RingCopy};
use crate::ring::{Head, Refused, Ring, RingShape};
use crate::words::Words;

#[cfg(not(loom))]
use std::sync::{Arc, atomic::AtomicU64};
#[cfg(not(loom))]
type Shared = Vec<AtomicU64>;
#[cfg(loom)]
use loom::sync::{Arc, atomic::AtomicU64};
#[cfg(loom)]
type Shared = LoomWords;

/// loom's atomics behind the same door.
#[cfg(loom)]
struct LoomWords(Vec<AtomicU64>);

#[cfg(loom)]
mod loom_words {
    use super::LoomWords;
    use crate::words::Words;
    use std::sync::atomic::Ordering;

    impl Words for LoomWords {
        fn load(&self, index: usize, order: Ordering) -> u64 {
            self.0[index].load(order)
        }
        fn store(&self, index: usize, value: u64, order: Ordering) {
            self.0[index].store(value, order);
        }
        fn fetch_add(&self, index: usize, value: u64, order: Ordering) -> u64 {
            self.0[index].fetch_add(value, order)
        }
        fn swap_if(&self, index: usize, current: u64, new: u64, success: Ordering) -> Result<u64, u64> {
            self.0[index].compare_exchange(current, new, success, Ordering::Relaxed)
        }
        fn fence(&self, order: Ordering) {
            loom::sync::atomic::fence(order);
        }
    }
}

const COOKIE: u32 = 9;

struct Memory {
    header: Shared,
    grains: Shared,
    control: Shared,
    shape: RingShape,
    mode: RingMode,
}

impl Memory {
    fn new(grains: usize) -> Arc<Memory> {
        Memory::with_mode(grains, RingMode::Discard)
    }

    fn with_mode(grains: usize, mode: RingMode) -> Arc<Memory> {
        let words = |count: usize| {
            let words = (0..count).map(|_| AtomicU64::new(0)).collect();
            #[cfg(loom)]
            let words = LoomWords(words);
            words
        };
        Arc::new(Memory {
            header: words(SLOT_HEADER_WORDS),
            grains: words(grains * GRAIN_WORDS),
            control: words(control::SLOT_LINE_WORDS),
            shape: RingShape::new(grains * 64, COOKIE),
            mode,
        })
    }

    #[cfg(not(loom))]
    fn ring(&self) -> Ring<'_, [AtomicU64]> {
        Ring {
            header: &self.header[..],
            grains: &self.grains[..],
            control: &self.control[..],
            shape: self.shape,
            mode: self.mode,
        }
    }

    #[cfg(loom)]
    fn ring(&self) -> Ring<'_, LoomWords> {
        Ring {
            header: &self.header,
            grains: &self.grains,
            control: &self.control,
            shape: self.shape,
            mode: self.mode,
        }
    }

    fn reader(&self) -> RingReader<'_, impl Words + ?Sized> {
        let ring = self.ring();
        RingReader { header: ring.header, grains: ring.grains, shape: ring.shape }
    }

    fn copy(&self) -> RingCopy {
        let ring = self.ring();
        let first = || Head(ring.header.load(slot::OLDEST, Acquire));
        LiveRing { header: ring.header, grains: ring.grains, shape: ring.shape, first }.copy()
    }

    fn publish(&self, at: Position) {
        self.ring().control.store(control::TAIL, at.grain, Release);
    }

    fn count(&self, index: usize) -> u64 {
        self.ring().header.load(index, Relaxed)
    }

    /// Moves head over one grain and never commits it, as a writer that was killed does.
    fn leave_a_hole(&self) {
        let header = self.ring().header;
        let head = Head(header.load(slot::HEAD, Relaxed));
        header.store(slot::HEAD, (head.records() + 1) << 36 | (head.position() + 1), Relaxed);
    }
}

fn draft(span: u64, value: Option<&[u8]>) -> Draft<'_> {
    Draft {
        trace_id: 1,
        span_id: span,
        parent_span_id: span ^ 0xffff,
        name: Source::Id(1),
        endpoint: Source::Id(2),
        key: Source::Id(3),
        payload: value.map_or(Payload::Event, Payload::Str),
        level: 4,
        truncated: false,
    }
}

fn spans(raw: &[u8]) -> Vec<u64> {
    let whole =
        |record: &Record<'_>| record.trace_id == 1 && record.parent_span_id == record.span_id ^ 0xffff;
    let read: Vec<Record<'_>> = records(raw, COOKIE).map(|item| item.expect("a true record")).collect();
    assert!(read.iter().all(whole), "half a record was read: {read:?}");
    read.iter().map(|record| record.span_id).collect()
}

#[cfg(not(loom))]
mod threads {
    use super::*;
    use proptest::prelude::*;

    /// Of that many, what an interpreter has the time for.
    fn times(count: u64) -> u64 {
        if cfg!(miri) { count / 200 } else { count }
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
            let results: Vec<_> =
                (0..6).map(|n| memory.ring().push(&draft(lap * 6 + n, None), || n)).collect();
            assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 4);
            assert_eq!(results[5], Err(Refused::Full));
            assert_eq!(drain_all(&memory, &mut at, false).0, (lap * 6..lap * 6 + 4).collect::<Vec<_>>());
        }
        assert_eq!(memory.count(slot::ATTEMPTED), 6 * laps);
        assert_eq!(memory.count(slot::FULL), 2 * laps);
        assert_eq!(at.records, 4 * laps);
    }

    #[test]
    fn a_record_longer_than_the_ring_is_counted_as_too_large() {
        let memory = Memory::new(4);
        assert_eq!(memory.ring().push(&draft(1, Some(&[b'x'; 300])), || 0), Err(Refused::TooLarge));
        assert_eq!(memory.count(slot::TOO_LARGE), 1);
    }

    #[test]
    fn the_reader_waits_at_a_hole_while_a_writer_may_live_and_counts_it_torn_after() {
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
    fn every_record_of_many_threads_is_read_once_or_counted() {
        for (threads, per_thread, grains) in [(4u64, 20_000u64, 64usize), (3, 20_000, 4096), (8, 3_000, 8)] {
            let per_thread = times(per_thread);
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
                                    let value = (n % 3 == 0).then_some(&long[..]);
                                    memory.ring().push(&draft(thread << 32 | n, value), || 0).is_ok()
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
    fn an_overwriting_ring_keeps_the_last_records_and_counts_the_others() {
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

    /// What a copy says: records before it, and its own, of which holes are the only ones that may lack; all of them if
    /// the writers were faster than the copy.
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
    fn overwritten_and_readable_are_all_also_while_threads_write_and_copies_are_taken() {
        for (threads, per_thread, grains) in
            [(1u64, 60_000u64, 64usize), (4, 20_000, 256), (3, 30_000, 4096), (8, 5000, 16)]
        {
            let per_thread = times(per_thread);
            let memory = Memory::with_mode(grains, RingMode::Overwrite);
            let mut copies = 0;
            std::thread::scope(|scope| {
                let writers: Vec<_> = (0..threads)
                    .map(|thread| {
                        let memory = &memory;
                        scope.spawn(move || {
                            let long = [b'v'; 100];
                            for n in 0..per_thread {
                                let value = (n % 3 == 0).then_some(&long[..]);
                                let _ = memory.ring().push(&draft(thread << 32 | n, value), || 0);
                            }
                        })
                    })
                    .collect();
                let mut before = 0;
                while writers.iter().any(|writer| !writer.is_finished()) {
                    let copy = memory.copy();
                    let (overwritten, seen) = check_copy(&copy, threads as usize);
                    // One that the writers have overtaken again and again does not tell where the oldest is.
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
            assert_eq!(memory.count(slot::ATTEMPTED), threads * per_thread);
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
}

/// `RUSTFLAGS="--cfg loom" cargo test -p blkin-ringbuf --release --lib`
#[cfg(loom)]
mod every_order {
    use super::*;
    use crate::names::{Names, Texts};
    use loom::thread;

    fn explore(body: impl Fn() + Sync + Send + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.max_branches = 100_000;
        model.check(body);
    }

    fn drain(memory: &Memory, at: &mut Position, no_writer_left: bool) -> Vec<u64> {
        let mut raw = Vec::new();
        memory.reader().drain(at, u64::MAX, no_writer_left, &mut raw);
        memory.publish(*at);
        spans(&raw)
    }

    #[test]
    fn two_writers_and_a_reader_lose_nothing_uncounted() {
        explore(|| {
            let memory = Memory::new(2);
            let writers: Vec<_> = [1u64, 2]
                .map(|span| {
                    let memory = memory.clone();
                    thread::spawn(move || memory.ring().push(&draft(span, None), || 0).is_ok())
                })
                .into();
            let mut at = Position::default();
            let mut seen = drain(&memory, &mut at, false);
            let written = writers
                .into_iter()
                .filter(|_| true)
                .map(|writer| writer.join().unwrap())
                .filter(|ok| *ok)
                .count();
            seen.extend(drain(&memory, &mut at, true));
            seen.sort_unstable();
            assert_eq!(seen, [1, 2]);
            assert_eq!(written, 2);
        });
    }

    #[test]
    fn space_is_written_again_only_after_it_was_read() {
        explore(|| {
            let memory = Memory::new(1);
            let writer = {
                let memory = memory.clone();
                thread::spawn(move || {
                    (1..=3u64).filter(|span| memory.ring().push(&draft(*span, None), || 0).is_ok()).count()
                })
            };
            let mut at = Position::default();
            let mut seen = Vec::new();
            for _ in 0..2 {
                seen.extend(drain(&memory, &mut at, false));
            }
            let written = writer.join().unwrap() as u64;
            seen.extend(drain(&memory, &mut at, true));
            assert_eq!(seen.len() as u64, written);
            assert_eq!(memory.count(slot::ATTEMPTED), written + memory.count(slot::FULL));
        });
    }

    #[test]
    fn a_record_of_two_grains_is_read_whole_or_not_at_all() {
        explore(|| {
            let memory = Memory::new(2);
            let writer = {
                let memory = memory.clone();
                thread::spawn(move || memory.ring().push(&draft(5, Some(b"value")), || 0).is_ok())
            };
            let mut at = Position::default();
            let mut seen = drain(&memory, &mut at, false);
            assert!(writer.join().unwrap());
            seen.extend(drain(&memory, &mut at, true));
            assert_eq!(seen, [5]);
        });
    }

    #[test]
    fn a_copy_of_an_overwriting_ring_holds_no_half_of_a_record() {
        explore(|| {
            let memory = Memory::with_mode(1, RingMode::Overwrite);
            memory.ring().push(&draft(1, None), || 0).unwrap();
            let writer = {
                let memory = memory.clone();
                thread::spawn(move || memory.ring().push(&draft(2, None), || 0).unwrap())
            };
            let copy = memory.copy();
            let (from, to) = (Head(copy.from), Head(copy.to));
            let stamp = copy.raw.first_chunk::<8>().map(|word| u64::from_le_bytes(*word));
            let is_there = stamp == Some(blkin_record::Stamp::head(from.position(), 1, COOKIE).0);
            let seen = if is_there { spans(&copy.raw) } else { Vec::new() };
            match from.records() {
                0 => assert_eq!((seen, to.records()), (vec![1], 1)),
                _ => assert!(seen.is_empty() || seen == [2], "{seen:?}"),
            }
            writer.join().unwrap();
            assert_eq!(spans(&memory.copy().raw), [2]);
            assert_eq!(memory.count(slot::OVERWRITTEN), 1);
        });
    }

    #[test]
    fn two_writers_overwrite_each_record_once_or_stall() {
        explore(|| {
            let memory = Memory::with_mode(1, RingMode::Overwrite);
            memory.ring().push(&draft(1, None), || 0).unwrap();
            let other = {
                let memory = memory.clone();
                thread::spawn(move || memory.ring().push(&draft(2, None), || 0).is_ok())
            };
            let own = memory.ring().push(&draft(3, None), || 0).is_ok();
            let written = 1 + u64::from(own) + u64::from(other.join().unwrap());
            let copy = memory.copy();
            assert_eq!(spans(&copy.raw).len(), 1);
            assert_eq!(memory.count(slot::OVERWRITTEN), written - 1);
            assert_eq!(written + memory.count(slot::STALLED), 3);
        });
    }

    #[test]
    fn two_writers_of_a_name_agree_and_a_reader_sees_it_whole() {
        explore(|| {
            let words = |count: usize| Arc::new(LoomWords((0..count).map(|_| AtomicU64::new(0)).collect()));
            let (index, text) = (words(2), words(8));
            let intern = |index: Arc<LoomWords>, text: Arc<LoomWords>| {
                let names = Names { index: &*index, index_words: 2, text: &*text, text_words: 8 };
                let id = names.intern(&[b"name"], |_| {});
                let texts = Texts { text: &*text, text_words: 8 };
                assert_eq!(texts.text(id.expect("there is room")).as_deref(), Some(&b"name"[..]));
                id
            };
            let other = {
                let (index, text) = (index.clone(), text.clone());
                thread::spawn(move || intern(index, text))
            };
            let own = intern(index, text);
            assert_eq!(own, other.join().unwrap());
        });
    }
}
