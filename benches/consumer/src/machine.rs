//! CPUs, and what processes take of them.

use std::fs;

use rustix::thread::{CpuSet, sched_setaffinity};

/// Binds the calling thread, and whatever it starts, to one CPU. A machine without it leaves the thread where it is.
pub fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    let _ = sched_setaffinity(None, &set);
}

/// CPU time in seconds, user and system, of each thread of a process, with its name.
pub fn threads_cpu(pid: u32) -> Vec<(String, f64)> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    tasks
        .flatten()
        .filter_map(|task| {
            let name = fs::read_to_string(task.path().join("comm")).ok()?;
            let runtime = fs::read_to_string(task.path().join("schedstat")).ok()?;
            let nanoseconds: f64 = runtime.split_whitespace().next()?.parse().ok()?;
            Some((name.trim().to_owned(), nanoseconds / 1e9))
        })
        .collect()
}

/// CPU time in seconds of a process, user and system apart, in the kernel's ticks of 10 ms.
pub fn process_cpu(pid: u32) -> (f64, f64) {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let fields: Vec<f64> = after_name.split_whitespace().skip(11).take(2).flat_map(str::parse).collect();
    let [user, system] = fields[..] else { return (0.0, 0.0) };
    (user / 100.0, system / 100.0)
}

/// Resident memory of a process in KiB.
pub fn resident_kib(pid: u32) -> f64 {
    status_kib(pid, "VmRSS:")
}

/// Of that, what lies in memfds.
pub fn shared_kib(pid: u32) -> f64 {
    status_kib(pid, "RssShmem:")
}

fn status_kib(pid: u32, name: &str) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.split_whitespace().next().and_then(|kib| kib.parse().ok()).unwrap_or(0.0)
}

/// Direct children of a process.
pub fn children(pid: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}
