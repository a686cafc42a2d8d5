//! What it costs to read a program that records evenly. The test is alone in its process, because other tests would be measured,
//! too.

#![allow(clippy::unwrap_used)]

mod common;

use std::time::Instant;

use common::Site;

/// The shortest pause between two looks is 1 ms; rings that fill this slowly are looked at every 8 ms. On a busy machine there
/// are fewer looks, not more.
#[test]
fn an_evenly_filled_ring_gets_under_250_looks_a_second() {
    let site = Site::new();
    let daemon = site.daemon(&[]);
    let worker = daemon.worker_pid();
    let (before, since) = (pauses(worker), Instant::now());
    let mut program = site.program(&[4000, 1, 200], &[]);
    let calls = program.calls();
    let (looks, seconds) = (pauses(worker) - before, since.elapsed().as_secs_f64());
    daemon.settled(calls).assert_balanced();
    println!("{looks} looks in {seconds:.2} s at {:.0} annotations a second", calls as f64 / seconds);
    assert!((looks as f64) < 250.0 * seconds, "{looks} looks in {seconds} s");
}

/// How often the thread that looks at the rings has gone to sleep.
fn pauses(worker: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{worker}/task/{worker}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}
