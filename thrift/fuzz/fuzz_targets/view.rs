//! A span of anybody. What a view reads is what the decoder reads.
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
    assert_eq!(span::decode(view.encoded, &limits).as_ref(), Ok(&span));
    assert_eq!((view.trace_id, view.trace_id_high), (span.trace_id, span.trace_id_high));
    assert_eq!((view.id, view.parent_id, view.name), (span.id, span.parent_id, span.name.as_str()));
    assert_eq!((view.timestamp, view.duration), (span.timestamp, span.duration));
    assert_eq!((view.debug, view.source), (span.debug, span.source));
    let annotations = view.annotations.iter().map(|a| (a.timestamp, a.value, a.position, a.source));
    assert!(annotations.eq(span.annotations.iter().map(|a| (a.timestamp, &*a.value, a.position, a.source))));
    let tags = view.binary_annotations.iter().map(|b| (b.key, b.value, b.kind, b.position, b.source));
    let decoded = span.binary_annotations.iter();
    assert!(tags.eq(decoded.map(|b| (&*b.key, &*b.value, b.kind, b.position, b.source))));
    let of_annotations = view.annotations.iter().map(|a| a.host);
    let hosts = of_annotations.chain(view.binary_annotations.iter().map(|b| b.host));
    let hosts = hosts.map(|host| host.map(|h| (h.ipv4, h.port, h.service_name.to_owned(), h.ipv6)));
    let of_annotations = span.annotations.into_iter().map(|a| a.host);
    let decoded = of_annotations.chain(span.binary_annotations.into_iter().map(|b| b.host));
    assert!(hosts.eq(decoded.map(|host| host.map(|h| (h.ipv4, h.port, h.service_name, h.ipv6)))));
});
