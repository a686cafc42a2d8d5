//! `blkin doctor` on a machine with a traced program, with and without BlkKin's daemons.

use std::process::{Command, Output};

use anyhow::{Context, Result};
use blkin_tests::artifacts::binary;
use blkin_tests::daemons::{LIMIT, Node, Setup, unused_address};
use blkin_tests::program::Program;
use blkin_tests::relays::Relay;
use blkin_tests::wait;
use serde_json::Value;

/// Runs the doctor against a node, whose consumerd may be gone.
fn doctor(node: &Node, consumerd: &str) -> Result<(Output, Value)> {
    doctor_of(node, consumerd, &[])
}

/// The same with relays to look at.
fn doctor_of(node: &Node, consumerd: &str, relays: &[&str]) -> Result<(Output, Value)> {
    let mut command = Command::new(binary("blkin")?);
    command.args(["doctor", "--json", "--consumerd", consumerd]);
    command.args(relays.iter().flat_map(|relay| ["--relay", relay]));
    command.args(["--collector", node.collector.http.base()]).arg("--socket").arg(node.socket());
    let output = command.output()?;
    let report = serde_json::from_slice(&output.stdout).context("the doctor wrote no JSON")?;
    Ok((output, report))
}

fn status<'a>(report: &'a Value, name: &str) -> Option<&'a str> {
    let checks = report["checks"].as_array()?;
    checks.iter().find(|check| check["name"] == name)?["status"].as_str()
}

fn found<'a>(report: &'a Value, name: &str) -> Option<&'a str> {
    let checks = report["checks"].as_array()?;
    checks.iter().find(|check| check["name"] == name)?["found"].as_str()
}

/// The advice about this program, if consumerd does not hold it; the machine may run other programs.
fn said<'a>(report: &'a Value, program: &Program) -> Option<&'a str> {
    let pid = format!("(pid {})", program.process.pid());
    let checks = report["checks"].as_array()?;
    let advice = checks.iter().find(|check| check["name"] == "programs")?["advice"].as_str()?;
    advice.lines().find(|line| line.contains(&pid))
}

#[test]
fn doctor_reports_a_healthy_node_and_then_a_stopped_consumerd() -> Result<()> {
    let _alone = crate::alone();
    let mut node = Node::start(Setup::default())?;
    let mut program = Program::start("writer", &["--traces", "50"], &node.socket(), &[])?;
    let calls = program.round()?;
    node.settled(calls)?;
    let consumerd = node.consumerd()?.http.base().to_owned();

    let (_, report) = doctor(&node, &consumerd)?;
    assert_eq!(report["balanced"], Value::Bool(true), "{report:#}");
    for name in ["memfd", "consumerd's socket", "consumerd", "collector", "ledger"] {
        assert_eq!(status(&report, name), Some("ok"), "{report:#}");
    }
    assert!(said(&report, &program).is_none(), "{report:#}");
    assert!(report["ledger"].as_array().is_some_and(|equations| equations.len() >= 5), "{report:#}");

    let (_, report) = doctor(&node, node.collector.http.base())?;
    assert_eq!(status(&report, "consumerd"), Some("failed"), "another daemon is there: {report:#}");

    node.consumerd.take().context("consumerd is not running")?.process.terminate()?;
    let (output, report) = doctor(&node, &consumerd)?;
    assert_eq!(output.status.code(), Some(1), "{report:#}");
    assert_eq!(status(&report, "consumerd"), Some("failed"));
    assert_eq!(status(&report, "collector"), Some("ok"));
    Ok(())
}

#[test]
fn doctor_warns_of_an_unreachable_upstream() -> Result<()> {
    let _alone = crate::alone();
    let away = unused_address()?;
    let node = Node::start(Setup { upstream: Some(away.clone()), ..Setup::default() })?;
    let mut program = Program::start("writer", &["--traces", "1"], &node.socket(), &[])?;
    program.round()?;
    let found = wait::until(LIMIT, "a warning", || {
        let (_, report) = doctor(&node, node.consumerd().ok()?.http.base()).ok()?;
        let checks = report["checks"].as_array()?;
        let sinks = checks.iter().find(|check| check["name"] == "consumerd's sinks")?;
        // As long as consumerd had nothing to ship, the doctor tries the upstream itself, and reports that in other words.
        let is_told = |found: &&str| found.starts_with(&format!("scribe has shipped nothing to {away} for "));
        sinks["found"].as_str().filter(is_told).filter(|_| sinks["status"] == "warning").map(str::to_owned)
    })?;
    assert!(found.contains("(unreachable): it cannot be reached: "), "{found}");
    Ok(())
}

#[test]
fn doctor_checks_relays_and_warns_of_their_upstreams() -> Result<()> {
    let _alone = crate::alone();
    let away = unused_address()?;
    let mut node = Node::without_consumerd(Setup::default())?;
    let upstreams = [&*node.collector.address("scribe")?, &*away];
    let mut relay = Relay::start(node.folder(), "relay", &upstreams, &["--stop-timeout-ms", "100"])?;
    node.ship_to(&relay.scribe);
    node.start_consumerd()?;
    let mut program = Program::start("writer", &["--traces", "1"], &node.socket(), &[])?;
    let calls = program.round()?;
    node.settled(calls)?;
    let (consumerd, http) = (node.consumerd()?.http.base().to_owned(), relay.daemon.http.base().to_owned());
    let look = || doctor_of(&node, &consumerd, &[&http]).map(|(_, report)| report);

    let report = wait::until(LIMIT, "a warning", || {
        let report = look().ok()?;
        (status(&report, "relay's deliveries") == Some("warning")).then_some(report)
    })?;
    assert_eq!(status(&report, "relay"), Some("ok"), "{report:#}");
    let said = found(&report, "relay's deliveries").context("the check has no text")?;
    assert!(said.starts_with(&format!("{http}: the upstream {away} has accepted nothing for ")), "{said}");
    let equations = report["ledger"].as_array().context("the report has no ledger")?;
    let of_relay = |equation: &&Value| equation["scope"].as_str().is_some_and(|s| s.starts_with("relay "));
    assert_eq!(equations.iter().filter(of_relay).count(), 6, "{report:#}");

    relay.daemon.process.terminate()?;
    let report = look()?;
    assert_eq!((status(&report, "relay"), &report["healthy"]), (Some("failed"), &Value::Bool(false)));
    Ok(())
}

#[test]
fn doctor_names_a_program_that_no_consumerd_reads() -> Result<()> {
    let _alone = crate::alone();
    let node = Node::start(Setup::default())?;
    let elsewhere = node.folder().join("nobody.sock");
    let mut program = Program::start("writer", &["--traces", "1"], &elsewhere, &[])?;
    program.round()?;
    let (output, report) = doctor(&node, node.consumerd()?.http.base())?;
    assert_eq!(output.status.code(), Some(1), "{report:#}");
    assert!(said(&report, &program).is_some(), "{report:#}");
    Ok(())
}

#[test]
fn doctor_names_the_other_consumerd_that_reads_a_program() -> Result<()> {
    let _alone = crate::alone();
    let node = Node::start(Setup::default())?;
    let other = Node::start(Setup::default())?;
    let mut program = Program::start("writer", &["--traces", "1"], &other.socket(), &[])?;
    let calls = program.round()?;
    other.settled(calls)?;
    let (_, report) = doctor(&node, node.consumerd()?.http.base())?;
    let reader = format!("is read by another blkin-consumerd, pid {},", other.consumerd()?.process.pid());
    assert!(said(&report, &program).is_some_and(|said| said.contains(&reader)), "{report:#}");
    Ok(())
}
