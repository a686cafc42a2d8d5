//! A daemon that looks for live programs at start. It finds every program of the machine, so these tests have a process
//! of their own, and run one after the other.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Mutex;

use common::{Site, wait_for};

static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn a_program_that_started_before_the_daemon_is_found() {
    let _alone = ALONE.lock();
    let site = Site::new();
    let mut program = site.program(&[200, 2], &[]);
    let calls = program.calls();
    let daemon = site.daemon(&["--scan", "true"]);
    let found = |name| daemon.metrics().sum_where(name, "process=\"producer");
    wait_for("the program is drained", || (found("blkin_drained_total") == calls).then_some(()));
    assert!(daemon.metrics().sum_where("blkin_holder", "scan_found") >= 1);
    program.end();
    daemon.settled(calls).assert_balanced();
    assert_eq!(site.lines().len() as u64, calls);
}

#[test]
fn a_daemon_that_ends_tells_programs_and_the_next_one_finds_them() {
    let _alone = ALONE.lock();
    let site = Site::new();
    let first = site.daemon(&[]);
    let mut program = site.program(&[300, 1], &[]);
    let calls = program.calls();
    first.settled(calls).assert_balanced();
    assert!(first.stop().success());
    let second = site.daemon(&["--scan", "true"]);
    wait_for("the program is attached", || {
        (second.metrics().sum_where("blkin_program_attempted_total", "process=\"producer") == calls)
            .then_some(())
    });
    second.metrics().assert_balanced();
    program.end();
}
