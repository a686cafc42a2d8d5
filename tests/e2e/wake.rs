//! Programs wake a consumerd that sleeps.

use std::fs;

use anyhow::Result;
use blkin_tests::daemons::{LIMIT, Node, Setup};
use blkin_tests::program::Program;
use blkin_tests::sums::check_lossless;
use blkin_tests::wait;
use tempfile::TempDir;

/// The longest pause that consumerd's configuration allows.
const POLL_IDLE_MS: u32 = 400;
const BURSTS: u32 = 5;

/// A consumerd with the longest possible pause, and a program that writes half a ring in each round.
fn start(environment: &[(&str, &str)]) -> Result<(TempDir, Node, Program)> {
    start_by(None, environment)
}

fn start_by(
    launcher: Option<&'static str>,
    environment: &[(&str, &str)],
) -> Result<(TempDir, Node, Program)> {
    let folder = TempDir::new()?;
    let config = folder.path().join("consumerd.toml");
    fs::write(&config, format!("poll_idle_ms = {POLL_IDLE_MS}\n"))?;
    let flags = vec!["--config".into(), config.display().to_string()];
    let node = Node::start(Setup { consumerd: flags, launcher, ..Setup::default() })?;
    let program = Program::start("writer", &["--traces", "1000"], &node.socket(), environment)?;
    Ok((folder, node, program))
}

/// Lets the program write bursts, each while consumerd is at rest; returns the number of calls.
fn burst(node: &Node, program: &mut Program) -> Result<i64> {
    let mut calls = program.round()?;
    node.settled(calls)?;
    for _ in 0..BURSTS {
        node.rested()?;
        calls += program.round()?;
        wait::until(LIMIT, "the burst to be drained", || {
            let metrics = node.consumerd().ok()?.metrics().ok()?;
            (metrics.sum("blkin_drained_total", &[]) >= calls).then_some(())
        })?;
    }
    Ok(calls)
}

#[test]
fn a_burst_wakes_a_sleeping_consumerd() -> Result<()> {
    let (_folder, node, mut program) = start(&[])?;
    let calls = burst(&node, &mut program)?;
    // Not every burst needs to wake it: on a busy machine a pause may end in the middle of a burst.
    assert!(node.consumerd()?.metrics()?.sum("blkin_wakes_total", &[]) > 0);
    assert!(program.end()?.success());
    check_lossless(&node, calls)
}

#[test]
fn a_program_with_wakes_disabled_is_drained_on_time() -> Result<()> {
    let (_folder, node, mut program) = start(&[("BLKIN_WAKE", "0")])?;
    let calls = burst(&node, &mut program)?;
    assert_eq!(node.consumerd()?.metrics()?.sum("blkin_wakes_total", &[]), 0);
    assert!(program.end()?.success());
    check_lossless(&node, calls)
}

#[test]
fn before_linux_5_16_programs_are_drained_on_time() -> Result<()> {
    let (_folder, node, mut program) = start_by(Some("old_kernel"), &[])?;
    let told = || node.consumerd().ok()?.log().contains("rings are polled on a timer alone").then_some(());
    wait::until(LIMIT, "the log to say that rings are polled on a timer", told)?;
    let calls = burst(&node, &mut program)?;
    assert_eq!(node.consumerd()?.metrics()?.sum("blkin_wakes_total", &[]), 0);
    assert!(program.end()?.success());
    check_lossless(&node, calls)
}
