//! Decodes the message of a log entry.
#![no_main]

use blkin_thrift::{Limits, scribe};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(span) = scribe::decode_message(bytes, &Limits::default()) {
        let counted = scribe::annotation_count(bytes, &mut Vec::new(), &Limits::default());
        assert_eq!(counted, Some(span.annotations.len() + span.binary_annotations.len()));
        assert_eq!(scribe::decode_message(&scribe::span_message(&span), &Limits::default()), Ok(span));
    }
});
