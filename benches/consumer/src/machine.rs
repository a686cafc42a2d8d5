//! Pinning to CPUs, and the CPU time and memory of processes.

use std::fs;
use std::iter::Sum;
use std::ops::{Add, Sub};
use std::path::PathBuf;

use anyhow::{Result, ensure};
use rustix::thread::{CpuSet, sched_setaffinity};

/// Binds the calling thread, and every thread and process that it starts, to one CPU. If the machine lacks that CPU,
/// nothing changes.
pub fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    let _ = sched_setaffinity(None, &set);
}

/// The path of the daemon that was built beside this program.
///
/// # Errors
/// When the daemon was not built.
pub fn beside(name: &str) -> Result<PathBuf> {
    let binary = std::env::current_exe()?.with_file_name(name);
    ensure!(binary.exists(), "{} is missing; cargo build --release -p {name}", binary.display());
    Ok(binary)
}

/// CPU time and context switches of processes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Seconds for which their threads ran, by the scheduler's own count: ticks of 10 ms miss threads that run briefly
    /// and often.
    pub seconds: f64,
    /// How often their threads left a CPU.
    pub switches: f64,
}

impl Add for Usage {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { seconds: self.seconds + other.seconds, switches: self.switches + other.switches }
    }
}

impl Sub for Usage {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self { seconds: self.seconds - other.seconds, switches: self.switches - other.switches }
    }
}

impl Sum for Usage {
    fn sum<I: Iterator<Item = Self>>(each: I) -> Self {
        each.fold(Self::default(), Add::add)
    }
}

/// CPU time and context switches of those threads of a process that are alive now.
pub fn usage(pid: u32) -> Usage {
    let seconds = threads_cpu(pid).into_iter().map(|(_, seconds)| seconds).sum();
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let status = tasks.filter_map(|task| fs::read_to_string(task.path().join("status")).ok());
    Usage { seconds, switches: status.map(|status| switches(&status)).sum() }
}

/// Voluntary and involuntary context switches together, from a thread's status file.
fn switches(status: &str) -> f64 {
    let lines = status.lines().filter(|line| line.contains("ctxt_switches"));
    lines.filter_map(|line| line.split_whitespace().last()?.parse::<f64>().ok()).sum()
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

/// The part of the resident memory that lies in memfds.
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
