//! Checks that the program's own count, the daemons' counters and the content of the store agree.

use anyhow::{Context, Result, ensure};

use crate::daemons::Node;

/// Numbers of annotations, each from the counter of the process that handled them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sums {
    /// Calls that programs counted in their rings.
    pub attempted: i64,
    /// Lost for any cause before the Scribe sink got an acknowledgement.
    pub lost: i64,
    /// Acknowledged to the Scribe sink.
    pub acked: i64,
    /// Stored by the collector.
    pub stored: i64,
    /// Found by reading the collector's whole store, independently of any counter.
    pub in_store: i64,
}

/// Annotations that the collector finds when it reads every piece of its store.
///
/// # Errors
/// When it does not answer.
pub fn in_store(node: &Node) -> Result<i64> {
    let answer = node.collector.http.get_ok("/api/blkin/ledger", &[("count", "store")])?;
    let answer: serde_json::Value = serde_json::from_str(&answer)?;
    answer["counted_in_store"]["annotations"].as_i64().context("the collector did not count its store")
}

fn read(node: &Node) -> Result<Sums> {
    let consumerd = node.consumerd()?.metrics()?;
    let collector = node.collector.metrics()?;
    let lost = ["blkin_program_lost_total", "blkin_lost_total"].map(|name| consumerd.sum(name, &[]));
    Ok(Sums {
        attempted: consumerd.sum("blkin_program_attempted_total", &[]),
        lost: lost.iter().sum::<i64>() + consumerd.sum("blkin_sink_lost_total", &[("sink", "scribe")]),
        acked: consumerd.sum("blkin_sink_acked_total", &[("sink", "scribe")]),
        stored: collector.sum("blkin_collector_stored_total", &[]),
        in_store: in_store(node)?,
    })
}

/// Waits until all of `calls` have settled; then checks every equation of the ledger, and those between processes.
///
/// # Errors
/// When one does not hold.
pub fn check(node: &Node, calls: i64) -> Result<Sums> {
    node.settled(calls)?;
    let ledger = node.ledger()?;
    ensure!(ledger.balances(), "an equation does not hold: {ledger:#?}");
    let sums = read(node)?;
    ensure!(sums.attempted == calls, "the program counted {calls}: {sums:?}");
    ensure!(sums.attempted == sums.acked + sums.lost, "attempted = acked + lost does not hold: {sums:?}");
    ensure!(sums.acked == sums.stored, "acked = stored does not hold: {sums:?}");
    ensure!(sums.in_store == sums.stored, "stored = what is in the store does not hold: {sums:?}");
    Ok(sums)
}

/// As [`check`], and checks that nothing was lost.
///
/// # Errors
/// When an equation does not hold, or something was lost.
pub fn check_lossless(node: &Node, calls: i64) -> Result<()> {
    let sums = check(node, calls)?;
    ensure!(sums.lost == 0, "annotations were lost: {:#?}", node.ledger()?);
    ensure!(sums.in_store == calls, "the store does not hold each of the {calls}: {sums:?}");
    Ok(())
}
