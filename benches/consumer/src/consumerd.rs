//! Starts a consumerd for a measurement.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::machine::{self, Usage};

/// The longest time for which anything is waited for.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The daemon; killed when dropped.
#[derive(Debug)]
pub struct Consumerd {
    child: Child,
    folder: TempDir,
    http: String,
}

/// Its counters at one moment.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Attempts to record on sampled traces.
    pub attempted: f64,
    /// Lost in programs, by any cause.
    pub lost_in_programs: f64,
    /// Copied out of the rings.
    pub drained: f64,
    /// Read and handed to the sink.
    pub valid: f64,
    /// Acknowledged by the Scribe server.
    pub acked: f64,
    /// Handed to the sink, and neither acknowledged nor lost yet.
    pub in_flight: f64,
    /// Lost in the sink, by any cause.
    pub lost_in_sink: f64,
    /// Records that wait in the rings.
    pub pending: f64,
}

impl Consumerd {
    /// Starts the daemon built beside this program on one CPU, with its only sink at `scribe`.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(scribe: &str, cpu: usize) -> Result<Self> {
        let mut command = Command::new("taskset");
        command.arg("-c").arg(cpu.to_string()).arg(machine::beside("blkin-consumerd")?);
        Self::run(command, scribe)
    }

    /// Like [`Consumerd::start`], but on any CPU that the kernel chooses.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start_anywhere(scribe: &str) -> Result<Self> {
        Self::run(Command::new(machine::beside("blkin-consumerd")?), scribe)
    }

    fn run(mut command: Command, scribe: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let ready = folder.path().join("ready");
        command.arg("--socket").arg(folder.path().join("socket")).arg("--ready-file").arg(&ready);
        command.args(["--http-listen", "127.0.0.1:0", "--scan", "false", "--log", "warn"]);
        command.args(["--scribe-upstream", scribe]);
        if let Ok(more) = std::env::var("BLKIN_BENCH_CONSUMERD") {
            command.args(more.split_whitespace());
        }
        let child = command.stdin(Stdio::null()).spawn().context("failed to start consumerd")?;
        let text = wait_for("consumerd is ready", || std::fs::read_to_string(&ready).ok())?;
        let said: serde_json::Value = serde_json::from_str(&text)?;
        let http = said["http"].as_str().context("no address in the ready file")?.to_owned();
        Ok(Self { child, folder, http })
    }

    /// The socket for programs.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// The process ids of holder and worker.
    pub fn pids(&self) -> Vec<u32> {
        let holder = self.child.id();
        [holder].into_iter().chain(machine::children(holder)).collect()
    }

    /// CPU time and context switches of all its processes.
    pub fn usage(&self) -> Usage {
        self.pids().into_iter().map(machine::usage).sum()
    }

    /// User and system time of all its processes, in seconds.
    pub fn cpu(&self) -> (f64, f64) {
        let each = self.pids().into_iter().map(machine::process_cpu);
        each.fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    /// CPU time of its threads by their names. Threads of one name count together: the main threads of both its processes, say.
    pub fn threads_cpu(&self) -> BTreeMap<String, f64> {
        let threads = self.pids().into_iter().flat_map(machine::threads_cpu);
        threads.fold(BTreeMap::new(), |mut sum, (name, seconds)| {
            *sum.entry(name).or_default() += seconds;
            sum
        })
    }

    /// Resident memory in KiB.
    pub fn resident_kib(&self) -> f64 {
        self.pids().into_iter().map(machine::resident_kib).sum()
    }

    /// The part of the resident memory that it shares with programs: their rings.
    pub fn shared_kib(&self) -> f64 {
        self.pids().into_iter().map(machine::shared_kib).sum()
    }

    /// Reads its metrics.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn figures(&self) -> Result<Figures> {
        let mut stream = TcpStream::connect(&self.http)?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let sum = |name: &str| {
            let samples = text.lines().filter(|line| line.starts_with(name));
            let of_name = samples.filter(|line| matches!(line.as_bytes().get(name.len()), Some(b'{' | b' ')));
            of_name.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum::<f64>()
        };
        Ok(Figures {
            attempted: sum("blkin_program_attempted_total"),
            lost_in_programs: sum("blkin_program_lost_total"),
            drained: sum("blkin_drained_total"),
            valid: sum("blkin_valid_total"),
            acked: sum("blkin_sink_acked_total"),
            in_flight: sum("blkin_sink_in_flight"),
            lost_in_sink: sum("blkin_sink_lost_total"),
            pending: sum("blkin_pending"),
        })
    }

    /// Waits until `attempted` calls were made and all their annotations are acknowledged or lost.
    ///
    /// # Errors
    /// When that takes longer than a minute.
    pub fn settled(&self, attempted: f64) -> Result<Figures> {
        wait_for("everything is shipped", || {
            let figures = self.figures().ok()?;
            let is_settled =
                figures.attempted >= attempted && figures.pending == 0.0 && figures.in_flight == 0.0;
            is_settled.then_some(figures)
        })
    }
}

impl Drop for Consumerd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Calls `what` repeatedly until it returns something.
///
/// # Errors
/// When it returns nothing for a minute.
pub fn wait_for<T>(why: &str, mut what: impl FnMut() -> Option<T>) -> Result<T> {
    let due = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = what() {
            return Ok(found);
        }
        ensure!(Instant::now() < due, "timed out waiting until {why}");
        std::thread::sleep(LOOK_EVERY);
    }
}
