//! Real processes for the tests: the daemon, traced programs, a Scribe server that can misbehave.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::print_stderr)]

pub mod ledger;
pub mod manager;
pub mod scribe;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// The program under test.
const DAEMON: &str = env!("CARGO_BIN_EXE_blkin-consumerd");
/// Longest wait for anything in these tests, even on a slow machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Polls `what` until it has a result; `why` says what was awaited if it never has.
pub fn wait_for<T>(why: &str, mut what: impl FnMut() -> Option<T>) -> T {
    let due = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = what() {
            return found;
        }
        assert!(Instant::now() < due, "waited in vain: {why}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A folder with a socket path and an output file.
pub struct Site {
    folder: TempDir,
}

impl Site {
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn socket(&self) -> PathBuf {
        self.path("socket")
    }

    pub fn lines_path(&self) -> PathBuf {
        self.path("lines.json")
    }

    /// Every JSON line that was written.
    pub fn lines(&self) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(self.lines_path()).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// How many whole lines there are by now; the beginning of another may follow.
    pub fn line_count(&self) -> usize {
        let bytes = std::fs::read(self.lines_path()).unwrap_or_default();
        bytes.iter().filter(|byte| **byte == b'\n').count()
    }

    /// Writes a configuration file, and returns its path.
    pub fn config(&self, text: &str) -> String {
        let path = self.path("config.toml");
        std::fs::write(&path, text).unwrap();
        path.into_os_string().into_string().unwrap()
    }

    /// Starts the daemon with JSON lines into a file, and with `arguments`.
    pub fn daemon(&self, arguments: &[&str]) -> Daemon {
        let lines = self.lines_path();
        let mut all = vec!["--json-lines", lines.to_str().unwrap()];
        all.extend(arguments);
        self.bare_daemon(&all)
    }

    /// Starts the daemon with no sink but those in `arguments`.
    pub fn bare_daemon(&self, arguments: &[&str]) -> Daemon {
        self.starting_daemon(arguments).ready()
    }

    /// Like [`Self::bare_daemon`], but does not wait until the daemon is ready.
    pub fn starting_daemon(&self, arguments: &[&str]) -> Starting {
        self.start(Command::new(DAEMON), arguments)
    }

    /// Like [`Self::starting_daemon`], but another program starts the daemon, which takes a command as its last arguments.
    pub fn started_by(&self, mut starter: Command, arguments: &[&str]) -> Starting {
        starter.arg(DAEMON);
        self.start(starter, arguments)
    }

    fn start(&self, mut command: Command, arguments: &[&str]) -> Starting {
        let ready = self.path("ready.json");
        // Removes the file that an earlier daemon wrote.
        let _ = std::fs::remove_file(&ready);
        command.arg("--socket").arg(self.socket()).arg("--ready-file").arg(&ready);
        command.args(["--log", "info"]);
        let log = self.path("log");
        command.stderr(std::fs::File::options().create(true).append(true).open(&log).unwrap());
        if !arguments.contains(&"--scribe-upstream") {
            command.args(["--scribe-upstream", ""]);
        }
        if !arguments.contains(&"--scan") {
            command.args(["--scan", "false"]);
        }
        if !arguments.contains(&"--http-listen") {
            command.args(["--http-listen", "127.0.0.1:0"]);
        }
        let child = command.args(arguments).stdin(Stdio::null()).spawn().unwrap();
        Starting { daemon: Daemon { child, http: String::new(), log }, ready }
    }

    /// Starts a program that records; see `examples/producer.rs`.
    pub fn program(&self, arguments: &[u64], environment: &[(&str, &str)]) -> Program {
        self.start_program(Command::new(producer()), arguments, environment)
    }

    /// Starts a program that is not dumpable, as this user, who cannot reach the socket. `folder`, which that user may
    /// enter, gets a copy of the program, because the build folder may be closed to others.
    pub fn closed_program(&self, folder: &Path, uid: u32, arguments: &[u64]) -> Program {
        let copy = folder.join("producer");
        // Copied by another process: a child that another test forks just now could inherit the file open for writing.
        assert!(Command::new("cp").arg(producer()).arg(&copy).status().unwrap().success());
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &uid.to_string(), "--clear-groups"]).arg(copy);
        self.start_program(command, arguments, &[("NOT_DUMPABLE", "1")])
    }

    fn start_program(
        &self,
        mut command: Command,
        arguments: &[u64],
        environment: &[(&str, &str)],
    ) -> Program {
        command.env("BLKIN_SOCKET", self.socket()).envs(environment.iter().copied());
        command.args(arguments.iter().map(u64::to_string));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        Program { stdin: child.stdin.take(), child }
    }
}

/// Path of the traced program.
fn producer() -> PathBuf {
    Path::new(DAEMON).with_file_name("examples/producer")
}

/// The daemon, before it is ready.
pub struct Starting {
    daemon: Daemon,
    ready: PathBuf,
}

impl Starting {
    /// See [`Daemon::said`].
    pub fn said(&self, part: &str) -> Vec<String> {
        self.daemon.said(part)
    }

    /// Waits for the end of a daemon that cannot start.
    pub fn ended(mut self) -> ExitStatus {
        self.daemon.ended()
    }

    /// Waits until it is ready.
    pub fn ready(mut self) -> Daemon {
        let text = wait_for("the daemon is ready", || std::fs::read_to_string(&self.ready).ok());
        let ready: serde_json::Value = serde_json::from_str(&text).unwrap();
        self.daemon.http = ready["http"].as_str().unwrap().to_owned();
        self.daemon
    }
}

/// The daemon.
pub struct Daemon {
    child: Child,
    pub http: String,
    log: PathBuf,
}

impl Daemon {
    /// All that it, and earlier daemons in its folder, have logged so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Lines of its log that contain `part`.
    pub fn said(&self, part: &str) -> Vec<String> {
        self.log().lines().filter(|line| line.contains(part)).map(str::to_owned).collect()
    }

    /// Like [`Self::said`], but waits for a line: lines are written a moment after the event.
    pub fn says(&self, part: &str) -> Vec<String> {
        wait_for(part, || Some(self.said(part)).filter(|lines| !lines.is_empty()))
    }

    /// The report of /healthz.
    pub fn report(&self) -> serde_json::Value {
        let mut answer = self.healthz().unwrap();
        serde_json::from_str(&answer.body_mut().read_to_string().unwrap()).unwrap()
    }

    /// Sends SIGTERM.
    pub fn ask_to_end(&self) {
        send_signal(self.pid(), Signal::TERM);
    }

    /// Waits for the end.
    pub fn ended(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    /// The metrics. Waits for the worker if the holder answers instead: a worker that stood still for a moment is not dead.
    pub fn metrics(&self) -> ledger::Metrics {
        wait_for("the worker answers", || {
            let mut answer = ureq::get(format!("http://{}/metrics", self.http)).call().ok()?;
            Some(ledger::Metrics::parse(&answer.body_mut().read_to_string().ok()?))
        })
    }

    /// Waits until it reports that it is healthy, which takes a moment if the machine stood still.
    pub fn assert_healthy(&self) {
        wait_for("health is green", || (self.health() == Some(200)).then_some(()));
    }

    /// Status of /healthz, or `None` when nobody answers.
    pub fn health(&self) -> Option<u16> {
        self.healthz().map(|answer| answer.status().as_u16())
    }

    fn healthz(&self) -> Option<ureq::http::Response<ureq::Body>> {
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .timeout_global(Some(PATIENCE))
            .http_status_as_error(false)
            .build()
            .into();
        agent.get(format!("http://{}/healthz", self.http)).call().ok()
    }

    /// Waits until every figure of the ledger is settled, and returns the metrics.
    pub fn settled(&self, attempted: u64) -> ledger::Metrics {
        wait_for("the ledger is settled", || {
            let metrics = self.metrics();
            let is_settled = metrics.sum("blkin_program_attempted_total") == attempted
                && metrics.sum("blkin_pending") == 0
                && metrics.sum("blkin_sink_in_flight") == 0;
            is_settled.then_some(metrics)
        })
    }

    /// Waits until this program is drained, whatever other programs the daemon has found.
    pub fn settled_of(&self, program: &Program, calls: u64) -> ledger::Metrics {
        let label = program.label();
        wait_for("the program is drained", || {
            let metrics = self.metrics();
            let drained = metrics.sum_where("blkin_drained_total", &label)
                + metrics.sum_where("blkin_drained_before_total", &label);
            (drained == calls).then_some(metrics)
        })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The worker that runs now.
    pub fn worker_pid(&self) -> u32 {
        let pid = self.pid();
        wait_for("a worker runs", || {
            let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
            children.split_whitespace().next()?.parse().ok()
        })
    }

    pub fn signal_worker(&self, signal: Signal) {
        send_signal(self.worker_pid(), signal);
    }

    /// Kills both of its processes, as happens when memory is short, or as an operator does: neither can do anything at its end.
    pub fn killed(mut self) {
        let worker = self.worker_pid();
        send_signal(self.pid(), Signal::STOP);
        send_signal(worker, Signal::KILL);
        send_signal(self.pid(), Signal::KILL);
        self.ended();
    }

    /// Kills only the holder, as systemd does with `KillMode=process`: its worker runs on for a while.
    pub fn left_to_its_worker(mut self) {
        send_signal(self.pid(), Signal::KILL);
        self.ended();
    }

    /// Sends SIGTERM, and waits for the end.
    pub fn stop(mut self) -> ExitStatus {
        self.ask_to_end();
        self.ended()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the daemon's log:\n{}", self.log());
        }
    }
}

/// A traced program.
pub struct Program {
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Program {
    /// Its label in the metrics.
    pub fn label(&self) -> String {
        format!("process=\"producer:{}\"", self.child.id())
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lets it record as much once more as it did at first.
    pub fn record_more(&mut self) {
        self.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    /// Waits until it has recorded everything, and returns the number of its calls so far; the program runs on.
    pub fn calls(&mut self) -> u64 {
        let mut line = String::new();
        BufReader::new(self.child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        line.trim().parse().unwrap()
    }

    /// Lets it end.
    pub fn end(mut self) {
        drop(self.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }

    /// Waits until it has recorded everything, and lets it end.
    pub fn finish(mut self) -> u64 {
        let calls = self.calls();
        self.end();
        calls
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn send_signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
}
