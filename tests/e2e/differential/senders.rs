//! Other people's libraries send to both servers: Zipkin's Java library Brave with its reporter, and OpenTelemetry's exporter
//! for Zipkin, each with all its encodings and transports.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use blkin_tests::artifacts::{fetched, output, root};
use blkin_tests::daemons::{LIMIT, Node, Setup};
use blkin_tests::wait;
use blkin_tests::zipkin::Zipkin;

use super::Server;

/// The number of spans in a library's trace.
fn spans_of(road: &str) -> usize {
    if road.starts_with("brave") { 7 } else { 4 }
}

#[test]
fn spans_of_brave_and_opentelemetry_read_as_from_zipkin() -> Result<()> {
    let zipkin = Zipkin::start()?;
    let node = Node::without_consumerd(Setup::default())?;
    let theirs = Server { http: &zipkin.http, scribe: zipkin.scribe.clone() };
    let ours = Server { http: &node.collector.http, scribe: node.collector.address("scribe")? };

    let folder = root().join("tests/foreign/zipkin-clients");
    let mut senders = Command::new("java");
    senders.arg("-cp").arg(fetched("zipkin-clients")?.join("*")).arg(folder.join("Senders.java"));
    for server in [&theirs, &ours] {
        senders.args([server.http.base(), &server.scribe]);
    }
    let said = output(&mut senders)?;

    let roads: Vec<(&str, &str)> = said.lines().filter_map(|line| line.split_once(' ')).collect();
    ensure!(roads.len() == 8, "{said}");
    for (road, trace) in roads {
        let traces = [trace.to_owned()];
        let our = ours.spans(&traces)?;
        ensure!(our.len() == spans_of(road), "{road}: {our:?}");
        // Zipkin answers OK before it has stored the spans.
        let same = || (theirs.spans(&traces).ok()? == our).then_some(());
        wait::until(LIMIT, "the same spans", same)
            .with_context(|| format!("{road}\n  zipkin {:?}\n  ours   {our:?}", theirs.spans(&traces)))?;
    }
    Ok(())
}
