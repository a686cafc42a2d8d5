//! The demo, run as a new user runs it.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use blkin_tests::artifacts::{output, root};
use blkin_tests::process::Process;
use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

#[test]
fn demo_prints_a_trace_a_balanced_ledger_and_a_link() -> Result<()> {
    let _alone = crate::alone();
    let elsewhere = TempDir::new()?;
    let tree = elsewhere.path().join("a clone");
    symlink(root(), &tree)?;
    let said = output(Command::new(tree.join("scripts/demo")).arg("--once"))?;
    assert!(said.contains("0 errors, 0 wrong"), "{said}");
    assert!(said.contains("sink scribe") && !said.contains("DOES NOT HOLD"), "{said}");
    assert!(said.contains("filestore access") && said.contains("filestore (osd."), "{said}");
    assert!(said.contains("/zipkin/traces/") && said.contains("without --once"), "{said}");
    Ok(())
}

/// The signal goes to the whole process group, as from a terminal. It is SIGTERM, because processes started in the background
/// may ignore SIGINT.
#[test]
fn an_interrupted_demo_exits_with_143_and_cleans_up() -> Result<()> {
    let _alone = crate::alone();
    let scratch = TempDir::new()?;
    let mut command = Command::new(root().join("scripts/demo"));
    command.env("TMPDIR", scratch.path()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
    let mut demo = Process::spawn("demo", &mut command)?;
    let mut said = BufReader::new(demo.child().stdout.take().context("no pipe from the demo")?);
    let mut line = String::new();
    while !line.contains("A client puts") {
        line.clear();
        ensure!(said.read_line(&mut line)? > 0, "the demo ended before the load");
    }
    kill_process_group(Pid::from_child(demo.child()), Signal::TERM)?;
    let mut rest = String::new();
    said.read_to_string(&mut rest)?;
    assert_eq!(demo.wait(Duration::from_secs(60))?.code(), Some(143), "{rest}");
    assert!(
        !rest.contains("errors") || rest.contains(" 0 errors"),
        "the daemons ended before the load: {rest}"
    );
    assert!(scratch.path().read_dir()?.next().is_none());
    Ok(())
}
