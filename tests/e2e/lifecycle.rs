//! Programs and daemons that start late, end early, are stopped or killed.

use std::fs;

use anyhow::{Context, Result, ensure};
use blkin_tests::artifacts::with_each_producer;
use blkin_tests::daemons::{LIMIT, Node, Setup};
use blkin_tests::process::signal_pid;
use blkin_tests::program::Program;
use blkin_tests::wait;
use rustix::process::Signal;

use crate::ledger::ROOMY;
use blkin_tests::sums::check_lossless;

const KILLED_THREADS: i64 = 4;

#[test]
fn an_ended_program_is_still_drained() -> Result<()> {
    let node = Node::start(Setup::default())?;
    let worker = node.worker()?;
    signal_pid(worker, Signal::STOP)?;
    let mut program =
        Program::start("writer", &["--threads", "2", "--traces", "200"], &node.socket(), &ROOMY)?;
    let calls = program.round()?;
    assert!(program.end()?.success());
    signal_pid(worker, Signal::CONT)?;
    check_lossless(&node, calls)
}

#[test]
fn the_ledger_balances_after_a_program_is_killed() -> Result<()> {
    with_each_producer(&ROOMY, |environment| {
        let node = Node::start(Setup::default())?;
        let shape = ["--threads", "4", "--traces", "10000000"];
        let mut program = Program::start("writer", &shape, &node.socket(), environment)?;
        program.begin()?;
        let attempted = || {
            let metrics = node.consumerd().ok()?.metrics().ok()?;
            let attempted = metrics.sum("blkin_program_attempted_total", &[]);
            (attempted > 10_000).then_some(attempted)
        };
        wait::until(LIMIT, "annotations", attempted)?;
        program.process.kill()?;
        let settled = wait::until(LIMIT, "the program's departure", || {
            let metrics = node.consumerd().ok()?.metrics().ok()?;
            let gone = metrics.values("blkin_program_attempted_total", "process") == ["departed"];
            gone.then(|| metrics.sum("blkin_program_attempted_total", &[]))
        })?;
        node.settled(settled)?;
        // A restartable sequence does all or nothing. The portable producer counts a call as attempted before it commits it: one
        // that SIGKILL interrupts in between is neither committed nor lost.
        let most = if environment.contains(&("BLKIN_PRODUCER", "rseq")) { 0 } else { KILLED_THREADS };
        for equation in node.ledger()?.equations {
            let missing = equation.left.value - equation.right.iter().map(|term| term.value).sum::<i64>();
            let cut_off = if equation.left.name == "attempted" { 0..=most } else { 0..=0 };
            ensure!(cut_off.contains(&missing), "{equation:#?}");
        }
        Ok(())
    })
}

#[test]
fn a_worker_killed_while_programs_write_loses_nothing() -> Result<()> {
    let node = Node::start(Setup::default())?;
    let shape = ["--threads", "3", "--traces", "2000", "--pace-us", "500"];
    let mut program = Program::start("writer", &shape, &node.socket(), &ROOMY)?;
    program.begin()?;
    for _ in 0..4 {
        let worker = node.worker()?;
        let before = drained(&node);
        signal_pid(worker, Signal::KILL)?;
        wait::until(LIMIT, "another worker", || node.worker().ok().filter(|pid| *pid != worker))?;
        wait::until(LIMIT, "the new worker to drain", || {
            (drained(&node)? > before.unwrap_or(0)).then_some(())
        })?;
    }
    let calls = program.finish()?;
    assert!(program.end()?.success());
    check_lossless(&node, calls)
}

fn drained(node: &Node) -> Option<i64> {
    Some(node.consumerd().ok()?.metrics().ok()?.sum("blkin_drained_total", &[]))
}

#[test]
fn terminated_consumerd_ships_what_it_holds() -> Result<()> {
    let mut node = Node::start(Setup::default())?;
    let mut program = Program::start("writer", &["--traces", "500"], &node.socket(), &ROOMY)?;
    let calls = program.round()?;
    assert!(program.end()?.success());
    let mut consumerd = node.consumerd.take().context("consumerd is not running")?;
    let status = consumerd.process.terminate().with_context(|| consumerd.log())?;
    assert!(status.success(), "{status}: {}", consumerd.log());
    let stored = || Some(node.collector.metrics().ok()?.sum("blkin_collector_stored_total", &[]));
    assert_eq!(stored(), Some(calls));
    Ok(())
}

/// A program whose first round consumerd has drained and shipped.
struct Left {
    node: Node,
    program: Program,
    first: i64,
}

impl Left {
    fn start(environment: &[(&str, &str)]) -> Result<Left> {
        let node = Node::start(Setup::default())?;
        let errors = node.folder().join("errors");
        let shape = ["--traces", "200"];
        let mut program = Program::start_overheard("writer", &shape, &node.socket(), environment, &errors)?;
        let first = program.round()?;
        node.settled(first)?;
        Ok(Left { node, program, first })
    }

    fn end_consumerd(&mut self) -> Result<()> {
        let mut consumerd = self.node.consumerd.take().context("consumerd is not running")?;
        ensure!(consumerd.process.terminate()?.success(), "{}", consumerd.log());
        Ok(())
    }

    /// Kills holder and worker; the holder is stopped first, so that it does not notice the worker's death.
    fn kill_consumerd(&mut self) -> Result<()> {
        let worker = self.node.worker()?;
        let mut consumerd = self.node.consumerd.take().context("consumerd is not running")?;
        consumerd.process.signal(Signal::STOP)?;
        signal_pid(worker, Signal::KILL)?;
        consumerd.process.kill()?;
        // Until its last thread has ended, the worker holds the lock that tells the program that it is read.
        wait::until(LIMIT, "the worker to be gone", || {
            let is_dead =
                fs::read_to_string(format!("/proc/{worker}/stat")).is_ok_and(|stat| stat.contains(") Z "));
            let threads = fs::read_dir(format!("/proc/{worker}/task")).map_or(0, Iterator::count);
            (threads == 0 || is_dead && threads == 1).then_some(())
        })
    }

    /// Ends the program and returns what the library wrote to its standard error.
    fn told_at_end(&mut self) -> Result<String> {
        ensure!(self.program.end()?.success());
        Ok(fs::read_to_string(self.node.folder().join("errors"))?)
    }
}

#[test]
fn a_program_reports_what_consumerd_did_not_collect() -> Result<()> {
    with_each_producer(&ROOMY, |environment| {
        let mut left = Left::start(environment)?;
        left.end_consumerd()?;
        let second = left.program.round()?;
        let told = left.told_at_end()?;
        let expected = format!("blkin: {second} annotations of this program were not collected");
        ensure!(told.starts_with(&expected) && told.lines().count() == 1, "{second}: {told}");
        Ok(())
    })
}

#[test]
fn annotations_during_shutdown_are_reported_by_exactly_one_side() -> Result<()> {
    let mut left = Left::start(&ROOMY)?;
    // Without a collector consumerd cannot ship what it has drained, so it uses all its time to stop.
    left.node.collector.process.kill()?;
    let undelivered = left.program.round()?;
    let all = left.first + undelivered;
    wait::until(LIMIT, "all to be drained", || (drained(&left.node)? == all).then_some(()))?;
    let mut consumerd = left.node.consumerd.take().context("consumerd is not running")?;
    consumerd.process.signal(Signal::TERM)?;
    let socket = left.node.socket();
    wait::until(LIMIT, "consumerd to take no more offers", || (!socket.exists()).then_some(()))?;
    let second = left.program.round()?;
    let told = left.told_at_end()?;
    consumerd.process.wait(LIMIT)?;
    let log = consumerd.log();
    let number = |text: &str, before: &str| -> i64 {
        let digits = text.split_once(before).map_or("", |(_, rest)| rest);
        digits.split(|c: char| !c.is_ascii_digit()).next().and_then(|n| n.parse().ok()).unwrap_or(0)
    };
    let (by_program, by_consumerd) = (number(&told, "blkin: "), number(&log, "annotations="));
    ensure!(by_program + by_consumerd == undelivered + second, "{undelivered} + {second}: {told}{log}");
    Ok(())
}

#[test]
fn a_program_reports_what_a_killed_consumerd_did_not_collect() -> Result<()> {
    let mut left = Left::start(&ROOMY)?;
    left.kill_consumerd()?;
    let second = left.program.round()?;
    let told = left.told_at_end()?;
    let count = told.strip_prefix("blkin: ").and_then(|rest| rest.split(' ').next()?.parse::<i64>().ok());
    // The program also counts what the killed consumerd had shipped but not yet marked as settled.
    let named = second..=left.first + second;
    ensure!(count.is_some_and(|count| named.contains(&count)), "{named:?}: {told}");
    ensure!(told.lines().count() == 1, "{told}");
    Ok(())
}

#[test]
fn the_next_consumerd_drains_a_running_program() -> Result<()> {
    with_each_producer(&ROOMY, |environment| {
        let mut left = Left::start(environment)?;
        left.end_consumerd()?;
        let second = left.program.round()?;
        left.node.start_consumerd()?;
        let told = left.told_at_end()?;
        ensure!(told.is_empty(), "{told}");
        let metrics = left.node.settled(left.first + second)?;
        ensure!(metrics.sum("blkin_drained_total", &[]) == second, "not each of {second} was drained");
        let ledger = left.node.ledger()?;
        ensure!(ledger.balances(), "{ledger:#?}");
        Ok(())
    })
}

/// The noisy program's surplus stays in its own rings, and takes no room from the quiet one.
#[test]
fn a_flooding_program_costs_others_nothing_without_a_collector() -> Result<()> {
    let flags = ["--staging-bytes", "33554432", "--queue-bytes", "4194304"].map(str::to_owned).into();
    let mut node = Node::start(Setup { consumerd: flags, ..Setup::default() })?;
    let writer = |service: &str, traces: &str| {
        Program::start("writer", &["--service", service, "--traces", traces], &node.socket(), &ROOMY)
    };
    let (mut quiet, mut noisy) = (writer("quiet", "20")?, writer("noisy", "1000")?);
    let scribe = node.collector.address("scribe")?;
    let http = node.collector.http.base().trim_start_matches("http://").to_owned();
    node.collector.process.kill()?;
    let mut written = quiet.round()?;
    wait::until(LIMIT, "consumerd to hold back the noisy program", || {
        noisy.round().ok()?;
        let metrics = node.consumerd().ok()?.metrics().ok()?;
        (metrics.sum("blkin_programs_held_back", &[]) == 1).then_some(())
    })?;
    for _ in 0..5 {
        noisy.round()?;
        written += quiet.round()?;
    }
    node.start_collector_at(&scribe, &http)?;
    let query = [("serviceName", "quiet"), ("limit", "1000")];
    wait::until(LIMIT, "each trace of the quiet program", || {
        let traces = node.collector.http.get_ok("/api/v2/traces", &query).ok()?;
        let traces: Vec<serde_json::Value> = serde_json::from_str(&traces).ok()?;
        (traces.len() as i64 * 8 == written).then_some(())
    })?;
    for program in [&mut quiet, &mut noisy] {
        ensure!(program.end()?.success(), "a program failed");
    }
    let ledger = node.ledger()?;
    ensure!(ledger.balances(), "{ledger:#?}");
    let metrics = node.consumerd()?.metrics()?;
    ensure!(
        metrics.sum("blkin_sink_lost_total", &[("cause", "spool_evicted")]) == 0,
        "the spool evicted entries"
    );
    Ok(())
}

#[test]
fn a_returning_collector_gets_everything_exactly_once() -> Result<()> {
    let mut node = Node::start(Setup::default())?;
    let mut program = Program::start("writer", &["--traces", "200"], &node.socket(), &ROOMY)?;
    let first = program.round()?;
    node.settled(first)?;
    let scribe = node.collector.address("scribe")?;
    let http = node.collector.http.base().trim_start_matches("http://").to_owned();
    node.collector.process.kill()?;
    let second = program.round()?;
    wait::until(LIMIT, "consumerd to notice", || {
        let metrics = node.consumerd().ok()?.metrics().ok()?;
        (metrics.sum("blkin_sink_trouble", &[("sink", "scribe")]) > 0).then_some(())
    })?;
    node.start_collector_at(&scribe, &http)?;
    node.settled(first + second)?;
    let query = [("serviceName", "writer"), ("limit", "1000")];
    let traces: Vec<serde_json::Value> =
        serde_json::from_str(&node.collector.http.get_ok("/api/v2/traces", &query)?)?;
    assert_eq!(traces.len() as i64 * 8, first + second);
    Ok(())
}
