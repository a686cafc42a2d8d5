//! Any bytes as a message between holder and worker, and as the name of a process: a decoded message encodes to the same bytes, and
//! a name that a user writes as it is shown matches the process.
#![no_main]

use blkin_consumerd_fuzz::link::message::{COMM_BYTES, Message, NAMELESS, shown_name};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if let Some(message) = Message::decode(input) {
        assert_eq!(message.encode(), input);
    }
    let shown = shown_name(input);
    assert!(!shown.is_empty() && shown.len() <= input.len().clamp(NAMELESS.len(), COMM_BYTES));
    assert!(!shown.contains(|c: char| c.is_control() || c == '\u{202e}'));
    assert_eq!(shown_name(shown.as_bytes()), shown);
});
