//! A reply of a server.
#![no_main]

use blkin_thrift::{Limits, scribe};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = scribe::decode_reply(bytes, &Limits::default());
});
