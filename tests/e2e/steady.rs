//! In the steady state a record makes no system call and allocates nothing.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};
use blkin_tests::artifacts::{c_program, output};
use blkin_tests::daemons::{Node, Setup};

#[test]
fn a_million_records_make_no_system_call_and_no_allocation() -> Result<()> {
    let node = Node::start(Setup::default())?;
    let log = node.folder().join("strace");
    let mut traced = Command::new("strace");
    traced.args(["-f", "-o"]).arg(&log).arg(c_program("steady")?);
    traced.env("BLKIN_SOCKET", node.socket()).env("BLKIN_RING_BYTES", "4194304");
    let said = output(&mut traced)?;
    let log = fs::read_to_string(log)?;
    let (_, steady) = log.split_once("\"begin\\n\"").context("strace saw no begin")?;
    let (steady, _) = steady.split_once("\"end\\n\"").context("strace saw no end")?;
    // What is left: the end of the line that begins, and the beginning of the line that ends.
    let calls: Vec<&str> = steady.lines().skip(1).collect();
    assert_eq!(calls.len(), 1, "{calls:#?}");
    assert_eq!(said.trim(), "allocations 0");
    Ok(())
}
