//! The daemons in operation: the collector's health is correct, rejected input can be read, and all metrics follow Prometheus'
//! conventions.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use blkin_cli::http::Client;
use blkin_cli::rejects::Rejects;
use blkin_tests::artifacts::{binary, fetched, output};
use blkin_tests::daemons::{LIMIT, Node, Setup};
use blkin_tests::ingest::post;
use blkin_tests::process::Process;
use blkin_tests::program::Program;
use blkin_tests::relays::Relay;
use blkin_tests::wait;
use serde_json::Value;

/// A worker whose last beat is longer ago is stuck, so health turns red within 2 s.
const TOO_LONG_MS: u64 = 1500;

/// The id of a process' thread.
fn thread(pid: u32, name: &str) -> Result<String> {
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?;
        if fs::read_to_string(task.path().join("comm"))?.trim() == name {
            return Ok(task.file_name().to_string_lossy().into_owned());
        }
    }
    anyhow::bail!("no thread {name} in {pid}")
}

/// The status of `/healthz`, and the time since the last beat of the store's thread. Checks that status and state follow from
/// that time.
fn health(http: &Client) -> Result<(u16, u64)> {
    let answer = http.get("/healthz", &[])?;
    let report: Value = serde_json::from_str(&answer.body)?;
    let workers = report["workers"].as_array().context("no workers")?;
    let store = workers.iter().find(|worker| worker["name"] == "store").context("no store")?;
    let silent_ms = store["since_last_beat_ms"].as_u64().context("no time")?;
    let expected = if silent_ms > TOO_LONG_MS { (503, "stuck") } else { (200, "alive") };
    ensure!((answer.status, store["state"].as_str()) == (expected.0, Some(expected.1)), "{}", answer.body);
    Ok((answer.status, silent_ms))
}

/// Health turns red while the store's thread hangs in a system call, and green once it goes on.
#[test]
fn a_stuck_store_thread_makes_the_collector_unhealthy() -> Result<()> {
    let node = Node::without_consumerd(Setup::default())?;
    let http = &node.collector.http;
    ensure!(health(http)?.0 == 200);

    let thread = thread(node.collector.process.pid(), "blkin-store")?;
    let log = node.folder().join("strace.log");
    let mut strace = Command::new("strace");
    strace.args(["-p", &thread, "-e", "inject=all:delay_enter=60s", "-o"]).arg(&log);
    strace.stdin(Stdio::null()).stderr(Stdio::null());
    let stopping = Process::spawn("strace", &mut strace)?;
    // The thread goes on until its next system call, which comes within one beat.
    wait::until(LIMIT, "the thread to be held", || {
        Some(()).filter(|()| is_traced(node.collector.process.pid(), &thread))
    })?;
    let turned =
        |status: u16| move || health(http).map(|(found, _)| (found == status).then_some(())).transpose();
    wait::until(LIMIT, "health to turn red", turned(503))??;
    drop(stopping);
    wait::until(LIMIT, "health to turn green", turned(200))?
}

/// Prometheus' own tool accepts names, help texts and format of all metrics.
#[test]
fn promtool_accepts_the_metrics_of_every_daemon() -> Result<()> {
    let mut node = Node::without_consumerd(Setup::default())?;
    let relay = Relay::start(node.folder(), "relay", &[&node.collector.address("scribe")?], &[])?;
    node.ship_to(&relay.scribe);
    node.start_consumerd()?;
    let mut program = Program::start("writer", &["--traces", "3"], &node.socket(), &[])?;
    let calls = program.round()?;
    node.settled(calls)?;
    let promtool = fetched("promtool")?;
    for daemon in [node.consumerd()?, &relay.daemon, &node.collector] {
        let metrics = daemon.http.get_ok("/metrics", &[])?;
        let file = node.folder().join("metrics");
        fs::write(&file, &metrics)?;
        let checked =
            Command::new(&promtool).args(["check", "metrics"]).stdin(fs::File::open(&file)?).output()?;
        let said = String::from_utf8_lossy(&[checked.stdout, checked.stderr].concat()).into_owned();
        ensure!(checked.status.success() && said.is_empty(), "{said}\n{metrics}");
        ensure!(metrics.contains("blkin_"), "{metrics}");
    }
    Ok(())
}

fn is_traced(pid: u32, thread: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/task/{thread}/status")).unwrap_or_default();
    status.lines().any(|line| line.strip_prefix("TracerPid:").is_some_and(|tracer| tracer.trim() != "0"))
}

#[test]
fn the_command_lists_what_the_collector_rejected() -> Result<()> {
    let node = Node::without_consumerd(Setup::default())?;
    let body = br#"[{"traceId":"1","id":"1","kind":"NONE"},{"traceId":"1","id":"1"}]"#;
    assert_eq!(post(&node.collector.http, "/api/v2/spans", "application/json", body)?.0, 202);
    let blkin = |more: &[&str]| -> Result<String> {
        let mut command = Command::new(binary("blkin")?);
        output(command.args(["rejects", "--collector", node.collector.http.base()]).args(more))
    };
    let rejects: Rejects = serde_json::from_str(&blkin(&["--json"])?)?;
    let reject = rejects.recent.first().context("no reject is listed")?;
    assert_eq!((reject.transport.as_str(), reject.cause.as_str()), ("http_v2", "bad_value"));
    assert_eq!(rejects.counts["http_v2"]["bad_value"], 1);
    let text = blkin(&[])?;
    assert!(text.contains("unknown kind \"NONE\"") && text.contains("1 by http_v2: bad_value"), "{text}");
    Ok(())
}
