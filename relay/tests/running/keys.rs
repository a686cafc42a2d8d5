//! Configuration keys that no other test changes do what the example file says.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::time::Instant;

use blkin_thrift::scribe::span_message;
use blkin_thrift::{Annotation, Span};

use crate::process::{Relay, program};
use crate::upstream::{Calls, LIMIT, Sender, upstream};

/// The number of entries of each call that carries `messages`, which arrived while one call waited for its answer.
fn sizes(configuration: &str, messages: usize, bytes: usize) -> Vec<usize> {
    let (folder, (listener, address)) = (tempfile::tempdir().unwrap(), upstream());
    let relay = Relay::start(program(), folder.path(), &address, configuration);
    let mut sender = Sender::of(&relay);
    sender.send("zipkin", vec![b'x'; bytes]);
    let mut calls = Calls::accept(&listener);
    let (mut seq, first) = calls.next();
    assert_eq!(first.len(), 1);
    (0..messages).for_each(|_| sender.send("zipkin", vec![b'x'; bytes]));
    let mut sizes = Vec::new();
    while sizes.iter().sum::<usize>() < messages {
        calls.answer(seq);
        let (next, entries) = calls.next();
        seq = next;
        sizes.push(entries.len());
    }
    sizes
}

#[test]
fn calls_respect_window_calls_batch_entries_and_batch_bytes() {
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
    assert_eq!(Calls::accept(&listener).next().1.len(), 1);
}

#[test]
fn unreachable_upstream_is_retried_after_configured_pauses() {
    let folder = tempfile::tempdir().unwrap();
    let pauses = "backoff_min_ms = 1\nbackoff_max_ms = 2";
    let relay = Relay::start(program(), folder.path(), "127.0.0.1:1", pauses);
    Sender::of(&relay).send("zipkin", vec![b'x'; 10]);
    let failures = "blkin_relay_upstream_failures_total{upstream=\"127.0.0.1:1\",cause=\"unreachable\"} ";
    let due = Instant::now() + LIMIT;
    // With the default pauses this would take minutes.
    while metric(&relay, failures) < 50 {
        assert!(Instant::now() < due, "only {} attempts", metric(&relay, failures));
    }
}

/// The sum of the metrics whose names begin with `name`.
pub(crate) fn sum(relay: &Relay, name: &str) -> u64 {
    let metrics = relay.get("/metrics");
    let figures = metrics.lines().filter(|line| line.starts_with(name));
    figures.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
}

/// The value behind `name` in the metrics.
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
fn silent_connection_makes_room_at_the_connection_limit() {
    let folder = tempfile::tempdir().unwrap();
    let relay = Relay::start(program(), folder.path(), "127.0.0.1:1", "scribe_max_connections = 1");
    let mut first = TcpStream::connect(&relay.scribe).unwrap();
    first.set_read_timeout(Some(LIMIT)).unwrap();
    Sender::of(&relay).send("zipkin", vec![b'x'; 10]);
    assert_eq!(first.read(&mut [0]).unwrap(), 0, "the silent connection makes room");
}

/// The line with which a relay logs that it is ready, if the journal reads its log or not.
fn ready_line(format: &str, is_journal: bool) -> String {
    let folder = tempfile::tempdir().unwrap();
    let (log, end) = std::io::pipe().unwrap();
    let end = File::from(OwnedFd::from(end));
    let mut command = program();
    command.args(["--config", "/dev/null", "--log-format", format, "--upstreams", "127.0.0.1:1"]);
    command.args(["--scribe-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--spool-dir"]);
    if is_journal {
        let metadata = end.metadata().unwrap();
        command.env("JOURNAL_STREAM", format!("{}:{}", metadata.dev(), metadata.ino()));
    }
    let mut relay = command.arg(folder.path()).stderr(end).spawn().unwrap();
    // Otherwise this process keeps the pipe open for writing, and the log never ends.
    drop(command);
    let ready = BufReader::new(log).lines().map(Result::unwrap).find(|line| line.contains("ready"));
    relay.kill().unwrap();
    relay.wait().unwrap();
    ready.expect("the relay ended before it was ready")
}

#[test]
fn log_is_json_if_configured() {
    let line = ready_line("json", false);
    assert!(line.starts_with("{\"timestamp\":\"") && line.ends_with('}'), "{line}");
}

#[test]
fn journal_lines_begin_with_their_priority() {
    assert!(ready_line("json", true).starts_with("<6>{\"timestamp\":\""));
    assert!(ready_line("text", true).starts_with("<6>2"));
    assert!(ready_line("text", false).starts_with('2'));
}
