//! Golden files of saved segments of version 1, also read by a decoder that shares no code with ours.
//! `BLKIN_BLESS=1 cargo test -p blkin-ringbuf --test golden` rewrites them, for a new version of the format only.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use std::path::{Path, PathBuf};
use std::process::Command;

use blkin_record::{Draft, EndpointParts, Payload, Source};
use blkin_ringbuf::ClockKind;
use blkin_ringbuf::saved::{self, Identity, Reading, Run, Saved, SavedSlot, SavedTime};

const COOKIE: u32 = 0x1_5a5a;
/// Makes the second of three records lie across the wrap-around of positions.
const HEAD: u64 = (1 << 36) - 3;

fn draft<'a>(span: u64, payload: Payload<'a>, key: Source<&'a [u8]>) -> Draft<'a> {
    Draft {
        trace_id: 0x0102_0304_0506_0708,
        span_id: span,
        parent_span_id: 0,
        name: Source::known(1),
        endpoint: Source::inline(EndpointParts { ip: b"10.0.0.1", port: 6800, name: b"osd.0" }),
        key,
        payload,
        level: 3,
        truncated: false,
    }
}

fn run() -> Run {
    let drafts = [
        draft(1, Payload::Event, Source::known(4)),
        draft(2, Payload::Str(b"a value"), Source::inline(b"a key")),
        draft(3, Payload::Integer(-5), Source::known(4)),
    ];
    let (mut raw, mut position) = (Vec::new(), HEAD);
    for (ordinal, draft) in drafts.iter().enumerate() {
        let mut words = vec![0; draft.grains() * 8];
        let stamp = draft.write(position, ordinal as u64, COOKIE, 3000, |index, word| words[index] = word);
        words[0] = stamp.0;
        position += draft.grains() as u64;
        raw.extend(words.into_iter().flat_map(u64::to_le_bytes));
    }
    Run { position: HEAD, raw }
}

fn program() -> Saved {
    let run = run();
    let end = (HEAD + run.raw.len() as u64 / 64) % (1 << 36);
    let word = |text: &[u8; 8]| u64::from_le_bytes(*text);
    let mut header: Vec<u64> = (0..32).collect();
    header[6] = u64::from(COOKIE);
    Saved {
        identity: Identity {
            pid: 4711,
            uid: 1000,
            ended: true,
            taken_ns: 1_700_000_000_000_000_000,
            since_ns: 1_699_999_999_000_000_000,
            label: "ceph-osd".into(),
            host: "node1".into(),
            boot: "b0071d".into(),
        },
        clock: Some(ClockKind::Tsc),
        anchors: vec![(1000, 1_700_000_000_000_000_000), (5000, 1_700_000_000_000_002_000)],
        header,
        // In words: the length, then the text.
        names: vec![0, 7, word(b"request\0"), 0, 6, word(b"queued\0\0")],
        slots: vec![SavedSlot {
            number: 3,
            header: (100..132).collect(),
            range: Some((HEAD, 3 << 36 | end)),
            runs: vec![run],
        }],
    }
}

fn file() -> Vec<u8> {
    let mut file = Vec::new();
    saved::write(&program(), &mut file);
    file
}

fn hex(bytes: &[u8]) -> String {
    let line = |line: &[u8]| line.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "\n";
    bytes.chunks(32).map(line).collect()
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// With records of version 2. The file with records of version 1 does not differ in anything else.
const NOW: &str = "saved-v1-records-v2";
const BEFORE: &str = "saved-v1";

fn decoded_by_python(name: &str) -> String {
    let mut python = Command::new("python3");
    let file = golden(&format!("{name}.hex"));
    let output = python.arg(golden("decode_saved.py")).arg(file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn golden_files_match_our_writer_and_an_independent_decoder() {
    let text = |name: &str| std::fs::read_to_string(golden(name)).unwrap();
    if std::env::var_os("BLKIN_BLESS").is_some() {
        std::fs::write(golden(&format!("{NOW}.hex")), hex(&file())).unwrap();
        std::fs::write(golden(&format!("{NOW}.json")), decoded_by_python(NOW)).unwrap();
    }
    assert_eq!(hex(&file()), text(&format!("{NOW}.hex")));
    for name in [BEFORE, NOW] {
        assert_eq!(decoded_by_python(name), text(&format!("{name}.json")));
    }
}

#[test]
fn a_file_with_records_of_the_previous_version_reads_the_same() {
    let text = std::fs::read_to_string(golden(&format!("{BEFORE}.hex"))).unwrap().replace('\n', "");
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    let before: Vec<u8> = (0..text.len()).step_by(2).map(byte).collect();
    assert_ne!(before, file());
    assert_eq!(saved::read(&before), saved::read(&file()));
}

#[test]
fn records_read_back_across_the_wrap_of_positions() {
    let reading = saved::read(&file());
    assert_eq!(reading, Reading { programs: vec![program()], ..Reading::default() });
    let mut found = Vec::new();
    let count = program().records(|saved| found.push((saved.record.span_id, saved.time)));
    assert_eq!((count.read, count.invalid, count.missing), (3, 0, 0));
    let time = 1_700_000_000_000_001_000;
    assert_eq!(found, [(1, SavedTime::At(time)), (2, SavedTime::Near(time)), (3, SavedTime::Near(time))]);
}
