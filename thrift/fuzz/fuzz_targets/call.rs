//! Reads a client's call. If the call cannot be read, the answer to it must be readable.
#![no_main]

use blkin_thrift::scribe::{self, LogEntry, Method};
use blkin_thrift::{Limits, frame};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let limits = Limits::default();
    match scribe::parse_call(bytes, &limits) {
        Ok(call) => {
            if let Method::Log(entries) = &call.method {
                let again = scribe::encode_log_call(call.seq, entries);
                let again = scribe::parse_call(&again[frame::HEADER_BYTES..], &limits);
                assert_eq!(again.map(|again| again.method), Ok(call.method.clone()));
                check_raw(bytes, call.seq, entries);
            }
        }
        Err(bad) => {
            if let Some(reply) = bad.reply {
                scribe::decode_reply(&reply[frame::HEADER_BYTES..], &limits)
                    .expect("our own reply is readable");
            }
        }
    }
});

/// Checks that a relay passes on the entries that a decoder reads.
fn check_raw(bytes: &[u8], seq: i32, entries: &[LogEntry]) {
    let limits = Limits::default();
    let raw = scribe::skim_log(bytes, &limits).expect("a call that is decoded can be skimmed");
    let skimmed: Vec<_> = raw.entries.iter().map(|entry| entry.message.to_vec()).collect();
    assert!(raw.seq == seq && skimmed.iter().eq(entries.iter().map(|entry| &entry.message)));
    let passed =
        scribe::encode_raw_log_call(seq, raw.entries.len(), raw.entries.iter().map(|entry| entry.bytes));
    let again = scribe::parse_call(&passed[frame::HEADER_BYTES..], &limits).expect("it is a call");
    assert_eq!(again.method, Method::Log(entries.to_vec()));
}
