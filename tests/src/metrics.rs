//! The `/metrics` of all daemons, and checks that the names that others use exist.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use blkin_cli::metrics::Metrics;

use crate::artifacts::{fetched, output};
use crate::daemons::{Node, Setup};
use crate::relays::Relay;

/// Counters in annotations or spans whose losses another counter already counts in entries or annotations.
const TWINS: [&str; 3] =
    ["blkin_relay_lost_total", "blkin_relay_upstream_lost_total", "blkin_collector_spans_lost_total"];

/// `/metrics` of a consumerd, a relay and a collector, and of a consumerd that ships nowhere.
///
/// # Errors
/// When one does not become ready, or does not answer.
pub fn of_each_daemon() -> Result<String> {
    let mut node = Node::without_consumerd(Setup::default())?;
    let relay = Relay::start(node.folder(), "relay", &[&node.collector.address("scribe")?], &[])?;
    node.ship_to(&relay.scribe);
    node.start_consumerd()?;
    let nowhere = Setup { upstream: Some(String::new()), ..Setup::default() };
    let other = Node::start(nowhere)?;
    let daemons = [node.consumerd()?, other.consumerd()?, &relay.daemon, &node.collector];
    let each = daemons.map(|daemon| daemon.http.get_ok("/metrics", &[]));
    Ok(each.into_iter().collect::<Result<Vec<_>>>()?.concat())
}

/// Words of `text` that begin with `prefix`, such as the names of metrics in an expression.
pub fn words<'a>(text: &'a str, prefix: &str) -> BTreeSet<&'a str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.starts_with(prefix))
        .collect()
}

/// The names of which `metrics` has no sample.
pub fn missing<'a>(names: BTreeSet<&'a str>, metrics: &'a str) -> Vec<&'a str> {
    let samples: BTreeSet<&str> = metrics.lines().filter_map(|line| line.split(['{', ' ']).next()).collect();
    names.difference(&samples).copied().collect()
}

/// Each counter of losses with each of its causes.
pub fn losses_of(metrics: &str) -> BTreeSet<(String, String)> {
    let names = metrics.lines().filter_map(|line| line.split(['{', ' ']).next());
    let counters: BTreeSet<&str> =
        names.filter(|name| name.ends_with("lost_total") && !TWINS.contains(name)).collect();
    let metrics = Metrics::parse(metrics);
    let causes = |counter: &str| metrics.values(counter, "cause");
    counters
        .iter()
        .flat_map(|name| causes(name).into_iter().map(|cause| ((*name).to_owned(), cause)))
        .collect()
}

/// Runs Prometheus' checker in a folder.
///
/// # Errors
/// When it cannot be fetched, or finds something wrong.
pub fn promtool(arguments: &[&str], folder: &Path) -> Result<String> {
    output(Command::new(fetched("promtool")?).args(arguments).current_dir(folder))
}
