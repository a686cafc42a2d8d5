//! The staging log compared with a model, with the writer killed after every write and in the middle of long ones.

#![allow(clippy::unwrap_used)]

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use blkin_consumerd::staging::log::Place;
use blkin_consumerd::staging::{Checkpoint, Frame, Geometry, Memory, ProgramState, Staging, StagingError};
use proptest::prelude::*;

const GEOMETRY: Geometry = Geometry { log_bytes: 8192, checkpoint_bytes: 4096, numbers_bytes: 4096 };

#[derive(Clone, Debug)]
enum Write {
    Bytes(u64, Vec<u8>),
    Forget(u64, u64),
}

/// Memory that remembers every write, so that any prefix of them can be replayed.
#[derive(Clone, Debug)]
struct Recorder {
    bytes: Rc<RefCell<Vec<u8>>>,
    writes: Rc<RefCell<Vec<Write>>>,
}

impl Recorder {
    fn new() -> Self {
        let total = usize::try_from(GEOMETRY.total_bytes()).unwrap();
        Self { bytes: Rc::new(RefCell::new(vec![0; total])), writes: Rc::default() }
    }

    /// The memory after the first `count` writes and `extra` bytes of the next.
    fn cut(&self, count: usize, extra: usize) -> Self {
        let copy = Self::new();
        let writes = self.writes.borrow();
        for write in &writes[..count] {
            copy.apply(write);
        }
        if let Some(Write::Bytes(at, bytes)) = writes.get(count)
            && bytes.len() > 8
        {
            copy.apply(&Write::Bytes(*at, bytes[..extra.min(bytes.len())].to_vec()));
        }
        copy
    }

    fn apply(&self, write: &Write) {
        let mut memory = self.bytes.borrow_mut();
        match write {
            Write::Bytes(at, bytes) => memory[*at as usize..][..bytes.len()].copy_from_slice(bytes),
            Write::Forget(at, length) => memory[*at as usize..][..*length as usize].fill(0),
        }
    }
}

impl Memory for Recorder {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let write = Write::Bytes(offset, bytes.to_vec());
        self.apply(&write);
        self.writes.borrow_mut().push(write);
        Ok(())
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        bytes.copy_from_slice(&self.bytes.borrow()[offset as usize..][..bytes.len()]);
        Ok(())
    }

    fn forget(&mut self, offset: u64, length: u64) -> io::Result<()> {
        let write = Write::Forget(offset, length);
        self.apply(&write);
        self.writes.borrow_mut().push(write);
        Ok(())
    }
}

#[derive(Clone, Debug)]
enum Step {
    Append(u8, usize),
    Commit,
    Retire(usize),
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (any::<u8>(), 0_usize..20).prop_map(|(fill, grains)| Step::Append(fill, grains)),
        3 => Just(Step::Commit),
        2 => (0_usize..4).prop_map(Step::Retire),
        1 => Just(Step::Reopen),
    ];
    proptest::collection::vec(step, 1..40)
}

/// What a new worker has to find: the number of retired records, and the frames behind them.
#[derive(Clone, Debug, Default, PartialEq)]
struct Truth {
    retired_records: u64,
    frames: Vec<Frame>,
}

fn found(memory: Recorder) -> Truth {
    let (mut staging, recovered) = Staging::open(memory).expect("a cut log still opens");
    let retired_records = recovered.checkpoint.programs.first().map_or(0, |p| p.drained);
    let mut frames = Vec::new();
    let mut position = recovered.tail;
    while let Some((frame, next)) = staging.read_next(position).expect("every committed frame is whole") {
        frames.push(frame);
        position = next;
    }
    Truth { retired_records, frames }
}

/// One worker after another on the same memory, together with the model.
struct Run {
    memory: Recorder,
    staging: Staging<Recorder>,
    /// Committed frames with the log position of their end.
    committed: Vec<(Frame, u64)>,
    appended: Vec<(Frame, u64)>,
    retired_records: u64,
    /// For each number of writes, the truths that may be found after them.
    allowed: Vec<Vec<Truth>>,
}

impl Run {
    fn new() -> Self {
        let mut memory = Recorder::new();
        Staging::format(&mut memory, GEOMETRY).unwrap();
        memory.writes.borrow_mut().clear();
        let base = memory.bytes.borrow().clone();
        let recorder = Recorder { bytes: Rc::new(RefCell::new(base)), writes: Rc::default() };
        let (staging, _) = Staging::open(recorder.clone()).unwrap();
        let mut run = Self {
            memory: recorder,
            staging,
            committed: Vec::new(),
            appended: Vec::new(),
            retired_records: 0,
            allowed: Vec::new(),
        };
        run.note(run.truth());
        run
    }

    fn truth(&self) -> Truth {
        let frames = self.committed.iter().map(|(frame, _)| frame.clone()).collect();
        Truth { retired_records: self.retired_records, frames }
    }

    /// After each new write a worker may find `before` or the present truth; after the last one, only the present truth.
    fn note(&mut self, before: Truth) {
        let now = self.truth();
        let writes = self.memory.writes.borrow().len();
        while self.allowed.len() < writes {
            self.allowed.push(vec![before.clone(), now.clone()]);
        }
        self.allowed.truncate(writes);
        self.allowed.push(vec![now]);
    }

    fn step(&mut self, step: &Step) {
        let before = self.truth();
        match step {
            Step::Append(fill, grains) => self.append(*fill, *grains),
            Step::Commit => {
                self.staging.commit().unwrap();
                self.committed.append(&mut self.appended);
            }
            Step::Retire(count) => self.retire(*count),
            Step::Reopen => self.reopen(),
        }
        self.note(before);
    }

    fn append(&mut self, fill: u8, grains: usize) {
        let place = |n: u64| Place { grain: n, records: n };
        let mut frame = Frame {
            number: 0,
            program: u64::from(fill),
            slot: 3,
            records: grains as u32,
            from: place(7),
            to: place(7 + grains as u64),
            torn: 1,
            raw: vec![fill; grains * 64],
        };
        match self.staging.append(&frame) {
            Ok((number, end)) => {
                frame.number = number;
                self.appended.push((frame, end));
            }
            Err(StagingError::Full) => assert!(self.staging.used_bytes() + 3000 > GEOMETRY.log_bytes),
            Err(e) => panic!("{e}"),
        }
    }

    fn retire(&mut self, count: usize) {
        let count = count.min(self.committed.len());
        if count == 0 {
            return;
        }
        let gone: Vec<_> = self.committed.drain(..count).collect();
        self.retired_records += gone.iter().map(|(frame, _)| u64::from(frame.records)).sum::<u64>();
        let (last, end) = gone.last().unwrap();
        let program = ProgramState { drained: self.retired_records, ..ProgramState::default() };
        let checkpoint =
            Checkpoint { next_frame: last.number + 1, programs: vec![program], ..Checkpoint::default() };
        self.staging.retire(&checkpoint, *end).unwrap();
    }

    fn reopen(&mut self) {
        self.appended.clear();
        let (mut staging, recovered) = Staging::open(self.memory.clone()).unwrap();
        let mut position = recovered.tail;
        while let Some((_, next)) = staging.read_next(position).unwrap() {
            position = next;
        }
        self.staging = staging;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn a_cut_at_any_write_leaves_exactly_the_committed_frames(steps in steps(), extra in 0_usize..2000) {
        let mut run = Run::new();
        for step in &steps {
            run.step(step);
        }
        let mut formatted = Recorder::new();
        Staging::format(&mut formatted, GEOMETRY).unwrap();
        let format_writes = formatted.writes.borrow().clone();
        let all: Vec<Write> = format_writes.iter().chain(run.memory.writes.borrow().iter()).cloned().collect();
        let history = Recorder { bytes: Rc::default(), writes: Rc::new(RefCell::new(all)) };
        for (writes, allowed) in run.allowed.iter().enumerate() {
            let seen = found(history.cut(format_writes.len() + writes, 0));
            prop_assert!(allowed.contains(&seen), "after {writes} writes: {seen:?}");
            let torn = found(history.cut(format_writes.len() + writes, extra));
            prop_assert!(allowed.contains(&torn), "in the middle of write {writes}: {torn:?}");
        }
    }

    #[test]
    fn a_checkpoint_reads_back_as_it_was_written(next_frame: u64, split: u64, programs in 0_usize..5, name in "[a-z]{0,9}") {
        let sink = blkin_consumerd::staging::SinkState { name, acked: 1, queue_full: 2, spool_evicted: 3, rejected: 4, no_sink: 5 };
        let slots = vec![blkin_consumerd::staging::SlotState { slot: 9, grain: 8, records: 7 }];
        let program = ProgramState { program: 5, folded: true, valid: 3, slots, ..ProgramState::default() };
        let checkpoint = Checkpoint {
            next_frame, spans_split: split, sinks: vec![sink], programs: vec![program; programs], ..Checkpoint::default()
        };
        let bytes = checkpoint.encode();
        prop_assert_eq!(Checkpoint::decode(&bytes), Some(checkpoint));
        for cut in 0..bytes.len() {
            prop_assert_eq!(Checkpoint::decode(&bytes[..cut]), None);
        }
    }

    #[test]
    fn reading_foreign_bytes_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let memory = Recorder::new();
        Staging::format(&mut memory.clone(), GEOMETRY).unwrap();
        let at = 64;
        memory.bytes.borrow_mut()[at..at + bytes.len()].copy_from_slice(&bytes);
        if let Ok((staging, recovered)) = Staging::open(memory) {
            let _ = staging.read_frame(recovered.tail);
        }
        let _ = Checkpoint::decode(&bytes);
    }
}

#[test]
fn the_staging_layout_matches_its_documentation() {
    let mut memory = Recorder::new();
    Staging::format(&mut memory, GEOMETRY).unwrap();
    let (mut staging, _) = Staging::open(memory.clone()).unwrap();
    let place = Place { grain: 0x11, records: 0x12 };
    let to = Place { grain: 0x13, records: 0x14 };
    let frame =
        Frame { number: 0, program: 2, slot: 3, records: 4, from: place, to, torn: 5, raw: vec![0xab; 64] };
    staging.append(&frame).unwrap();
    staging.commit().unwrap();
    let bytes = memory.bytes.borrow();
    assert_eq!(&bytes[..12], b"BLKSTAGE\x0a\0\0\0");
    assert_eq!(bytes[64], 152);
    let log = &bytes[4096 + 3 * 4096..];
    let mut expected = b"BFRM\x98\0\0\0".to_vec();
    for word in [0_u64, 2, 3 | 4 << 32, 0x11, 0x12, 0x13, 0x14, 5, 64] {
        expected.extend_from_slice(&word.to_le_bytes());
    }
    assert_eq!(&log[..80], &expected);
    assert_ne!(&log[80..88], [0; 8], "the checksum is missing");
    assert_eq!(&log[88..152], &[0xab; 64]);
}

#[test]
fn padding_of_a_wrong_length_is_reported_as_damage() {
    let mut memory = Recorder::new();
    Staging::format(&mut memory, GEOMETRY).unwrap();
    let (mut staging, _) = Staging::open(memory.clone()).unwrap();
    let frame = |raw| Frame { raw: vec![1; raw], ..Frame::default() };
    let (_, tail) = staging.append(&frame(4000)).unwrap();
    let (_, filled_from) = staging.append(&frame(3000)).unwrap();
    staging.commit().unwrap();
    staging.retire(&Checkpoint { next_frame: 1, ..Checkpoint::default() }, tail).unwrap();
    staging.append(&frame(2000)).unwrap();
    staging.commit().unwrap();
    let filled = GEOMETRY.log_bytes - filled_from;
    for length in (0..3 * filled).filter(|length| *length != filled) {
        let length_at = (GEOMETRY.log_at() + filled_from + 4) as usize;
        memory.bytes.borrow_mut()[length_at..][..4].copy_from_slice(&(length as u32).to_le_bytes());
        let read = Staging::open(memory.clone()).unwrap().0.read_frame(filled_from);
        assert!(matches!(read, Err(StagingError::Damaged(_))), "{length}: {read:?}");
    }
}
