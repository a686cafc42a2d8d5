//! Decodes a span. A span that is accepted must read back the same after it is written.
#![no_main]

use blkin_thrift::{Limits, span};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(span) = span::decode(bytes, &Limits::default()) {
        assert_eq!(span::decode(&span::encode(&span), &Limits::default()), Ok(span));
    }
});
