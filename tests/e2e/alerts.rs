//! Compares the alerts in packaging/prometheus and docs/operations.md with the daemons' counters: every loss has an alert, and
//! docs/operations.md says what to do about every alert and every cause of a loss.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;

use anyhow::{Result, ensure};
use blkin_cli::doctor::losses;
use blkin_tests::artifacts::root;
use blkin_tests::metrics::{losses_of, missing, of_each_daemon, promtool, words};

const RULES: &str = "packaging/prometheus/blkin.rules.yml";
/// Causes of losses that the configuration asks for.
const AS_CONFIGURED: [&str; 4] = ["expired", "sampled_out", "overwritten", "recorder_released"];

/// The first cell, without backquotes, of each table row in the section of docs/operations.md with this heading.
fn documented(heading: &str) -> Result<BTreeSet<String>> {
    let text = fs::read_to_string(root().join("docs/operations.md"))?;
    let section = text.split("\n## ").find(|section| section.starts_with(heading)).unwrap_or_default();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    Ok(rows.map(|(name, _)| name.to_owned()).collect())
}

#[test]
fn promtool_accepts_the_rules_and_their_tests() -> Result<()> {
    let folder = root().join("packaging/prometheus");
    promtool(&["check", "rules", "blkin.rules.yml"], &folder)?;
    promtool(&["test", "rules", "blkin.rules.test.yml"], &folder)?;
    Ok(())
}

#[test]
fn the_rules_use_only_metrics_that_a_daemon_exports() -> Result<()> {
    let (rules, metrics) = (fs::read_to_string(root().join(RULES))?, of_each_daemon()?);
    let missing = missing(words(&rules, "blkin_"), &metrics);
    ensure!(missing.is_empty(), "{missing:?} in {metrics}");
    Ok(())
}

#[test]
fn each_unconfigured_loss_and_each_doctor_warning_has_one_alert() -> Result<()> {
    let losses = losses_of(&of_each_daemon()?);
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

/// Appends a promtool test that `alerts` alerts fire once this counter grows.
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
fn operations_md_covers_each_alert_and_cause_of_loss() -> Result<()> {
    let rules = fs::read_to_string(root().join(RULES))?;
    let alerts = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ").map(str::to_owned));
    assert_eq!(documented("Alerts")?, alerts.collect());
    let losses = losses_of(&of_each_daemon()?);
    assert_eq!(documented("Losses")?, losses.into_iter().map(|(_, cause)| cause).collect());
    Ok(())
}
