//! The daemon with real programs: everything arrives, and every equation of the ledger holds.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use blkin_daemon::health::STUCK_AFTER;
use common::{Site, send_signal, wait_for};
use rustix::process::Signal;

/// The identities of annotations, by which one is recognised that is sent again.
fn identities(lines: &[serde_json::Value]) -> BTreeSet<(i64, i64)> {
    lines.iter().map(|line| (line["source"].as_i64().unwrap(), line["position"].as_i64().unwrap())).collect()
}

#[test]
fn all_annotations_arrive_and_the_ledger_balances() {
    let site = Site::new();
    let daemon = site.daemon(&[]);
    let programs: Vec<_> = (1..=3).map(|threads| site.program(&[500, threads, 20], &[])).collect();
    let calls: u64 = programs.into_iter().map(common::Program::finish).sum();
    let metrics = daemon.settled(calls);
    metrics.assert_balanced();
    assert_eq!(metrics.sum("blkin_program_lost_total"), 0);
    assert_eq!(metrics.sum("blkin_valid_total"), calls);
    let lines = site.lines();
    assert_eq!((lines.len() as u64, identities(&lines).len() as u64), (calls, calls));
    let of_kind = |key: &str| lines.iter().filter(|line| !line[key].is_null()).count() as u64;
    assert_eq!((of_kind("event"), of_kind("key")), (calls / 2, calls / 2));
    wait_for("departed programs are folded", || {
        let metrics = daemon.metrics();
        let departed = metrics.sum_where("blkin_drained_total", "process=\"departed\"");
        (metrics.sum("blkin_programs") == 0 && departed == calls).then_some(())
    });
    daemon.metrics().assert_balanced();
    assert!(daemon.stop().success());
}

#[test]
fn without_a_sink_annotations_count_as_lost_even_after_a_kill() {
    let site = Site::new();
    let daemon = site.bare_daemon(&[]);
    assert_eq!(daemon.says("nothing is shipped").len(), 1);
    let lost = |calls| {
        let metrics = daemon.settled(calls);
        metrics.assert_balanced();
        metrics.sum_where("blkin_sink_lost_total", "sink=\"none\",cause=\"no_sink\"")
    };
    let first = site.program(&[500, 2], &[]).finish();
    assert_eq!(lost(first), first);
    let killed = daemon.worker_pid();
    send_signal(killed, Signal::KILL);
    wait_for("another worker runs", || (daemon.worker_pid() != killed).then_some(()));
    let calls = first + site.program(&[300, 2], &[]).finish();
    assert_eq!(lost(calls), calls);
}

#[test]
fn a_tiny_ring_counts_every_loss() {
    let site = Site::new();
    let daemon = site.daemon(&[]);
    let calls = site.program(&[20_000, 2], &[("BLKIN_RING_BYTES", "4096")]).finish();
    let metrics = daemon.settled(calls);
    metrics.assert_balanced();
    assert!(metrics.sum_where("blkin_program_lost_total", "cause=\"full\"") > 0);
    assert_eq!(metrics.sum("blkin_valid_total"), site.lines().len() as u64);
}

#[test]
fn an_uncounted_record_breaks_the_ledger_equations() {
    let site = Site::new();
    let daemon = site.daemon(&[]);
    let calls = site.program(&[100, 1], &[]).finish();
    let metrics = daemon.settled(calls);
    metrics.assert_balanced();
    let figures = [
        "blkin_program_committed_total",
        "blkin_drained_total",
        "blkin_valid_total",
        "blkin_sink_acked_total",
    ];
    for figure in figures {
        let mut mutated = metrics.clone();
        mutated.change(figure, |value| value + 1);
        assert_ne!(mutated.broken_equations(), Vec::<String>::new(), "{figure}");
    }
    let mut lines = site.lines();
    lines.pop();
    assert_ne!(lines.len() as u64, metrics.sum("blkin_sink_acked_total"));
}

#[test]
fn a_program_that_ends_before_anything_is_drained_loses_nothing() {
    let site = Site::new();
    let daemon = site.daemon(&[]);
    daemon.signal_worker(Signal::STOP);
    let calls = site.program(&[500, 3], &[]).finish();
    daemon.signal_worker(Signal::CONT);
    let metrics = daemon.settled(calls);
    metrics.assert_balanced();
    assert_eq!((metrics.sum("blkin_valid_total"), site.lines().len() as u64), (calls, calls));
}

#[test]
fn repeated_worker_kills_lose_nothing_and_the_ledger_balances() {
    let site = Site::new();
    let daemon = site.daemon(&[]);
    let mut programs: Vec<_> = (0..2).map(|_| site.program(&[500, 2, 200], &[])).collect();
    let mut calls = 0;
    for round in 1..=5_u64 {
        wait_for("the worker has drained something", || {
            (daemon.metrics().sum("blkin_drained_total") > calls).then_some(())
        });
        send_signal(daemon.worker_pid(), Signal::KILL);
        wait_for("the restart is counted", || {
            (daemon.metrics().sum("blkin_worker_restarts_total") >= round).then_some(())
        });
        daemon.assert_healthy();
        calls = programs.iter_mut().map(common::Program::calls).sum();
        if round < 5 {
            wait_for("everything is drained", || {
                (daemon.metrics().sum("blkin_drained_total") == calls).then_some(())
            });
            programs.iter_mut().for_each(common::Program::record_more);
        }
    }
    programs.into_iter().for_each(common::Program::end);
    let metrics = daemon.settled(calls);
    metrics.assert_balanced();
    assert_eq!(metrics.sum("blkin_program_lost_total"), 0);
    let lines = site.lines();
    assert_eq!(identities(&lines).len() as u64, calls);
    assert!(daemon.stop().success());
}

#[test]
fn annotations_staged_before_a_kill_fit_in_small_queues() {
    let (site, scribe) = (Site::new(), common::scribe::Scribe::start(|_| common::scribe::Behaviour::Ok));
    // No span leaves, so everything stays staged; its lines are many times what the queues can hold.
    let text = "close_events = [\"never\"]\nquiet_ms = 86400000\nqueue_bytes = 1048576\n";
    let daemon = site.daemon(&["--scribe-upstream", &scribe.address, "--config", &site.config(text)]);
    let mut program = site.program(&[150, 1], &[]);
    let acked = |made: u64| {
        let metrics = daemon.metrics();
        let lost = metrics.sum("blkin_sink_lost_total");
        (metrics.sum_where("blkin_sink_acked_total", "json_lines") + lost == made).then_some(lost)
    };
    // Each time makes less than a program may hold of a queue, however late it is shipped.
    for _ in 1..20 {
        let made = program.calls();
        assert_eq!(wait_for("the file has everything", || acked(made)), 0);
        program.record_more();
    }
    let made = program.calls();
    assert_eq!(wait_for("the file has everything", || acked(made)), 0);
    let killed = daemon.worker_pid();
    send_signal(killed, Signal::KILL);
    wait_for("another worker runs", || (daemon.worker_pid() != killed).then_some(()));
    daemon.assert_healthy();
    // What was counted before does not count again.
    wait_for("the file has everything again", || (site.line_count() as u64 == 2 * made).then_some(()));
    assert_eq!(wait_for("no more is counted", || acked(made)), 0);
    daemon.metrics().assert_balanced();
    assert!(daemon.stop().success());
    let annotations = |span: &blkin_thrift::Span| span.annotations.len() + span.binary_annotations.len();
    assert_eq!(scribe.spans().iter().map(annotations).sum::<usize>() as u64, made);
}

/// As when somebody restarts it by hand, or a supervisor does not wait for its end: the last daemon ships for as long as it may,
/// and still has its address.
#[test]
fn a_daemon_waits_for_the_address_of_an_ending_one() {
    let site = Site::new();
    let arguments = ["--scribe-upstream", "127.0.0.1:1", "--stop-timeout-ms", "2000"];
    let mut last = site.bare_daemon(&arguments);
    site.program(&[10, 1], &[]).finish();
    let address = last.http.clone();
    last.ask_to_end();
    wait_for("the ending daemon refuses programs", || (!site.socket().exists()).then_some(()));
    let next = site.bare_daemon(&[&arguments[..], &["--http-listen", &address]].concat());
    assert!(last.ended().success());
    assert_eq!(next.says("waiting for it to end").len(), 1);
    next.assert_healthy();
    assert_eq!(next.http, address);
}

#[test]
fn a_stopped_worker_turns_health_red_and_is_killed_in_the_end() {
    let site = Site::new();
    let daemon = site.daemon(&["--stuck-kill-ms", "4000"]);
    daemon.assert_healthy();
    let stopped = daemon.worker_pid();
    daemon.signal_worker(Signal::STOP);
    wait_for("health is red", || (daemon.health() == Some(503)).then_some(()));
    // Each request makes the holder check its worker, even one that it has killed and that has not ended yet.
    std::thread::scope(|scope| {
        (0..8).for_each(|_| drop(scope.spawn(|| daemon.assert_healthy())));
    });
    assert_ne!(daemon.worker_pid(), stopped);
    assert_eq!(daemon.metrics().sum("blkin_worker_stuck_kills_total"), 1);
    assert_eq!(daemon.says("killing it").len(), 1);
}

#[test]
fn a_worker_that_stood_still_with_its_holder_is_not_killed() {
    let (site, kill_after) = (Site::new(), Duration::from_millis(6000));
    let daemon = site.daemon(&["--stuck-kill-ms", &kill_after.as_millis().to_string()]);
    let worker = daemon.worker_pid();
    daemon.signal_worker(Signal::STOP);
    send_signal(daemon.pid(), Signal::STOP);
    // There is no event to wait for, which is what this tests.
    std::thread::sleep(kill_after);
    send_signal(daemon.pid(), Signal::CONT);
    wait_for("the holder has looked again", || (daemon.health() == Some(503)).then_some(()));
    daemon.signal_worker(Signal::CONT);
    daemon.assert_healthy();
    assert_eq!(daemon.worker_pid(), worker, "the worker must not be replaced");
    assert_eq!(daemon.metrics().sum("blkin_worker_stuck_kills_total"), 0);
}

/// Names of the workers that are not well.
fn stuck(daemon: &common::Daemon) -> Vec<String> {
    let report = daemon.report();
    let workers = report["workers"].as_array().unwrap().iter();
    let stuck = workers.filter(|worker| worker["state"] == "stuck");
    stuck.map(|worker| worker["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_displaced_socket_turns_health_red_until_it_is_back() {
    let site = Site::new();
    let daemon = site.daemon(&[]);
    daemon.assert_healthy();
    for name in ["socket", "control.sock"] {
        std::fs::rename(site.path(name), site.path("aside")).unwrap();
        wait_for("health is red", || (daemon.health() == Some(503)).then_some(()));
        assert_eq!(stuck(&daemon), ["socket"]);
        let told = format!("uses the same path socket={}", site.path(name).display());
        assert_eq!(daemon.says(&told).len(), 1, "the conflict is logged once, not at each check");
        std::fs::rename(site.path("aside"), site.path(name)).unwrap();
        daemon.assert_healthy();
    }
    assert_eq!(daemon.says("is back in its place").len(), 2);
    assert!(daemon.stop().success());
}

#[test]
fn a_stopped_holder_turns_health_red_until_it_continues() {
    const { assert!(STUCK_AFTER.as_millis() < 2000, "operators are told that it takes less than two seconds") };
    let site = Site::new();
    let daemon = site.daemon(&[]);
    let worker = daemon.worker_pid();
    daemon.assert_healthy();
    send_signal(daemon.pid(), Signal::STOP);
    wait_for("health is red", || (daemon.health() == Some(503)).then_some(()));
    assert_eq!(stuck(&daemon), ["holder"]);
    send_signal(daemon.pid(), Signal::CONT);
    daemon.assert_healthy();
    assert_eq!(daemon.worker_pid(), worker, "the worker must not be replaced");
}

#[test]
fn a_daemon_waits_for_addresses_held_by_an_orphaned_worker() {
    let site = Site::new();
    // Nobody listens there, so at the end the worker stays for a while, with what it has not shipped.
    let first = site.bare_daemon(&["--scribe-upstream", "127.0.0.1:1"]);
    let calls = site.program(&[100, 1], &[]).finish();
    wait_for("the program is drained", || {
        (first.metrics().sum("blkin_drained_total") == calls).then_some(())
    });
    let worker = first.worker_pid();
    send_signal(first.pid(), Signal::KILL);
    let second = site.starting_daemon(&["--http-listen", &first.http]);
    wait_for("the daemon logs that it waits", || {
        (!second.said("control.sock; waiting for it to end").is_empty()).then_some(())
    });
    send_signal(worker, Signal::KILL);
    second.ready().assert_healthy();
}

/// As when a terminal or a supervisor signals the whole process group.
#[test]
fn a_sigterm_to_holder_and_worker_is_logged_once() {
    let site = Site::new();
    let mut daemon = site.daemon(&[]);
    for process in [daemon.pid(), daemon.worker_pid()] {
        send_signal(process, Signal::TERM);
    }
    assert!(daemon.ended().success());
    assert_eq!(daemon.said("stopping: ").len(), 1, "{}", daemon.log());
}

#[test]
fn sighup_ends_neither_holder_nor_worker() {
    let site = Site::new();
    let daemon = site.daemon(&[]);
    let mut program = site.program(&[2000, 1, 300], &[]);
    wait_for("something is drained", || (daemon.metrics().sum("blkin_drained_total") > 0).then_some(()));
    let worker = daemon.worker_pid();
    for process in [daemon.pid(), worker] {
        send_signal(process, Signal::HUP);
    }
    wait_for("holder and worker log the SIGHUP", || {
        (daemon.said("SIGHUP changes nothing").len() == 2).then_some(())
    });
    let calls = program.calls();
    daemon.settled(calls).assert_balanced();
    assert_eq!((daemon.worker_pid(), site.lines().len() as u64), (worker, calls));
    program.end();
    assert!(daemon.stop().success());
}

#[test]
fn a_failed_worker_restart_is_retried_and_nothing_is_lost() {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    let site = Site::new();
    let daemon = site.daemon(&[]);
    let mut program = site.program(&[200, 2], &[]);
    let calls = program.calls();
    daemon.settled(calls).assert_balanced();
    let holder = Pid::from_raw(i32::try_from(daemon.pid()).unwrap());
    let limit = |current| prlimit(holder, Resource::Nofile, current).unwrap();
    let hard = rustix::process::getrlimit(Resource::Nofile).maximum;
    let killed = daemon.worker_pid();
    // With this limit, no file descriptor is left for the socket pair.
    let before = limit(Rlimit { current: Some(3), maximum: hard });
    send_signal(killed, Signal::KILL);
    wait_for("the worker is gone", || (!Path::new(&format!("/proc/{killed}")).exists()).then_some(()));
    wait_for("a restart of the worker has failed", || daemon.said("failed to restart the worker").pop());
    limit(before);
    daemon.assert_healthy();
    daemon.settled(calls).assert_balanced();
    program.end();
}

#[test]
fn a_start_without_proc_says_that_it_is_missing() {
    let site = Site::new();
    let mut hiding = Command::new("unshare");
    let without = "mount -t tmpfs none /proc && exec \"$0\" \"$@\"";
    hiding.args(["--user", "--map-root-user", "--mount", "sh", "-c", without]);
    let daemon = site.started_by(hiding, &[]);
    wait_for("the missing /proc is logged", || (!daemon.said("mount /proc").is_empty()).then_some(()));
    assert_eq!(daemon.ended().code(), Some(1));
}
