//! The JSON that the `blkin` command prints for other programs.

use std::process::Command;

use anyhow::{Context, Result};
use blkin_cli::span::Span;
use blkin_tests::artifacts::{binary, output};
use blkin_tests::daemons::{Node, Setup};
use blkin_tests::program::Program;
use blkin_tests::sums::check_lossless;

use crate::ledger::ROOMY;

fn blkin(node: &Node, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(binary("blkin")?);
    output(command.args(["--collector", node.collector.http.base(), "--json"]).args(arguments))
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
