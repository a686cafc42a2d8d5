//! How much memory `blkin recover` takes. The only test of this file, because it measures the memory of its process.

#![allow(clippy::unwrap_used)]

use std::fs;

use blkin_cli::recover::recover;
use blkin_record::{Draft, EndpointParts, GRAIN_WORDS, Payload, Source, word_of};
use blkin_ringbuf::ClockKind;
use blkin_ringbuf::saved::{self, Run, Saved, SavedSlot};

const RECORDS: u64 = 300_000;
const COOKIE: u32 = 77;
/// The index of the cookie in the words of a segment's header.
const COOKIE_WORD: usize = 6;

fn event(number: u64) -> impl Iterator<Item = u8> {
    let draft = Draft {
        trace_id: 1,
        span_id: number,
        parent_span_id: 0,
        name: Source::known(1),
        endpoint: Source::known(3),
        key: Source::known(1),
        payload: Payload::Event,
        level: 4,
        truncated: false,
    };
    let mut words = [0; GRAIN_WORDS];
    // Not in the order of time, as if from several rings.
    let time = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    words[0] = draft.write(number, number, COOKIE, time, |index, word| words[index] = word).0;
    words.into_iter().flat_map(u64::to_le_bytes)
}

/// A file with one full ring of records of one grain each.
fn file() -> Vec<u8> {
    let endpoint = EndpointParts { ip: b"", port: 1, name: b"o" }.fixed();
    let mut saved = Saved {
        clock: Some(ClockKind::Monotonic),
        anchors: vec![(0, 0)],
        header: vec![0; 32],
        names: vec![0, 4, word_of(b"name"), 4, word_of(&[&endpoint[..], b"o"].concat()), 0],
        ..Saved::default()
    };
    saved.header[COOKIE_WORD] = COOKIE.into();
    let raw = (0..RECORDS).flat_map(event).collect();
    saved.slots.push(SavedSlot {
        header: vec![0; 32],
        range: Some((0, RECORDS << 36 | RECORDS)),
        runs: vec![Run { position: 0, raw }],
        ..SavedSlot::default()
    });
    let mut file = Vec::new();
    saved::write(&saved, &mut file);
    file
}

/// A field of this process's status, in bytes.
fn status(field: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn recover_takes_less_memory_than_five_times_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved");
    let bytes = {
        let file = file();
        fs::write(&path, &file).unwrap();
        file.len() as u64
    };
    // Resets the kernel's record of the peak, if it can; making the file took less than the test measures anyway.
    let _ = fs::write("/proc/self/clear_refs", "5");
    let before = status("VmRSS:");
    let recovery = recover(&path).unwrap();
    let most = status("VmHWM:") - before;
    assert_eq!(recovery.annotations.len() as u64, RECORDS, "{}", recovery.summary);
    assert!(most < 5 * bytes, "{most} bytes for a file of {bytes}");
}
