//! Checks that everything of one writer arrived, even beside other programs, which sums over all programs would include.

use anyhow::{Result, ensure};
use blkin_cli::metrics::{Metrics, Sample};
use blkin_cli::span::Span;

use crate::daemons::{LIMIT, Node};
use crate::program::Program;
use crate::wait;

/// The calls that `tests/c/writer.c` makes for each trace.
const CALLS_A_TRACE: i64 = 8;

/// Waits until consumerd counts all `calls` of this program as valid, and none of them is still on its way.
///
/// # Errors
/// When that does not happen, or some of the calls were lost.
pub fn all_shipped(node: &Node, program: &Program, calls: i64) -> Result<()> {
    let suffix = format!(":{}", program.process.pid());
    let of_program = |metrics: &Metrics, name: &str| -> i64 {
        let own =
            |sample: &&Sample| sample.labels.get("process").is_some_and(|process| process.ends_with(&suffix));
        metrics.select(name, &[]).filter(own).map(|sample| sample.value).sum()
    };
    let consumerd = node.consumerd()?;
    let valid =
        || consumerd.metrics().ok().filter(|metrics| of_program(metrics, "blkin_valid_total") >= calls);
    let metrics = wait::until(LIMIT, "the program to be drained", valid)?;
    for name in [
        "blkin_program_attempted_total",
        "blkin_program_committed_total",
        "blkin_drained_total",
        "blkin_valid_total",
    ] {
        ensure!(of_program(&metrics, name) == calls, "{name} is not {calls}:\n{metrics:#?}");
    }
    for name in ["blkin_program_lost_total", "blkin_lost_total", "blkin_pending"] {
        ensure!(of_program(&metrics, name) == 0, "{name} is not 0:\n{metrics:#?}");
    }
    Ok(())
}

/// Waits until the collector returns all `calls` of the writers of `service`: every trace, each complete.
///
/// # Errors
/// When that does not happen, or there are more traces than were written.
pub fn all_stored(node: &Node, service: &str, calls: i64) -> Result<()> {
    let query = [("serviceName", service), ("limit", "100000")];
    let found = || -> Option<Vec<Vec<Span>>> {
        let body = node.collector.http.get_ok("/api/v2/traces", &query).ok()?;
        let traces: Vec<Vec<Span>> = serde_json::from_str(&body).ok()?;
        let complete = traces.len() as i64 * CALLS_A_TRACE >= calls;
        (complete && traces.iter().flatten().all(is_whole)).then_some(traces)
    };
    let traces = wait::until(LIMIT, "every trace to be stored whole", found)?;
    ensure!(traces.len() as i64 * CALLS_A_TRACE == calls, "{} traces of {calls} calls", traces.len());
    Ok(())
}

/// Whether a span has all that the writer writes, as far as Zipkin's format shows it: of a repeated key it shows one value.
fn is_whole(span: &Span) -> bool {
    span.kind.as_deref() == Some("CLIENT")
        && span.duration.is_some()
        && span.tags.contains_key("Object")
        && span.tags.contains_key("number")
        && span.annotations.iter().any(|annotation| annotation.value == "again")
}
