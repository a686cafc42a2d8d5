//! A message between holder and worker, and the name of a process, of any bytes: no message says more than it does when it is
//! written again, and whoever writes a name as he sees it means the process.
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
