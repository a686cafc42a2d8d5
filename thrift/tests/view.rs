//! A view reads the same as the decoder, or refuses the bytes.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod common;

use blkin_thrift::view::SpanView;
use blkin_thrift::{Annotation, Endpoint, Limits, Span, span};
use proptest::collection::vec;
use proptest::prelude::*;

/// Whether a view reads the bytes. If so, checks that the decoder reads the same.
fn is_plain(bytes: &[u8], limits: &Limits) -> bool {
    let mut view = SpanView::default();
    let plain = view.read(bytes, limits);
    if plain {
        let decoded = span::decode(bytes, limits).unwrap();
        assert_eq!(view.to_span(), decoded);
    }
    plain
}

#[test]
fn a_span_with_every_field_is_plain_despite_trailing_bytes() {
    let mut bytes = span::encode(&common::full_span());
    bytes.extend([0xff; 9]);
    assert!(is_plain(&bytes, &Limits::default()));
}

#[test]
fn a_reused_view_holds_only_the_new_span() {
    let (full, small) = (span::encode(&common::full_span()), span::encode(&small_span()));
    let mut view = SpanView::default();
    assert!(view.read(&full, &Limits::default()));
    assert!(view.read(&small, &Limits::default()));
    assert_eq!(view.to_span(), small_span());
    assert!(!view.read(&full[..50], &Limits::default()));
    assert!(view.read(&full, &Limits::default()));
    assert_eq!(view.to_span(), common::full_span());
}

#[test]
fn a_reused_view_keeps_its_memory() {
    let bytes = span::encode(&common::full_span());
    let mut view = SpanView::default();
    assert!(view.read(&bytes, &Limits::default()));
    let at = (view.annotations.as_ptr(), view.binary_annotations.as_ptr());
    let other = vec![view.annotations.clone(); 2];
    assert!(view.read(&bytes, &Limits::default()));
    assert_eq!((view.annotations.as_ptr(), view.binary_annotations.as_ptr()), at);
    drop(other);
}

#[test]
fn different_hosts_of_annotations_stay_distinct() {
    let mut span = common::full_span();
    let host =
        |ipv4: i32, name: &str| Some(Endpoint { ipv4, service_name: name.to_owned(), ..Endpoint::default() });
    let hosts = [host(1, "a"), host(1, "a"), None, host(1, "ab"), host(2, "ab"), Some(Endpoint::default())];
    let annotation = span.annotations[1].clone();
    span.annotations = hosts.map(|host| Annotation { host, ..annotation.clone() }).to_vec();
    assert!(is_plain(&span::encode(&span), &Limits::default()));
}

fn small_span() -> Span {
    Span { trace_id: 1, id: 2, name: "n".to_owned(), ..Span::default() }
}

fn is_plain_with(change: impl FnOnce(&mut Span)) -> bool {
    let mut span = common::full_span();
    change(&mut span);
    is_plain(&span::encode(&span), &Limits::default())
}

#[test]
fn spans_that_the_collector_would_refuse_are_not_plain() {
    assert!(is_plain_with(|_| ()));
    assert!(!is_plain_with(|span| span.trace_id = 0));
    assert!(!is_plain_with(|span| span.id = 0));
    assert!(!is_plain_with(|span| span.annotations[1].timestamp = 0));
}

/// The small span's bytes, with `field` as the last field.
fn small_with(field: &[u8]) -> Vec<u8> {
    let mut bytes = span::encode(&small_span());
    bytes.pop();
    [bytes.as_slice(), field, &[0]].concat()
}

#[test]
fn unknown_mistyped_and_repeated_fields_are_not_plain() {
    let duration =
        |kind: u8, id: i16, bytes: usize| [&[kind][..], &id.to_be_bytes(), &vec![7; bytes]].concat();
    assert!(is_plain(&small_with(&duration(10, 11, 8)), &Limits::default()));
    assert!(!is_plain(&small_with(&duration(10, 11, 8).repeat(2)), &Limits::default()));
    assert!(!is_plain(&small_with(&duration(8, 11, 4)), &Limits::default()));
    assert!(!is_plain(&small_with(&duration(10, 13, 8)), &Limits::default()));
}

/// The small span with one list, which has one struct with these fields.
fn small_with_element(list: u8, fields: &[&[u8]]) -> Vec<u8> {
    let ids = |id: u8| [10, 0, id, 0, 0, 0, 0, 0, 0, 0, 1];
    [&ids(1), &ids(4), &[15, 0, list, 12, 0, 0, 0, 1][..], &fields.concat(), &[0, 0]].concat()
}

#[test]
fn incomplete_and_malformed_annotations_are_not_plain() {
    let (time, value) = (&[10, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9][..], &b"\x0b\0\x02\0\0\0\x01v"[..]);
    let (key, kind) = (&b"\x0b\0\x01\0\0\0\x01k"[..], &[8, 0, 3, 0, 0, 0, 6][..]);
    let bad_text = &b"\x0b\0\x02\0\0\0\x01\xff"[..];
    let short_ip = &b"\x0c\0\x03\x0b\0\x04\0\0\0\x01i\0"[..];
    let plain = |list: u8, fields: &[&[u8]]| is_plain(&small_with_element(list, fields), &Limits::default());
    assert!(plain(6, &[time, value]) && plain(8, &[key, bad_text, kind]));
    for fields in [&[time][..], &[value], &[time, bad_text], &[time, value, short_ip], &[value, time]] {
        assert!(!plain(6, fields), "{fields:?}");
    }
    for fields in [&[key, value][..], &[key, kind], &[value, kind]] {
        assert!(!plain(8, fields), "{fields:?}");
    }
}

#[test]
fn spans_over_a_limit_are_not_plain() {
    let bytes = span::encode(&common::full_span());
    let fits = Limits { max_span_bytes: bytes.len(), max_annotations: 2, max_depth: 3, ..Limits::default() };
    assert!(is_plain(&bytes, &fits));
    for limits in [
        Limits { max_span_bytes: bytes.len() - 1, ..fits },
        Limits { max_annotations: 1, ..fits },
        Limits { max_depth: 2, ..fits },
    ] {
        assert!(!is_plain(&bytes, &limits), "{limits:?}");
    }
}

#[test]
fn truncated_spans_are_not_plain() {
    let bytes = span::encode(&common::full_span());
    for length in 0..bytes.len() {
        assert!(!is_plain(&bytes[..length], &Limits::default()), "{length} bytes");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn encoded_spans_are_plain(span in common::span()) {
        prop_assert!(is_plain(&span::encode(&span), &Limits::default()));
    }

    #[test]
    fn damaged_bytes_are_read_as_by_the_decoder(
        span in common::span(),
        damage in vec((any::<prop::sample::Index>(), 0u8..24), 1..4),
    ) {
        let mut bytes = span::encode(&span);
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        is_plain(&bytes, &Limits::default());
    }

    #[test]
    fn removed_and_repeated_bytes_are_read_as_by_the_decoder(
        span in common::span(),
        at in any::<prop::sample::Index>(),
        length in 1usize..40,
        twice in any::<bool>(),
    ) {
        let mut bytes = span::encode(&span);
        let at = at.index(bytes.len());
        let piece = bytes[at..(at + length).min(bytes.len())].to_vec();
        if twice {
            bytes.splice(at..at, piece);
        } else {
            bytes.drain(at..at + piece.len());
        }
        is_plain(&bytes, &Limits::default());
    }
}
