//! Requests that any user of the node may send to the control socket.
#![no_main]

use blkin_consumerd_fuzz::settings::message::{MAX_REQUEST_BYTES, Request, parse, snapshot};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let _ = snapshot(input);
    match parse(input) {
        Ok(request) => {
            assert!(input.len() <= MAX_REQUEST_BYTES);
            let again = serde_json::to_vec(&request).expect("a request is JSON");
            let read: Request = serde_json::from_slice(&again).expect("what is written reads back");
            assert_eq!(read, request);
        }
        Err(answer) => {
            let told = serde_json::to_vec(&answer).expect("an answer is JSON");
            assert!(told.len() < 2 * MAX_REQUEST_BYTES, "{} bytes", told.len());
        }
    }
});
