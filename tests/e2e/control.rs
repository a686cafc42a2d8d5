//! `blkin set` changes what programs record while they run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use blkin_tests::artifacts::{binary, binary_for_others};
use blkin_tests::daemons::{LIMIT, Node, Setup};
use blkin_tests::process::signal_pid;
use blkin_tests::program::Program;
use blkin_tests::wait;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::ledger::ROOMY;

/// A change must be in force within this time after the command has returned.
const IN_FORCE: Duration = Duration::from_millis(100);
/// The length of a window in which nothing may be recorded.
const LOOK: Duration = Duration::from_millis(250);
/// Any other window lasts until this many requests were recorded; the first and the last do not count.
const REQUESTS: usize = 8;

/// The events that the loop records of one request, at its five levels.
const EVENTS: [&str; 5] = ["emerg", "err", "legacy", "info", "debug"];

/// A node whose annotations also go into a file.
struct Site {
    node: Node,
    folder: TempDir,
}

impl Site {
    fn start() -> Result<Site> {
        let folder = TempDir::new()?;
        let lines = folder.path().join("lines");
        let flags = vec!["--json-lines".into(), lines.display().to_string()];
        Ok(Site { node: Node::start(Setup { consumerd: flags, ..Setup::default() })?, folder })
    }

    fn control(&self) -> PathBuf {
        self.node.folder().join("control.sock")
    }

    fn try_set(&self, arguments: &[&str]) -> Result<Output> {
        let mut command = Command::new(binary("blkin")?);
        // The command derives the control socket from BLKIN_SOCKET, which programs use.
        Ok(command
            .args(["set", "--json"])
            .args(arguments)
            .env("BLKIN_SOCKET", self.node.socket())
            .output()?)
    }

    /// Runs `blkin set` and returns the JSON that it printed.
    fn set(&self, arguments: &[&str]) -> Result<Value> {
        let output = self.try_set(arguments)?;
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "blkin set {arguments:?}: {error}");
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// Sets something; returns a window in which enough requests were recorded.
    fn look(&self, arguments: &[&str]) -> Result<Window> {
        self.set(arguments)?;
        self.look_on()
    }

    /// Returns such a window for what is set already.
    fn look_on(&self) -> Result<Window> {
        thread::sleep(IN_FORCE);
        let from_ns = now_ns()?;
        let before = self.lines()?.len();
        wait::until(LIMIT, "requests to be recorded", || {
            let lines = self.lines().ok()?;
            let later = lines_of(lines.get(before..)?).ok()?;
            let (mut all, mut early) = (BTreeSet::new(), BTreeSet::new());
            for line in later {
                let trace = line["trace_id"].as_u64()?;
                all.insert(trace);
                if line["timestamp"].as_i64().is_some_and(|time| time < from_ns) {
                    early.insert(trace);
                }
            }
            (all.difference(&early).count() >= REQUESTS + 2).then_some(())
        })?;
        Ok(Window { from_ns, to_ns: now_ns()? })
    }

    /// Sets something after which nothing is recorded; returns a window after that.
    fn look_at_nothing(&self, arguments: &[&str]) -> Result<Window> {
        self.set(arguments)?;
        thread::sleep(IN_FORCE);
        let from_ns = now_ns()?;
        thread::sleep(LOOK);
        Ok(Window { from_ns, to_ns: now_ns()? })
    }

    /// The file of all annotations so far, without a line that is not complete yet.
    fn lines(&self) -> Result<String> {
        let text = fs::read_to_string(self.folder.path().join("lines"));
        // consumerd creates the file with its first line.
        let mut text = text.or_else(|error| match error.kind() {
            ErrorKind::NotFound => Ok(String::new()),
            _ => Err(error),
        })?;
        text.truncate(text.rfind('\n').map_or(0, |end| end + 1));
        Ok(text)
    }

    /// Starts the C program `loop`, which uses legacy calls and macros, and waits until it is attached.
    fn program(&self) -> Result<Program> {
        self.attached(Program::start("loop", &[], &self.node.socket(), &ROOMY)?)
    }

    /// The same for its counterpart in Rust, which uses macros.
    fn rust_program(&self) -> Result<Program> {
        self.attached(Program::start_rust("requests", &self.node.socket())?)
    }

    fn attached(&self, mut program: Program) -> Result<Program> {
        let pid = program.process.pid();
        wait::until(LIMIT, "consumerd to attach", || {
            let shown = self.set(&["--show"]).ok()?;
            shown["programs"].as_array()?.iter().any(|program| program["pid"] == pid).then_some(())
        })?;
        program.begin()?;
        Ok(program)
    }

    /// Waits until everything has settled, checks the ledger, and returns everything recorded.
    fn recorded(&self) -> Result<Recorded> {
        wait::until(LIMIT, "programs to depart", || {
            let metrics = self.node.consumerd().ok()?.metrics().ok()?;
            (metrics.sum("blkin_programs", &[]) == 0).then_some(())
        })?;
        let metrics = self.node.settled(1)?;
        let ledger = self.node.ledger()?;
        ensure!(ledger.balances() && ledger.lost() == 0, "{ledger:#?}");
        let lines = lines_of(&self.lines()?)?;
        // After a worker was killed, lines that were under way are written again: count each position once.
        let known: BTreeSet<_> =
            lines.iter().map(|line| (line["source"].as_i64(), line["position"].as_i64())).collect();
        let attempted = metrics.sum("blkin_program_attempted_total", &[]);
        ensure!(known.len() as i64 == attempted, "{} lines of {attempted} annotations", known.len());
        Recorded::of(&lines)
    }
}

fn lines_of(text: &str) -> Result<Vec<Value>> {
    Ok(text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
}

/// A period in which a setting is in force.
#[derive(Debug, Clone, Copy)]
struct Window {
    from_ns: i64,
    to_ns: i64,
}

fn now_ns() -> Result<i64> {
    Ok(i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos())?)
}

/// All recorded requests.
struct Recorded(Vec<Request>);

#[derive(Debug, Default)]
struct Request {
    source: i64,
    number: Option<i64>,
    events: BTreeMap<String, i64>,
}

impl Recorded {
    fn of(lines: &[Value]) -> Result<Recorded> {
        let mut requests: BTreeMap<u64, Request> = BTreeMap::new();
        for line in lines {
            let request = requests.entry(line["trace_id"].as_u64().context("no trace id")?).or_default();
            request.source = line["source"].as_i64().context("no source")?;
            match line["event"].as_str() {
                Some(event) => {
                    let time_ns = line["timestamp"].as_i64().context("no time")?;
                    request.events.insert(event.to_owned(), time_ns);
                }
                None => request.number = line["value"].as_i64(),
            }
        }
        Ok(Recorded(requests.into_values().collect()))
    }

    /// The requests of a window in their order.
    fn within(&self, window: Window) -> Vec<&Request> {
        let is_within = |request: &&Request| {
            let mut times = request.events.values().copied();
            !request.events.is_empty() && times.all(|time| (window.from_ns..window.to_ns).contains(&time))
        };
        let mut found: Vec<&Request> = self.0.iter().filter(is_within).collect();
        found.sort_by_key(|request| (request.source, request.number));
        found
    }

    /// The requests of a window except the first and the last: of these, parts outside the window may be missing, because
    /// other settings were in force there.
    fn inner(&self, what: &str, window: Window) -> Result<Vec<&Request>> {
        let found = self.within(window);
        ensure!(found.len() >= REQUESTS, "{what}: only {} requests", found.len());
        Ok(found[1..found.len() - 1].to_vec())
    }

    /// Checks that each request of the window has these events and no others.
    fn check(&self, what: &str, window: Window, events: &[&str]) -> Result<()> {
        let expected: BTreeSet<&str> = events.iter().copied().collect();
        for request in self.inner(what, window)? {
            let recorded: BTreeSet<&str> = request.events.keys().map(String::as_str).collect();
            ensure!(recorded == expected, "{what}: {request:?}");
        }
        Ok(())
    }

    /// Checks that nothing was recorded, except at most one event of a call that began before the change and was delayed.
    fn check_nothing(&self, what: &str, window: Window) -> Result<()> {
        let found = self.within(window);
        let events: usize = found.iter().map(|request| request.events.len()).sum();
        ensure!(events <= 1, "{what}: {} requests, such as {:?}", found.len(), found[0]);
        Ok(())
    }

    /// Checks that exactly one in `rate` requests was recorded.
    fn check_rate(&self, what: &str, window: Window, rate: i64) -> Result<()> {
        let found = self.inner(what, window)?;
        let numbers: Vec<i64> = found.iter().filter_map(|request| request.number).collect();
        let steps: BTreeSet<i64> = numbers.windows(2).map(|pair| pair[1] - pair[0]).collect();
        ensure!(steps == BTreeSet::from([rate]), "{what}: steps of {steps:?}");
        Ok(())
    }
}

fn label(program: &Program) -> Result<String> {
    Ok(fs::read_to_string(format!("/proc/{}/comm", program.process.pid()))?.trim_end().to_owned())
}

#[test]
fn a_running_c_program_is_switched_by_pid_name_and_all() -> Result<()> {
    let site = Site::start()?;
    let program = site.program()?;
    switch(&site, program)
}

#[test]
fn a_running_rust_program_is_switched_by_pid_name_and_all() -> Result<()> {
    let site = Site::start()?;
    let program = site.rust_program()?;
    switch(&site, program)
}

fn switch(site: &Site, mut program: Program) -> Result<()> {
    let (pid, label) = (program.process.pid().to_string(), label(&program)?);
    let (pid, label) = (pid.as_str(), label.as_str());
    let looks: [(&[&str], &[&str]); 12] = [
        (&["--show"], &EVENTS),
        (&["--pid", pid, "--off"], &[]),
        (&["--pid", pid, "--on"], &EVENTS),
        (&["--label", label, "--level", "err"], &["emerg", "err"]),
        (&["--pid", pid, "--levels", "info,emerg"], &["emerg", "info"]),
        (&["--reset", "--pid", pid], &["emerg", "err"]),
        (&["--all", "--off"], &[]),
        (&["--label", label, "--on"], &["emerg", "err"]),
        (&["--reset", "--label", label], &[]),
        (&["--all", "--on", "--level", "warning"], &["emerg", "err", "legacy"]),
        (&["--label", "somebody-else", "--off"], &["emerg", "err", "legacy"]),
        (&["--reset"], &EVENTS),
    ];
    let look = |(arguments, events): &(&[&str], &[&str])| match events {
        [] => site.look_at_nothing(arguments),
        _ => site.look(arguments),
    };
    let windows = looks.iter().map(look).collect::<Result<Vec<_>>>()?;
    ensure!(program.end()?.success(), "the program failed");
    let recorded = site.recorded()?;
    for ((arguments, events), window) in looks.iter().zip(windows) {
        let what = format!("blkin set {arguments:?}");
        if events.is_empty() {
            recorded.check_nothing(&what, window)?;
        } else {
            recorded.check(&what, window, events)?;
        }
    }
    Ok(())
}

#[test]
fn a_rate_survives_the_worker_and_applies_to_later_programs() -> Result<()> {
    let site = Site::start()?;
    let mut first = site.program()?;
    let pid = first.process.pid().to_string();
    let by_all = site.look(&["--all", "--rate", "20"])?;
    let by_pid = site.look(&["--pid", &pid, "--rate", "10"])?;
    let worker = site.node.worker()?;
    signal_pid(worker, Signal::KILL)?;
    wait::until(LIMIT, "another worker", || site.node.worker().ok().filter(|pid| *pid != worker))?;
    let shown = wait::until(LIMIT, "the control socket", || site.set(&["--show"]).ok())?;
    assert_eq!(shown["rules"].as_array().map(Vec::len), Some(2), "{shown:#}");
    let after_death = site.look_on()?;
    ensure!(first.end()?.success(), "the program failed");

    let mut second = site.program()?;
    let to_come = site.look_on()?;
    let metrics = site.node.consumerd()?.metrics()?;
    let process = format!("{}:{}", label(&second)?, second.process.pid());
    assert_eq!(metrics.sum("blkin_program_rate", &[("process", &process)]), 20);
    wait::until(LIMIT, "the setting of the first process to end with it", || {
        (site.node.consumerd().ok()?.metrics().ok()?.sum("blkin_rules", &[]) == 1).then_some(())
    })?;
    let every = site.look(&["--label", &label(&second)?, "--rate", "1"])?;
    ensure!(second.end()?.success(), "the program failed");

    let recorded = site.recorded()?;
    recorded.check_rate("all", by_all, 20)?;
    recorded.check_rate("pid", by_pid, 10)?;
    recorded.check_rate("after the worker's death", after_death, 10)?;
    recorded.check_rate("a program that came later", to_come, 20)?;
    recorded.check_rate("label", every, 1)
}

/// A user who is neither root nor the daemon's user.
const NOBODY: u32 = 65_534;

#[test]
fn set_does_not_affect_programs_of_other_users() -> Result<()> {
    if !rustix::process::getuid().is_root() {
        writeln!(std::io::stderr(), "not shown: this needs root")?;
        return Ok(());
    }
    let site = Site::start()?;
    let mut program = site.program()?;
    let pid = program.process.pid().to_string();
    fs::set_permissions(site.node.folder(), fs::Permissions::from_mode(0o755))?;
    let blkin = binary_for_others("blkin", site.node.folder())?;
    let ask = |target: &[&str]| -> Result<Output> {
        let mut command = Command::new(&blkin);
        command.args(["set", "--off"]).args(target).arg("--socket").arg(site.control());
        Ok(command.uid(NOBODY).gid(NOBODY).output()?)
    };
    let refused = ask(&["--pid", &pid])?;
    let error = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(1) && error.contains("belongs to user 0;"), "{error}");
    // --all means all programs of the caller: this user has none.
    assert!(ask(&["--all"])?.status.success());
    let shown = site.set(&["--show"])?;
    assert_eq!(shown["programs"][0]["on"], true, "{shown:#}");
    assert_eq!(shown["rules"][0]["uid"], NOBODY, "{shown:#}");
    program.end()?;
    Ok(())
}

#[test]
fn invalid_settings_are_refused_with_the_valid_choices() -> Result<()> {
    let site = Site::start()?;
    let mut program = site.program()?;
    let output = site.try_set(&["--pid", "1", "--off"])?;
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    let known = format!("{} ({})", program.process.pid(), label(&program)?);
    assert!(error.contains("process 1") && error.contains(&known), "{error}");
    let output = site.try_set(&["--all", "--level", "loud"])?;
    assert_eq!(output.status.code(), Some(2));
    assert!(site.set(&["--show"])?["rules"].as_array().is_some_and(Vec::is_empty));
    program.end()?;
    Ok(())
}
