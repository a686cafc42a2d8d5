//! A call of a client. What cannot be read has an answer that can.
#![no_main]

use blkin_thrift::scribe::{self, Method};
use blkin_thrift::{Limits, frame};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let limits = Limits::default();
    match scribe::parse_call(bytes, &limits) {
        Ok(call) => {
            if let Method::Log(entries) = &call.method {
                let again = scribe::encode_log_call(call.seq, entries);
                let again = scribe::parse_call(&again[frame::HEADER_BYTES..], &limits);
                assert_eq!(again.map(|again| again.method), Ok(call.method));
            }
        }
        Err(bad) => {
            if let Some(reply) = bad.reply {
                scribe::decode_reply(&reply[frame::HEADER_BYTES..], &limits).expect("our own reply is readable");
            }
        }
    }
});
