//! Many faults, some at the same time, in a pseudo-random order.

use anyhow::{Context, Result};
use blkin_tests::chain::Chain;
use blkin_tests::chaos::Chaos;
use blkin_tests::daemons::LIMIT;
use blkin_tests::program::Program;
use blkin_tests::wait;
use blkin_tests::wire::Trouble;

use crate::ledger::ROOMY;

/// The seed and steps of the test suite; `BLKIN_CHAOS="SEED STEPS"` runs others.
const USUAL: &str = "1 50";

#[test]
fn random_faults_of_daemons_disks_and_wires_lose_nothing() -> Result<()> {
    let asked = std::env::var("BLKIN_CHAOS").unwrap_or_else(|_| USUAL.to_owned());
    let (seed, steps) = asked.split_once(' ').context("BLKIN_CHAOS is \"SEED STEPS\"")?;
    let mut chaos = Chaos::new(Chain::start_breakable()?, seed.parse()?)?;
    let calls = written(&mut chaos, steps.parse()?);
    calls.and_then(|calls| chaos.chain.settled(calls)).with_context(|| format!("{chaos:?}"))
}

/// One program writes all the time; others start, fork and end. Returns how many calls they counted.
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

#[test]
fn a_silent_connection_leaves_daemons_healthy_and_loses_nothing() -> Result<()> {
    let chain = Chain::start_breakable()?;
    let mut program = Program::start("writer", &["--traces", "1000"], &chain.node.socket(), &ROOMY)?;
    let mut calls = 0;
    for wire in &chain.wires {
        wire.suffer(Trouble::Silent)?;
        calls += program.round()?;
        let daemons =
            [chain.node.consumerd()?, &chain.leaf.daemon, &chain.root.daemon, &chain.node.collector];
        wait::until(LIMIT, "a daemon to report the trouble", || {
            let told = daemons.map(|daemon| daemon.http.get("/healthz", &[]));
            told.into_iter().flatten().any(|told| !told.body.contains(r#""troubles":[]"#)).then_some(())
        })?;
        daemons.into_iter().try_for_each(|daemon| daemon.http.get_ok("/healthz", &[]).map(drop))?;
        wire.heal()?;
        chain.settled(calls)?;
    }
    Ok(())
}
