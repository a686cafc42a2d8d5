//! What packaging/prometheus alerts of, and docs/operations.md says of it, against what the daemons count: no loss is without an
//! alert, no alert and no cause without a word on what to do.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use blkin_cli::doctor::losses;
use blkin_cli::metrics::Metrics;
use blkin_tests::artifacts::{fetched, output, root};
use blkin_tests::daemons::{Node, Setup};
use blkin_tests::relays::Relay;

const RULES: &str = "packaging/prometheus/blkin.rules.yml";
/// What goes because it was configured to go.
const AS_CONFIGURED: [&str; 3] = ["expired", "sampled_out", "overwritten"];
/// Counts in annotations and in spans of what other counters have in entries and in annotations.
const TWINS: [&str; 3] =
    ["blkin_relay_lost_total", "blkin_relay_upstream_lost_total", "blkin_collector_spans_lost_total"];

/// `/metrics` of a consumerd, a relay and a collector.
fn metrics_of_each_daemon() -> Result<String> {
    let mut node = Node::without_consumerd(Setup::default())?;
    let relay = Relay::start(node.folder(), "relay", &[&node.collector.address("scribe")?], &[])?;
    node.ship_to(&relay.scribe);
    node.start_consumerd()?;
    let daemons = [node.consumerd()?, &relay.daemon, &node.collector];
    let each = daemons.map(|daemon| daemon.http.get_ok("/metrics", &[]));
    Ok(each.into_iter().collect::<Result<Vec<_>>>()?.concat())
}

/// Each counter of losses with each of its causes.
fn losses_of(metrics: &str) -> BTreeSet<(String, String)> {
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

/// Words of `text` that begin with one of `prefixes`.
fn words<'a>(text: &'a str, prefix: &str) -> BTreeSet<&'a str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.starts_with(prefix))
        .collect()
}

/// The first cell of each row in the section of docs/operations.md under this heading, without its code marks.
fn documented(heading: &str) -> Result<BTreeSet<String>> {
    let text = fs::read_to_string(root().join("docs/operations.md"))?;
    let section = text.split("\n## ").find(|section| section.starts_with(heading)).unwrap_or_default();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    Ok(rows.map(|(name, _)| name.to_owned()).collect())
}

fn promtool(arguments: &[&str], folder: &Path) -> Result<String> {
    output(Command::new(fetched("promtool")?).args(arguments).current_dir(folder))
}

#[test]
fn the_rules_are_good_and_do_what_their_tests_say() -> Result<()> {
    let folder = root().join("packaging/prometheus");
    promtool(&["check", "rules", "blkin.rules.yml"], &folder)?;
    promtool(&["test", "rules", "blkin.rules.test.yml"], &folder)?;
    Ok(())
}

#[test]
fn whatever_the_rules_speak_of_is_in_the_metrics_of_a_daemon() -> Result<()> {
    let (rules, metrics) = (fs::read_to_string(root().join(RULES))?, metrics_of_each_daemon()?);
    let has = |name: &&&str| metrics.lines().any(|line| line.strip_prefix(**name).is_some_and(is_sample));
    let missing: Vec<&str> = words(&rules, "blkin_").iter().filter(|name| !has(name)).copied().collect();
    ensure!(missing.is_empty(), "{missing:?} in {metrics}");
    Ok(())
}

/// Whether this follows the name in a line with a sample.
fn is_sample(rest: &str) -> bool {
    rest.starts_with(['{', ' '])
}

#[test]
fn each_loss_that_is_not_configured_and_whatever_the_doctor_warns_of_has_one_alert() -> Result<()> {
    let losses = losses_of(&metrics_of_each_daemon()?);
    ensure!(losses.len() >= 18, "{losses:?}");
    let mut tests =
        format!("rule_files: ['{}']\nevaluation_interval: 1m\ntests:\n", root().join(RULES).display());
    for (counter, cause) in &losses {
        let alerts = usize::from(!AS_CONFIGURED.contains(&cause.as_str()));
        expect(&mut tests, counter, cause, alerts);
    }
    for counter in losses::counters() {
        expect(&mut tests, counter, "any", 1);
    }
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("test.yml"), tests)?;
    promtool(&["test", "rules", "test.yml"], folder.path())?;
    Ok(())
}

/// A test that so many alerts fire once this counter grows.
fn expect(tests: &mut String, counter: &str, cause: &str, alerts: usize) {
    let labels = "instance=\"i\", job=\"blkin\"";
    let samples = if alerts == 0 { "[]".to_owned() } else { format!("[{{value: {alerts}}}]") };
    let _ = write!(
        tests,
        "- name: {counter} {cause}
  interval: 1m
  input_series:
  - {{series: '{counter}{{{labels}, cause=\"{cause}\"}}', values: '0x5 3x5'}}
  - {{series: 'process_start_time_seconds{{{labels}}}', values: '0x10'}}
  promql_expr_test:
  - {{expr: 'count(ALERTS{{alertstate=\"firing\"}})', eval_time: 8m, exp_samples: {samples}}}
"
    );
}

#[test]
fn operations_md_says_what_to_do_of_each_alert_and_each_cause_of_a_loss() -> Result<()> {
    let rules = fs::read_to_string(root().join(RULES))?;
    let alerts = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ").map(str::to_owned));
    assert_eq!(documented("Alerts")?, alerts.collect());
    let losses = losses_of(&metrics_of_each_daemon()?);
    assert_eq!(documented("Losses")?, losses.into_iter().map(|(_, cause)| cause).collect());
    Ok(())
}
