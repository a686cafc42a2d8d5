//! An idle consumerd sleeps.

use std::fs;
use std::time::Instant;

use anyhow::{Context, Result};
use blkin_tests::daemons::{LIMIT, Node, Setup};
use blkin_tests::program::Program;
use blkin_tests::wait;

const PROGRAMS: usize = 10;
/// So often the rings are looked at while all is counted: five times a second, and one that never sleeps never gets there.
const LOOKS: u64 = 50;
/// Of all threads of holder and worker: three times what it takes.
const MAX_SLEEPS_A_SECOND: f64 = 20.0;

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
    let worker = node.worker()?;
    // Of what follows the settling, pauses have grown to their longest by the first looks.
    looked(worker, LOOKS / 10)?;

    // Time that this process stands still is time in which consumerd may sleep more often.
    let started = Instant::now();
    let before = sleeps(holder)? + sleeps(worker)?;
    looked(worker, LOOKS)?;
    let slept = sleeps(holder)? + sleeps(worker)? - before;
    let a_second = slept as f64 / started.elapsed().as_secs_f64();
    println!("idle consumerd: goes to sleep {a_second:.1} times a second");
    assert!(a_second <= MAX_SLEEPS_A_SECOND, "goes to sleep {a_second} times a second");
    Ok(())
}

/// Waits until the worker has gone to sleep so many times more: its main thread is who looks at the rings.
fn looked(worker: u32, times: u64) -> Result<()> {
    let of_main = || sleeps_of(&format!("/proc/{worker}/task/{worker}/status"));
    let until = of_main()? + times;
    wait::until(LIMIT, "consumerd to look at idle rings", || (of_main().ok()? >= until).then_some(()))
}

/// How often the threads of a process went to sleep. How often they were pushed aside by others is none of their doing.
fn sleeps(pid: u32) -> Result<u64> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))?;
    tasks.map(|task| sleeps_of(&task?.path().join("status").display().to_string())).sum()
}

fn sleeps_of(status: &str) -> Result<u64> {
    let text = fs::read_to_string(status)?;
    let count = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    Ok(count.context("no count of switches")?.trim().parse()?)
}
