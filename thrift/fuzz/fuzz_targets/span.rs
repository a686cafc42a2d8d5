//! A span of anybody. What is accepted is written and read back the same.
#![no_main]

use blkin_thrift::{Limits, span};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(span) = span::decode(bytes, &Limits::default()) {
        assert_eq!(span::decode(&span::encode(&span), &Limits::default()), Ok(span));
    }
});
