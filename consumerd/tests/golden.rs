//! A staging log is kept under version control, and a decoder that shares no code with the daemon reads it.
//! `BLKIN_BLESS=1 cargo test -p blkin-consumerd --test golden` rewrites it; this is only for a new version of the layout.

#![allow(clippy::unwrap_used)]

#[path = "common/bytes.rs"]
mod bytes;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;

use blkin_consumerd::staging::layout::{
    HEARTBEAT_AT, HOLDER_AT, HOLDER_COUNTERS, NUMBER_ROW_BYTES, NUMBERS_AT, SHOWN_AT, VERSION,
};
use blkin_consumerd::staging::log::Place;
use blkin_consumerd::staging::{
    Checkpoint, DepartedTotals, Frame, Geometry, Memory, NumberRow, ProgramState, SinkState, SlotState,
    Staging, twice,
};
use bytes::Bytes;

const GEOMETRY: Geometry = Geometry { log_bytes: 4096, checkpoint_bytes: 4096, numbers_bytes: 4096 };
const LINE: usize = 32;

fn zeroed() -> Bytes {
    Bytes(vec![0; usize::try_from(GEOMETRY.total_bytes()).unwrap()])
}

fn frame(number: u64, grains: u64) -> Frame {
    let from = Place { grain: (1 << 40) + number, records: 1000 + number };
    Frame {
        number,
        program: 0x0102_0304_0506_0700 + number,
        slot: 7 + number as u32,
        records: grains as u32,
        from,
        to: Place { grain: from.grain + grains, records: from.records + grains },
        torn: 2 * number,
        raw: (0..grains * 64).map(|at| (at / 64 + 16 * number) as u8 | 0x80).collect(),
    }
}

/// Frames of which the third leaves less room at the end of the log than the fourth needs.
fn frames() -> [Frame; 4] {
    [frame(0, 1), frame(1, 3), frame(2, 55), frame(3, 1)]
}

fn checkpoint() -> Checkpoint {
    let scribe = SinkState {
        name: "scribe".to_owned(),
        acked: 41,
        queue_full: 42,
        spool_evicted: 43,
        rejected: 44,
        no_sink: 45,
    };
    let program = ProgramState {
        program: 0x0102_0304_0506_0700,
        folded: false,
        drained_before: 51,
        unsettled: 56,
        drained: 52,
        valid: 53,
        invalid: 54,
        torn: 55,
        slots: vec![
            SlotState { slot: 7, grain: (1 << 40) + 1, records: 1001 },
            SlotState { slot: 9, grain: 61, records: 62 },
        ],
    };
    Checkpoint {
        next_frame: 1,
        spans_split: 2,
        programs_departed: 3,
        last_program: 0x0102_0304_0506_0708,
        departed: DepartedTotals(std::array::from_fn(|at| 20 + at as u64)),
        sinks: vec![scribe, SinkState { name: "json_lines".to_owned(), ..SinkState::default() }],
        programs: vec![program, ProgramState { program: 71, folded: true, ..ProgramState::default() }],
    }
}

const ROW: NumberRow = NumberRow { number: 0x0102_0304_0506_0700, device: 1, inode: 0x1112_1314 };

fn counted() -> [u64; HOLDER_COUNTERS] {
    std::array::from_fn(|at| 81 + at as u64)
}

/// Four figures for each of three sinks, then the number of split spans.
fn shown() -> [u64; 13] {
    std::array::from_fn(|at| 101 + at as u64)
}

fn written() -> Vec<u8> {
    let mut memory = zeroed();
    Staging::format(&mut memory, GEOMETRY).unwrap();
    twice::write(&mut memory, HOLDER_AT, &counted()).unwrap();
    twice::write(&mut memory, SHOWN_AT, &shown()).unwrap();
    let (mut staging, _) = Staging::open(memory).unwrap();
    let [first, second, third, fourth] = frames();
    let (_, end_of_first) = staging.append(&first).unwrap();
    staging.append(&second).unwrap();
    staging.append(&third).unwrap();
    staging.commit().unwrap();
    staging.retire(&checkpoint(), end_of_first).unwrap();
    staging.append(&fourth).unwrap();
    staging.commit().unwrap();
    staging.beat().unwrap();
    let mut bytes = staging.memory().0.clone();
    bytes[NUMBERS_AT as usize..][2 * NUMBER_ROW_BYTES..][..NUMBER_ROW_BYTES].copy_from_slice(&ROW.encode());
    let heartbeat = &mut bytes[HEARTBEAT_AT as usize..][..8];
    assert_ne!(heartbeat, [0; 8]);
    // The heartbeat is the only field that depends on the time.
    heartbeat.fill(0xee);
    bytes
}

/// Lines of an offset and 32 bytes; lines of zeros are left out.
fn dump(bytes: &[u8]) -> String {
    let lines = bytes.chunks(LINE).enumerate().filter(|(_, line)| line.iter().any(|&b| b != 0));
    lines
        .map(|(number, line)| {
            let digits: String = line.iter().map(|b| format!("{b:02x}")).collect();
            format!("{:05x} {digits}\n", number * LINE)
        })
        .collect()
}

fn undump(text: &str) -> Bytes {
    let mut bytes = zeroed();
    for line in text.lines() {
        let (offset, digits) = line.split_once(' ').unwrap();
        let offset = usize::from_str_radix(offset, 16).unwrap();
        for (at, two) in digits.as_bytes().chunks(2).enumerate() {
            bytes.0[offset + at] = u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap();
        }
    }
    bytes
}

fn golden(end: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    folder.join(format!("staging-v{VERSION}.{end}"))
}

/// The golden text, rewritten before any test reads it if `BLKIN_BLESS` asks for that.
fn golden_text() -> String {
    static BLESSED: Once = Once::new();
    BLESSED.call_once(|| {
        if std::env::var_os("BLKIN_BLESS").is_some() {
            std::fs::write(golden("hex"), dump(&written())).unwrap();
            std::fs::write(golden("json"), decoded_by_python()).unwrap();
        }
    });
    std::fs::read_to_string(golden("hex")).unwrap()
}

fn decoded_by_python() -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/decode_staging.py");
    let output = Command::new("python3").arg(script).arg(golden("hex")).output().expect("python3 runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("JSON is UTF-8")
}

#[test]
fn golden_bytes_match_our_writer_and_a_python_decoder() {
    assert_eq!(golden_text(), dump(&written()));
    assert_eq!(std::fs::read_to_string(golden("json")).unwrap(), decoded_by_python());
}

#[test]
fn a_worker_continues_from_the_golden_bytes() {
    let memory = undump(&golden_text());
    let row = memory.0[NUMBERS_AT as usize..].as_chunks().0[2];
    assert_eq!(NumberRow::decode(&row), Some(ROW));
    assert_eq!(twice::read(&memory, HOLDER_AT).unwrap(), Some(counted()));
    assert_eq!(twice::read(&memory, SHOWN_AT).unwrap(), Some(shown()));
    let (mut staging, recovered) = Staging::open(memory).unwrap();
    assert_eq!(recovered.checkpoint, checkpoint());
    let (mut found, mut position) = (Vec::new(), recovered.tail);
    while let Some((frame, next)) = staging.read_next(position).unwrap() {
        found.push(frame);
        position = next;
    }
    assert_eq!(found, frames()[1..]);
    assert_eq!(staging.next_number(), 4);
}
