//! A staging memory to which somebody else wrote. The input says how long its frames are, how many are not retired, and which
//! bytes are changed. A new worker finds the frames before the first that was hit, and none that were not written, and the log
//! continues from there.
#![no_main]

#[path = "../../tests/common/bytes.rs"]
mod bytes;

use blkin_consumerd_fuzz::staging::layout::HEAD_AT;
use blkin_consumerd_fuzz::staging::log::Place;
use blkin_consumerd_fuzz::staging::{Checkpoint, Frame, Geometry, Memory, Staging, StagingError};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;

const GEOMETRY: Geometry = Geometry { log_bytes: 8192, checkpoint_bytes: 4096, numbers_bytes: 4096 };
const GRAIN_BYTES: usize = 64;

fn frame(number: u64, grains: u8) -> Frame {
    let from = Place { grain: number * 100, records: number * 10 };
    let grains = u64::from(grains % 48);
    Frame {
        number,
        program: number % 3 + 1,
        slot: number as u32 % 4,
        records: grains as u32,
        from,
        to: Place { grain: from.grain + grains, records: from.records + grains },
        torn: number % 2,
        raw: vec![number as u8 | 0x80; grains as usize * GRAIN_BYTES],
    }
}

/// A log of frames of these lengths, of which all but the last `kept` are retired. Returns where the kept frames begin, and each of
/// them with its end.
fn written(lengths: &[u8], kept: usize) -> (Bytes, u64, Vec<(Frame, u64)>) {
    let mut memory = Bytes(vec![0; GEOMETRY.total_bytes() as usize]);
    Staging::format(&mut memory, GEOMETRY).expect("memory is written");
    let (mut log, _) = Staging::open(memory).expect("a new log opens");
    let (mut tail, mut left) = (0, Vec::new());
    for (number, grains) in (0..).zip(lengths) {
        let frame = frame(number, *grains);
        match log.append(&frame) {
            Ok((_, end)) => left.push((frame, end)),
            Err(StagingError::Full) => break,
            Err(error) => panic!("{error}"),
        }
        log.commit().expect("memory is written");
        if left.len() > kept {
            let (first, end) = left.remove(0);
            let checkpoint = Checkpoint { next_frame: first.number + 1, ..Checkpoint::default() };
            log.retire(&checkpoint, end).expect("memory is written");
            tail = end;
        }
    }
    (log.memory().clone(), tail, left)
}

/// The frames that a new worker finds, and its log, which ends behind them.
fn found(mut memory: Bytes) -> (Vec<Frame>, Staging<Bytes>) {
    if !Staging::is_of(&memory, GEOMETRY) {
        Staging::format(&mut memory, GEOMETRY).expect("memory is written");
    }
    let (mut log, recovered) = Staging::open(memory).expect("memory with any content opens");
    let (mut frames, mut at) = (Vec::new(), recovered.tail);
    loop {
        match log.read_next(at) {
            Ok(Some((frame, end))) => {
                frames.push(frame);
                at = end;
            }
            Ok(None) => return (frames, log),
            Err(StagingError::Damaged(_)) => log.cut(at).expect("memory is written"),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Whether a changed byte is outside the frames, but needed to find them.
fn leads_to_frames(at: usize) -> bool {
    let head = HEAD_AT as usize;
    (head..head + 8).contains(&at)
        || (GEOMETRY.checkpoint_at(0) as usize..GEOMETRY.log_at() as usize).contains(&at)
}

fuzz_target!(|input: &[u8]| {
    let Some(([count, kept], rest)) = input.split_first_chunk::<2>() else { return };
    let (lengths, changes) = rest.split_at(usize::from(count % 24).min(rest.len()));
    let (mut memory, tail, left) = written(lengths, 1 + usize::from(kept % 8));
    let mut hit = Vec::new();
    for change in changes.chunks_exact(3).filter(|change| change[2] != 0) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % memory.0.len();
        memory.0[at] ^= change[2];
        hit.push(at);
    }
    let (frames, mut log) = found(memory);
    for found in &frames {
        let grains = *lengths.get(found.number as usize).expect("a frame that was written");
        assert_eq!(*found, Frame { raw: found.raw.clone(), ..frame(found.number, grains) });
    }
    if !hit.iter().any(|at| leads_to_frames(*at)) {
        let log_at = GEOMETRY.log_at();
        // All that lies before its raw bytes, including padding at the end of the log.
        let mut begin = tail;
        for (index, (frame, end)) in left.iter().enumerate() {
            let raw_at = end - frame.raw.len() as u64;
            let is_hit = |position: u64| hit.contains(&((log_at + position % GEOMETRY.log_bytes) as usize));
            if (begin..raw_at).any(is_hit) {
                break;
            }
            assert_eq!(frames[index].number, frame.number);
            assert!((raw_at..*end).any(is_hit) || frames[index].raw == frame.raw);
            begin = *end;
        }
    }
    let next = log.next_number();
    match log.append(&frame(next, 1)) {
        Ok(_) => log.commit().expect("memory is written"),
        Err(StagingError::Full) => return,
        Err(error) => panic!("{error}"),
    }
    let (again, _) = found(log.memory().clone());
    assert_eq!(again.len(), frames.len() + 1);
    assert_eq!(again.last().map(|frame| frame.number), Some(next));
});
