//! consumerd looks once at start for programs that offered themselves to nobody.

use anyhow::{Result, ensure};
use blkin_cli::metrics::{Metrics, Sample};
use blkin_tests::daemons::{LIMIT, Node, Setup};
use blkin_tests::program::Program;
use blkin_tests::wait;

/// Writes a round before there is a consumerd, and starts one.
fn found_by_scan(arguments: &[&str]) -> Result<()> {
    let _alone = crate::alone();
    let mut node = Node::without_consumerd(Setup { scan: true, ..Setup::default() })?;
    let mut program =
        Program::start("writer", arguments, &node.socket(), &[("BLKIN_RING_BYTES", "16777216")])?;
    let calls = program.round()?;
    node.start_consumerd()?;
    all_shipped(&node, &program, calls)?;
    let more = program.round()?;
    all_shipped(&node, &program, calls + more)
}

/// Waits until all `calls` of this program are valid and nothing of it is on its way; the scan may have found programs
/// of others too, so the sums over all programs say nothing here.
fn all_shipped(node: &Node, program: &Program, calls: i64) -> Result<()> {
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

#[test]
fn a_program_that_wrote_before_consumerd_started_is_found() -> Result<()> {
    found_by_scan(&["--threads", "2", "--traces", "200"])
}

#[test]
fn a_program_that_closed_every_descriptor_is_found() -> Result<()> {
    found_by_scan(&["--traces", "200", "--close-all", "1"])
}
