//! The Scribe sink against upstreams that disconnect.

use std::collections::BTreeSet;
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

/// Longest wait for a call, even on a slow machine: half of the sinks' `io_timeout_ms` in these tests.
const LIMIT: Duration = Duration::from_secs(60);

/// A configuration without lingering, and with short pauses.
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

/// Pushes entries, and calls the sink's thread, which may have looked before they were there.
fn push(sink: &Sink, entries: impl IntoIterator<Item = Entry>) {
    sink.queue.push(entries);
    sink.queue.call(Instant::now());
}

fn accept(listener: &TcpListener) -> TcpStream {
    let stream = listener.accept().unwrap().0;
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

/// The number of the next call and its messages; `None` if the call announces more than `most` bytes.
fn next_call_within(stream: &mut TcpStream, most: usize) -> Option<(i32, Vec<String>)> {
    let mut header = [0; 4];
    stream.read_exact(&mut header).expect("the sink sends nothing");
    let length = u32::from_be_bytes(header) as usize;
    if length > most {
        return None;
    }
    Some(read_call(stream, length).unwrap())
}

/// The number of the next call and its messages; `None` once the sink has disconnected.
fn next_call_or_end(stream: &mut TcpStream) -> Option<(i32, Vec<String>)> {
    let mut header = [0; 4];
    stream.read_exact(&mut header).ok()?;
    read_call(stream, u32::from_be_bytes(header) as usize)
}

fn read_call(stream: &mut TcpStream, length: usize) -> Option<(i32, Vec<String>)> {
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
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
fn an_upstream_refusing_large_calls_gets_smaller_ones() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sink = sink(&listener, &config());
    let message = "x".repeat(1000);
    // All at once, so that the first call is a large one.
    push(&sink, (0..100).map(|frame| entry(&message, frame)));
    let (mut taken, mut connections) = (0, 0);
    while taken < 100 {
        connections += 1;
        assert!(connections < 20, "the sink repeats the same call");
        let mut stream = accept(&listener);
        // The upstream disconnects when a call announces too much.
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
fn repeated_refusals_are_trouble_until_a_message_is_taken() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sink = sink(&listener, &config());
    let mut stream = None;
    for frame in 0..u64::from(REFUSALS) {
        assert_eq!(sink.standing.trouble(), None, "a few refusals are no trouble yet");
        push(&sink, [entry("bad", frame)]);
        let stream = stream.get_or_insert_with(|| accept(&listener));
        // Once in a call with all entries that there are, once by itself.
        for _ in 0..2 {
            let (seq, _) = next_call(stream);
            stream.write_all(&encode_exception("Log", seq, ExceptionKind::UnknownMethod, "Log?")).unwrap();
        }
        while sink.queue.take_outcomes().is_empty() {
            std::thread::yield_now();
        }
    }
    let trouble = sink.standing.trouble().unwrap();
    assert_eq!((trouble.cause, trouble.reason.ends_with(": Log?")), (Cause::Refused, true), "{trouble:?}");
    push(&sink, [entry("good", 1000)]);
    let stream = stream.as_mut().unwrap();
    let (seq, _) = next_call(stream);
    stream.write_all(&encode_log_reply(seq, ResultCode::Ok)).unwrap();
    while sink.standing.trouble().is_some() {
        std::thread::yield_now();
    }
    sink.queue.end();
    sink.thread.unwrap().join().unwrap();
}

#[test]
fn calls_behind_a_refused_one_are_resent_after_disconnects() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sink = sink(&listener, &Config { batch_entries: 1, ..config() });
    let push = |message: &str, frame| push(&sink, [entry(message, frame)]);
    push("first", 1);
    push("second", 2);
    let mut stream = accept(&listener);
    let (first, _) = next_call(&mut stream);
    assert_eq!(next_call(&mut stream).1, "second");
    let refusal = encode_exception("Log", first, ExceptionKind::ProtocolError, "no");
    stream.write_all(&refusal).unwrap();
    drop(stream);
    // The refused entry comes by itself, and gets no answer.
    let mut stream = accept(&listener);
    assert_eq!(next_call(&mut stream).1, "first");
    drop(stream);
    // The sink continues with this entry and with those behind it, because it does not know whether they arrived.
    push("third", 3);
    let arrived = take(&listener, 3, |_| false);
    assert_eq!(BTreeSet::from_iter(arrived).len(), 3);
    sink.queue.end();
    sink.thread.unwrap().join().unwrap();
    let acked = sink.queue.take_outcomes();
    assert!(acked.len() == 3 && acked.iter().all(|settled| settled.outcome == Outcome::Acked), "{acked:?}");
}

/// Takes calls on one connection after the other, and disconnects where `breaks` is true, until `most` messages are taken.
fn take(listener: &TcpListener, most: usize, mut breaks: impl FnMut(&[String]) -> bool) -> Vec<String> {
    let mut taken = Vec::new();
    while taken.len() < most {
        let mut stream = accept(listener);
        while taken.len() < most {
            let Some((seq, messages)) = next_call_or_end(&mut stream) else { break };
            if breaks(&messages) {
                break;
            }
            taken.extend(messages);
            stream.write_all(&encode_log_reply(seq, ResultCode::Ok)).unwrap();
        }
    }
    taken
}

fn settled(sink: Sink) -> [u32; 2] {
    sink.queue.end();
    sink.thread.unwrap().join().unwrap();
    let all = sink.queue.take_outcomes();
    [Outcome::Acked, Outcome::Rejected]
        .map(|fate| all.iter().filter(|one| one.outcome == fate).map(|one| one.annotations).sum())
}

#[test]
fn an_entry_that_always_causes_a_hangup_is_rejected_alone() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sink = sink(&listener, &config());
    push(&sink, (0..100).map(|frame| entry(&frame.to_string(), frame)));
    let mut alone = 0;
    let mut taken = take(&listener, 99, |messages| {
        alone += u32::from(messages == ["7"]);
        messages.iter().any(|message| message == "7")
    });
    taken.sort_unstable_by_key(|message| message.parse::<u32>().unwrap());
    assert_eq!(
        taken,
        Vec::from_iter((0..100).filter(|number| *number != 7).map(|number| number.to_string()))
    );
    assert_eq!((alone, settled(sink)), (TIMES, [99, 1]));
}

#[test]
fn nothing_is_lost_while_the_upstream_hangs_up_on_every_call() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sink = sink(&listener, &config());
    push(&sink, (0..100).map(|frame| entry(&frame.to_string(), frame)));
    let mut calls = 0;
    let taken = take(&listener, 100, |_| {
        calls += 1;
        calls < 200
    });
    assert_eq!((taken.len(), settled(sink)), (100, [100, 0]));
}

#[test]
fn an_entry_that_is_never_answered_is_rejected_alone() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sink = sink(&listener, &Config { io_timeout_ms: 100, ..config() });
    push(&sink, (0..1000).map(|frame| entry(&frame.to_string(), frame)));
    std::thread::spawn(move || {
        let mut silent = Vec::new();
        for mut stream in listener.incoming().map(Result::unwrap) {
            while let Some((seq, messages)) = next_call_or_end(&mut stream) {
                if messages.contains(&"0".to_owned()) {
                    silent.push(stream);
                    break;
                }
                if stream.write_all(&encode_log_reply(seq, ResultCode::Ok)).is_err() {
                    break;
                }
            }
        }
    });
    assert_eq!(settled(sink), [999, 1]);
}

#[test]
fn one_answer_per_connection_suffices_to_ship_everything() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sink = sink(&listener, &config());
    push(&sink, (0..100).map(|frame| entry(&frame.to_string(), frame)));
    std::thread::spawn(move || {
        // At first the upstream disconnects at each call, so that entries are sent one by one, and the first of them in vain.
        for (number, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let Some((seq, _)) = next_call_or_end(&mut stream) else { continue };
            if number > BREAKS as usize && stream.write_all(&encode_log_reply(seq, ResultCode::Ok)).is_ok() {
                next_call_or_end(&mut stream);
            }
        }
    });
    assert_eq!(settled(sink), [100, 0]);
}

#[test]
fn nothing_is_lost_while_the_upstream_fails_on_every_call() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sink = sink(&listener, &config());
    push(&sink, (0..100).map(|frame| entry(&frame.to_string(), frame)));
    std::thread::spawn(move || {
        let mut calls = 0;
        for mut stream in listener.incoming().map(Result::unwrap) {
            while let Some((seq, _)) = next_call_or_end(&mut stream) {
                let error = encode_exception("Log", seq, ExceptionKind::InternalError, "no database");
                let taken = encode_log_reply(seq, ResultCode::Ok);
                stream.write_all(if calls < 100 { &error } else { &taken }).unwrap();
                calls += 1;
            }
        }
    });
    assert_eq!(settled(sink), [100, 0]);
}
