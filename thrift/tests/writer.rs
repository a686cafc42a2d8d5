//! The hand-written writer gives the same bytes as Apache's crate.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod common;

use blkin_thrift::scribe::{LogEntry, encode_log_call, message_bytes, span_message, write_message};
use blkin_thrift::writer::{List, LogCallWriter, Place, Provenance, SpanFields, append_span};
use blkin_thrift::{Endpoint, Span, span};
use proptest::collection::vec;
use proptest::prelude::*;

fn written(span: &Span) -> Vec<u8> {
    let fields = SpanFields {
        trace_id: span.trace_id,
        name: &span.name,
        id: span.id,
        parent_id: span.parent_id,
        timestamp: span.timestamp,
        duration: span.duration,
        source: span.source,
    };
    let from = |position: Option<i64>, source| Provenance { position: position.unwrap_or_default(), source };
    let (mut annotations, mut binary) = (List::default(), List::default());
    for a in &span.annotations {
        let place = Place::new(&a.value, a.host.as_ref());
        annotations.event(&place, a.timestamp, a.nanos, from(a.position, a.source));
    }
    for a in &span.binary_annotations {
        let place = Place::new(&a.key, a.host.as_ref());
        binary.binary(&place, &a.value, a.kind, from(a.position, a.source));
    }
    let mut bytes = b"before".to_vec();
    append_span(&mut bytes, &fields, &annotations, &binary);
    bytes.split_off(6)
}

/// The span without the fields that the writer never writes, and with those that it always writes.
fn writable(mut span: Span) -> Span {
    span.trace_id_high = None;
    span.debug = false;
    span.annotations.iter_mut().for_each(|a| a.position = a.position.or(Some(1)));
    span.binary_annotations.iter_mut().for_each(|a| a.position = a.position.or(Some(2)));
    span
}

#[test]
fn a_list_reports_its_size_and_keeps_its_memory_when_cleared() {
    let (short, long) = (Place::new("k", None), Place::new(&"k".repeat(100), Some(&Endpoint::default())));
    // A place holds the text twice, for an annotation and for a binary one, and the host twice.
    assert!(long.bytes() - short.bytes() > 2 * 99 && long.bytes() < 300, "{}", long.bytes());
    let from = Provenance { position: 1, source: None };
    let mut list = List::default();
    list.event(&long, 1, None, from);
    let one = list.bytes();
    list.event(&long, 2, None, from);
    assert_eq!((list.count(), list.bytes()), (2, 2 * one));
    assert!(one > 100 && list.capacity() >= 2 * one);
    let held = list.capacity();
    list.clear();
    assert_eq!((list.count(), list.bytes(), list.capacity()), (0, 0, held));
}

proptest! {
    #[test]
    fn any_span_is_written_as_by_the_encoder(span in common::span()) {
        let span = writable(span);
        prop_assert_eq!(written(&span), span::encode(&span));
    }

    #[test]
    fn any_message_is_written_as_by_the_encoder(span in common::span()) {
        let encoded = span::encode(&span);
        let mut message = vec![0; message_bytes(encoded.len())];
        write_message(&encoded, &mut message);
        prop_assert_eq!(message, span_message(&span));
    }

    #[test]
    fn any_log_call_is_written_as_by_the_encoder(seq in any::<i32>(), category in ".*", messages in vec(vec(any::<u8>(), 0..200), 0..10)) {
        let mut bytes = b"an older call".to_vec();
        let mut writer = LogCallWriter::begin(&mut bytes, seq);
        messages.iter().for_each(|message| writer.entry(&category, message));
        writer.end();
        let entry = |message: Vec<u8>| LogEntry { category: category.clone(), message };
        let entries: Vec<_> = messages.into_iter().map(entry).collect();
        prop_assert_eq!(bytes, encode_log_call(seq, &entries));
    }
}
