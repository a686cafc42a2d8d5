//! An idle consumerd costs next to nothing.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use blkin_tests::daemons::{Node, Setup};
use blkin_tests::process::children;
use blkin_tests::program::Program;

const PROGRAMS: usize = 10;
const WATCHED: Duration = Duration::from_secs(30);
const MAX_SWITCHES_A_SECOND: f64 = 20.0;
/// Ten times what it takes on a slow machine; one that never sleeps takes all.
const MAX_CPU: f64 = 0.03;

/// What the kernel counted for a process and its threads: how often they went to sleep, and the time that they ran. How often they
/// were pushed aside by others is none of their doing.
#[derive(Debug, Clone, Copy, Default)]
struct Usage {
    switches: u64,
    cpu_seconds: f64,
}

#[test]
fn ten_idle_programs_leave_consumerd_asleep() -> Result<()> {
    let _alone = crate::alone();
    let node = Node::start(Setup::default())?;
    let mut programs = Vec::new();
    let mut calls = 0;
    for _ in 0..PROGRAMS {
        let mut program = Program::start("writer", &["--traces", "10"], &node.socket(), &[])?;
        calls += program.round()?;
        programs.push(program);
    }
    node.settled(calls)?;
    let holder = node.consumerd()?.process.pid();
    let pids = || children(holder).into_iter().chain([holder]);
    // Let the last round of housekeeping after the settling pass.
    std::thread::sleep(Duration::from_secs(2));
    let before = usage(pids())?;
    let started = Instant::now();
    std::thread::sleep(WATCHED);
    let after = usage(pids())?;
    let seconds = started.elapsed().as_secs_f64();
    let switches = (after.switches - before.switches) as f64 / seconds;
    let cpu = (after.cpu_seconds - before.cpu_seconds) / seconds;
    println!("idle consumerd: {switches:.1} context switches a second, {:.3} % CPU", cpu * 100.0);
    assert!(switches <= MAX_SWITCHES_A_SECOND, "{switches} context switches a second");
    assert!(cpu <= MAX_CPU, "{} % CPU", cpu * 100.0);
    Ok(())
}

fn usage(pids: impl Iterator<Item = u32>) -> Result<Usage> {
    let mut sum = Usage::default();
    for pid in pids {
        for task in fs::read_dir(format!("/proc/{pid}/task"))? {
            let task = task?.path();
            sum.switches += switches(&fs::read_to_string(task.join("status"))?);
            // The scheduler's own count of nanoseconds: clock ticks of 10 ms are too coarse here.
            let schedstat = fs::read_to_string(task.join("schedstat"))?;
            let ran_ns: u64 = schedstat.split_whitespace().next().context("schedstat is empty")?.parse()?;
            sum.cpu_seconds += ran_ns as f64 / 1e9;
        }
    }
    Ok(sum)
}

fn switches(status: &str) -> u64 {
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}
