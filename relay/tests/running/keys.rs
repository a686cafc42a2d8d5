//! Keys of the configuration do what the example file says of them: those that no other test turns.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use blkin_scribe::{Client, Reply};
use blkin_thrift::frame::FrameReader;
use blkin_thrift::scribe::{
    LogEntry, Method, ResultCode, encode_log_call, encode_log_reply, parse_call, span_message,
};
use blkin_thrift::{Annotation, Limits, Span};

use crate::process::{Relay, program};

/// Half of how long the default lets a silent upstream be.
const LIMIT: Duration = Duration::from_secs(5);

/// A sender of single entries, each of which the relay has on disk when `send` returns.
struct Sender(Client);

impl Sender {
    fn of(relay: &Relay) -> Sender {
        Sender(Client::new(&relay.scribe, LIMIT))
    }

    fn send(&mut self, category: &str, message: Vec<u8>) {
        let entry = LogEntry { category: category.into(), message };
        let call = |seq| encode_log_call(seq, std::slice::from_ref(&entry));
        assert_eq!(self.0.log(call, &mut || Ok(())).unwrap(), Reply::Ok);
    }
}

/// A relay's connection to its upstream, as the upstream sees it.
struct Calls {
    stream: TcpStream,
    frames: FrameReader,
}

impl Calls {
    /// Waits for the relay to connect, for as long as [`LIMIT`].
    fn accept(listener: &TcpListener) -> Calls {
        let (told, accepted) = channel();
        let listener = listener.try_clone().unwrap();
        std::thread::spawn(move || told.send(listener.accept().unwrap().0));
        let stream = accepted.recv_timeout(LIMIT).expect("the relay did not call");
        Calls { stream, frames: FrameReader::new(&Limits::default()) }
    }

    /// The number of the next call, and how many entries it has.
    fn next(&mut self) -> (i32, usize) {
        let mut bytes = [0; 4096];
        loop {
            if let Some(frame) = self.frames.next_frame().unwrap() {
                let call = parse_call(frame, &Limits::default()).unwrap();
                let Method::Log(entries) = call.method else { panic!("{:?}", call.method) };
                return (call.seq, entries.len());
            }
            let read = self.stream.read(&mut bytes).unwrap();
            assert_ne!(read, 0, "the relay broke off");
            self.frames.extend(&bytes[..read]);
        }
    }

    fn answer(&mut self, seq: i32) {
        self.stream.write_all(&encode_log_reply(seq, ResultCode::Ok)).unwrap();
    }
}

fn upstream() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

/// How many entries the calls have that carry `messages`, which came while one call, to which there was no answer, was under
/// way.
fn sizes(configuration: &str, messages: usize, bytes: usize) -> Vec<usize> {
    let (folder, (listener, address)) = (tempfile::tempdir().unwrap(), upstream());
    let relay = Relay::start(program(), folder.path(), &address, configuration);
    let mut sender = Sender::of(&relay);
    sender.send("zipkin", vec![b'x'; bytes]);
    let mut calls = Calls::accept(&listener);
    let (mut seq, first) = calls.next();
    assert_eq!(first, 1);
    (0..messages).for_each(|_| sender.send("zipkin", vec![b'x'; bytes]));
    let mut sizes = Vec::new();
    while sizes.iter().sum::<usize>() < messages {
        calls.answer(seq);
        let (next, size) = calls.next();
        seq = next;
        sizes.push(size);
    }
    sizes
}

#[test]
fn a_call_has_so_many_entries_and_bytes_and_waits_for_so_many_before_it() {
    assert_eq!(sizes("window_calls = 1", 4, 1500), [4]);
    assert_eq!(sizes("window_calls = 1\nbatch_entries = 2", 4, 1500), [2, 2]);
    assert_eq!(sizes("window_calls = 1\nbatch_bytes = 4096", 4, 1500), [2, 2]);
}

#[test]
fn an_upstream_that_is_silent_for_io_timeout_ms_is_called_again() {
    let (folder, (listener, address)) = (tempfile::tempdir().unwrap(), upstream());
    let relay = Relay::start(program(), folder.path(), &address, "io_timeout_ms = 100");
    Sender::of(&relay).send("zipkin", vec![b'x'; 10]);
    let mut silent = Calls::accept(&listener);
    silent.next();
    assert_eq!(Calls::accept(&listener).next().1, 1);
}

#[test]
fn an_upstream_that_is_away_is_tried_after_pauses_as_configured() {
    let folder = tempfile::tempdir().unwrap();
    let pauses = "backoff_min_ms = 1\nbackoff_max_ms = 2";
    let relay = Relay::start(program(), folder.path(), "127.0.0.1:1", pauses);
    Sender::of(&relay).send("zipkin", vec![b'x'; 10]);
    let failures = "blkin_relay_upstream_failures_total{upstream=\"127.0.0.1:1\",cause=\"unreachable\"} ";
    let due = Instant::now() + LIMIT;
    // With the default pauses that takes minutes.
    while metric(&relay, failures) < 50 {
        assert!(Instant::now() < due, "only {} attempts", metric(&relay, failures));
    }
}

/// The figure behind `name` in the metrics.
fn metric(relay: &Relay, name: &str) -> u64 {
    let metrics = relay.get("/metrics");
    metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap()
}

#[test]
fn annotations_are_counted_in_the_span_category_alone() {
    let folder = tempfile::tempdir().unwrap();
    let relay = Relay::start(program(), folder.path(), "127.0.0.1:1", "span_category = \"mine\"");
    let annotation = Annotation { timestamp: 1, value: "a".into(), ..Annotation::default() };
    let span = Span { trace_id: 1, id: 1, annotations: vec![annotation; 3], ..Span::default() };
    let mut sender = Sender::of(&relay);
    ["mine", "zipkin"].into_iter().for_each(|category| sender.send(category, span_message(&span)));
    let counts =
        ["received", "entries_received"].map(|name| metric(&relay, &format!("blkin_relay_{name}_total ")));
    assert_eq!(counts, [3, 2]);
}

#[test]
fn more_connections_than_configured_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let relay = Relay::start(program(), folder.path(), "127.0.0.1:1", "scribe_max_connections = 1");
    let mut first = Sender::of(&relay);
    first.send("zipkin", vec![b'x'; 10]);
    let mut second = TcpStream::connect(&relay.scribe).unwrap();
    second.set_read_timeout(Some(LIMIT)).unwrap();
    assert_eq!(second.read(&mut [0]).unwrap(), 0, "it was taken");
    first.send("zipkin", vec![b'x'; 10]);
}

#[test]
fn the_log_is_json_where_that_is_wanted() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = program();
    command.args(["--config", "/dev/null", "--log-format", "json", "--upstreams", "127.0.0.1:1"]);
    command.args(["--scribe-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--spool-dir"]);
    let mut relay = command.arg(folder.path()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut log = BufReader::new(relay.stderr.take().unwrap());
    while !line.contains("\"ready\"") {
        line.clear();
        assert_ne!(log.read_line(&mut line).unwrap(), 0, "it ended");
    }
    relay.kill().unwrap();
    relay.wait().unwrap();
    assert!(line.starts_with("{\"timestamp\":\"") && line.ends_with("}\n"), "{line}");
}
