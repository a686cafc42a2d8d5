//! The sink against upstreams that break off.

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

/// Longest wait for a call, on whatever machine: half of how long the sinks of these tests let a silent upstream be.
const LIMIT: Duration = Duration::from_secs(60);

/// Nothing lingers, and pauses are short.
fn config() -> Config {
    let io_timeout_ms = 2 * LIMIT.as_millis() as u64;
    Config { linger_ms: 0, backoff_min_ms: 1, backoff_max_ms: 2, io_timeout_ms, ..Config::default() }
}

fn sink(listener: &TcpListener, config: &Config) -> Sink {
    let upstream = listener.local_addr().unwrap().to_string();
    let standing = Standing::new("scribe", &upstream, Cause::OF_UPSTREAM);
    let outlet = Scribe::new(&upstream, "zipkin", config);
    Sink::start("scribe", Feed::Spans, standing, config, outlet).unwrap()
}

fn entry(message: &str, frame: u64) -> Entry {
    let lines = format!("{message}\n").into_bytes().into();
    Entry { lines, messages: 1, refs: Refs::One((frame, 1)), program: 1 }
}

fn accept(listener: &TcpListener) -> TcpStream {
    let stream = listener.accept().unwrap().0;
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

/// The number of the next call and its messages; none if it announces more bytes than these.
fn next_call_within(stream: &mut TcpStream, most: usize) -> Option<(i32, Vec<String>)> {
    let mut header = [0; 4];
    stream.read_exact(&mut header).expect("the sink sends nothing");
    let length = u32::from_be_bytes(header) as usize;
    if length > most {
        return None;
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    let call = parse_call(&body, &Limits::default()).unwrap();
    let Method::Log(entries) = call.method else { panic!("no Log call") };
    let messages = entries.into_iter().map(|entry| String::from_utf8(entry.message.to_vec()).unwrap());
    Some((call.seq, messages.collect()))
}

/// The number of the next call and its only message.
fn next_call(stream: &mut TcpStream) -> (i32, String) {
    let (seq, mut messages) = next_call_within(stream, usize::MAX).unwrap();
    assert_eq!(messages.len(), 1);
    (seq, messages.remove(0))
}

#[test]
fn an_upstream_that_takes_no_large_calls_gets_everything_in_smaller_ones() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sink = sink(&listener, &config());
    let message = "x".repeat(1000);
    // All at once, so that the first call is a large one.
    sink.queue.push((0..100).map(|frame| entry(&message, frame)));
    let (mut taken, mut connections) = (0, 0);
    while taken < 100 {
        connections += 1;
        assert!(connections < 20, "it sends the same call again and again");
        let mut stream = accept(&listener);
        // Whoever announces too much is hung up on.
        while taken < 100
            && let Some((seq, messages)) = next_call_within(&mut stream, 20_000)
        {
            taken += messages.len();
            stream.write_all(&encode_log_reply(seq, ResultCode::Ok)).unwrap();
        }
    }
    assert_eq!(taken, 100);
    sink.queue.end();
    sink.thread.unwrap().join().unwrap();
    let acked = sink.queue.take_outcomes();
    assert!(acked.len() == 100 && acked.iter().all(|settled| settled.outcome == Outcome::Acked), "{acked:?}");
}

#[test]
fn calls_behind_a_refused_one_are_sent_again_when_the_connection_breaks_and_the_next_one_too() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sink = sink(&listener, &Config { batch_entries: 1, ..config() });
    let push = |message: &str, frame| sink.queue.push([entry(message, frame)]);
    push("first", 1);
    push("second", 2);
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
    push("third", 3);
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
