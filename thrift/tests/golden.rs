//! The encoders give the bytes of another implementation: Apache's Python library wrote `golden/*.bin`
//! (`golden/make.py`).
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod common;

use blkin_thrift::frame::FrameReader;
use blkin_thrift::scribe::{
    self, Call, Exception, ExceptionKind, Fb303, LogEntry, Method, Outcome, Reply, ResultCode, ServiceStatus,
    Status,
};
use blkin_thrift::{Limits, span};

macro_rules! golden {
    ($name:literal) => {
        include_bytes!(concat!("golden/", $name, ".bin")).as_slice()
    };
}

/// The only frame in these bytes.
fn unframed(bytes: &[u8]) -> Vec<u8> {
    let mut reader = FrameReader::new(&Limits::default());
    reader.extend(bytes);
    let frame = reader.next_frame().unwrap().unwrap().to_vec();
    assert_eq!(reader.pending_bytes(), 0);
    frame
}

fn entries() -> Vec<LogEntry> {
    vec![
        LogEntry { category: "zipkin".to_owned(), message: scribe::span_message(&common::full_span()) },
        LogEntry { category: "other".to_owned(), message: b"not base64 !".to_vec() },
    ]
}

fn status() -> ServiceStatus {
    ServiceStatus {
        name: "blkin-collector".to_owned(),
        version: "0.1.0".to_owned(),
        status: Status::Alive,
        details: "all workers live".to_owned(),
        alive_since: 1_700_000_000,
        counters: vec![("received".to_owned(), 3), ("stored".to_owned(), 2)],
    }
}

#[test]
fn a_span_is_encoded_as_by_apache_thrift() {
    assert_eq!(span::encode(&common::full_span()), golden!("span"));
    assert_eq!(span::decode(golden!("span"), &Limits::default()), Ok(common::full_span()));
}

#[test]
fn a_log_call_is_encoded_as_by_apache_thrift() {
    assert_eq!(scribe::encode_log_call(7, &entries()), golden!("log_call"));
}

#[test]
fn a_log_call_is_read_with_and_without_a_version() {
    for bytes in [golden!("log_call"), golden!("log_call_old_style")] {
        let call = scribe::parse_call(&unframed(bytes), &Limits::default());
        assert_eq!(call, Ok(Call { seq: 7, wants_reply: true, method: Method::Log(entries()) }));
    }
}

#[test]
fn log_replies_are_encoded_as_by_apache_thrift_and_read_back() {
    let cases = [(ResultCode::Ok, golden!("reply_ok")), (ResultCode::TryLater, golden!("reply_try_later"))];
    for (code, bytes) in cases {
        assert_eq!(scribe::encode_log_reply(7, code), bytes);
        let reply = scribe::decode_reply(&unframed(bytes), &Limits::default());
        assert_eq!(reply, Ok(Reply { seq: 7, outcome: Outcome::Result(code) }));
    }
}

#[test]
fn an_unknown_method_is_answered_as_by_apache_thrift() {
    let call = Call { seq: 8, wants_reply: true, method: Method::Unknown("Nope".to_owned()) };
    assert_eq!(call.unknown_method_reply().as_deref(), Some(golden!("reply_unknown_method")));
    let reply = scribe::decode_reply(&unframed(golden!("reply_unknown_method")), &Limits::default()).unwrap();
    let message = "Invalid method name: 'Nope'".to_owned();
    let exception = Exception { kind: ExceptionKind::UnknownMethod as i32, message };
    assert_eq!(reply, Reply { seq: 8, outcome: Outcome::Exception(exception) });
}

#[test]
fn fb303_calls_are_answered_as_by_apache_thrift() {
    let call = scribe::parse_call(&unframed(golden!("get_name_call")), &Limits::default()).unwrap();
    assert_eq!(call, Call { seq: 9, wants_reply: true, method: Method::Fb303(Fb303::GetName) });
    let cases = [
        (Fb303::GetName, 9, golden!("get_name_reply")),
        (Fb303::GetStatus, 10, golden!("get_status_reply")),
        (Fb303::GetCounters, 11, golden!("get_counters_reply")),
        (Fb303::AliveSince, 12, golden!("alive_since_reply")),
    ];
    for (question, seq, bytes) in cases {
        let call = Call { seq, wants_reply: true, method: Method::Fb303(question) };
        assert_eq!(status().answer(&call).as_deref(), Some(bytes), "{call:?}");
    }
}

#[test]
fn fb303_get_counter_answers_0_for_an_unknown_counter() {
    let alive_since = golden!("alive_since_reply");
    for (key, value) in [("received", 3_i64), ("stored", 2), ("lost", 0)] {
        let method = Method::Fb303(Fb303::GetCounter(key.to_owned()));
        let answer = status().answer(&Call { seq: 12, wants_reply: true, method }).unwrap();
        // The two replies differ in the method's name, of the same length, and in the number before the end.
        let expected = alive_since.to_vec();
        let expected = [&expected[..expected.len() - 9], &value.to_be_bytes(), &[0]].concat();
        let expected = String::from_utf8_lossy(&expected).replace("aliveSince", "getCounter");
        assert_eq!(String::from_utf8_lossy(&answer), expected);
    }
}
