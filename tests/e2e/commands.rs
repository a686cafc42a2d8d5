//! The JSON that the `blkin` command prints for other programs.

use std::process::Command;

use anyhow::{Context, Result};
use blkin_cli::span::Span;
use blkin_tests::artifacts::{binary, output};
use blkin_tests::daemons::{Node, Setup};
use blkin_tests::ingest::{now_us, post};
use blkin_tests::program::Program;
use blkin_tests::sums::check_lossless;

use crate::ledger::ROOMY;

fn blkin(node: &Node, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(binary("blkin")?);
    output(command.args(["--collector", node.collector.http.base(), "--json"]).args(arguments))
}

#[test]
fn as_many_traces_are_listed_as_are_wanted_although_the_collector_answers_with_fewer() -> Result<()> {
    let configuration = tempfile::NamedTempFile::new()?;
    std::fs::write(configuration.path(), "query_max_traces = 3\n")?;
    let flags = ["--config".to_owned(), configuration.path().display().to_string()];
    let node = Node::without_consumerd(Setup { collector: flags.into(), ..Setup::default() })?;
    let now = now_us();
    // Of a single millisecond there are more than the collector answers with.
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
fn traces_and_a_trace_are_printed_as_json() -> Result<()> {
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
        assert_eq!(spans[0].tags.get("Object").map(String::as_str), Some("second"));
    }
    Ok(())
}
