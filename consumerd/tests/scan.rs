//! A daemon that searches for live programs at start. It finds every program of the machine, so these tests have a process
//! of their own, and run one after the other.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;
use std::sync::Mutex;

use common::manager::Manager;
use common::scribe::{Behaviour, Reserved};
use common::{Daemon, Program, Site, send_signal, wait_for};
use rustix::process::Signal;

static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn a_program_that_started_before_the_daemon_is_found() {
    let _alone = ALONE.lock();
    let site = Site::new();
    let mut program = site.program(&[200, 2], &[]);
    let calls = program.calls();
    let daemon = site.daemon(&["--scan", "true"]);
    let drained = daemon.settled_of(&program, calls);
    drained.assert_balanced();
    assert!(drained.sum("blkin_scan_found_total") >= 1);
    program.end();
}

#[test]
fn a_program_of_another_user_that_is_not_dumpable_is_found() {
    const NOBODY: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        let _ = writeln!(std::io::stderr(), "not shown: this needs root");
        return;
    }
    let _alone = ALONE.lock();
    let (site, open) = (Site::new(), tempfile::tempdir().unwrap());
    std::fs::set_permissions(open.path(), Permissions::from_mode(0o755)).unwrap();
    let mut program = site.closed_program(open.path(), NOBODY, &[200, 2]);
    let calls = program.calls();
    // Otherwise this would be the same case as in other tests.
    let owner = std::fs::metadata(format!("/proc/{}/status", program.pid())).unwrap().uid();
    assert_eq!(owner, 0, "the program is dumpable");
    let daemon = site.daemon(&["--scan", "true"]);
    let drained = daemon.settled_of(&program, calls);
    drained.assert_balanced();
    assert!(drained.sum("blkin_scan_found_total") >= 1);
    program.end();
}

#[test]
fn a_missing_cap_sys_ptrace_is_logged() {
    // The daemon gets all of root's capabilities except the one to examine processes that have more.
    if !rustix::process::geteuid().is_root() {
        let _ = writeln!(std::io::stderr(), "not shown: this needs root");
        return;
    }
    let _alone = ALONE.lock();
    let site = Site::new();
    let mut starter = Command::new("setpriv");
    starter.args(["--bounding-set", "-sys_ptrace"]);
    let daemon = site.started_by(starter, &["--scan", "true"]).ready();
    let [said] = &daemon.says("failed to search other users' processes")[..] else {
        panic!("{}", daemon.log())
    };
    assert!(said.contains("WARN") && said.contains("give the daemon CAP_SYS_PTRACE"), "{said}");
    let elsewhere = Site::new();
    let may = elsewhere.daemon(&["--scan", "true"]);
    assert_eq!(may.said("failed to search other users' processes"), Vec::<String>::new());
}

/// A daemon, a program that it has read, and the number of the program's calls.
fn read_by_one(site: &Site) -> (Daemon, Program, u64) {
    let daemon = site.daemon(&[]);
    let mut program = site.program(&[300, 1], &[]);
    let calls = program.calls();
    daemon.settled(calls).assert_balanced();
    (daemon, program, calls)
}

#[test]
fn a_program_read_by_another_daemon_is_left_to_it() {
    let _alone = ALONE.lock();
    let (site, elsewhere) = (Site::new(), Site::new());
    let (first, program, calls) = read_by_one(&site);
    let second = elsewhere.daemon(&["--scan", "true"]);
    wait_for("the program is known to be another daemon's", || {
        (second.metrics().sum_where("blkin_offers_total", "refused_elsewhere") >= 1).then_some(())
    });
    assert_eq!(second.metrics().sum_where("blkin_program_attempted_total", &program.label()), 0);
    first.settled(calls).assert_balanced();
    program.end();
}

#[test]
fn programs_read_by_another_daemon_are_logged_together() {
    let _alone = ALONE.lock();
    let (site, elsewhere) = (Site::new(), Site::new());
    let first = site.daemon(&[]);
    let programs: Vec<_> = (0..5).map(|_| site.program(&[1, 1], &[])).collect();
    wait_for("all are read", || (first.metrics().sum("blkin_programs") == 5).then_some(()));
    let mut second = elsewhere.daemon(&["--scan", "true"]);
    // The programs wait, for as long as an ending daemon may need to release them; this daemon ends before that.
    second.ask_to_end();
    assert!(second.ended().success());
    let named = second.said("refused a program: another daemon reads it");
    let counted = second.said("refused more programs: another daemon reads it");
    assert!(named.len() == 1 && counted.len() == 1, "{named:?} {counted:?}");
    let rest = counted[0].split_once("programs=").unwrap().1.trim();
    // Other programs on the machine are found, too.
    assert!(rest.parse::<u32>().unwrap() >= 4, "{counted:?}");
    programs.into_iter().for_each(Program::end);
}

#[test]
fn a_program_is_taken_over_once_its_daemon_has_ended() {
    let _alone = ALONE.lock();
    let (site, elsewhere) = (Site::new(), Site::new());
    let (first, program, calls) = read_by_one(&site);
    let second = elsewhere.daemon(&["--scan", "true"]);
    assert_eq!(second.metrics().sum_where("blkin_program_attempted_total", &program.label()), 0);
    assert!(first.stop().success());
    second.settled_of(&program, calls).assert_balanced();
    program.end();
}

#[test]
fn unsettled_annotations_of_a_killed_daemon_are_counted() {
    let _alone = ALONE.lock();
    let site = Site::new();
    // Nobody listens there, so the first half is drained and stays in flight.
    let first = site.bare_daemon(&["--scribe-upstream", "127.0.0.1:1"]);
    let mut program = site.program(&[300, 1], &[]);
    let calls = program.calls();
    wait_for("the program is drained", || {
        (first.metrics().sum("blkin_drained_total") == calls).then_some(())
    });
    first.killed();
    let second = site.daemon(&["--scan", "true"]);
    let label = program.label();
    let unsettled = wait_for("the program is found", || {
        let metrics = second.metrics();
        metrics.assert_balanced();
        let unsettled = metrics.sum_where("blkin_lost_total", &format!("{label},cause=\"unsettled\""));
        (unsettled > 0).then_some(unsettled)
    });
    assert_eq!(unsettled, calls);
    assert_eq!(second.metrics().sum_where("blkin_drained_before_total", &label), 0);
    program.end();
}

#[test]
fn the_next_daemon_continues_where_a_stopped_one_ended() {
    let _alone = ALONE.lock();
    let site = Site::new();
    let (first, program, calls) = read_by_one(&site);
    assert!(first.stop().success());
    let second = site.daemon(&["--scan", "true"]);
    let label = "process=\"producer";
    let metrics = second.settled_of(&program, calls);
    metrics.assert_balanced();
    assert!(metrics.sum_where("blkin_drained_before_total", label) >= calls);
    assert_eq!(metrics.sum_where("blkin_lost_total", &format!("{},cause=\"unsettled\"", program.label())), 0);
    // A new worker must not mistake what the worker before it published for what an earlier daemon had drained.
    let killed = second.worker_pid();
    send_signal(killed, Signal::KILL);
    wait_for("another worker serves", || {
        (second.health() == Some(200) && second.worker_pid() != killed).then_some(())
    });
    second.settled_of(&program, calls).assert_balanced();
    program.end();
}

/// Asserts that a live program keeps its number when the daemon is ended this way before systemd keeps the program. It is drained,
/// and the upstream takes nothing before that.
fn assert_number_is_kept(end: fn(Daemon)) {
    let _alone = ALONE.lock();
    let (site, upstream) = (Site::new(), Reserved::new());
    let manager = Manager::start(site.path("notify"));
    let arguments =
        ["--scribe-upstream", &upstream.address.clone(), "--scan", "true", "--stop-timeout-ms", "300"];
    let first = site.started_by(manager.starter(), &arguments).ready();
    let mut program = site.program(&[300, 1], &[]);
    let calls = program.calls();
    wait_for("the program is drained, and systemd keeps it", || {
        let is_drained = first.metrics().sum("blkin_drained_total") == calls;
        (is_drained && manager.programs() == 1).then_some(())
    });
    end(first);
    manager.lose_programs();
    program.record_more();
    let calls = program.calls();
    let _scribe = upstream.start(|_| Behaviour::Ok);
    let second = site.started_by(manager.starter(), &arguments).ready();
    let metrics = second.settled_of(&program, calls);
    metrics.assert_balanced();
    assert_eq!(metrics.sum_where("blkin_drained_total", &program.label()), calls);
    assert_eq!(metrics.sum("blkin_lost_total"), 0);
    program.end();
}

#[test]
fn an_unkept_program_keeps_its_number_after_a_daemon_kill() {
    assert_number_is_kept(Daemon::killed);
}

#[test]
fn an_unkept_program_keeps_its_number_after_a_holder_kill() {
    assert_number_is_kept(Daemon::left_to_its_worker);
}
