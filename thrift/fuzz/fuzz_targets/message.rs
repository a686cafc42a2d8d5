//! Decodes the message of a log entry.
#![no_main]

use blkin_thrift::{Limits, Span, scribe};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(span) = scribe::decode_message(bytes, &Limits::default()) {
        let counted = scribe::annotation_count(bytes, &mut Vec::new(), &Limits::default());
        assert_eq!(counted, Some(span.annotations.len() + span.binary_annotations.len() + span.left_out));
        // Empty annotations are counted when they are read, and not written again.
        let span = Span { left_out: 0, ..span };
        assert_eq!(scribe::decode_message(&scribe::span_message(&span), &Limits::default()), Ok(span));
    }
});
