//! At start, consumerd scans once for programs that no consumerd holds.

use anyhow::{Context, Result, ensure};
use blkin_cli::ledger::Equation;
use blkin_tests::arrival::{all_shipped, all_stored};
use blkin_tests::daemons::{LIMIT, Node, Setup};
use blkin_tests::program::Program;
use blkin_tests::sums::in_store;
use blkin_tests::wait;

/// Only the programs of these tests have this service: the scan may also find other tests' writers.
const SERVICE: &str = "scanned-writer";

/// Lets a program write a round before consumerd starts, and checks that consumerd finds it by its scan.
fn found_by_scan(arguments: &[&str]) -> Result<()> {
    let _alone = crate::alone();
    let arguments = [arguments, &["--service", SERVICE]].concat();
    let mut node = Node::without_consumerd(Setup { scan: true, ..Setup::default() })?;
    let mut program =
        Program::start("writer", &arguments, &node.socket(), &[("BLKIN_RING_BYTES", "16777216")])?;
    let calls = program.round()?;
    node.start_consumerd()?;
    all_shipped(&node, &program, calls)?;
    let more = program.round()?;
    all_shipped(&node, &program, calls + more)?;
    all_stored(&node, SERVICE, calls + more)?;
    let in_store = in_store(&node)?;
    ensure!(in_store >= calls + more, "{in_store} annotations in the store, {calls} and {more} written");
    Ok(())
}

#[test]
fn scan_finds_a_program_that_started_before_consumerd() -> Result<()> {
    found_by_scan(&["--threads", "2", "--traces", "200"])
}

#[test]
fn the_ledger_balances_after_a_restart_of_consumerd() -> Result<()> {
    let _alone = crate::alone();
    let mut node = Node::start(Setup { scan: true, ..Setup::default() })?;
    let mut program = Program::start("writer", &["--traces", "200"], &node.socket(), &[])?;
    let first = program.round()?;
    all_shipped(&node, &program, first)?;
    let mut consumerd = node.consumerd.take().context("consumerd is not running")?;
    ensure!(consumerd.process.terminate()?.success(), "{}", consumerd.log());
    node.start_consumerd()?;
    let second = program.round()?;
    let suffix = format!(":{}", program.process.pid());
    let own = wait::until(LIMIT, "the second round to be drained", || {
        let mut own = node.ledger().ok()?.equations;
        own.retain(|equation| equation.scope.ends_with(&suffix));
        (sum(&own, "drained") == second).then_some(own)
    })?;
    ensure!(own.iter().all(Equation::holds), "{own:#?}");
    let before = sum(&own, "drained_before");
    ensure!(before == first, "{before} of {first} were drained before the restart");
    Ok(())
}

/// The sum of the right-hand terms with this name in the equations.
fn sum(equations: &[Equation], name: &str) -> i64 {
    let terms = equations.iter().flat_map(|equation| &equation.right);
    terms.filter(|term| term.name == name).map(|term| term.value).sum()
}

#[test]
fn scan_finds_a_program_that_closed_every_descriptor() -> Result<()> {
    found_by_scan(&["--traces", "200", "--close-all", "1"])
}
