//! The sink against an upstream that breaks off. Each message is a call of its own.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use blkin_daemon::{Cause, Standing};
use blkin_thrift::Limits;
use blkin_thrift::scribe::{
    ExceptionKind, Method, ResultCode, encode_exception, encode_log_reply, parse_call,
};

use super::*;
use crate::sinks::queue::Refs;
use crate::sinks::{Feed, Sink};

/// Half of how long the default lets a silent upstream be.
const LIMIT: Duration = Duration::from_secs(5);

fn sink(listener: &TcpListener) -> Sink {
    let upstream = listener.local_addr().unwrap().to_string();
    let config =
        Config { batch_entries: 1, linger_ms: 0, backoff_min_ms: 1, backoff_max_ms: 2, ..Config::default() };
    let standing = Standing::new("scribe", &upstream, Cause::OF_UPSTREAM);
    let outlet = Scribe::new(&upstream, "zipkin", &config);
    Sink::start("scribe", Feed::Spans, standing, &config, outlet).unwrap()
}

fn push(sink: &Sink, message: &str, frame: u64) {
    let lines = format!("{message}\n").into_bytes().into();
    sink.queue.push([Entry { lines, messages: 1, refs: Refs::One((frame, 1)), program: 1 }]);
}

fn accept(listener: &TcpListener) -> TcpStream {
    let stream = listener.accept().unwrap().0;
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

/// The number of the next call and its message.
fn next_call(stream: &mut TcpStream) -> (i32, String) {
    let mut header = [0; 4];
    stream.read_exact(&mut header).expect("the sink sends nothing");
    let mut body = vec![0; u32::from_be_bytes(header) as usize];
    stream.read_exact(&mut body).unwrap();
    let call = parse_call(&body, &Limits::default()).unwrap();
    let Method::Log(entries) = call.method else { panic!("no Log call") };
    (call.seq, String::from_utf8(entries[0].message.to_vec()).unwrap())
}

#[test]
fn calls_behind_a_refused_one_are_sent_again_when_the_connection_breaks_and_the_next_one_too() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sink = sink(&listener);
    push(&sink, "first", 1);
    push(&sink, "second", 2);
    let mut stream = accept(&listener);
    let (first, _) = next_call(&mut stream);
    assert_eq!(next_call(&mut stream).1, "second");
    let refusal = encode_exception("Log", first, ExceptionKind::InternalError, "no");
    stream.write_all(&refusal).unwrap();
    drop(stream);
    // The refused one comes by itself, and gets no answer.
    let mut stream = accept(&listener);
    assert_eq!(next_call(&mut stream).1, "first");
    drop(stream);
    // The sink goes on with what is behind it, of which it does not know whether it arrived.
    push(&sink, "third", 3);
    let mut stream = accept(&listener);
    let mut arrived = Vec::new();
    while arrived.last().is_none_or(|last| last != "third") {
        let (seq, message) = next_call(&mut stream);
        arrived.push(message);
        stream.write_all(&encode_log_reply(seq, ResultCode::Ok)).unwrap();
    }
    assert_eq!(arrived, ["first", "second", "third"]);
    sink.queue.end();
    sink.thread.unwrap().join().unwrap();
    let acked = sink.queue.take_outcomes();
    assert!(acked.len() == 3 && acked.iter().all(|settled| settled.outcome == Outcome::Acked), "{acked:?}");
}
