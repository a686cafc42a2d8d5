//! Many faults, some at the same time, in an order that nobody thought of.

use anyhow::{Context, Result};
use blkin_tests::chain::Chain;
use blkin_tests::chaos::Chaos;
use blkin_tests::program::Program;

use crate::ledger::ROOMY;

/// What the suite runs; `BLKIN_CHAOS="SEED STEPS"` runs anything else.
const USUAL: &str = "1 25";

#[test]
fn nothing_is_lost_in_whatever_order_daemons_are_killed_ended_and_stopped_and_disks_are_full() -> Result<()> {
    let asked = std::env::var("BLKIN_CHAOS").unwrap_or_else(|_| USUAL.to_owned());
    let (seed, steps) = asked.split_once(' ').context("BLKIN_CHAOS is \"SEED STEPS\"")?;
    let mut chaos = Chaos::new(Chain::start_on_small_disks()?, seed.parse()?)?;
    let calls = written(&mut chaos, steps.parse()?);
    calls.and_then(|calls| chaos.chain.settled(calls)).with_context(|| format!("{chaos:?}"))
}

/// One program writes all the time, others come, fork and end; how many calls they counted.
fn written(chaos: &mut Chaos, steps: u32) -> Result<i64> {
    let socket = chaos.chain.node.socket();
    let long = ["--threads", "2", "--traces", "200", "--pace-us", "500"];
    let short = ["--forks", "1", "--traces", "100"];
    let mut lasting = Program::start("writer", &long, &socket, &ROOMY)?;
    let mut calls = 0;
    for _ in 0..steps {
        lasting.begin()?;
        chaos.step()?;
        calls += Program::start("writer", &short, &socket, &[])?.round()?;
        calls += lasting.finish()?;
    }
    chaos.end()?;
    Ok(calls)
}
