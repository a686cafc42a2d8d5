//! Keys with strings of known length: each value is recorded as it was, never read beyond a page's end, and cut if it is too long.

mod guarded;
mod own;

use blkin_record::{MAX_TEXT_BYTES, Record, Text, Value, names_word, records};
use blkin_ringbuf::Attachment;
use blkin_ringbuf::process::{self, Status, init};
use guarded::GuardedPage;

const IDS: [u64; 3] = [7, 8, 9];
const ENDPOINT: u32 = 1;

/// Records a value and returns what the ring has of it.
fn value_of(program: &mut Attachment, value: &[u8]) -> (Vec<u8>, bool) {
    let (name, key) = (process::declare(b"name"), process::declare(b"key"));
    process::record_string(&IDS, names_word(name, ENDPOINT), key, value, 4);
    let mut raw = Vec::new();
    for slot in 0..program.slots() {
        program.drain(slot, usize::MAX, &mut raw);
        program.publish(slot);
    }
    let found: Vec<_> = records(&raw, program.info().cookie).collect();
    let [
        Ok(Record {
            name: Text::Id(name_id),
            key: Text::Id(key_id),
            value: Value::Str(value),
            truncated,
            ..
        }),
    ] = &found[..]
    else {
        panic!("{found:?}")
    };
    assert_eq!((*name_id, *key_id), (name, key));
    (value.to_vec(), *truncated)
}

#[test]
fn values_of_any_length_are_recorded_without_reading_past_them() {
    assert_eq!(init(), Status::Tracing);
    let mut program = own::attach();
    let page = GuardedPage::new();
    let lengths = (0..600).chain([1000, 4000, MAX_TEXT_BYTES]);
    let mut attempts = 0;
    for length in lengths {
        let text: Vec<_> = (0..length).map(|at| b'a' + (at % 26) as u8).collect();
        for after in [0, 1, 15, 16, 17].into_iter().filter(|after| after + length <= MAX_TEXT_BYTES) {
            let at = page.put(&text, after);
            // SAFETY: this many bytes were just put there.
            let value = unsafe { std::slice::from_raw_parts(at, length) };
            assert_eq!(value_of(&mut program, value), (text.clone(), false), "{after} before the end");
            attempts += 1;
        }
    }
    let long = "\u{e9}".repeat(MAX_TEXT_BYTES);
    let (cut, truncated) = value_of(&mut program, long.as_bytes());
    assert!(truncated && cut == long.as_bytes()[..MAX_TEXT_BYTES]);
    let counters = program.counters();
    assert_eq!((counters.attempted, counters.committed), (attempts + 1, attempts + 1));
    assert_eq!((counters.not_interned, counters.truncated), (0, 1));
}
