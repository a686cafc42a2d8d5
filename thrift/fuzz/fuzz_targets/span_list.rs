//! A list of spans of anybody.
#![no_main]

use blkin_thrift::{Limits, span};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(spans) = span::decode_list(bytes, &Limits::default()) {
        assert!(spans.len() <= bytes.len());
    }
});
