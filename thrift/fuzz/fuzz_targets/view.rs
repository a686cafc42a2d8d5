//! Reads a span by a view. If the view accepts it, the decoder must read the same.
#![no_main]

use blkin_thrift::view::SpanView;
use blkin_thrift::{Limits, span};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let limits = Limits::default();
    let mut view = SpanView::default();
    if !view.read(bytes, &limits) {
        return;
    }
    let span = span::decode(bytes, &limits).expect("what a view reads can be decoded");
    assert_eq!(view.to_span(), span);
});
