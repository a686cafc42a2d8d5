//! Values that are written are read back unchanged.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod common;

use blkin_thrift::frame::FrameReader;
use blkin_thrift::scribe::{self, Call, Fb303, LogEntry, Method, Outcome, ResultCode, ServiceStatus, Status};
use blkin_thrift::{AnnotationType, Error, Limits, Span, span};
use proptest::collection::vec;
use proptest::prelude::*;

fn one_frame(bytes: &[u8]) -> Vec<u8> {
    let mut reader = FrameReader::new(&Limits::default());
    reader.extend(bytes);
    let frame = reader.next_frame().unwrap().unwrap().to_vec();
    assert_eq!(reader.pending_bytes(), 0);
    frame
}

#[test]
fn a_span_with_every_field_survives_a_log_call() {
    let limits = Limits::default();
    let full = common::full_span();
    let entry = LogEntry { category: "zipkin".to_owned(), message: scribe::span_message(&full) };
    let call = scribe::parse_call(&one_frame(&scribe::encode_log_call(7, &[entry])), &limits).unwrap();
    assert_eq!((call.seq, call.wants_reply), (7, true));
    let Method::Log(entries) = call.method else { panic!("not a Log call") };
    assert_eq!(entries.len(), 1);
    assert_eq!(scribe::decode_message(&entries[0].message, &limits), Ok(full));
}

#[test]
fn ok_and_try_later_replies_round_trip() {
    for code in [ResultCode::Ok, ResultCode::TryLater] {
        let frame = one_frame(&scribe::encode_log_reply(-3, code));
        let reply = scribe::decode_reply(&frame, &Limits::default()).unwrap();
        assert_eq!((reply.seq, reply.outcome), (-3, Outcome::Result(code)));
    }
}

#[test]
fn a_reply_to_another_method_is_not_a_reply_to_log() {
    let status = ServiceStatus {
        name: "n".into(),
        version: "v".into(),
        // The number that means OK in a reply to Log.
        status: Status::Dead,
        details: "d".into(),
        alive_since: 7,
        counters: Vec::new(),
    };
    let call = Call { seq: 1, wants_reply: true, method: Method::Fb303(Fb303::GetStatus) };
    let reply = scribe::decode_reply(&one_frame(&status.answer(&call).unwrap()), &Limits::default());
    assert!(matches!(reply, Err(Error::UnexpectedReply(_))), "{reply:?}");
}

#[test]
fn annotations_of_an_invalid_span_are_not_counted() {
    let full = common::full_span();
    let count = |message: &[u8]| scribe::annotation_count(message, &mut Vec::new(), &Limits::default());
    let held = full.annotations.len() + full.binary_annotations.len();
    assert_eq!(count(&scribe::span_message(&full)), Some(held));
    for without in [Span { trace_id: 0, ..full.clone() }, Span { id: 0, ..full.clone() }] {
        assert_eq!(count(&scribe::span_message(&without)), None);
    }
    let bytes = span::encode(&full);
    let mut cut = vec![0; scribe::message_bytes(bytes.len() - 1)];
    scribe::write_message(&bytes[..bytes.len() - 1], &mut cut);
    assert_eq!(count(&cut), None);
}

#[test]
fn binary_annotations_without_a_key_or_value_are_left_out() {
    let (key, value) = (&[11, 0, 1, 0, 0, 0, 1, b'k'][..], &[11, 0, 2, 0, 0, 0, 1, b'v'][..]);
    let host = [&[12, 0, 4, 11, 0, 3, 0, 0, 0, 9][..], b"a service", &[0]].concat();
    let read = |fields: &[&[u8]]| {
        let ids = [&[10, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1][..], &[10, 0, 4, 0, 0, 0, 0, 0, 0, 0, 2]].concat();
        let list =
            [&[15, 0, 8, 12, 0, 0, 0, 1][..], &fields.concat(), &host, &[8, 0, 3, 0, 0, 0, 6, 0]].concat();
        let span = span::decode(&[ids, list, vec![0]].concat(), &Limits::default()).unwrap();
        (span.binary_annotations.iter().map(|annotation| annotation.kind).collect::<Vec<_>>(), span.left_out)
    };
    assert_eq!(read(&[key, value]), (vec![AnnotationType::String], 0));
    for lacking in [&[key][..], &[value], &[]] {
        assert_eq!(read(lacking), (vec![], 1));
    }
}

#[test]
fn a_span_list_over_the_limit_is_refused() {
    let spans = vec![common::full_span(); 3];
    let mut list = vec![12, 0, 0, 0, 3];
    spans.iter().for_each(|one| list.extend(span::encode(one)));
    let limits = |max_entries| Limits { max_entries, ..Limits::default() };
    let decoded = span::decode_list(&list, &limits(3)).unwrap();
    assert_eq!(decoded, spans.into_iter().map(Ok).collect::<Vec<_>>());
    assert!(matches!(span::decode_list(&list, &limits(2)), Err(Error::TooLarge { size: 3, limit: 2, .. })));
    assert!(span::decode_list(&list, &limits(1)).is_err());
}

/// A call with a field of a wrong type, a field with a wrong id, and the key.
fn question(name: &str, key: &str) -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat();
    let key = [&[8, 0, 1, 0, 0, 0, 9, 11, 0, 2][..], &text("no key"), &[11, 0, 1], &text(key), &[0]].concat();
    [&[0x80, 1, 0, 1][..], &text(name), &[0, 0, 0, 5], &key].concat()
}

#[test]
fn every_fb303_method_is_parsed() {
    let questions = [
        ("getName", Fb303::GetName),
        ("getVersion", Fb303::GetVersion),
        ("getStatus", Fb303::GetStatus),
        ("getStatusDetails", Fb303::GetStatusDetails),
        ("aliveSince", Fb303::AliveSince),
        ("getCounters", Fb303::GetCounters),
        ("getCounter", Fb303::GetCounter("stored".into())),
    ];
    for (name, expected) in questions {
        let call = scribe::parse_call(&question(name, "stored"), &Limits::default());
        assert_eq!(call, Ok(Call { seq: 5, wants_reply: true, method: Method::Fb303(expected) }));
    }
}

proptest! {
    #[test]
    fn any_span_round_trips(span in common::span()) {
        prop_assert_eq!(span::decode(&span::encode(&span), &Limits::default()), Ok(span));
    }

    #[test]
    fn annotations_are_counted_without_decoding(span in common::span()) {
        let message = scribe::span_message(&span);
        let is_span = span.trace_id != 0 && span.id != 0;
        let held = is_span.then_some(span.annotations.len() + span.binary_annotations.len());
        prop_assert_eq!(scribe::annotation_count(&message, &mut Vec::new(), &Limits::default()), held);
    }

    #[test]
    fn any_log_call_round_trips(seq in any::<i32>(), entries in vec((".*", vec(any::<u8>(), 0..200)), 0..10)) {
        let entries: Vec<LogEntry> =
            entries.into_iter().map(|(category, message)| LogEntry { category, message }).collect();
        let call = scribe::parse_call(&one_frame(&scribe::encode_log_call(seq, &entries)), &Limits::default());
        prop_assert_eq!(call, Ok(Call { seq, wants_reply: true, method: Method::Log(entries) }));
    }

    #[test]
    fn frames_are_read_from_pieces_of_any_size(
        bodies in vec(vec(any::<u8>(), 0..50), 0..10),
        cut in 1usize..30,
    ) {
        let stream: Vec<u8> = bodies
            .iter()
            .flat_map(|body| [&(body.len() as u32).to_be_bytes()[..], body].concat())
            .collect();
        let mut reader = FrameReader::new(&Limits::default());
        let mut frames = Vec::new();
        for piece in stream.chunks(cut) {
            reader.extend(piece);
            while let Some(frame) = reader.next_frame().unwrap() {
                frames.push(frame.to_vec());
            }
        }
        prop_assert_eq!(frames, bodies);
        prop_assert_eq!(reader.pending_bytes(), 0);
    }
}
