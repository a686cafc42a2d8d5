//! In the steady state a record makes no system call and allocates nothing.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use blkin_cli::metrics::Metrics;
use blkin_tests::artifacts::c_program;
use blkin_tests::daemons::{Node, Setup};
use blkin_tests::wait;

/// What the program records before it waits for the harness.
const WARM_UP: i64 = 10_000;

#[test]
fn a_million_records_make_no_system_call_and_no_allocation() -> Result<()> {
    let node = Node::start(Setup::default())?;
    let log = node.folder().join("strace");
    let mut traced = Command::new("strace");
    traced.args(["-f", "-o"]).arg(&log).arg(c_program("steady")?);
    traced.env("BLKIN_SOCKET", node.socket()).env("BLKIN_RING_BYTES", "4194304");
    let mut traced = traced.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let consumerd = node.consumerd()?;
    let is_attached = |metrics: &Metrics| metrics.sum("blkin_program_attempted_total", &[]) >= WARM_UP;
    wait::until(Duration::from_secs(60), "consumerd to attach", || {
        consumerd.metrics().ok().filter(is_attached)
    })?;
    traced.stdin.take().context("stdin is a pipe")?.write_all(b"!")?;
    let done = traced.wait_with_output()?;
    ensure!(done.status.success(), "the program ended with {}", done.status);
    let said = String::from_utf8(done.stdout)?;
    let log = fs::read_to_string(log)?;
    let (_, steady) = log.split_once("\"begin\\n\"").context("strace saw no begin")?;
    let (steady, _) = steady.split_once("\"end\\n\"").context("strace saw no end")?;
    // What is left: the end of the line that begins, and the beginning of the line that ends.
    let calls: Vec<&str> = steady.lines().skip(1).collect();
    assert_eq!(calls.len(), 1, "{calls:#?}");
    assert_eq!(said.trim(), "allocations 0");
    Ok(())
}
