//! What outlives the whole daemon when systemd keeps it: everything that was drained and not shipped, and what only the rings of
//! ended programs have.

#![allow(clippy::unwrap_used)]

mod common;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use blkin_consumerd::staging::layout::{HOLDER_AT, HOLDER_COUNTERS, SECOND_COPY_BYTES};
use common::manager::Manager;
use common::scribe::{Behaviour, Reserved};
use common::{Daemon, Site, send_signal, wait_for};
use rustix::process::Signal;

/// A way to end both processes of the daemon.
type End = fn(Daemon);

fn stopped(daemon: Daemon) {
    assert!(daemon.stop().success());
}

fn started(site: &Site, manager: &Manager, upstream: &str) -> Daemon {
    let arguments = ["--scribe-upstream", upstream, "--stop-timeout-ms", "300"];
    site.started_by(manager.starter(), &arguments).ready()
}

/// Waits until the daemon has drained so many calls, and the manager keeps so many programs.
fn wait_for_kept(daemon: &Daemon, calls: u64, manager: &Manager, kept: usize) {
    wait_for("all is drained and kept", || {
        let is_drained = daemon.metrics().sum("blkin_drained_total") == calls;
        (is_drained && manager.programs() == kept).then_some(())
    });
}

/// Asserts that nothing is lost when the daemon is ended this way. One program has ended and another runs on, and the upstream
/// takes nothing before that.
fn assert_nothing_is_lost(end: End) {
    let (site, upstream) = (Site::new(), Reserved::new());
    let manager = Manager::start(site.path("notify"));
    let daemon = started(&site, &manager, &upstream.address);
    let ended = site.program(&[1000, 2], &[("BLKIN_RING_BYTES", "1048576")]).finish();
    let mut lives = site.program(&[500, 1], &[]);
    let calls = ended + lives.calls();
    wait_for_kept(&daemon, calls, &manager, 2);
    end(daemon);
    // This is recorded while there is no daemon at all.
    lives.record_more();
    let calls = ended + lives.calls();
    let address = upstream.address.clone();
    let scribe = upstream.start(|_| Behaviour::Ok);
    let daemon = started(&site, &manager, &address);
    assert_eq!(daemon.says("continuing where the previous daemon stopped").len(), 1);
    let metrics = daemon.settled(calls);
    metrics.assert_balanced();
    assert_eq!((metrics.sum("blkin_lost_total"), metrics.sum("blkin_drained_before_total")), (0, 0));
    assert!(scribe.annotations() >= calls as usize, "{} of {calls}", scribe.annotations());
    lives.end();
    wait_for("systemd no longer keeps settled programs", || (manager.names() == ["staging"]).then_some(()));
    assert!(daemon.stop().success());
}

#[test]
fn a_daemon_kill_during_an_outage_loses_nothing() {
    assert_nothing_is_lost(Daemon::killed);
}

#[test]
fn a_daemon_restart_during_an_outage_loses_nothing() {
    assert_nothing_is_lost(stopped);
}

#[test]
fn nothing_is_lost_if_the_previous_worker_still_runs() {
    assert_nothing_is_lost(Daemon::left_to_its_worker);
}

#[test]
fn a_program_counts_once_if_systemd_never_heard_of_its_release() {
    let (site, upstream) = (Site::new(), Reserved::new());
    let manager = Manager::start(site.path("notify"));
    let address = upstream.address.clone();
    let _scribe = upstream.start(|_| Behaviour::Ok);
    let daemon = started(&site, &manager, &address);
    let (mut ends, mut lives) = (site.program(&[10, 1], &[]), site.program(&[10, 1], &[]));
    let of_ended = ends.calls();
    wait_for("both are kept", || (manager.programs() == 2).then_some(()));
    // From here on the holder does not read its worker's messages.
    send_signal(daemon.pid(), Signal::STOP);
    ends.end();
    wait_for("the ended program has departed", || {
        (daemon.metrics().sum("blkin_programs_departed_total") == 1).then_some(())
    });
    // After this the worker has no reason to remember the program.
    let mut calls = of_ended + lives.calls();
    for _ in 0..3 {
        lives.record_more();
        calls = of_ended + lives.calls();
        daemon.settled(calls);
    }
    daemon.killed();
    assert_eq!(manager.programs(), 2);
    let daemon = started(&site, &manager, &address);
    wait_for("systemd no longer keeps the program", || (manager.programs() == 1).then_some(()));
    let metrics = daemon.settled(calls);
    metrics.assert_balanced();
    assert_eq!(metrics.sum("blkin_drained_before_total"), 0);
    assert_eq!(metrics.sum("blkin_programs_departed_total"), 1);
    lives.end();
}

/// The next program's number is among the damaged counters. A new program must not get a number that was given before.
#[test]
fn new_programs_are_read_after_damage_to_holder_counters() {
    for copies in [1, 2] {
        let (site, upstream) = (Site::new(), Reserved::new());
        let manager = Manager::start(site.path("notify"));
        let address = upstream.address.clone();
        let _scribe = upstream.start(|_| Behaviour::Ok);
        let daemon = started(&site, &manager, &address);
        let mut calls = 0;
        for _ in 0..2 {
            calls += site.program(&[10, 1], &[]).finish();
            wait_for("the ended program is released", || {
                (daemon.metrics().sum("blkin_programs_held") == 0).then_some(())
            });
        }
        wait_for("the staging memory is kept", || (manager.names() == ["staging"]).then_some(()));
        stopped(daemon);
        for copy in 0..copies {
            manager.spoil_staging(HOLDER_AT + copy * SECOND_COPY_BYTES, &[0; 8 * HOLDER_COUNTERS]);
        }
        let daemon = started(&site, &manager, &address);
        calls += site.program(&[10, 1], &[]).finish();
        let metrics = daemon.settled(calls);
        metrics.assert_balanced();
        let taken = metrics.sum_where("blkin_offers_total", "outcome=\"taken\"");
        assert_eq!(taken, if copies == 1 { 3 } else { 1 });
        let told = daemon.said("the holder's saved counters were damaged").len();
        assert_eq!(told as u64, copies - 1);
    }
}

#[test]
fn an_invalid_configuration_gives_up_nothing_kept() {
    let (site, upstream) = (Site::new(), Reserved::new());
    let manager = Manager::start(site.path("notify"));
    let address = upstream.address.clone();
    let daemon = started(&site, &manager, &address);
    let calls = site.program(&[10, 1], &[]).finish();
    wait_for_kept(&daemon, calls, &manager, 1);
    stopped(daemon);
    let wrong = ["--staging-bytes", "1"];
    // With exit code 78, systemd would give up the unit, and all that it keeps for the unit.
    assert_eq!(site.started_by(manager.starter(), &wrong).ended().code(), Some(1));
    let log = std::fs::read_to_string(site.path("log")).unwrap();
    assert!(
        log.contains("systemd keeps what the previous daemon had not shipped, and restarts this one"),
        "{log}"
    );
    let _scribe = upstream.start(|_| Behaviour::Ok);
    let daemon = started(&site, &manager, &address);
    let metrics = daemon.settled(calls);
    metrics.assert_balanced();
    assert_eq!(metrics.sum("blkin_sink_acked_total"), calls);
    // No program is kept any more, but the staging memory is.
    wait_for("systemd no longer keeps the program", || (manager.programs() == 0).then_some(()));
    stopped(daemon);
    assert_eq!(site.starting_daemon(&wrong).ended().code(), Some(78));
}

#[test]
fn staged_annotations_of_an_unkept_program_are_counted() {
    let (site, upstream) = (Site::new(), Reserved::new());
    let manager = Manager::start(site.path("notify"));
    let daemon = started(&site, &manager, &upstream.address);
    let calls = site.program(&[10, 1], &[]).finish();
    wait_for_kept(&daemon, calls, &manager, 1);
    daemon.killed();
    manager.lose_programs();
    let daemon = started(&site, &manager, &upstream.address);
    let told = daemon.says("gave up staged annotations of programs that are no longer held").pop().unwrap();
    assert!(told.ends_with(&format!(" annotations={calls}")), "{told}");
    let metrics = wait_for("the loss is counted", || {
        let metrics = daemon.metrics();
        (metrics.sum_where("blkin_lost_total", "cause=\"invalid\"") == calls).then_some(metrics)
    });
    metrics.assert_balanced();
}

#[test]
fn a_stopped_daemon_logs_what_becomes_of_the_rest() {
    let (site, upstream) = (Site::new(), Reserved::new());
    let manager = Manager::start(site.path("notify"));
    let daemon = started(&site, &manager, &upstream.address);
    let calls = site.program(&[10, 1], &[]).finish();
    wait_for_kept(&daemon, calls, &manager, 1);
    let log = site.path("log");
    stopped(daemon);
    let log = std::fs::read_to_string(log).unwrap();
    let told = log.lines().find(|line| line.contains("ended before everything was shipped")).unwrap();
    assert!(told.contains("kept for a restart, given up if the unit is stopped for good"), "{told}");
}

#[test]
fn the_next_daemon_serves_an_ended_programs_flight_recorder() {
    let site = Site::new();
    let manager = Manager::start(site.path("notify"));
    let daemon = started(&site, &manager, "");
    let mut recorder = site.program(&[10, 1], &[("BLKIN_MODE", "overwrite")]);
    let pid = recorder.pid();
    recorder.calls();
    recorder.end();
    let is_kept = |daemon: &Daemon| (daemon.metrics().sum("blkin_recorders_kept") == 1).then_some(());
    wait_for("the recorder is kept", || is_kept(&daemon).filter(|()| manager.programs() == 1));
    stopped(daemon);
    let daemon = started(&site, &manager, "");
    wait_for("the next daemon keeps the recorder", || is_kept(&daemon));
    let mut stream = UnixStream::connect(site.path("control.sock")).unwrap();
    stream.write_all(format!("{{\"snapshot\":{{\"target\":{{\"pid\":{pid}}}}}}}").as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut file = Vec::new();
    stream.read_to_end(&mut file).unwrap();
    let read = blkin_ringbuf::saved::read(&file);
    assert_eq!((read.programs.len(), read.programs[0].identity.ended), (1, true));
    wait_for("systemd no longer keeps the recorder", || (manager.names() == ["staging"]).then_some(()));
}

#[test]
fn a_changed_staging_size_logs_how_much_is_given_up() {
    let (site, upstream) = (Site::new(), Reserved::new());
    let manager = Manager::start(site.path("notify"));
    let daemon = started(&site, &manager, &upstream.address);
    let mut program = site.program(&[10, 1], &[]);
    let calls = program.calls();
    wait_for_kept(&daemon, calls, &manager, 1);
    stopped(daemon);
    let arguments = ["--scribe-upstream", &upstream.address, "--staging-bytes", "134217728"];
    let daemon = site.started_by(manager.starter(), &arguments).ready();
    let told = daemon.says("gave up what the previous daemon had not shipped").pop().unwrap();
    assert!(told.ends_with(&format!(" annotations={calls}")), "{told}");
    // If the program is still known, the loss is counted, too.
    wait_for("the loss is counted", || {
        let lost = daemon.metrics().sum_where("blkin_lost_total", "cause=\"unsettled\"");
        (lost == calls).then_some(())
    });
    program.end();
}
