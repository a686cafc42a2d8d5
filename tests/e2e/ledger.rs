//! A program counts its own calls; that count and every equation of the ledger must agree.

use anyhow::{Result, ensure};
use blkin_cli::ledger::Ledger;
use blkin_cli::span::Span;
use blkin_tests::artifacts::with_each_producer;
use blkin_tests::cheat::Cheat;
use blkin_tests::daemons::{LIMIT, Node, Setup};
use blkin_tests::ingest::{now_us, post};
use blkin_tests::program::Program;
use blkin_tests::wait;

use blkin_tests::sums::{check, check_lossless};

/// Rings that hold everything a program writes in one round.
pub(crate) const ROOMY: [(&str, &str); 1] = [("BLKIN_RING_BYTES", "16777216")];
const TINY: [(&str, &str); 1] = [("BLKIN_RING_BYTES", "65536")];

/// Runs the writer for one round; returns the node and the program's own count of its calls.
fn written(arguments: &[&str], environment: &[(&str, &str)]) -> Result<(Node, i64)> {
    let node = Node::start(Setup::default())?;
    let mut program = Program::start("writer", arguments, &node.socket(), environment)?;
    let calls = program.round()?;
    assert!(program.end()?.success());
    Ok((node, calls))
}

#[test]
fn one_thread_stores_every_annotation() -> Result<()> {
    let (node, calls) = written(&["--traces", "1000"], &ROOMY)?;
    assert_eq!(calls, 8_000);
    check_lossless(&node, calls)
}

#[test]
fn eight_threads_store_every_annotation() -> Result<()> {
    with_each_producer(&ROOMY, |environment| {
        let (node, calls) = written(&["--threads", "8", "--traces", "500"], environment)?;
        ensure!(calls == 32_000);
        check_lossless(&node, calls)
    })
}

#[test]
fn forked_children_with_threads_store_every_annotation() -> Result<()> {
    with_each_producer(&ROOMY, |environment| {
        let (node, calls) = written(&["--forks", "6", "--threads", "3", "--traces", "50"], environment)?;
        ensure!(calls == 7 * 3 * 50 * 8);
        check_lossless(&node, calls)
    })
}

#[test]
fn a_paced_program_loses_nothing_with_default_rings() -> Result<()> {
    let (node, calls) = written(&["--threads", "4", "--traces", "500", "--pace-us", "200"], &[])?;
    check_lossless(&node, calls)
}

/// consumerd reads the rings of two CPUs one after the other, so the later value may be read first.
#[test]
fn the_later_value_of_a_key_is_shown_after_a_move_between_cpus() -> Result<()> {
    with_each_producer(&ROOMY, |environment| {
        let (node, calls) = written(&["--traces", "100", "--hop", "1"], environment)?;
        check_lossless(&node, calls)?;
        let query = [("serviceName", "writer"), ("limit", "1000")];
        let traces: Vec<Vec<Span>> =
            serde_json::from_str(&node.collector.http.get_ok("/api/v2/traces", &query)?)?;
        ensure!(traces.len() == 100);
        // The first trace begins on any CPU, so the scheduler may move it once more.
        let hopped = traces.iter().flatten().filter(|span| span.tags["number"] != "0");
        let shown: Vec<&str> = hopped.map(|span| span.tags["Object"].as_str()).collect();
        ensure!(shown == ["second"; 99], "{shown:?}");
        Ok(())
    })
}

#[test]
fn stored_traces_survive_a_restart_of_the_collector() -> Result<()> {
    let (mut node, calls) = written(&["--traces", "100"], &ROOMY)?;
    check_lossless(&node, calls)?;
    node.restart_collector()?;
    let query = [("serviceName", "writer"), ("limit", "1000")];
    let traces: Vec<Vec<Span>> =
        serde_json::from_str(&node.collector.http.get_ok("/api/v2/traces", &query)?)?;
    assert_eq!(traces.len(), 100);
    let span = &traces[0][0];
    assert_eq!(
        (span.name.as_deref(), span.kind.as_deref(), span.service()),
        (Some("write"), Some("CLIENT"), "writer")
    );
    Ok(())
}

#[test]
fn losses_of_tiny_rings_are_all_counted() -> Result<()> {
    with_each_producer(&TINY, |environment| {
        let (node, calls) = written(&["--threads", "4", "--traces", "20000"], environment)?;
        let sums = check(&node, calls)?;
        ensure!(sums.lost > 0, "{sums:?}");
        Ok(())
    })
}

/// A mutation: one annotation is lost without a counter, between a sink that gets OK and the collector.
#[test]
fn an_uncounted_loss_unbalances_the_sums() -> Result<()> {
    let mut node = Node::without_consumerd(Setup::default())?;
    let cheat = Cheat::start(&node.collector.address("scribe")?)?;
    node.ship_to(cheat.address());
    node.start_consumerd()?;
    let mut program = Program::start("writer", &["--traces", "100"], &node.socket(), &ROOMY)?;
    let calls = program.round()?;
    let verdict = check(&node, calls);
    assert!(cheat.has_cheated());
    assert!(verdict.unwrap_err().to_string().starts_with("acked = stored does not hold"));
    Ok(())
}

/// A mutation at the other end: the program reports one call more than was counted.
#[test]
fn an_uncounted_call_unbalances_the_sums() -> Result<()> {
    let (node, calls) = written(&["--traces", "10"], &ROOMY)?;
    check_lossless(&node, calls)?;
    assert!(check(&node, calls - 1).unwrap_err().to_string().starts_with("the program counted"));
    Ok(())
}

#[test]
fn removal_by_retention_is_counted_as_expired() -> Result<()> {
    let retention = ["--retention-mib".to_owned(), "1".to_owned()];
    let node = Node::without_consumerd(Setup { collector: retention.into(), ..Setup::default() })?;
    let collector = &node.collector;
    for id in 1..=3 {
        let half = "x".repeat(600_000);
        let body = format!(
            r#"[{{"traceId":"{id}","id":"{id}","timestamp":{},"tags":{{"half":"{half}"}}}}]"#,
            now_us()
        );
        ensure!(post(&collector.http, "/api/v2/spans", "application/json", body.as_bytes())?.0 == 202);
    }
    let expired = wait::until(LIMIT, "retention to remove something", || {
        let metrics = collector.metrics().ok()?;
        (metrics.sum("blkin_collector_lost_total", &[("cause", "expired")]) > 0).then_some(metrics)
    })?;
    let ledger = Ledger::of_collector(&expired);
    ensure!(ledger.balances(), "{ledger:?}");
    Ok(())
}
