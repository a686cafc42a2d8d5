//! The commands' interface to other programs: JSON and exit codes.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use blkin_cli::moments;
use blkin_cli::span::Span;
use blkin_tests::artifacts::{binary, output};
use blkin_tests::daemons::{Node, Setup};
use blkin_tests::ingest::{now_us, post};
use blkin_tests::program::Program;
use blkin_tests::sums::check_lossless;
use tempfile::TempDir;

use crate::ledger::ROOMY;

fn blkin(node: &Node, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(binary("blkin")?);
    output(command.args(arguments).args(["--collector", node.collector.http.base(), "--json"]))
}

#[test]
fn traces_lists_more_than_one_answer_of_the_collector() -> Result<()> {
    let configuration = tempfile::NamedTempFile::new()?;
    std::fs::write(configuration.path(), "query_max_traces = 3\n")?;
    let flags = ["--config".to_owned(), configuration.path().display().to_string()];
    let node = Node::without_consumerd(Setup { collector: flags.into(), ..Setup::default() })?;
    let now = now_us();
    // A single millisecond has more traces than the collector returns in one answer.
    let span = |n: i64| {
        serde_json::json!({ "traceId": format!("{n:016x}"), "id": format!("{n:016x}"), "name": "n", "duration": 5,
            "timestamp": now - n * 70, "localEndpoint": { "serviceName": "s" } })
    };
    let spans: Vec<_> = (1..=20).map(span).collect();
    let body = serde_json::to_vec(&spans)?;
    assert_eq!(post(&node.collector.http, "/api/v2/spans", "application/json", &body)?.0, 202);
    for (wanted, listed) in [("8", 8), ("100", 20)] {
        let traces: Vec<serde_json::Value> =
            serde_json::from_str(&blkin(&node, &["traces", "--limit", wanted])?)?;
        let ids: Vec<_> = traces.iter().filter_map(|trace| trace["trace_id"].as_str()).collect();
        let newest: Vec<_> = (1..=listed).map(|n| format!("{n:016x}")).collect();
        assert_eq!(ids, newest);
    }
    Ok(())
}

#[test]
fn traces_are_listed_up_to_a_time_and_unknown_services_reported() -> Result<()> {
    let node = Node::without_consumerd(Setup::default())?;
    // 03:00:00 and 03:20:00 yesterday: recent enough that nothing has expired.
    let day_us = 86_400_000_000;
    let night = now_us() / day_us * day_us - day_us + 3 * 3_600_000_000;
    let span = |n: i64, service: &str| {
        serde_json::json!({ "traceId": format!("{n:016x}"), "id": format!("{n:016x}"), "duration": 5,
            "timestamp": night + (n - 1) * 1_200_000_000, "localEndpoint": { "serviceName": service } })
    };
    let body = serde_json::to_vec(&[span(1, "osd.0"), span(2, "mon")])?;
    assert_eq!(post(&node.collector.http, "/api/v2/spans", "application/json", &body)?.0, 202);
    let listed = |end: &str| -> Result<Vec<String>> {
        let traces = blkin(&node, &["traces", "--lookback", "10m", "--end", end])?;
        let traces: Vec<serde_json::Value> = serde_json::from_str(&traces)?;
        Ok(traces.iter().filter_map(|trace| Some(trace["trace_id"].as_str()?.to_owned())).collect())
    };
    let at = |us: i64| moments::moment(us.unsigned_abs());
    assert_eq!(listed(&at(night))?, ["0000000000000001"]);
    assert_eq!(listed(&at(night - 1))?, [""; 0]);
    assert_eq!(listed(&at(night + 1_500_000_000))?, ["0000000000000002"]);
    assert_eq!(listed(&at(night + 900_000_000))?, [""; 0]);

    for asked in [&["traces"][..], &["stats", "start", "end"]] {
        let mut command = Command::new(binary("blkin")?);
        command.args(asked).args(["--service", "ods.0", "--collector", node.collector.http.base()]);
        let said = String::from_utf8_lossy(&command.output()?.stderr).into_owned();
        assert!(
            said.contains("no service is named \"ods.0\"") && said.contains("there are: mon osd.0"),
            "{asked:?}: {said}"
        );
    }
    Ok(())
}

#[test]
fn traces_and_single_traces_are_printed_as_json() -> Result<()> {
    let node = Node::start(Setup::default())?;
    let mut program = Program::start("writer", &["--traces", "3"], &node.socket(), &ROOMY)?;
    let calls = program.round()?;
    check_lossless(&node, calls)?;

    let listed: Vec<serde_json::Value> =
        serde_json::from_str(&blkin(&node, &["traces", "--service", "writer"])?)?;
    assert_eq!(listed.len(), 3);
    for trace in &listed {
        let id = trace["trace_id"].as_str().context("a trace without an id")?;
        assert_eq!((trace["name"].as_str(), trace["spans"].as_u64()), (Some("write"), Some(1)), "{trace}");
        let spans: Vec<Span> = serde_json::from_str(&blkin(&node, &["trace", id])?)?;
        assert_eq!(spans.len(), 1);
        assert_eq!((spans[0].trace_id.as_str(), spans[0].service()), (id, "writer"));
        assert!(spans[0].tags.contains_key("Object"));
    }
    Ok(())
}

/// The exit code of a daemon whose output goes into a pipe without a reader.
fn code_unread(daemon: &str, arguments: &[&str]) -> Result<Option<i32>> {
    let (reader, writer) = std::io::pipe()?;
    drop(reader);
    let mut command = Command::new(binary(daemon)?);
    command.args(arguments).stdout(writer.try_clone()?).stderr(writer);
    Ok(command.status()?.code())
}

#[test]
fn daemons_exit_codes_are_the_same_with_closed_output() -> Result<()> {
    let folder = TempDir::new()?;
    let inside = folder.path().join("x").display().to_string();
    for (daemon, flag) in
        [("blkin-consumerd", "--socket"), ("blkin-relay", "--spool-dir"), ("blkin-collector", "--data-dir")]
    {
        let check = ["--check-config", flag, &inside];
        ensure!(code_unread(daemon, &check)? == Some(0), "{daemon}");
        let no_file = [&check[..], &["--config", "/nonexistent"]].concat();
        ensure!(code_unread(daemon, &no_file)? == Some(78), "{daemon}");
    }
    Ok(())
}
