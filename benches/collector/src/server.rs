//! The servers that are measured, and their CPU time and memory as the kernel counts them.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use blkin_bench_consumer::machine::{process_cpu, resident_kib};
use blkin_tests::artifacts::{fetched, target};
use blkin_tests::process::Process;
use blkin_tests::wait;
use tempfile::TempDir;

/// A server is up within this time.
const START: Duration = Duration::from_secs(120);
/// A process that used no more CPU than this within [`QUIET`] has finished its work.
const IDLE_SECONDS: f64 = 0.02;
const QUIET: Duration = Duration::from_millis(500);

/// The file in which our collector says that it is ready, and its addresses.
const READY: &str = "ready.json";

/// A running server.
pub(crate) struct Server {
    pub(crate) title: &'static str,
    pub(crate) http: String,
    pub(crate) scribe: String,
    process: Process,
    folder: TempDir,
}

impl Server {
    /// Our collector, the release build, with its defaults.
    pub(crate) fn collector() -> Result<Server> {
        let folder = TempDir::new_in(target())?;
        let (process, http, scribe) = start_collector(&folder)?;
        Ok(Server { title: "blkin-collector", http, scribe, process, folder })
    }

    /// Kills our collector, and starts it again with the same store.
    pub(crate) fn restart(&mut self) -> Result<()> {
        self.process.kill()?;
        fs::remove_file(self.folder.path().join(READY))?;
        (self.process, self.http, self.scribe) = start_collector(&self.folder)?;
        Ok(())
    }

    /// The real Zipkin server with its store in memory, which has room for `spans` spans.
    pub(crate) fn zipkin(spans: usize) -> Result<Server> {
        let folder = TempDir::new()?;
        let (http, scribe) = (free_address()?, free_address()?);
        let port = |address: &str| address.rsplit(':').next().unwrap_or_default().to_owned();
        let mut java = Command::new("java");
        java.arg("-jar").arg(fetched("zipkin-server")?).current_dir(folder.path());
        java.env("STORAGE_TYPE", "mem").env("MEM_MAX_SPANS", spans.to_string());
        java.env("COLLECTOR_SCRIBE_ENABLED", "true").env("COLLECTOR_PORT", port(&scribe));
        java.env("QUERY_PORT", port(&http)).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = Process::spawn("zipkin-server", &mut java)?;
        let health = format!("http://{http}/health");
        wait::until(START, "Zipkin to be healthy", || ureq::get(&health).call().ok())?;
        Ok(Server { title: "Zipkin", http, scribe, process, folder })
    }

    /// Seconds of CPU used so far, user and system.
    pub(crate) fn cpu(&self) -> f64 {
        let (user, system) = process_cpu(self.process.pid());
        user + system
    }

    /// Seconds of CPU, user and system, once the server has finished all work for the spans it received.
    pub(crate) fn settled_cpu(&self) -> f64 {
        let mut before = self.cpu();
        loop {
            std::thread::sleep(QUIET);
            let after = self.cpu();
            if after - before <= IDLE_SECONDS {
                return after;
            }
            before = after;
        }
    }

    /// Resident memory in MiB.
    pub(crate) fn resident_mib(&self) -> f64 {
        resident_kib(self.process.pid()) / 1024.0
    }

    /// Its peak of resident memory, in MiB.
    pub(crate) fn peak_mib(&self) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.pid())).unwrap_or_default();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = peak.and_then(|peak| peak.trim().trim_end_matches("kB").trim().parse().ok());
        kib.unwrap_or(0.0_f64) / 1024.0
    }

    /// Bytes on disk of the collector's store.
    pub(crate) fn disk_bytes(&self) -> u64 {
        let data: PathBuf = self.folder.path().join("data");
        let files = fs::read_dir(data).into_iter().flatten().flatten();
        files.filter_map(|file| file.metadata().ok()).map(|metadata| metadata.len()).sum()
    }
}

/// Starts our collector with its store in a folder; returns its process and its addresses for HTTP and Scribe.
fn start_collector(folder: &TempDir) -> Result<(Process, String, String)> {
    let ready = folder.path().join(READY);
    let mut command = Command::new(target().join("release/blkin-collector"));
    command.args(["--scribe-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--log", "warn"]);
    command.arg("--data-dir").arg(folder.path().join("data")).arg("--ready-file").arg(&ready);
    // Queries that read millions of spans are to be measured to their end.
    command.env("BLKIN_COLLECTOR_QUERY_SECONDS", "600");
    let process = Process::spawn("blkin-collector (cargo build --release -p blkin-collector)", &mut command)?;
    let addresses: serde_json::Value = wait::until(START, "the collector to be ready", || {
        serde_json::from_slice(&fs::read(&ready).ok()?).ok()
    })?;
    let address = |key: &str| addresses[key].as_str().map(str::to_owned).context("an address");
    Ok((process, address("http")?, address("scribe")?))
}

/// An address that was free a moment ago: Zipkin cannot choose a free port itself.
fn free_address() -> Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}
