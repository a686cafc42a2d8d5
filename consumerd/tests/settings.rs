//! What configuration keys do that no other test changes.

#![allow(clippy::unwrap_used)]

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use blkin_thrift::scribe::{ResultCode, encode_log_reply, parse_call};
use blkin_thrift::{Limits, Span};
use common::ledger::Metrics;
use common::scribe::{Behaviour, Scribe};
use common::{Daemon, Program, Site, wait_for};

/// A daemon with these lines in its file.
fn configured(site: &Site, lines: &[&str], arguments: &[&str]) -> Daemon {
    site.bare_daemon(&[&["--config", &site.config(&lines.join("\n"))], arguments].concat())
}

/// Waits until the daemon's figures satisfy `is_so`.
fn until(daemon: &Daemon, why: &str, is_so: impl Fn(&Metrics) -> bool) -> Metrics {
    wait_for(why, || Some(daemon.metrics()).filter(|metrics| is_so(metrics)))
}

fn annotations(spans: &[Span]) -> usize {
    spans.iter().map(|span| span.annotations.len() + span.binary_annotations.len()).sum()
}

#[test]
fn batch_entries_and_batch_bytes_limit_a_call() {
    let batches = |line: &str| {
        let (site, scribe) = (Site::new(), Scribe::start(|_| Behaviour::Ok));
        let daemon = configured(&site, &[line], &["--scribe-upstream", &scribe.address]);
        let made = site.program(&[200, 1, 0, 600], &[]).finish();
        daemon.settled(made).assert_balanced();
        assert_eq!(annotations(&scribe.spans()) as u64, made);
        scribe.calls()
    };
    let by_entries = batches("batch_entries = 3").iter().map(Vec::len).max();
    assert_eq!(by_entries, Some(3));
    let by_bytes = batches("batch_bytes = 4096");
    let bytes = by_bytes.iter().map(|call| call.iter().map(|entry| entry.message.len() + 1).sum::<usize>());
    assert!(
        (2048..=4096).contains(&bytes.max().unwrap()),
        "a call with less than this had room for another entry"
    );
}

#[test]
fn spans_within_linger_ms_leave_in_one_call() {
    let (site, scribe) = (Site::new(), Scribe::start(|_| Behaviour::Ok));
    let daemon = configured(&site, &["linger_ms = 10000"], &["--scribe-upstream", &scribe.address]);
    let (mut made, began) = (0, Instant::now());
    for programs in 1..=2 {
        made += site.program(&[10, 1], &[]).finish();
        until(&daemon, "the spans have left", |metrics| {
            metrics.sum_where("blkin_spans_left_total", "complete") == 10 * programs
        });
    }
    assert!(began.elapsed() < Duration::from_secs(10), "the machine is too slow for this test");
    assert_eq!(scribe.calls().len(), 0);
    assert!(daemon.stop().success());
    assert_eq!((scribe.calls().len(), annotations(&scribe.spans()) as u64), (1, made));
}

/// A server that answers nothing before it has got `most` calls, and then one call for each further one. Before the first answer it
/// tells whether more than `most` calls have come.
fn slow_server(most: usize, calls: usize) -> (String, Receiver<bool>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut unanswered: Vec<i32> = (0..most).map(|_| next_call(&mut stream).unwrap()).collect();
        // Anything sent together with these calls is on its way by now, if it has not arrived.
        stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        tell.send(stream.peek(&mut [0]).is_ok()).unwrap();
        stream.set_read_timeout(None).unwrap();
        for answered in 0..calls {
            stream.write_all(&encode_log_reply(unanswered.remove(0), ResultCode::Ok)).unwrap();
            if answered + most < calls {
                unanswered.extend(next_call(&mut stream));
            }
        }
        // Keeps the connection open until the daemon has read all answers.
        let _ = stream.read(&mut [0]);
    });
    (address, told)
}

/// Sequence number of the next call.
fn next_call(stream: &mut TcpStream) -> Option<i32> {
    let mut header = [0; 4];
    stream.read_exact(&mut header).ok()?;
    let mut body = vec![0; u32::from_be_bytes(header) as usize];
    stream.read_exact(&mut body).ok()?;
    Some(parse_call(&body, &Limits::default()).ok()?.seq)
}

#[test]
fn window_calls_and_window_bytes_limit_unanswered_calls() {
    // A message of these programs has some 1,900 bytes.
    for line in ["window_calls = 3", "window_bytes = 4096"] {
        let (site, calls) = (Site::new(), 20);
        let (address, has_more) = slow_server(3, calls);
        let daemon = configured(&site, &["batch_entries = 1", line], &["--scribe-upstream", &address]);
        let made = site.program(&[calls as u64, 1, 0, 1000], &[]).finish();
        assert!(!has_more.recv().unwrap(), "{line}: a fourth call came before any was answered");
        daemon.settled(made).assert_balanced();
    }
}

#[test]
fn an_upstream_silent_for_io_timeout_ms_is_reconnected() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let _silent = listener.accept().unwrap();
        // One connection after the other: a server that stands still for a moment is silent, too.
        for stream in listener.incoming().map(Result::unwrap) {
            answer_all(stream);
        }
    });
    let site = Site::new();
    let daemon = configured(&site, &["io_timeout_ms = 150"], &["--scribe-upstream", &address]);
    let made = site.program(&[10, 1], &[]).finish();
    daemon.settled(made).assert_balanced();
    daemon.says("the connection broke: it was silent for 150ms");
}

/// Takes every call, until the other side disconnects.
fn answer_all(mut stream: TcpStream) {
    while let Some(sequence) = next_call(&mut stream) {
        if stream.write_all(&encode_log_reply(sequence, ResultCode::Ok)).is_err() {
            return;
        }
    }
}

/// Starts a daemon with these pauses and an upstream that does not listen. Returns how long so many failures took.
fn time_of_failures(pauses_ms: [u64; 2], failures: u64) -> Duration {
    let site = Site::new();
    let [min, max] =
        [format!("backoff_min_ms = {}", pauses_ms[0]), format!("backoff_max_ms = {}", pauses_ms[1])];
    let daemon =
        configured(&site, &[&min, &max], &["--scribe-upstream", "127.0.0.1:1", "--stop-timeout-ms", "100"]);
    let began = Instant::now();
    let mut program = site.program(&[1, 1], &[]);
    program.calls();
    until(&daemon, "several attempts have failed", |metrics| {
        metrics.sum("blkin_sink_failures_total") >= failures
    });
    began.elapsed()
}

#[test]
fn retry_pauses_range_from_backoff_min_ms_to_backoff_max_ms() {
    // Half of each pause is random. With the default of either key, these times would be different.
    let shortest_first = time_of_failures([1000, 3_600_000], 2);
    assert!(shortest_first >= Duration::from_millis(500), "{shortest_first:?}");
    // With the default pauses, this would take longer than the test waits.
    time_of_failures([1, 2], 60);
}

#[test]
fn max_open_spans_and_max_open_bytes_split_excess_spans() {
    for (line, gauge, most) in [
        ("max_open_spans = 10", "blkin_spans_open", 10),
        ("max_open_bytes = 8192", "blkin_spans_open_bytes", 8192),
    ] {
        let (site, scribe) = (Site::new(), Scribe::start(|_| Behaviour::Ok));
        let daemon = configured(&site, &["close_events = []", line], &["--scribe-upstream", &scribe.address]);
        let made = site.program(&[100, 1], &[]).finish();
        let metrics = until(&daemon, "all is drained", |metrics| {
            let left = metrics.sum("blkin_spans_left_total");
            metrics.sum("blkin_drained_total") == made && left + metrics.sum("blkin_spans_open") >= 100
        });
        let split = metrics.sum_where("blkin_spans_left_total", "split");
        assert!(metrics.sum(gauge) <= most && split > 0, "{line}: {split}");
    }
}

#[test]
fn a_span_quiet_for_quiet_ms_leaves_as_it_is() {
    let (site, scribe) = (Site::new(), Scribe::start(|_| Behaviour::Ok));
    let lines = ["close_events = []", "quiet_ms = 50"];
    let daemon = configured(&site, &lines, &["--scribe-upstream", &scribe.address]);
    let mut program = site.program(&[20, 1], &[]);
    let made = program.calls();
    daemon.settled(made).assert_balanced();
    assert_eq!(daemon.metrics().sum_where("blkin_spans_left_total", "quiet"), 20);
}

#[test]
fn messages_go_to_scribe_category_and_json_scribe_category() {
    let (site, spans, lines) =
        (Site::new(), Scribe::start(|_| Behaviour::Ok), Scribe::start(|_| Behaviour::Ok));
    let categories = ["scribe_category = \"whole\"", "json_scribe_category = \"single\""];
    let upstreams = ["--scribe-upstream", &spans.address, "--json-scribe-upstream", &lines.address];
    let daemon = configured(&site, &categories, &upstreams);
    let made = site.program(&[5, 1], &[]).finish();
    daemon.settled(made).assert_balanced();
    for (scribe, category, entries) in [(spans, "whole", 5), (lines, "single", made as usize)] {
        let of_category = scribe.entries().iter().filter(|entry| entry.category == category).count();
        assert_eq!((of_category, scribe.entries().len()), (entries, entries), "{category}");
    }
}

#[test]
fn programs_over_a_quota_are_refused_and_its_key_logged() {
    for (line, most) in
        [("max_programs = 1", 1), ("max_programs_per_uid = 1", 1), ("max_shared_bytes_per_uid = 100000", 0)]
    {
        let site = Site::new();
        let daemon = configured(&site, &[line], &[]);
        let programs = [(); 2].map(|()| site.program(&[1, 1], &[]));
        let metrics = until(&daemon, "programs over quota are refused", |metrics| {
            let refused = metrics.sum_where("blkin_offers_total", "refused_quota");
            metrics.sum("blkin_programs_held") == most && refused >= 2 - most
        });
        assert_eq!(metrics.sum_where("blkin_offers_total", "taken"), most, "{line}");
        let said = &daemon.says("refused a program: over quota; raise ")[0];
        let to_raise = said.split("; raise ").nth(1).and_then(|rest| rest.split([' ', ',']).next());
        assert_eq!(to_raise, line.split(' ').next(), "{said}");
        programs.into_iter().for_each(Program::end);
    }
}

/// Asserts that of two flight recorders that end, with this line in the configuration, so many are kept, and so many given up.
fn assert_recorders(line: &str, kept: u64, given_up: u64) {
    let site = Site::new();
    let daemon = configured(&site, &[line], &[]);
    let recorders = [(); 2].map(|()| site.program(&[10, 1], &[("BLKIN_MODE", "overwrite")]));
    until(&daemon, "both are attached", |metrics| metrics.sum("blkin_programs") == 2);
    recorders.into_iter().for_each(Program::end);
    until(&daemon, line, |metrics| {
        let evicted = metrics.sum("blkin_recorders_evicted_total");
        (metrics.sum("blkin_recorders_kept"), evicted) == (kept, given_up)
    });
}

#[test]
fn flight_recorders_that_end_with_the_daemon_are_logged() {
    let site = Site::new();
    let daemon = site.bare_daemon(&[]);
    let mut recorder = site.program(&[10, 1], &[("BLKIN_MODE", "overwrite")]);
    let (calls, pid) = (recorder.calls(), recorder.pid());
    recorder.end();
    wait_for("the recorder is kept", || (daemon.metrics().sum("blkin_recorders_kept") == 1).then_some(()));
    let log = site.path("log");
    assert!(daemon.stop().success());
    let log = std::fs::read_to_string(log).unwrap();
    let told = log.lines().find(|line| line.contains("nobody took them before the daemon ended")).unwrap();
    assert!(told.contains(&format!("annotations={calls} programs=\"producer:{pid}\"")), "{told}");
}

#[test]
fn recorder_keep_settings_limit_kept_flight_recorders() {
    assert_recorders("recorder_keep = 2", 2, 0);
    assert_recorders("recorder_keep = 1", 1, 1);
    assert_recorders("recorder_keep_bytes = 0", 0, 2);
    assert_recorders("recorder_keep_ms = 0", 0, 2);
}

#[test]
fn a_root_daemons_worker_runs_as_worker_uid_and_worker_gid() {
    if !rustix::process::geteuid().is_root() {
        let _ = writeln!(std::io::stderr(), "not shown: this needs root");
        return;
    }
    let site = Site::new();
    let daemon = configured(&site, &["worker_uid = 54321", "worker_gid = 54322"], &[]);
    let of = |pid: u32| {
        let process = std::fs::metadata(format!("/proc/{pid}/status")).unwrap();
        (process.uid(), process.gid())
    };
    assert_eq!((of(daemon.pid()), of(daemon.worker_pid())), ((0, 0), (54321, 54322)));
    let made = site.program(&[10, 1], &[]).finish();
    until(&daemon, "a program is read", |metrics| metrics.sum("blkin_drained_total") == made);
}

#[test]
fn missing_capabilities_for_worker_uid_are_named() {
    if !rustix::process::geteuid().is_root() {
        let _ = writeln!(std::io::stderr(), "not shown: this needs root");
        return;
    }
    for lacking in ["-setuid", "-setgid", "-kill"] {
        let site = Site::new();
        let mut starter = Command::new("setpriv");
        starter.args(["--bounding-set", lacking]);
        let ended = site.started_by(starter, &["--worker-uid", "54321", "--worker-gid", "54322"]).ended();
        let log = std::fs::read_to_string(site.path("log")).unwrap();
        assert_eq!(ended.code(), Some(1), "{lacking}: {log}");
        assert!(log.contains("CAP_SETUID and CAP_SETGID") && log.contains("CAP_KILL"), "{lacking}: {log}");
    }
}

#[test]
fn a_worker_running_as_root_is_warned_of_once() {
    let is_root = rustix::process::geteuid().is_root();
    let warnings = |lines: &[&str]| {
        let site = Site::new();
        let daemon = configured(&site, lines, &[]);
        daemon.signal_worker(rustix::process::Signal::KILL);
        wait_for("another worker is started", || daemon.said("the worker ended").pop());
        daemon.assert_healthy();
        daemon.said("runs as root").iter().filter(|line| line.contains("WARN")).count()
    };
    assert_eq!(warnings(&[]), usize::from(is_root));
    if is_root {
        assert_eq!(warnings(&["worker_uid = 54321", "worker_gid = 54322"]), 0);
    }
}

#[test]
fn log_format_json_makes_every_log_line_json() {
    let site = Site::new();
    let daemon = configured(&site, &["log_format = \"json\""], &["--scribe-upstream", "127.0.0.1:1"]);
    let mut program = site.program(&[1, 1], &[]);
    program.calls();
    wait_for("the worker has said something", || daemon.said("failed to ship").pop());
    for line in daemon.log().lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(line["level"].is_string() && line["fields"]["message"].is_string(), "{line}");
    }
}
