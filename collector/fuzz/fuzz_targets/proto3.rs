//! Arbitrary bytes as a list of v2 spans in protocol buffers. Accepted spans must be the same after a round trip through JSON.
#![no_main]

use blkin_collector::model::Span;
use blkin_collector::{proto3, v2json};
use blkin_thrift::Limits;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let limits = Limits::default();
    let Ok(entries) = proto3::read_list(bytes, &limits) else { return };
    let spans: Vec<Span> = entries.into_iter().flatten().map(|entry| entry.span).collect();
    let again = v2json::read_list(v2json::write_trace(&spans).as_bytes(), &limits).expect("our own list is readable");
    assert_eq!(again.into_iter().map(|entry| entry.expect("our own span")).collect::<Vec<_>>(), spans);
});
