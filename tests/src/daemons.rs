//! consumerd and collector on free ports, and their ledgers.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use blkin_cli::http::Client;
use blkin_cli::ledger::Ledger;
use blkin_cli::metrics::Metrics;
use tempfile::TempDir;

use crate::artifacts::{binary, c_program};
use crate::disk::Disk;
use crate::process::{Process, children, main_sleeps};
use crate::wait;

/// Time limit for a daemon to become ready, or an annotation to arrive, long enough for a busy machine.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Any free port of a loopback address that no other part of these tests uses. Nothing else takes the port of a daemon there
/// before it is started again. Nor does the kernel give that port to the client's end of a connection to it, which would
/// connect the client to itself.
pub fn own_address() -> String {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    let (process, number) = (std::process::id(), TAKEN.fetch_add(1, Ordering::Relaxed));
    format!("127.{}.{}.{}:0", 1 + process / 256 % 254, process % 256, 1 + number % 254)
}

/// An address at which nothing listens, unless the caller does later.
///
/// # Errors
/// When no port is free.
pub fn unused_address() -> Result<String> {
    Ok(TcpListener::bind(own_address())?.local_addr()?.to_string())
}

/// A running daemon of BlkKin.
#[derive(Debug)]
pub struct Daemon {
    /// Its process; a `blkin-consumerd` is the holder.
    pub process: Process,
    /// Its HTTP interface.
    pub http: Client,
    ready: serde_json::Value,
    log: PathBuf,
}

impl Daemon {
    /// Starts `command` and waits for its ready file in `folder`.
    pub(crate) fn start(name: &str, mut command: Command, folder: &Path) -> Result<Daemon> {
        let ready = folder.join(format!("{name}.ready"));
        let log = folder.join(format!("{name}.log"));
        let _ = std::fs::remove_file(&ready);
        command.arg("--ready-file").arg(&ready).stdin(Stdio::null());
        let output = File::options().create(true).append(true).open(&log)?;
        command.stdout(output.try_clone()?).stderr(output);
        let mut process = Process::spawn(name, &mut command)?;
        let found = wait::until(LIMIT, &format!("{name} to be ready"), || {
            let ready = std::fs::read(&ready).ok().and_then(|text| serde_json::from_slice(&text).ok());
            ready.map(Ok).or_else(|| process.ended().map(Err))
        });
        match found {
            Ok(Ok(ready)) => Daemon::of(process, ready, log),
            Ok(Err(status)) => bail!("{name} ended with {status}:\n{}", read(&log)),
            Err(error) => Err(error.context(read(&log))),
        }
    }

    fn of(process: Process, ready: serde_json::Value, log: PathBuf) -> Result<Daemon> {
        let http = ready["http"].as_str().context("the ready file names no http address")?;
        Ok(Daemon { process, http: Client::new(http), ready: ready.clone(), log })
    }

    /// An address of the ready file, such as `scribe`.
    ///
    /// # Errors
    /// When there is no such address.
    pub fn address(&self, key: &str) -> Result<String> {
        let address = self.ready[key].as_str().with_context(|| format!("the ready file names no {key}"))?;
        Ok(address.to_owned())
    }

    /// Its metrics, read now.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn metrics(&self) -> Result<Metrics> {
        Ok(Metrics::parse(&self.http.get_ok("/metrics", &[])?))
    }

    /// What it logged.
    pub fn log(&self) -> String {
        read(&self.log)
    }
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

/// How to start a node: a consumerd in front of a collector.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    /// Further flags of consumerd.
    pub consumerd: Vec<String>,
    /// Further flags of the collector.
    pub collector: Vec<String>,
    /// Whether consumerd scans for programs; the scan also finds those of other tests.
    pub scan: bool,
    /// The upstream of consumerd instead of the collector.
    pub upstream: Option<String>,
    /// NAME of the program `tests/c/NAME.c` that starts consumerd; its arguments are consumerd's command.
    pub launcher: Option<&'static str>,
    /// Gives the collector a disk of its own, of this size as `mount` takes it; needs root.
    pub store: Option<&'static str>,
}

/// A consumerd and a collector in a folder of their own.
#[derive(Debug)]
pub struct Node {
    /// The node's consumerd, which ends first.
    pub consumerd: Option<Daemon>,
    /// The collector.
    pub collector: Daemon,
    /// The collector's disk, if the setup has one.
    pub store: Option<Disk>,
    setup: Setup,
    folder: TempDir,
}

impl Node {
    /// Starts both.
    ///
    /// # Errors
    /// When either does not become ready.
    pub fn start(setup: Setup) -> Result<Node> {
        let mut node = Node::without_consumerd(setup)?;
        node.start_consumerd()?;
        Ok(node)
    }

    /// Starts the collector only.
    ///
    /// # Errors
    /// When it does not become ready.
    pub fn without_consumerd(setup: Setup) -> Result<Node> {
        let folder = TempDir::new()?;
        let store = setup.store.map(|size| Disk::mount(&store_in(folder.path()), size)).transpose()?;
        let collector = start_collector(folder.path(), &setup.collector, &own_address(), &own_address())?;
        Ok(Node { consumerd: None, collector, store, setup, folder })
    }

    /// Starts consumerd, whose upstream is the collector unless the setup names another.
    ///
    /// # Errors
    /// When it does not become ready.
    pub fn start_consumerd(&mut self) -> Result<()> {
        let upstream = match &self.setup.upstream {
            Some(upstream) => upstream.clone(),
            None => self.collector.address("scribe")?,
        };
        let mut command = Command::new(binary("blkin-consumerd")?);
        if let Some(launcher) = self.setup.launcher {
            command = Command::new(c_program(launcher)?);
            command.arg(binary("blkin-consumerd")?);
        }
        command.arg("--socket").arg(self.socket()).args(["--http-listen", &own_address()]);
        command
            .args(["--scribe-upstream", &upstream])
            .args(["--scan", if self.setup.scan { "true" } else { "false" }])
            .args(&self.setup.consumerd);
        self.consumerd = Some(Daemon::start("consumerd", command, self.folder.path())?);
        Ok(())
    }

    /// Gives the next consumerd another upstream than the collector.
    pub fn ship_to(&mut self, upstream: &str) {
        self.setup.upstream = Some(upstream.to_owned());
    }

    /// Gives the next consumerd further flags.
    pub fn add_flags(&mut self, flags: &[&str]) {
        self.setup.consumerd.extend(flags.iter().map(|flag| (*flag).to_owned()));
    }

    /// Stops the collector and starts it again over the same store.
    ///
    /// # Errors
    /// When it does not end or become ready.
    pub fn restart_collector(&mut self) -> Result<()> {
        self.collector.process.terminate()?;
        self.start_collector_at(&own_address(), &own_address())
    }

    /// Starts another collector over the same store, at given addresses.
    ///
    /// # Errors
    /// When it does not become ready.
    pub fn start_collector_at(&mut self, scribe: &str, http: &str) -> Result<()> {
        self.collector = start_collector(self.folder.path(), &self.setup.collector, scribe, http)?;
        Ok(())
    }

    /// The socket on which programs offer their rings.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("consumerd.sock")
    }

    /// A folder that lives as long as the node.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The running consumerd.
    ///
    /// # Errors
    /// When it was not started.
    pub fn consumerd(&self) -> Result<&Daemon> {
        self.consumerd.as_ref().context("consumerd was not started")
    }

    /// The process id of consumerd's worker.
    ///
    /// # Errors
    /// When there is none within the limit.
    pub fn worker(&self) -> Result<u32> {
        let holder = self.consumerd()?.process.pid();
        wait::until(LIMIT, "a worker", || children(holder).first().copied())
    }

    /// Waits until the worker has looked at the rings `times` times more: it goes to sleep after each look.
    ///
    /// # Errors
    /// When it does not within the limit.
    pub fn looked(&self, times: u64) -> Result<()> {
        let worker = self.worker()?;
        let until = main_sleeps(worker)? + times;
        let what = format!("consumerd to look {times} times");
        wait::until(LIMIT, &what, || (main_sleeps(worker).ok()? >= until).then_some(()))
    }

    /// Waits until the worker, with all rings empty, pauses as long as it may between two looks: each pause doubles.
    ///
    /// # Errors
    /// As [`Node::looked`].
    pub fn rested(&self) -> Result<()> {
        self.looked(12)
    }

    /// The ledgers of both daemons, read now.
    ///
    /// # Errors
    /// When one does not answer.
    pub fn ledger(&self) -> Result<Ledger> {
        let consumerd = Ledger::of_consumerd(&self.consumerd()?.metrics()?);
        Ok(consumerd.and(Ledger::of_collector(&self.collector.metrics()?)))
    }

    /// Waits until `attempted` annotations are known and none is on its way any more.
    ///
    /// # Errors
    /// When that does not happen in time; the error holds the metrics.
    pub fn settled(&self, attempted: i64) -> Result<Metrics> {
        let consumerd = self.consumerd()?;
        let settled = |metrics: &Metrics| {
            metrics.sum("blkin_program_attempted_total", &[]) >= attempted
                && metrics.sum("blkin_pending", &[]) == 0
                && metrics.sum("blkin_sink_in_flight", &[]) == 0
        };
        let found = wait::until(LIMIT, &format!("{attempted} annotations to settle"), || {
            consumerd.metrics().ok().filter(settled)
        });
        found.with_context(|| {
            let metrics = consumerd.http.get("/metrics", &[]).map(|answer| answer.body).unwrap_or_default();
            format!("{metrics}\n{}", consumerd.log())
        })
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // consumerd first: it drains into the collector.
        self.consumerd = None;
        if std::thread::panicking() {
            #[allow(clippy::print_stderr)]
            {
                eprintln!("the collector's log:\n{}", self.collector.log());
            }
        }
    }
}

fn store_in(folder: &Path) -> PathBuf {
    folder.join("store")
}

fn start_collector(folder: &Path, flags: &[String], scribe: &str, http: &str) -> Result<Daemon> {
    let mut command = Command::new(binary("blkin-collector")?);
    command.args(["--scribe-listen", scribe, "--http-listen", http]);
    command.arg("--data-dir").arg(store_in(folder)).args(flags);
    Daemon::start("collector", command, folder)
}
