//! The sinks with upstreams that behave well, and some that do not.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use blkin_daemon::health::STUCK_AFTER;
use common::scribe::{Behaviour, Reserved, Scribe};
use common::{Daemon, Program, Site, send_signal, wait_for};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};

#[test]
fn complete_spans_leave_in_large_calls_with_their_timing() {
    let (site, scribe) = (Site::new(), Scribe::start(|_| Behaviour::Ok));
    let daemon = site.bare_daemon(&["--scribe-upstream", &scribe.address]);
    // The worker is stopped meanwhile, so that one look finds all records, however slow the program is.
    daemon.signal_worker(Signal::STOP);
    let calls = site.program(&[1000, 2], &[("BLKIN_RING_BYTES", "4194304")]).finish();
    daemon.signal_worker(Signal::CONT);
    daemon.settled(calls).assert_balanced();
    let spans = scribe.spans();
    assert_eq!(spans.len(), 2000);
    assert!(scribe.calls().len() < 200, "{} calls", scribe.calls().len());
    assert!(scribe.entries().iter().all(|entry| entry.category == "zipkin"));
    for span in &spans {
        assert_eq!((span.annotations.len(), span.binary_annotations.len()), (2, 2));
        assert_eq!((span.name.as_str(), span.trace_id), ("write", span.id));
        assert_eq!(span.timestamp, Some(span.annotations[0].timestamp));
        assert!(span.duration.is_some() && span.source.is_some());
        let host = span.annotations[0].host.as_ref().unwrap();
        assert_eq!((host.ipv4, host.port, host.service_name.as_str()), (0x0a00_0001, 6800, "osd.0"));
    }
    let identities: BTreeSet<_> =
        spans.iter().flat_map(|s| s.annotations.iter().map(|a| a.position)).collect();
    assert_eq!(identities.len(), 4000);
    assert_eq!(daemon.metrics().sum_where("blkin_spans_left_total", "complete"), 2000);
}

#[test]
fn calls_are_retried_after_try_later_and_hangups() {
    let calls = Arc::new(AtomicU32::new(0));
    let seen = calls.clone();
    let scribe = Scribe::start(move |_| match seen.fetch_add(1, Ordering::Relaxed) {
        0 | 1 | 4 => Behaviour::TryLater,
        2 | 5 => Behaviour::HangUp,
        _ => Behaviour::Ok,
    });
    let site = Site::new();
    let daemon = site.bare_daemon(&["--scribe-upstream", &scribe.address]);
    let mut made = 0;
    // How many calls carry a program's spans depends on timing; each program takes at least one.
    while calls.load(Ordering::Relaxed) < 7 {
        made += site.program(&[500, 1], &[]).finish();
        let metrics = daemon.settled(made);
        metrics.assert_balanced();
        assert_eq!(metrics.sum("blkin_sink_acked_total"), made);
        assert_eq!(scribe.annotations() as u64, made);
    }
}

/// A daemon whose upstream shows this behaviour for every call with a certain entry, and takes all others: only that entry is lost.
fn lose_one_entry(site: &Site, behaviour: Behaviour) -> Daemon {
    let mut first = None;
    let scribe = Scribe::start(move |entries| {
        let bad = first.get_or_insert_with(|| entries[0].clone());
        if entries.contains(bad) { behaviour } else { Behaviour::Ok }
    });
    let daemon = site.bare_daemon(&["--scribe-upstream", &scribe.address]);
    let made = site.program(&[100, 1], &[]).finish();
    let metrics = daemon.settled(made);
    metrics.assert_balanced();
    assert_eq!(metrics.sum_where("blkin_sink_lost_total", "rejected"), 4);
    assert_eq!(scribe.annotations() as u64, made - 4);
    daemon
}

#[test]
fn only_a_refused_entry_is_lost() {
    lose_one_entry(&Site::new(), Behaviour::Exception);
}

#[test]
fn only_an_entry_that_always_causes_a_hangup_is_lost() {
    let site = Site::new();
    let daemon = lose_one_entry(&site, Behaviour::HangUp);
    assert_eq!(daemon.says("the message is given up").len(), 1);
}

#[test]
fn an_unread_pipe_or_absent_upstream_costs_other_sinks_nothing() {
    let (site, scribe) = (Site::new(), Scribe::start(|_| Behaviour::Ok));
    let pipe = site.path("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let pipe = pipe.to_str().unwrap();
    let arguments =
        ["--scribe-upstream", &scribe.address, "--json-lines", pipe, "--json-scribe-upstream", "127.0.0.1:1"];
    let mut daemon = site.bare_daemon(&[&arguments[..], &["--queue-bytes", "2000000"]].concat());
    // Each time makes far less than the healthy sink may hold, however late it ships it.
    let mut program = site.program(&[500, 1], &[]);
    for time in 1..=10 {
        let made = program.calls();
        wait_for("the healthy sink has everything", || {
            (daemon.metrics().sum_where("blkin_sink_acked_total", "sink=\"scribe\"") == made).then_some(())
        });
        if time < 10 {
            program.record_more();
        }
    }
    program.end();
    let metrics = daemon.metrics();
    metrics.assert_balanced();
    let limit = 2_000_000;
    for sink in ["json_lines", "scribe_json"] {
        let label = format!("sink=\"{sink}\",cause=\"queue_full\"");
        assert!(metrics.sum_where("blkin_sink_lost_total", &label) > 0, "{sink}");
        let gauge = |name: &str| metrics.sum_where(name, &format!("sink=\"{sink}\""));
        let queued = gauge("blkin_sink_queued_bytes");
        assert!((limit / 4..limit).contains(&queued), "one program may fill half of the queue: {queued}");
        assert_eq!(gauge("blkin_sink_queue_bytes"), limit);
        // A portion of lines is hardly larger than this, and one did not fit.
        assert!(gauge("blkin_sink_queue_room_bytes") < 64 << 10, "{sink}");
    }
    // When a reader opens the pipe, all that was kept arrives, line by line.
    let mut reader = std::fs::File::open(pipe).unwrap();
    let reading = std::thread::spawn(move || {
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        text
    });
    wait_for("the pipe has taken everything", || {
        (daemon.metrics().sum_where("blkin_sink_in_flight", "json_lines") == 0).then_some(())
    });
    let acked = daemon.metrics().sum_where("blkin_sink_acked_total", "json_lines");
    daemon.ask_to_end();
    assert!(daemon.ended().success());
    let text = reading.join().unwrap();
    assert_eq!(text.lines().count() as u64, acked);
    let told = daemon.said("annotations were lost: more wait to be shipped than there is room for");
    assert_eq!(
        field(&told, "queue_full"),
        metrics.sum_where("blkin_sink_lost_total", "cause=\"queue_full\""),
        "{told:?}"
    );
    assert!(text.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()));
}

#[test]
fn a_full_disk_costs_other_sinks_nothing() {
    let (site, scribe) = (Site::new(), Scribe::start(|_| Behaviour::Ok));
    let daemon = site.bare_daemon(&["--scribe-upstream", &scribe.address, "--json-lines", "/dev/full"]);
    let made = site.program(&[300, 1], &[]).finish();
    wait_for("the healthy sink has everything", || {
        (daemon.metrics().sum_where("blkin_sink_acked_total", "sink=\"scribe\"") == made).then_some(())
    });
    let metrics = daemon.metrics();
    metrics.assert_balanced();
    assert_eq!(metrics.sum_where("blkin_sink_in_flight", "json_lines"), made);
    daemon.assert_healthy();
}

#[test]
fn a_sink_thread_that_ends_is_replaced_without_loss() {
    let (site, scribe) = (Site::new(), Scribe::start(|_| Behaviour::Ok));
    let daemon = site.bare_daemon(&["--scribe-upstream", &scribe.address]);
    let mut program = site.program(&[1000, 1, 1000], &[]);
    wait_for("something is shipped", || (scribe.annotations() > 0).then_some(()));
    // With a limit below the number of descriptors that a thread waits for, the kernel refuses the wait.
    let worker = Pid::from_raw(i32::try_from(daemon.worker_pid()).unwrap());
    let limits = Rlimit { current: Some(0), ..getrlimit(Resource::Nofile) };
    prlimit(worker, Resource::Nofile, limits).unwrap();
    let ended = "the thread of the sink scribe has ended";
    wait_for("the worker ends because of it", || daemon.said(ended).first().cloned());
    daemon.assert_healthy();
    let made = program.calls();
    program.end();
    let metrics = daemon.settled(made);
    metrics.assert_balanced();
    assert_eq!(metrics.sum("blkin_sink_acked_total"), made);
    assert_eq!(metrics.sum("blkin_worker_restarts_total"), 1);
}

/// After a kill, the next worker ships again what some sink had not shipped, also to sinks that had.
#[test]
fn no_sink_counter_decreases_when_a_worker_is_killed() {
    let (site, upstream) = (Site::new(), Reserved::new());
    let pipe = site.path("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let arguments = ["--scribe-upstream", &upstream.address, "--json-lines", pipe.to_str().unwrap()];
    let daemon = site.bare_daemon(&arguments);
    // The pipe needs a reader before it can be opened for writing.
    let opened = std::thread::spawn(move || std::fs::File::open(pipe).unwrap());
    // A pipe holds this much without being read.
    let mut program = site.program(&[20, 1], &[]);
    let made = program.calls();
    wait_for("the pipe has taken everything", || {
        (daemon.metrics().sum_where("blkin_sink_acked_total", "json_lines") == made).then_some(())
    });
    drop(opened.join().unwrap());
    for restarts in 1..=2 {
        daemon.signal_worker(Signal::KILL);
        let metrics = wait_for("another worker runs", || {
            Some(daemon.metrics()).filter(|now| now.sum("blkin_worker_restarts_total") == restarts)
        });
        metrics.assert_balanced();
        assert_eq!(metrics.sum_where("blkin_sink_acked_total", "json_lines"), made);
        assert_eq!(metrics.sum_where("blkin_sink_in_flight", "json_lines"), 0);
        assert_eq!(metrics.sum_where("blkin_sink_in_flight", "\"scribe\""), made);
    }
    let scribe = upstream.start(|_| Behaviour::Ok);
    program.record_more();
    let calls = program.calls();
    wait_for("the upstream has everything", || (scribe.annotations() as u64 >= calls).then_some(()));
    let metrics = daemon.metrics();
    metrics.assert_balanced();
    assert_eq!(metrics.sum_where("blkin_sink_acked_total", "json_lines"), made);
}

#[test]
fn json_goes_to_scribe_in_its_own_category() {
    let (site, scribe) = (Site::new(), Scribe::start(|_| Behaviour::Ok));
    let daemon = site.bare_daemon(&["--json-scribe-upstream", &scribe.address]);
    let made = site.program(&[100, 1], &[]).finish();
    daemon.settled(made).assert_balanced();
    let entries = scribe.entries();
    assert_eq!(entries.len() as u64, made);
    assert!(entries.iter().all(|entry| entry.category == "blkin_json"));
    let object: serde_json::Value = serde_json::from_slice(&entries[0].message).unwrap();
    assert_eq!((object["event"].as_str(), object["service_name"].as_str()), (Some("start"), Some("osd.0")));
}

#[test]
fn full_staging_evicts_the_oldest_and_draining_continues() {
    let site = Site::new();
    let arguments = ["--json-scribe-upstream", "127.0.0.1:1", "--staging-bytes", "16777216"];
    let daemon = site.daemon(&arguments);
    let made = site.program(&[40_000, 1, 1], &[("BLKIN_RING_BYTES", "16777216")]).finish();
    wait_for("the file has everything", || {
        let metrics = daemon.metrics();
        let attempted = metrics.sum("blkin_program_attempted_total");
        let valid = metrics.sum("blkin_valid_total");
        let is_drained = attempted == made && metrics.sum("blkin_pending") == 0;
        (is_drained && metrics.sum_where("blkin_sink_acked_total", "json_lines") == valid).then_some(())
    });
    let metrics = daemon.metrics();
    metrics.assert_balanced();
    assert_eq!(metrics.sum("blkin_program_lost_total"), 0);
    assert!(metrics.sum_where("blkin_sink_lost_total", "scribe_json\",cause=\"spool_evicted") > 0);
    let (used, limit) = wait_for("there is room again", || {
        let metrics = daemon.metrics();
        let (used, limit) = (metrics.sum("blkin_staging_used_bytes"), metrics.sum("blkin_staging_bytes"));
        (used <= limit).then_some((used, limit))
    });
    assert!(
        limit < 16_777_216 / 2 && used > limit / 10 * 9,
        "the usage that alerts watch is nearly full: {used} of {limit}"
    );
}

#[test]
fn spans_that_are_open_at_the_end_are_shipped() {
    let (site, scribe) = (Site::new(), Scribe::start(|_| Behaviour::Ok));
    let config = site.config("close_events = [\"never\"]\n");
    let daemon = site.bare_daemon(&["--scribe-upstream", &scribe.address, "--config", &config]);
    let mut program = site.program(&[50, 1], &[]);
    let made = program.calls();
    wait_for("everything is drained", || (daemon.metrics().sum("blkin_drained_total") == made).then_some(()));
    assert_eq!(daemon.metrics().sum("blkin_spans_open"), 50);
    assert!(daemon.stop().success());
    assert_eq!(scribe.annotations() as u64, made);
}

/// A daemon that keeps all spans open until it ends, far more of them than its queue has room for.
fn full_of_open_spans(site: &Site, upstream: &str, stop_timeout_ms: &str) -> (Daemon, Program, u64) {
    let config = site.config("close_events = [\"never\"]\nquiet_ms = 86400000\nqueue_bytes = 100000\n");
    let config = ["--config", &config, "--stop-timeout-ms", stop_timeout_ms];
    let daemon = site.bare_daemon(&[&["--scribe-upstream", upstream][..], &config].concat());
    let mut program = site.program(&[1000, 1], &[]);
    let made = program.calls();
    wait_for("everything is drained", || (daemon.metrics().sum("blkin_drained_total") == made).then_some(()));
    assert_eq!(daemon.metrics().sum("blkin_spans_open"), 1000);
    (daemon, program, made)
}

#[test]
fn more_open_spans_than_the_queue_holds_are_shipped_at_the_end() {
    let (site, scribe) = (Site::new(), Scribe::start(|_| Behaviour::Ok));
    let (mut daemon, _program, made) = full_of_open_spans(&site, &scribe.address, "20000");
    daemon.ask_to_end();
    assert!(daemon.ended().success());
    assert_eq!(scribe.annotations() as u64, made);
    assert_eq!(daemon.said("lost"), [""; 0]);
}

/// The number after `name=` in the log lines.
fn field(lines: &[String], name: &str) -> u64 {
    let of_line =
        |line: &String| line.split_once(&format!("{name}="))?.1.split(' ').next()?.parse::<u64>().ok();
    lines.iter().filter_map(of_line).sum()
}

#[test]
fn open_spans_that_cannot_be_shipped_at_the_end_are_logged() {
    let (site, calls) = (Site::new(), Arc::new(AtomicU32::new(0)));
    // The upstream takes some calls, and then nothing any more.
    let scribe = Scribe::start(move |_| match calls.fetch_add(1, Ordering::Relaxed) {
        0..3 => Behaviour::Ok,
        _ => Behaviour::TryLater,
    });
    let (mut daemon, _program, made) = full_of_open_spans(&site, &scribe.address, "5000");
    daemon.ask_to_end();
    // If the worker exceeded its time, it would be killed, and the daemon would fail.
    assert!(daemon.ended().success());
    let shipped = scribe.annotations() as u64;
    let last = daemon.said("ended before everything was shipped");
    assert!(shipped > 0 && last.len() == 1, "{shipped}: {last:?}");
    assert_eq!(shipped + field(&last, "annotations"), made);
    assert!(last[0].contains(&scribe.address) && last[0].contains("TRY_LATER"), "{last:?}");
}

#[test]
fn records_left_in_rings_of_ended_programs_are_logged() {
    let site = Site::new();
    let upstream = ["--scribe-upstream", "127.0.0.1:1", "--stop-timeout-ms", "1"];
    let mut daemon = site.bare_daemon(&upstream);
    let worker = daemon.worker_pid();
    send_signal(worker, Signal::STOP);
    // More than a few hundred looks at the ring would drain.
    let made = site.program(&[100_000, 1], &[("BLKIN_RING_BYTES", "67108864")]).finish();
    daemon.ask_to_end();
    wait_for("the daemon is ending", || (!site.socket().exists()).then_some(()));
    send_signal(worker, Signal::CONT);
    assert!(daemon.ended().success());
    let left = daemon.said("the daemon ended before it had read the rings of all ended programs");
    let last = daemon.said("ended before everything was shipped");
    assert!(field(&left, "annotations") > 0, "{left:?}");
    assert_eq!(field(&left, "annotations") + field(&last, "annotations"), made, "{left:?} {last:?}");
}

#[test]
fn a_slowly_ending_daemon_stays_healthy() {
    let (site, scribe) = (Site::new(), Scribe::start(|_| Behaviour::TryLater));
    // The lines are written at once, so their sink has nothing more to do.
    let mut daemon = site.daemon(&["--scribe-upstream", &scribe.address, "--stop-timeout-ms", "3000"]);
    let calls = site.program(&[10, 1], &[]).finish();
    wait_for("the spans are on their way", || {
        (daemon.metrics().sum("blkin_sink_in_flight") >= calls).then_some(())
    });
    let begun = Instant::now();
    daemon.ask_to_end();
    // After a standstill of the machine the daemon is unhealthy for a moment; without heartbeats it would be to the end.
    let mut last = None;
    wait_for("the daemon is gone", || match daemon.health() {
        Some(status) => {
            last = Some(status);
            None
        }
        None => Some(()),
    });
    daemon.ended();
    assert_eq!(last, Some(200));
    assert!(
        begun.elapsed() > 2 * STUCK_AFTER - Duration::from_millis(100),
        "the daemon ended without waiting for the sink"
    );
}

#[test]
fn an_annotation_that_never_fits_is_logged_as_lost() {
    let (site, scribe) = (Site::new(), Scribe::start(|_| Behaviour::Ok));
    let config = site.config("close_events = [\"never\"]\nqueue_bytes = 4096\n");
    let mut daemon = site.bare_daemon(&["--scribe-upstream", &scribe.address, "--config", &config]);
    let mut long = site.program(&[1, 1, 0, 4000], &[]);
    let made = long.calls();
    wait_for("everything is drained", || (daemon.metrics().sum("blkin_drained_total") == made).then_some(()));
    daemon.ask_to_end();
    assert!(daemon.ended().success());
    let lost = daemon.said("annotations were lost while ending");
    assert_eq!((field(&lost, "queue_full"), scribe.annotations()), (made, 0), "{lost:?}");
}

#[test]
fn upstream_trouble_is_reported_and_its_start_and_end_logged() {
    let (site, reserved) = (Site::new(), Reserved::new());
    let upstream = reserved.address.clone();
    let daemon = site.bare_daemon(&["--scribe-upstream", &upstream, "--json-lines", "/dev/full"]);
    assert_eq!(daemon.report()["troubles"], serde_json::json!([]));
    let made = site.program(&[100, 1], &[]).finish();
    let (of_scribe, of_file) =
        (format!("sink=\"scribe\",to=\"{upstream}\""), "sink=\"json_lines\",to=\"/dev/full\"");
    let trouble = |labels: &str, cause: &str| {
        let (metrics, with_cause) = (daemon.metrics(), format!("{labels},cause=\"{cause}\""));
        let is_troubled = metrics.sum_where("blkin_sink_trouble", labels) == 1
            && metrics.sum_where("blkin_sink_trouble", &with_cause) == 1;
        (is_troubled, metrics.sum_where("blkin_sink_failures_total", &with_cause))
    };
    wait_for("several attempts have failed", || {
        let all = [trouble(&of_scribe, "unreachable"), trouble(of_file, "disk_full")];
        all.iter().all(|(is_troubled, failures)| *is_troubled && *failures > 2).then_some(())
    });
    let report = daemon.report();
    assert_eq!(report["healthy"], true);
    let told = |index: usize, key: &str| report["troubles"][index][key].as_str().unwrap().to_owned();
    assert_eq!([told(0, "name"), told(0, "to"), told(0, "cause")], ["scribe", &upstream, "unreachable"]);
    assert_eq!([told(1, "name"), told(1, "to"), told(1, "cause")], ["json_lines", "/dev/full", "disk_full"]);

    let scribe = reserved.start(|_| Behaviour::Ok);
    wait_for("the upstream has everything", || (scribe.annotations() as u64 == made).then_some(()));
    wait_for("the trouble is over", || (!trouble(&of_scribe, "unreachable").0).then_some(()));
    assert_eq!(daemon.report()["troubles"].as_array().unwrap().len(), 1);
    assert_eq!(daemon.metrics().sum_where("blkin_sink_trouble_seconds", &of_scribe), 0);
    let said = |what: &str| daemon.says(what).iter().filter(|line| line.contains(&upstream)).count();
    assert_eq!((said("failed to ship: it cannot be reached"), said("shipping again")), (1, 1));
    assert_eq!(daemon.said("failed to ship").len(), 2, "one line for each of the two sinks");
}

#[test]
fn many_refusals_do_not_fill_the_log() {
    let (site, scribe) = (Site::new(), Scribe::start(|_| Behaviour::Exception));
    let daemon = site.bare_daemon(&["--scribe-upstream", &scribe.address]);
    let begun = Instant::now();
    let made = site.program(&[500, 1], &[]).finish();
    let metrics = daemon.settled(made);
    assert_eq!(metrics.sum_where("blkin_sink_lost_total", "rejected"), made);
    let lines = daemon.says("a message was refused");
    assert!(lines.len() as u64 <= 2 + begun.elapsed().as_secs(), "{}", lines.len());
    assert_eq!(daemon.says("failed to ship: the upstream refuses one message after another").len(), 1);
    let trouble = &daemon.report()["troubles"][0];
    assert_eq!([&trouble["to"], &trouble["cause"]], [scribe.address.as_str(), "refused"]);
}

#[test]
fn ended_programs_are_released_though_a_span_stays_open() {
    let (site, scribe) = (Site::new(), Scribe::start(|_| Behaviour::Ok));
    let text = "close_events = [\"never\"]\nquiet_ms = 86400000\nmax_programs_per_uid = 4\n";
    let daemon = site.bare_daemon(&["--scribe-upstream", &scribe.address, "--config", &site.config(text)]);
    let mut staying = site.program(&[1, 1], &[]);
    let mut made = staying.calls();
    for _ in 0..8 {
        made += site.program(&[1, 1], &[]).finish();
        wait_for("there is room for the next program", || {
            let metrics = daemon.metrics();
            let is_drained = metrics.sum("blkin_drained_total") == made;
            (is_drained && metrics.sum("blkin_programs_held") < 4).then_some(())
        });
    }
    let metrics = daemon.metrics();
    metrics.assert_balanced();
    assert_eq!(metrics.sum_where("blkin_offers_total", "refused_quota"), 0);
    assert!(metrics.sum_where("blkin_spans_left_total", "split") > 0);
    assert!(daemon.stop().success());
    assert_eq!(scribe.annotations() as u64, made);
}

/// Makes every open of a file wait, like a disk that does not answer. It holds a lease on the file, which the kernel takes away
/// after /proc/sys/fs/lease-break-time, and ends with its standard input.
struct Hang(Child);

impl Hang {
    const SCRIPT: &str = "import fcntl, signal, sys\n\
                          signal.signal(signal.SIGIO, signal.SIG_IGN)\n\
                          held = open(sys.argv[1], 'r+')\n\
                          fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)\n\
                          print('held', flush=True)\n\
                          sys.stdin.read()\n";

    fn on(path: &Path) -> Self {
        let mut python = Command::new("python3");
        python.args(["-c", Self::SCRIPT]).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = python.spawn().unwrap();
        let mut word = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut word).unwrap();
        assert_eq!(word, "held\n");
        Hang(child)
    }

    fn end(mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().unwrap().success());
    }
}

/// A daemon whose file hangs as soon as there is something to write, what makes it hang, and how many annotations wait.
fn hanging(site: &Site, arguments: &[&str]) -> (Daemon, Hang, u64) {
    std::fs::write(site.lines_path(), "").unwrap();
    let hang = Hang::on(&site.lines_path());
    let daemon = site.daemon(arguments);
    daemon.assert_healthy();
    let made = site.program(&[100, 1], &[]).finish();
    wait_for("the sink is reported as stuck", || {
        let workers = daemon.report()["workers"].clone();
        let state = |name: &str| {
            let of_name = workers.as_array()?.iter().find(|worker| worker["name"] == name)?;
            Some(of_name["state"].as_str()?.to_owned())
        };
        assert_ne!(state("drain").as_deref(), Some("dead"));
        (state("json_lines")? == "stuck").then_some(())
    });
    assert_eq!(daemon.health(), Some(503));
    (daemon, hang, made)
}

#[test]
fn a_hanging_sink_turns_health_red_and_the_ledger_balances() {
    let site = Site::new();
    let (daemon, hang, made) = hanging(&site, &[]);
    let metrics = daemon.metrics();
    metrics.assert_balanced();
    assert_eq!((metrics.sum("blkin_sink_in_flight"), metrics.sum("blkin_sink_acked_total")), (made, 0));
    hang.end();
    daemon.settled(made).assert_balanced();
    daemon.assert_healthy();
    assert_eq!(site.lines().len() as u64, made);
}

#[test]
fn a_daemon_with_a_hanging_sink_ends_in_time_and_logs_the_rest() {
    let site = Site::new();
    let (mut daemon, _hang, made) = hanging(&site, &["--stop-timeout-ms", "500"]);
    daemon.ask_to_end();
    assert!(daemon.ended().success());
    let left = daemon.said("ended before everything was shipped");
    assert_eq!(field(&left, "annotations"), made, "{left:?}");
    assert!(daemon.said("did not end in time").is_empty(), "the worker ended by itself");
}
