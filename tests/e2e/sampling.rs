//! RATE=N records one in N roots, and nothing of the others.

use std::fs;

use anyhow::{Result, ensure};
use blkin_tests::artifacts::with_each_producer;
use blkin_tests::daemons::{Node, Setup};
use blkin_tests::program::Program;

use blkin_tests::sums::check_lossless;

const RATE: i64 = 500;
/// Slots of a program with rings of the default size.
const SLOTS: i64 = 16;

/// Runs the sampler; returns the node and how many roots were sampled, by the program's own count.
fn sampled(arguments: &[&str], environment: &[(&str, &str)]) -> Result<(Node, i64)> {
    let node = Node::start(Setup::default())?;
    let mut program = Program::start("sampler", arguments, &node.socket(), environment)?;
    let calls = program.round()?;
    assert!(program.end()?.success());
    check_lossless(&node, calls)?;
    assert_eq!(calls % 2, 0);
    Ok((node, calls / 2))
}

fn traces(node: &Node) -> Result<i64> {
    let query = [("serviceName", "sampler"), ("limit", "100000")];
    let found: Vec<serde_json::Value> =
        serde_json::from_str(&node.collector.http.get_ok("/api/v2/traces", &query)?)?;
    Ok(found.len() as i64)
}

/// How far the number of sampled roots may be off. Each slot counts the roots of its CPUs on its own, from a random phase,
/// so it is off by less than one. A thread that moves to another CPU is counted by another slot, so more slots may count
/// than there are threads: one for each CPU, up to the number of slots.
fn tolerance(threads: i64) -> Result<i64> {
    let cpus =
        fs::read_to_string("/proc/cpuinfo")?.lines().filter(|line| line.starts_with("processor")).count();
    ensure!(cpus > 0, "/proc/cpuinfo names no processor");
    Ok(threads.max(SLOTS.min(cpus as i64)))
}

#[test]
fn each_thread_samples_one_root_in_n() -> Result<()> {
    let (threads, roots) = (4, 400_000);
    with_each_producer(&[("RATE", "500")], |environment| {
        let (node, sampled) = sampled(&["--threads", "4", "--roots", "400000"], environment)?;
        let off = (sampled - roots / RATE).abs();
        ensure!(off <= tolerance(threads)?, "{sampled} of {roots}");
        ensure!(traces(&node)? == sampled, "an unsampled request was stored");
        Ok(())
    })
}

#[test]
fn forked_children_start_at_random_phases() -> Result<()> {
    // Fewer than the programs that consumerd holds for one user: if it is delayed, it would refuse any beyond that.
    let forks = 200.0_f64;
    let (node, sampled) = sampled(&["--forks", "200"], &[("RATE", "5")])?;
    let probability = 1.0 / 5.0;
    let sigma = (forks * probability * (1.0 - probability)).sqrt();
    let off = (sampled as f64 - forks * probability).abs();
    // With the same phase in all children, none or all would be sampled.
    assert!(off <= 6.0 * sigma, "{sampled} of {forks} sampled, σ {sigma}");
    assert_eq!(traces(&node)?, sampled, "an unsampled request was stored");
    Ok(())
}

#[test]
fn unsampled_requests_record_nothing() -> Result<()> {
    let (node, sampled) = sampled(&["--threads", "2", "--roots", "10"], &[("RATE", "9000000000000000000")])?;
    assert_eq!((sampled, traces(&node)?), (0, 0));
    assert_eq!(node.collector.metrics()?.sum("blkin_collector_received_total", &[]), 0);
    Ok(())
}
