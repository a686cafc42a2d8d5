//! In the steady state a record makes no system call and allocates nothing.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use blkin_cli::metrics::Metrics;
use blkin_tests::artifacts::{c_program, with_each_producer};
use blkin_tests::daemons::{LIMIT, Node, Setup};
use blkin_tests::wait;

/// The records that the program makes before it waits for the harness.
const WARM_UP: i64 = 10_000;

/// Records of the steady state. A program wakes a sleeping consumerd after at least an eighth of a ring.
const RECORDS: usize = 1_000_000;
const RING_BYTES: usize = 4 << 20;
const BYTES_A_WAKE: usize = RING_BYTES / 8;
/// An upper limit for the length of these records.
const MAX_RECORD_BYTES: usize = 128;

/// The system calls of the steady state, as strace saw them; checks that nothing was allocated.
fn calls(environment: &[(&str, &str)]) -> Result<Vec<String>> {
    let node = Node::start(Setup::default())?;
    let log = node.folder().join("strace");
    let mut traced = Command::new("strace");
    traced.args(["-f", "-o"]).arg(&log).arg(c_program("steady")?).envs(environment.iter().copied());
    traced.env("BLKIN_SOCKET", node.socket()).env("BLKIN_RING_BYTES", RING_BYTES.to_string());
    let mut traced = traced.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let consumerd = node.consumerd()?;
    let is_attached = |metrics: &Metrics| metrics.sum("blkin_program_attempted_total", &[]) >= WARM_UP;
    wait::until(LIMIT, "consumerd to attach", || consumerd.metrics().ok().filter(is_attached))?;
    traced.stdin.take().context("stdin is not a pipe")?.write_all(b"!")?;
    let done = traced.wait_with_output()?;
    ensure!(done.status.success(), "the program ended with {}", done.status);
    let said = String::from_utf8(done.stdout)?;
    ensure!(said.trim() == "allocations 0", "{said}");
    let log = fs::read_to_string(log)?;
    let (_, steady) = log.split_once("\"begin\\n\"").context("strace saw no begin")?;
    let (steady, _) = steady.split_once("\"end\\n\"").context("strace saw no end")?;
    // Drops the rest of the line with "begin" and the start of the line with "end".
    let mut lines: Vec<String> = steady.lines().skip(1).map(str::to_owned).collect();
    lines.pop();
    Ok(lines)
}

#[test]
fn a_million_records_cause_no_system_call_or_allocation() -> Result<()> {
    with_each_producer(&[("BLKIN_WAKE", "0")], |environment| {
        let calls = calls(environment)?;
        ensure!(calls.is_empty(), "{calls:?}");
        Ok(())
    })
}

/// An awake consumerd needs no wake at all; on a busy machine it may find the rings empty in between, and sleep.
#[test]
fn consumerd_is_woken_at_most_once_per_eighth_of_a_ring() -> Result<()> {
    let calls = calls(&[])?;
    println!("{} calls", calls.len());
    let is_wake = |call: &&String| call.contains("futex(") && call.contains("FUTEX_WAKE,");
    assert_eq!(calls.iter().find(|call| !is_wake(call)), None);
    assert!(calls.len() <= RECORDS * MAX_RECORD_BYTES / BYTES_A_WAKE, "{}", calls.len());
    Ok(())
}
