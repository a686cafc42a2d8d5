//! The protocols on ordinary memory: threads, small rings, holes; and under loom (`--cfg loom`), the same code in
//! every order that the memory model allows.

#[cfg(loom)]
mod every_order;
#[cfg(not(loom))]
mod threads;

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use blkin_record::{Draft, GRAIN_WORDS, Payload, Record, Source, TAIL_WORDS, records};

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

/// loom's atomics behind the same interface.
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
    #[cfg(not(loom))]
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
        name: Source::known(1),
        endpoint: Source::known(2),
        key: Source::known(3),
        payload: value.map_or(Payload::Event, Payload::Str),
        level: 4,
        truncated: false,
    }
}

/// Pushes a record that was put together beforehand, as programs do.
fn push_put_together(memory: &Memory, draft: &Draft<'_>) -> Result<bool, Refused> {
    let tail = tail_of(draft);
    memory.ring().push_tail(&draft.head_words(), &tail, || 0)
}

/// The contents of each continuation grain after its stamp.
fn tail_of(draft: &Draft<'_>) -> Vec<[u64; TAIL_WORDS]> {
    let mut words = vec![0; draft.grains() * GRAIN_WORDS];
    draft.write(0, 0, COOKIE, 0, |index, word| words[index] = word);
    let grains = words.as_chunks::<GRAIN_WORDS>().0;
    grains[1..].iter().map(|[_, tail @ ..]| *tail).collect()
}

fn spans(raw: &[u8]) -> Vec<u64> {
    let whole =
        |record: &Record<'_>| record.trace_id == 1 && record.parent_span_id == record.span_id ^ 0xffff;
    let read: Vec<Record<'_>> = records(raw, COOKIE).map(|item| item.expect("a valid record")).collect();
    assert!(read.iter().all(whole), "half a record was read: {read:?}");
    read.iter().map(|record| record.span_id).collect()
}
