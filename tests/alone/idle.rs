//! An idle consumerd sleeps: it wakes up rarely.

use std::time::Instant;

use anyhow::Result;
use blkin_tests::daemons::{Node, Setup};
use blkin_tests::process::sleeps;
use blkin_tests::program::Program;

const PROGRAMS: usize = 10;
/// The measurement lasts for this many looks at the rings, about five a second. A worker that never sleeps never gets there.
const LOOKS: u64 = 50;
/// Limit for all threads of holder and worker: three times what they need.
const MAX_SLEEPS_A_SECOND: f64 = 20.0;

#[test]
fn consumerd_rarely_wakes_up_with_ten_idle_programs() -> Result<()> {
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
    node.rested()?;

    // The rate is measured against real time: while this test is delayed, consumerd goes to sleep more often.
    let started = Instant::now();
    let before = sleeps(holder)? + sleeps(worker)?;
    node.looked(LOOKS)?;
    let slept = sleeps(holder)? + sleeps(worker)? - before;
    let a_second = slept as f64 / started.elapsed().as_secs_f64();
    println!("idle consumerd: goes to sleep {a_second:.1} times a second");
    assert!(a_second <= MAX_SLEEPS_A_SECOND, "goes to sleep {a_second} times a second");
    Ok(())
}
