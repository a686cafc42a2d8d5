//! In its first lap, the ring of a forked child gets memory as it is written, and no record is lost or damaged by that.

mod own;

use std::os::fd::OwnedFd;

use blkin_record::{GRAIN_BYTES, Value, names_word, records};
use blkin_ringbuf::Attachment;
use blkin_ringbuf::layout::SEGMENT_NAME;
use blkin_ringbuf::process::{self, Short, Status, init};
use rustix::fs::fstat;

const IDS: [u64; 3] = [7, 8, 9];
/// How much memory a ring is given at a time.
const PART_BYTES: u64 = 64 << 10;
/// More than one lap, in records of one to five grains.
const RECORDS: usize = 12_000;

struct Program {
    attachment: Attachment,
    segment: OwnedFd,
    before_bytes: u64,
}

impl Program {
    fn new() -> Program {
        assert_eq!(init(), Status::Tracing);
        let segment = own::own_memfd(SEGMENT_NAME);
        let mut program = Program { attachment: own::attach(), segment, before_bytes: 0 };
        program.before_bytes = program.resident_bytes();
        program
    }

    /// How much of the machine's memory the segment takes.
    fn resident_bytes(&self) -> u64 {
        fstat(&self.segment).expect("it is open").st_blocks as u64 * 512 - self.before_bytes
    }

    /// Records an integer or, in two of three cases, a string of up to 200 bytes.
    fn record(&self, number: usize) {
        let (name, key) = (process::declare(b"name"), process::declare(b"key"));
        let names = names_word(name, process::declare(b"endpoint"));
        if number.is_multiple_of(3) {
            process::record_short(&IDS, names, key, Short::Integer(number as i64), 4);
        } else {
            process::record_string(&IDS, names, key, text(number).as_bytes(), 4);
        }
    }

    /// `written`: how many bytes were written into each ring.
    fn check_memory(&self, written: &[u64]) {
        if !own::is_by_sequence(&self.attachment) {
            return;
        }
        // A record that begins in one part may have its end in the next.
        let with_memory = |bytes: &u64| bytes.next_multiple_of(PART_BYTES) + PART_BYTES;
        let most: u64 = written.iter().filter(|bytes| **bytes > 0).map(with_memory).sum();
        assert!(self.resident_bytes() <= most, "{} > {most}", self.resident_bytes());
    }

    /// Drains what was recorded: returns the grains of each ring, and all values.
    fn drain(&mut self) -> (Vec<u64>, Vec<String>) {
        let cookie = self.attachment.info().cookie;
        let (mut grains, mut values) = (Vec::new(), Vec::new());
        for slot in 0..self.attachment.slots() {
            let mut raw = Vec::new();
            self.attachment.drain(slot, usize::MAX, &mut raw);
            self.attachment.publish(slot);
            grains.push((raw.len() / GRAIN_BYTES) as u64);
            values.extend(records(&raw, cookie).map(|record| match record.expect("valid").value {
                Value::Integer(number) => number.to_string(),
                Value::Str(text) => String::from_utf8_lossy(&text).into_owned(),
                other => panic!("{other:?}"),
            }));
        }
        (grains, values)
    }
}

fn text(number: usize) -> String {
    format!("{number:0width$}", width = 1 + number % 200)
}

fn expected(number: usize) -> String {
    if number.is_multiple_of(3) { number.to_string() } else { text(number) }
}

fn records_more_than_a_lap() {
    let mut program = Program::new();
    let mut written = vec![0; program.attachment.slots()];
    for first in (0..RECORDS).step_by(50) {
        (first..first + 50).for_each(|number| program.record(number));
        let (grains, mut values) = program.drain();
        written.iter_mut().zip(grains).for_each(|(written, grains)| *written += grains * GRAIN_BYTES as u64);
        let mut expected: Vec<_> = (first..first + 50).map(expected).collect();
        // The thread may have moved from one ring to another.
        values.sort();
        expected.sort();
        assert_eq!(values, expected);
        program.check_memory(&written);
    }
    let counters = program.attachment.counters();
    assert_eq!((counters.attempted, counters.committed), (RECORDS as u64, RECORDS as u64));
}

#[test]
fn a_childs_ring_gets_memory_as_written_and_loses_no_record() {
    own::in_forked_child(records_more_than_a_lap);
}
