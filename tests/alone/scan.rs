//! consumerd looks once at start for programs that offered themselves to nobody.

use anyhow::{Result, ensure};
use blkin_tests::daemons::{Node, Setup};
use blkin_tests::program::Program;
use blkin_tests::sums::check_lossless;

/// Writes a round before there is a consumerd, and starts one.
fn found_by_scan(arguments: &[&str]) -> Result<()> {
    let _alone = crate::alone();
    let mut node = Node::without_consumerd(Setup { scan: true, ..Setup::default() })?;
    let mut program =
        Program::start("writer", arguments, &node.socket(), &[("BLKIN_RING_BYTES", "16777216")])?;
    let calls = program.round()?;
    node.start_consumerd()?;
    check_lossless(&node, calls)?;
    let more = program.round()?;
    ensure!(program.end()?.success());
    check_lossless(&node, calls + more)
}

#[test]
fn a_program_that_wrote_before_consumerd_started_is_found() -> Result<()> {
    found_by_scan(&["--threads", "2", "--traces", "200"])
}

#[test]
fn a_program_that_closed_every_descriptor_is_found() -> Result<()> {
    found_by_scan(&["--traces", "200", "--close-all", "1"])
}
