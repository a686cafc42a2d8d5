//! What it costs to be attached while nothing happens. Alone in its process: other tests would be measured along.

#![allow(clippy::unwrap_used)]

mod common;

use std::time::{Duration, Instant};

use common::Site;

#[test]
fn ten_idle_programs_cost_next_to_nothing() {
    let site = Site::new();
    let daemon = site.daemon(&[]);
    let mut programs: Vec<_> = (0..10).map(|_| site.program(&[10, 1], &[])).collect();
    let calls: u64 = programs.iter_mut().map(common::Program::calls).sum();
    daemon.settled(calls);
    // The pause between rounds grows to its full length.
    std::thread::sleep(Duration::from_secs(1));
    let pids = [daemon.pid(), daemon.worker_pid()];
    let before: Vec<_> = pids.iter().map(|pid| cost(*pid)).collect();
    let since = Instant::now();
    std::thread::sleep(Duration::from_secs(6));
    let seconds = since.elapsed().as_secs_f64();
    let (mut switches, mut ticks) = (0, 0);
    for (pid, before) in pids.iter().zip(before) {
        let now = cost(*pid);
        switches += now.0 - before.0;
        ticks += now.1 - before.1;
    }
    println!("{:.1} context switches a second, {ticks} ticks of 10 ms", switches as f64 / seconds);
    assert!(switches as f64 / seconds <= 20.0, "{switches} context switches");
    assert!(ticks as f64 / 100.0 / seconds <= 0.01, "{ticks} ticks");
}

/// Context switches of all threads, and clock ticks.
fn cost(pid: u32) -> (u64, u64) {
    let mut switches = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten() {
        let status = std::fs::read_to_string(thread.path().join("status")).unwrap();
        let lines = status.lines().filter(|line| line.contains("ctxt_switches"));
        switches +=
            lines.map(|line| line.split_whitespace().last().unwrap().parse::<u64>().unwrap()).sum::<u64>();
    }
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<_> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    (switches, fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap())
}
