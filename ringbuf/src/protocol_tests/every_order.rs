//! Under loom: `RUSTFLAGS="--cfg loom" cargo test -p blkin-ringbuf --release --lib`.

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

/// Tries once, as programs do with records of one grain, and then pushes for as long as it takes.
fn try_or_push(memory: &Memory, span: u64) -> bool {
    let draft = draft(span, None);
    memory.ring().try_push_grain(|| 0, || draft.head_words()).is_some()
        || memory.ring().push(&draft, || 0).is_ok()
}

#[test]
fn two_writers_that_try_first_and_a_reader_lose_no_record() {
    explore(|| {
        let memory = Memory::new(2);
        let writers = [1u64, 2].map(|span| {
            let memory = memory.clone();
            thread::spawn(move || try_or_push(&memory, span))
        });
        let mut at = Position::default();
        let mut seen = drain(&memory, &mut at, false);
        assert!(writers.into_iter().all(|writer| writer.join().unwrap()));
        seen.extend(drain(&memory, &mut at, true));
        seen.sort_unstable();
        assert_eq!(seen, [1, 2]);
        assert_eq!(memory.count(slot::ATTEMPTED), 0);
    });
}

#[test]
fn two_writers_and_a_reader_lose_no_record() {
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
        let written = writers.into_iter().map(|writer| writer.join().unwrap()).filter(|ok| *ok).count();
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
        assert_eq!(memory.count(slot::ATTEMPTED), 3 - written);
        assert_eq!(memory.count(slot::FULL), 3 - written);
    });
}

#[test]
fn a_record_of_two_grains_is_read_whole_or_not_at_all() {
    type Push = fn(&Memory, &Draft<'_>) -> bool;
    let text_by_text: Push = |memory, draft| memory.ring().push(draft, || 0).is_ok();
    let put_together: Push = |memory, draft| push_put_together(memory, draft).is_ok();
    let in_one_try: Push =
        |memory, draft| memory.ring().try_push_tail(|| 0, || draft.head_words(), &tail_of(draft)).is_some();
    for push in [text_by_text, put_together, in_one_try] {
        explore(move || {
            let memory = Memory::new(2);
            let writer = {
                let memory = memory.clone();
                thread::spawn(move || push(&memory, &draft(5, Some(b"value"))))
            };
            let mut at = Position::default();
            let mut seen = drain(&memory, &mut at, false);
            assert!(writer.join().unwrap());
            seen.extend(drain(&memory, &mut at, true));
            assert_eq!(seen, [5]);
        });
    }
}

#[test]
fn a_copy_of_an_overwriting_ring_holds_no_partial_record() {
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
fn two_threads_interning_a_name_get_one_id_and_read_it_whole() {
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
