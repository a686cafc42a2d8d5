//! The spool's format has not changed: checked with a golden file and an independent decoder.
//! `BLKIN_BLESS=1 cargo test -p blkin-relay --test golden` rewrites the file; use it only for a new version of the format.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use std::path::{Path, PathBuf};
use std::process::Command;

use blkin_relay::ledger::Count;
use blkin_relay::spool::layout::{RecordHeader, SegmentHeader, payload_sum};
use blkin_thrift::scribe::raw_entries;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn count(entries: u64, annotations: u64) -> Count {
    Count { entries, annotations }
}

/// A `LogEntry` in TBinary.
fn entry(message: &[u8]) -> Vec<u8> {
    let mut bytes = b"\x0b\x00\x01\x00\x00\x00\x06zipkin\x0b\x00\x02".to_vec();
    bytes.extend_from_slice(&(message.len() as u32).to_be_bytes());
    bytes.extend_from_slice(message);
    bytes.push(0);
    bytes
}

/// Segment 7, with a record of two entries and a record of one.
fn segment() -> Vec<u8> {
    let mut before = count(1000, 4000);
    let mut bytes = SegmentHeader { number: 7, before }.encode().to_vec();
    for (payload, held) in
        [([entry(b"first"), entry(b"")].concat(), count(2, 9)), (entry(b"third"), count(1, 1))]
    {
        assert_eq!(raw_entries(&payload).unwrap().len() as u64, held.entries);
        let length = payload.len() as u32;
        let header = RecordHeader { length, count: held, before, payload_sum: payload_sum(&payload) };
        header.encode_with(7, &payload, &mut bytes);
        before += held;
    }
    bytes
}

fn hex(bytes: &[u8]) -> String {
    let line = |line: &[u8]| line.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "\n";
    bytes.chunks(32).map(line).collect()
}

#[test]
fn the_bytes_of_version_1_have_not_changed() {
    let path = golden("spool-v1.hex");
    if std::env::var_os("BLKIN_BLESS").is_some() {
        std::fs::write(&path, hex(&segment())).unwrap();
    }
    assert_eq!(hex(&segment()), std::fs::read_to_string(path).unwrap());
}

#[test]
fn independent_decoder_reads_the_same_values() {
    let output =
        Command::new("python3").arg(golden("decode_spool.py")).arg(golden("spool-v1.hex")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let expected = std::fs::read_to_string(golden("spool-v1.json")).unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
}
