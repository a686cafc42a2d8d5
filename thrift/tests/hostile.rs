//! Arbitrary bytes from a peer: they give a clear error and no panic, take no more memory than the bytes that arrived, and do
//! not harm their neighbours.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod common;

use std::alloc::System;

use blkin_thrift::frame::{self, FrameReader};
use blkin_thrift::scribe::{self, LogEntry, Method};
use blkin_thrift::view::SpanView;
use blkin_thrift::{Endpoint, Error, Limits, span};
use cap::Cap;
use proptest::collection::vec;
use proptest::prelude::*;

const STRUCT: u8 = 12;
const LIST: u8 = 15;

fn message_of(bytes: &[u8]) -> Vec<u8> {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes).into_bytes()
}

/// Decodes base64 as MIME defines it, digit by digit; `None` if there is one digit too many.
fn decoded_as_mime(message: &[u8]) -> Option<Vec<u8>> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let text = message.split(|byte| *byte == b'=').next()?;
    let values: Vec<u32> = text
        .iter()
        .filter_map(|byte| DIGITS.iter().position(|digit| digit == byte))
        .map(|at| at as u32)
        .collect();
    let quad = |quad: &[u32]| {
        let bits = (0..4).fold(0, |bits, at| bits << 6 | quad.get(at).copied().unwrap_or(0));
        bits.to_be_bytes()[1..quad.len()].to_vec()
    };
    (values.len() % 4 != 1).then(|| values.chunks(4).flat_map(quad).collect())
}

fn field(field_type: u8, id: i16) -> Vec<u8> {
    [&[field_type][..], &id.to_be_bytes()].concat()
}

#[test]
fn an_oversized_frame_is_refused_from_its_header() {
    let limits = Limits { max_frame_bytes: 1000, ..Limits::default() };
    let mut reader = FrameReader::new(&limits);
    reader.extend(&1001_u32.to_be_bytes());
    assert_eq!(reader.next_frame(), Err(Error::TooLarge { what: "a frame", size: 1001, limit: 1000 }));
    for absurd in [u32::MAX, 0x8000_0000, 0x8001_0001] {
        assert!(frame::read_length(absurd.to_be_bytes(), 16 << 20).is_err(), "{absurd:x}");
    }
}

#[test]
fn another_protocol_on_the_port_is_named() {
    for (bytes, named) in [
        (&b"HTTP/1.1 400 Bad Request"[..], "an HTTP answer"),
        (b"GET / HTTP/1.1", "an HTTP request"),
        (b"\x16\x03\x01\x02\x00\x01", "TLS"),
    ] {
        let mut reader = FrameReader::new(&Limits::default());
        reader.extend(bytes);
        assert_eq!(reader.next_frame(), Err(Error::NotFramed(named)));
    }
}

#[test]
fn every_truncation_of_a_call_is_an_error() {
    let entry =
        LogEntry { category: "zipkin".to_owned(), message: scribe::span_message(&common::full_span()) };
    let call = scribe::encode_log_call(1, &[entry])[frame::HEADER_BYTES..].to_vec();
    for length in 0..call.len() {
        assert!(scribe::parse_call(&call[..length], &Limits::default()).is_err(), "{length} bytes");
    }
}

#[test]
fn every_truncation_of_a_span_is_an_error() {
    let bytes = span::encode(&common::full_span());
    for length in 0..bytes.len() {
        assert!(span::decode(&bytes[..length], &Limits::default()).is_err(), "{length} bytes");
    }
}

#[test]
fn unreadable_arguments_get_a_reply_but_unreadable_headers_none() {
    let mut call = scribe::encode_log_call(5, &[LogEntry::default()])[frame::HEADER_BYTES..].to_vec();
    call.truncate(call.len() - 1);
    let bad = scribe::parse_call(&call, &Limits::default()).unwrap_err();
    let reply = scribe::decode_reply(&bad.reply.unwrap()[frame::HEADER_BYTES..], &Limits::default()).unwrap();
    assert_eq!(reply.seq, 5);
    assert!(matches!(reply.outcome, scribe::Outcome::Exception(e) if e.kind == 7), "PROTOCOL_ERROR");
    assert_eq!(scribe::parse_call(b"GET / HTTP/1.1\r\n", &Limits::default()).unwrap_err().reply, None);
}

#[test]
fn a_bad_entry_does_not_affect_its_neighbours() {
    let good = scribe::span_message(&common::full_span());
    let no_ids = message_of(&[0]);
    let messages = [good.clone(), b"%%%".to_vec(), message_of(b"nonsense"), no_ids, Vec::new(), good];
    let results: Vec<_> = messages.iter().map(|m| scribe::decode_message(m, &Limits::default())).collect();
    assert_eq!(results[0], Ok(common::full_span()));
    assert_eq!(results[5], Ok(common::full_span()));
    assert!(results[1..5].iter().all(Result::is_err), "{results:?}");
    assert_eq!(results[3], Err(Error::ZeroId("a trace id")));
}

#[test]
fn base64_is_decoded_leniently_as_mime() {
    let message = scribe::span_message(&common::full_span());
    let lines: Vec<u8> = message.chunks(76).flat_map(|line| [line, b"\r\n"].concat()).collect();
    let foreign: Vec<u8> = message.iter().flat_map(|&byte| [byte, b'%', 0xff]).collect();
    let unpadded: Vec<u8> = message.iter().copied().filter(|&byte| byte != b'=').collect();
    let trailed = [message.as_slice(), b"====\n"].concat();
    for text in [message, lines, foreign, unpadded, trailed] {
        assert_eq!(scribe::decode_message(&text, &Limits::default()), Ok(common::full_span()));
    }
}

#[test]
fn bytes_after_a_span_are_ignored() {
    let bytes = [span::encode(&common::full_span()), vec![0xff; 100]].concat();
    assert_eq!(span::decode(&bytes, &Limits::default()), Ok(common::full_span()));
}

#[test]
fn a_field_of_another_type_is_skipped_like_an_unknown_one() {
    let mut bytes = [field(11, 1), 3_u32.to_be_bytes().to_vec(), b"abc".to_vec()].concat();
    bytes.extend([field(LIST, 6), vec![8], 1_u32.to_be_bytes().to_vec(), vec![0, 0, 0, 9]].concat());
    bytes.extend(span::encode(&common::full_span()));
    assert_eq!(span::decode(&bytes, &Limits::default()), Ok(common::full_span()));
}

#[test]
fn text_that_is_not_utf_8_is_read_with_replacement_characters() {
    let mut bytes = [field(11, 3), 2_u32.to_be_bytes().to_vec(), vec![0xff, b'a']].concat();
    for id in [1, 4] {
        bytes.extend([field(10, id), 1_i64.to_be_bytes().to_vec()].concat());
    }
    bytes.push(0);
    assert_eq!(span::decode(&bytes, &Limits::default()).unwrap().name, "\u{fffd}a");
}

#[test]
fn messages_are_appended_and_a_bad_one_appends_nothing() {
    let mut bytes = b"before".to_vec();
    assert_eq!(scribe::append_decoded(b"YWI=", &mut bytes), Ok(6..8));
    assert!(matches!(scribe::append_decoded(b"YWJjY", &mut bytes), Err(Error::Base64(_))));
    assert_eq!(scribe::append_decoded(b"Y2Rl", &mut bytes), Ok(8..11));
    assert_eq!(bytes, b"beforeabcde");
}

/// A span with one list field, which has these elements.
fn span_with_list(id: i16, elements: &[Vec<u8>]) -> Vec<u8> {
    let count = (elements.len() as u32).to_be_bytes();
    let mut bytes = [field(LIST, id), vec![STRUCT], count.to_vec(), elements.concat()].concat();
    for id in [1, 4] {
        bytes.extend([field(10, id), 1_i64.to_be_bytes().to_vec()].concat());
    }
    bytes.push(0);
    bytes
}

#[test]
fn incomplete_annotations_are_counted_and_not_stored() {
    let time = [field(10, 1), 5_i64.to_be_bytes().to_vec()].concat();
    let [key, value] = [1, 2].map(|id| [field(11, id), vec![0; 4]].concat());
    let cases = [
        (6, [&time[..], &value].concat(), vec![time, value.clone()]),
        (8, [&key[..], &value].concat(), vec![key, value]),
    ];
    for (list, told, lacking) in cases {
        let elements = [vec![told], lacking, vec![Vec::new(); 60_000]].concat();
        let elements: Vec<Vec<u8>> = elements.into_iter().map(|fields| [fields, vec![0]].concat()).collect();
        let span = span::decode(&span_with_list(list, &elements), &Limits::default()).unwrap();
        let kept = (span.annotations.len(), span.binary_annotations.len());
        assert_eq!((kept, span.left_out), (if list == 6 { (1, 0) } else { (0, 1) }, 60_002));
        assert!(span.annotations.capacity() + span.binary_annotations.capacity() < 10);
    }
}

/// Reads a span with one annotation, and returns its host. `fields` are the fields of the host.
fn read_host(fields: &[Vec<u8>]) -> Endpoint {
    let host = [field(STRUCT, 3), fields.concat(), vec![0]].concat();
    let element = [field(10, 1), vec![5; 8], field(11, 2), vec![0; 4], host, vec![0]].concat();
    let span = span::decode(&span_with_list(6, &[element]), &Limits::default()).unwrap();
    span.annotations[0].host.clone().unwrap()
}

fn ipv4_field(address: [u8; 4]) -> Vec<u8> {
    [field(8, 1), address.to_vec()].concat()
}

fn ipv6_field(address: &[u8]) -> Vec<u8> {
    [field(11, 4), (address.len() as u32).to_be_bytes().to_vec(), address.to_vec()].concat()
}

#[test]
fn four_bytes_in_the_ipv6_field_are_an_ipv4_address() {
    let read = |address: &[u8]| {
        let host = read_host(&[ipv4_field([9; 4]), ipv6_field(address)]);
        (host.ipv4.to_be_bytes(), host.ipv6)
    };
    assert_eq!(read(&[1, 2, 3, 4]), ([1, 2, 3, 4], None));
    assert_eq!(read(&[7; 16]), ([9; 4], Some([7; 16])));
    assert_eq!((read(&[]), read(&[7; 5])), (([9; 4], None), ([9; 4], None)));
}

#[test]
fn the_last_valid_address_of_each_kind_counts() {
    const COMPATIBLE: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 6, 7, 8];
    const LOOPBACK: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let (ipv4, zeros) = (ipv4_field([9; 4]), ipv4_field([0; 4]));
    let (ipv6, compatible) = (ipv6_field(&[7; 16]), ipv6_field(&COMPATIBLE));
    let cases = [
        ([&compatible, &ipv4], [9; 4], None),
        ([&compatible, &zeros], [0; 4], Some(COMPATIBLE)),
        ([&ipv4, &zeros], [9; 4], None),
        ([&ipv6, &ipv4], [9; 4], Some([7; 16])),
        ([&ipv6_field(&LOOPBACK), &ipv4], [9; 4], Some(LOOPBACK)),
        ([&ipv6, &ipv6_field(&[8; 3])], [0; 4], Some([7; 16])),
        ([&compatible, &ipv6], [5, 6, 7, 8], Some([7; 16])),
        ([&ipv6, &compatible], [5, 6, 7, 8], Some([7; 16])),
        ([&ipv6, &ipv6_field(&[8; 16])], [0; 4], Some([8; 16])),
        ([&compatible, &compatible], [5, 6, 7, 8], Some(COMPATIBLE)),
    ];
    for (fields, ipv4, ipv6) in cases {
        let host = read_host(&fields.map(Clone::clone));
        assert_eq!((host.ipv4.to_be_bytes(), host.ipv6), (ipv4, ipv6), "{fields:?}");
    }
}

#[test]
fn a_flag_is_true_only_if_its_byte_is_1() {
    let read = |flag| {
        let mut bytes = span::encode(&common::full_span());
        let at = bytes.windows(4).position(|bytes| bytes == [2, 0, 9, 1]).unwrap();
        bytes[at + 3] = flag;
        let mut view = SpanView::default();
        assert!(view.read(&bytes, &Limits::default()));
        (span::decode(&bytes, &Limits::default()).unwrap().debug, view.debug)
    };
    assert_eq!([0, 1, 2, 0xff].map(read), [false, true, false, false].map(|debug| (debug, debug)));
}

#[test]
fn nesting_beyond_the_limit_is_refused() {
    let mut structs = field(STRUCT, 77).repeat(100_000);
    structs.extend(vec![0; 100_001]);
    assert!(span::decode(&structs, &Limits::default()).is_err());
    let lists: Vec<u8> =
        field(LIST, 77).into_iter().chain([LIST, 0, 0, 0, 1].repeat(100_000)).chain(vec![0; 10]).collect();
    assert!(span::decode(&lists, &Limits::default()).is_err());
}

#[test]
fn an_oversized_list_is_refused_before_it_is_read() {
    let limits = Limits { max_annotations: 3, max_entries: 1, ..Limits::default() };
    let mut span = common::full_span();
    span.annotations = vec![span.annotations[1].clone(); 4];
    let error = span::decode(&span::encode(&span), &limits);
    assert_eq!(error, Err(Error::TooLarge { what: "annotations", size: 4, limit: 3 }));
    let call = scribe::encode_log_call(1, &[LogEntry::default(), LogEntry::default()]);
    let bad = scribe::parse_call(&call[frame::HEADER_BYTES..], &limits).unwrap_err();
    assert_eq!(bad.cause, Error::TooLarge { what: "log entries", size: 2, limit: 1 });
}

#[test]
fn a_repeated_list_grows_up_to_the_limit() {
    let annotation =
        [[field(10, 1), 5_i64.to_be_bytes().to_vec()].concat(), [field(11, 2), vec![0; 4]].concat()];
    let binary = [1, 2].map(|id| [field(11, id), vec![0; 4]].concat());
    for (id, what, told) in [(6, "annotations", annotation), (8, "binary annotations", binary)] {
        let elements = [[told.concat(), vec![0]].concat(), vec![0]];
        let once = span_with_list(id, &elements);
        let list = &once[..3 + 5 + elements.concat().len()];
        let twice = [list, &once].concat();
        let limits = |max_annotations| Limits { max_annotations, ..Limits::default() };
        let span = span::decode(&twice, &limits(4)).unwrap();
        assert_eq!((span.annotations.len() + span.binary_annotations.len(), span.left_out), (2, 2));
        let mut message = vec![0; scribe::message_bytes(twice.len())];
        scribe::write_message(&twice, &mut message);
        assert_eq!(scribe::annotation_count(&message, &mut Vec::new(), &limits(4)), Some(4));
        let error = span::decode(&twice, &limits(3));
        assert_eq!(error, Err(Error::TooLarge { what, size: 4, limit: 3 }));
    }
}

#[test]
fn an_oversized_span_is_refused() {
    let limits = Limits { max_span_bytes: 100, ..Limits::default() };
    let message = scribe::span_message(&common::full_span());
    assert!(matches!(scribe::decode_message(&message, &limits), Err(Error::TooLarge { .. })));
    let bytes = span::encode(&common::full_span());
    assert!(matches!(span::decode(&bytes, &limits), Err(Error::TooLarge { .. })));
}

#[test]
fn a_span_list_skips_spans_without_ids_and_stops_at_garbage() {
    let good = span::encode(&common::full_span());
    let list =
        |spans: &[&[u8]]| [&[STRUCT][..], &(spans.len() as u32).to_be_bytes(), &spans.concat()].concat();
    let spans = span::decode_list(&list(&[&good, &[0], &good]), &Limits::default()).unwrap();
    assert_eq!(spans, [Ok(common::full_span()), Err(Error::ZeroId("a trace id")), Ok(common::full_span())]);
    let spans = span::decode_list(&list(&[&good, &[0xff], &good]), &Limits::default()).unwrap();
    assert_eq!(spans.len(), 2);
    assert!(matches!(&spans[1], Err(Error::ListBroken { at: 1, announced: 3, .. })), "{:?}", spans[1]);
    assert!(span::decode_list(&[STRUCT, 0x7f, 0xff, 0xff, 0xff], &Limits::default()).is_err());
    assert!(span::decode_list(&[11, 0, 0, 0, 1, 0, 0, 0, 0], &Limits::default()).is_err());
}

/// Holding more memory than this at a time fails the test. The largest input here is under 2 MiB; announced lengths are larger.
#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, 64 << 20);

/// Checks that a call can be skimmed if it can be decoded, and that both give the same.
fn skim_and_parse(frame: &[u8]) {
    let limits = Limits::default();
    let skimmed = scribe::skim_log(frame, &limits);
    let skimmed = skimmed.map(|log| (log.seq, log.wants_reply, log.entries));
    let parsed = scribe::parse_call(frame, &limits).ok().and_then(|call| match call.method {
        Method::Log(entries) => Some((call.seq, call.wants_reply, entries)),
        _ => None,
    });
    let skimmed = skimmed.map(|(seq, wants_reply, entries)| {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let entry = |raw: &scribe::RawEntry<'_>| LogEntry {
            category: text(raw.category),
            message: raw.message.to_vec(),
        };
        (seq, wants_reply, entries.iter().map(entry).collect())
    });
    assert_eq!(skimmed, parsed);
}

#[test]
fn a_call_without_a_list_of_entries_is_malformed() {
    const SET: u8 = 14;
    let call = |arguments: &[u8]| [b"\x80\x01\0\x01\0\0\0\x03Log\0\0\0\x01", arguments, &[0]].concat();
    let entry =
        [field(11, 1), vec![0, 0, 0, 1, b'a'], field(11, 2), vec![0, 0, 0, 1, b'b'], vec![0]].concat();
    let holding = |kind, id| call(&[field(kind, id), vec![STRUCT, 0, 0, 0, 1], entry.clone()].concat());
    for frame in [call(&[]), holding(SET, 1), holding(LIST, 2)] {
        let bad = scribe::parse_call(&frame, &Limits::default()).unwrap_err();
        assert!(matches!(bad.cause, Error::Malformed(_)) && bad.reply.is_some(), "{bad:?}");
        skim_and_parse(&frame);
    }
    let elements = |elements: &[u8]| call(&[field(LIST, 1), elements.to_vec()].concat());
    let of_numbers = elements(&[8, 0, 0, 0, 1, 0x7f, 0x7f, 0x7f, 0x7f]);
    for frame in [holding(LIST, 1), elements(&[STRUCT, 0, 0, 0, 0]), of_numbers] {
        assert!(scribe::parse_call(&frame, &Limits::default()).is_ok());
        skim_and_parse(&frame);
    }
}

#[test]
fn skimming_and_decoding_have_the_same_nesting_limit() {
    let call = |depth: usize| {
        let nested = [field(STRUCT, 77).repeat(depth), vec![0; depth]].concat();
        let no_entries = [field(LIST, 1), vec![STRUCT, 0, 0, 0, 0]].concat();
        [b"\x80\x01\0\x01\0\0\0\x03Log\0\0\0\x01".as_slice(), &no_entries, &nested, &[0]].concat()
    };
    assert!(scribe::skim_log(&call(15), &Limits::default()).is_some());
    assert!(scribe::skim_log(&call(16), &Limits::default()).is_none());
    (10..80).for_each(|depth| skim_and_parse(&call(depth)));
}

fn parse_all(bytes: &[u8]) {
    let limits = Limits::default();
    skim_and_parse(bytes);
    let _ = span::decode(bytes, &limits);
    let _ = span::decode_list(bytes, &limits);
    let _ = scribe::decode_message(bytes, &limits);
    let _ = scribe::decode_reply(bytes, &limits);
    if let Ok(call) = scribe::parse_call(bytes, &limits)
        && let Method::Log(entries) = call.method
    {
        entries.iter().for_each(|entry| drop(scribe::decode_message(&entry.message, &limits)));
    }
}

#[test]
fn announced_lengths_allocate_no_memory() {
    for header in [field(11, 3), field(LIST, 6), field(LIST, 8), field(13, 77), field(11, 77)] {
        for length in [i32::MAX, -1, 1 << 20] {
            for tail in [length.to_be_bytes().to_vec(), [&[STRUCT][..], &length.to_be_bytes()].concat()] {
                let bytes = [header.clone(), tail].concat();
                parse_all(&bytes);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn arbitrary_bytes_neither_panic_nor_exhaust_memory(bytes in vec(any::<u8>(), 0..400)) {
        parse_all(&bytes);
    }

    #[test]
    fn damaged_calls_neither_panic_nor_exhaust_memory(
        span in common::span(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let span_bytes = span::encode(&span);
        let entry = LogEntry { category: "zipkin".to_owned(), message: scribe::span_message(&span) };
        for mut bytes in [span_bytes, scribe::encode_log_call(1, &[entry])[frame::HEADER_BYTES..].to_vec()] {
            for (at, byte) in &damage {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            parse_all(&bytes);
        }
    }

    /// The result does not depend on where vector instructions begin and end.
    #[test]
    fn base64_decoding_agrees_with_a_plain_mime_decoder(
        bytes in vec(any::<u8>(), 0..300),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
    ) {
        let mut message = message_of(&bytes);
        for (at, byte) in damage {
            let at = at.index(message.len().max(1));
            message.splice(at.min(message.len()).., [byte].into_iter().chain(message.clone().into_iter().skip(at + 1)));
        }
        let mut appended = Vec::new();
        let read = scribe::append_decoded(&message, &mut appended).is_ok();
        prop_assert_eq!(read.then_some(appended), decoded_as_mime(&message));
    }

    #[test]
    fn a_frame_reader_buffers_no_more_than_it_received(pieces in vec(vec(any::<u8>(), 0..50), 0..20)) {
        let mut reader = FrameReader::new(&Limits::default());
        let came: usize = pieces.iter().map(Vec::len).sum();
        for piece in pieces {
            reader.extend(&piece);
            while let Ok(Some(frame)) = reader.next_frame() {
                prop_assert!(frame.len() <= came);
            }
            prop_assert!(reader.pending_bytes() <= came);
        }
    }
}
