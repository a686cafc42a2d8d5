//! A segment with changed bytes. The input gives the lengths of its records, then which bytes are changed, and how much is read
//! at a time. Every record that was not hit must be read, in order, and everything that was hit must be reported as damage.
#![no_main]

use std::os::unix::fs::FileExt;

use blkin_relay_fuzz::ledger::Count;
use blkin_relay_fuzz::spool::layout::{RECORD_HEADER_BYTES, RecordHeader, SegmentHeader, payload_sum};
use blkin_relay_fuzz::spool::segment::{BadPlace, Found, Segment, path};
use libfuzzer_sys::fuzz_target;

const NUMBER: u64 = 7;
/// A folder in memory, where files are created and removed quickly.
const IN_MEMORY: &str = "/dev/shm";

struct Written {
    start: u64,
    /// The end without the padding, which is never read.
    end: u64,
}

fn write(lengths: &[u8]) -> (Vec<u8>, Vec<Written>) {
    let mut before = Count { entries: 10, annotations: 20 };
    let mut bytes = SegmentHeader { number: NUMBER, before }.encode().to_vec();
    let mut records = Vec::new();
    for (index, length) in lengths.iter().enumerate() {
        let payload = vec![index as u8; usize::from(*length) * 16];
        let count = Count { entries: 1, annotations: u64::from(*length) };
        let start = bytes.len() as u64;
        let header =
            RecordHeader { length: payload.len() as u32, count, before, payload_sum: payload_sum(&payload) };
        header.encode_with(NUMBER, &payload, &mut bytes);
        records.push(Written { start, end: start + (RECORD_HEADER_BYTES + payload.len()) as u64 });
        before += count;
    }
    (bytes, records)
}

/// The starts of the records that are read; checks that every byte is either in a record or in reported damage.
fn read(segment: &Segment, at_a_time: usize) -> Vec<u64> {
    let (mut at, mut found) = (segment_start(), Vec::new());
    while at < segment.length {
        let chunk = segment.read(at, at_a_time, u64::MAX, BadPlace::Fails).expect("a file that can be read");
        assert!(chunk.end > at && chunk.end <= segment.length, "{at} to {}", chunk.end);
        for record in &chunk.records {
            assert_eq!(record.start, at, "a gap that was not reported as damage");
            assert_eq!(record.header.payload_sum, payload_sum(&chunk.bytes[record.payload.clone()]));
            found.push(record.start);
            at = record.end;
        }
        if let Some(damage) = &chunk.damage {
            assert_eq!(damage.start, at);
            at = damage.end;
        }
        assert_eq!(at, chunk.end);
    }
    found
}

fn segment_start() -> u64 {
    SegmentHeader { number: NUMBER, before: Count::default() }.encode().len() as u64
}

fuzz_target!(|input: &[u8]| {
    let Some(([records, at_a_time], rest)) = input.split_first_chunk::<2>() else { return };
    let (lengths, changes) = rest.split_at(usize::from(records % 16).min(rest.len()));
    let (mut bytes, written) = write(lengths);
    let mut hit = Vec::new();
    for change in changes.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % bytes.len();
        bytes[at] ^= change[2];
        hit.push((at as u64, change[2]));
    }
    let folder = tempfile::tempdir_in(IN_MEMORY).expect("a folder");
    let file = std::fs::File::create(path(folder.path(), NUMBER)).expect("a file");
    file.write_all_at(&bytes, 0).expect("a file that can be written");
    let Found::Segment(segment) = Segment::open(folder.path(), NUMBER).expect("a file that is there") else {
        assert!(hit.iter().any(|(at, _)| *at < segment_start()));
        return;
    };
    let found = read(&segment, usize::from(*at_a_time) * 64);
    let untouched = written
        .iter()
        .filter(|record| !hit.iter().any(|(at, mask)| *mask != 0 && (record.start..record.end).contains(at)));
    for record in untouched {
        assert!(found.contains(&record.start), "the record at {} was not hit and not read", record.start);
    }
});
