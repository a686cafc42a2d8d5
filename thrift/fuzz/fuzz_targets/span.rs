//! Decodes a span. A span that is accepted must read back the same after it is written.
#![no_main]

use blkin_thrift::{Limits, Span, span};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(span) = span::decode(bytes, &Limits::default()) {
        // Empty annotations are not written again.
        let span = Span { left_out: 0, ..span };
        assert_eq!(span::decode(&span::encode(&span), &Limits::default()), Ok(span));
    }
});
