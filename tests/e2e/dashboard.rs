//! Compares the dashboard in packaging/grafana with the daemons' metrics: every metric it uses exists, and each loss has a panel.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result, ensure};
use blkin_tests::artifacts::root;
use blkin_tests::metrics::{losses_of, missing, of_each_daemon, promtool, words};
use serde::Deserialize;

const DASHBOARD: &str = "packaging/grafana/blkin.json";
const RULES: &str = "packaging/prometheus/blkin.rules.yml";
/// Labels that Prometheus adds to every metric.
const OF_PROMETHEUS: [&str; 2] = ["instance", "job"];

#[derive(Deserialize)]
struct Dashboard {
    panels: Vec<Panel>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Panel {
    id: u32,
    title: String,
    description: Option<String>,
    grid_pos: Place,
    #[serde(default)]
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Place {
    x: u32,
    y: u32,
    w: u32,
    h: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Target {
    expr: String,
    legend_format: String,
}

fn dashboard() -> Result<Dashboard> {
    serde_json::from_str(&fs::read_to_string(root().join(DASHBOARD))?).context(DASHBOARD)
}

impl Dashboard {
    fn targets(&self) -> impl Iterator<Item = &Target> {
        self.panels.iter().flat_map(|panel| &panel.targets)
    }

    /// All expressions of all panels, one a line.
    fn asked(&self) -> String {
        self.targets().map(|target| target.expr.clone() + "\n").collect()
    }
}

#[test]
fn the_dashboard_uses_only_metrics_that_a_daemon_exports() -> Result<()> {
    let (asked, metrics) = (dashboard()?.asked(), of_each_daemon()?);
    for prefix in ["blkin_", "process_"] {
        let names = words(&asked, prefix);
        ensure!(!names.is_empty(), "the dashboard uses no {prefix} metric");
        let missing = missing(names, &metrics);
        ensure!(missing.is_empty(), "{missing:?} in {metrics}");
    }
    let rules = fs::read_to_string(root().join(RULES))?;
    for recorded in asked.split([' ', '(', ')', '{', '\n']).filter(|word| word.starts_with("blkin:")) {
        ensure!(rules.contains(&format!("record: {recorded}\n")), "no rule records {recorded}");
    }
    Ok(())
}

#[test]
fn a_figure_that_nothing_records_is_not_shown_as_zero() -> Result<()> {
    let asked = dashboard()?.asked();
    ensure!(!asked.contains("vector("), "{asked}");
    Ok(())
}

#[test]
fn legends_use_only_labels_of_their_metrics() -> Result<()> {
    let (dashboard, metrics) = (dashboard()?, of_each_daemon()?);
    for Target { expr, legend_format } in dashboard.targets() {
        let of = words(expr, "blkin_");
        let samples = metrics.lines().filter(|line| of.iter().any(|name| line.starts_with(name)));
        let samples: Vec<&str> = samples.collect();
        let labels = legend_format.split("{{").skip(1).filter_map(|rest| Some(rest.split_once("}}")?.0));
        for label in labels.filter(|label| !OF_PROMETHEUS.contains(label)) {
            let given = format!("{label}=\"");
            ensure!(samples.iter().any(|line| line.contains(&given)), "{label} of {expr}");
        }
    }
    Ok(())
}

#[test]
fn each_loss_counter_has_a_panel() -> Result<()> {
    let (asked, losses) = (dashboard()?.asked(), losses_of(&of_each_daemon()?));
    let counters: BTreeSet<&str> = losses.iter().map(|(counter, _)| counter.as_str()).collect();
    let without: Vec<_> = counters.difference(&words(&asked, "blkin_")).copied().collect();
    ensure!(counters.len() >= 6 && without.is_empty(), "{without:?} of {counters:?}");
    Ok(())
}

#[test]
fn each_metric_of_a_lasting_alert_has_a_panel() -> Result<()> {
    let (asked, rules) = (dashboard()?.asked(), fs::read_to_string(root().join(RULES))?);
    let alerts = rules.split("- alert: ").filter_map(|alert| alert.split_once('\n'));
    let lasting =
        alerts.filter(|(name, _)| ["Filling", "Overfull", "Trouble"].iter().any(|end| name.ends_with(end)));
    let watched: BTreeSet<&str> =
        lasting.filter_map(|(_, rest)| rest.lines().next()).flat_map(|expr| words(expr, "blkin_")).collect();
    let without: Vec<_> = watched.difference(&words(&asked, "blkin_")).copied().collect();
    ensure!(watched.len() >= 11 && without.is_empty(), "{without:?} of {watched:?}");
    Ok(())
}

#[test]
fn promtool_accepts_the_expressions_of_the_panels() -> Result<()> {
    let mut rules = "groups:\n- name: panels\n  rules:\n".to_owned();
    for (number, target) in dashboard()?.targets().enumerate() {
        let expr = target.expr.replace("$__rate_interval", "5m").replace("$instance", ".*");
        let expr = serde_json::to_string(&expr)?;
        let _ = writeln!(rules, "  - {{record: panel_{number}, expr: {expr}}}");
    }
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("panels.yml"), rules)?;
    promtool(&["check", "rules", "panels.yml"], folder.path())?;
    Ok(())
}

/// Grafana asks for the rate over four scrapes, every 15 seconds by default, but Prometheus evaluates a subquery only once a
/// minute by default. A rate of a sum therefore has to name a resolution of one scrape.
#[test]
fn rates_of_sums_have_values_at_one_minute_evaluation() -> Result<()> {
    let mut tests = "evaluation_interval: 1m\ntests:\n".to_owned();
    let dashboard = dashboard()?;
    let of_sums: Vec<&Target> =
        dashboard.targets().filter(|target| target.expr.contains("$__rate_interval:")).collect();
    ensure!(of_sums.len() >= 3, "{} rates of sums", of_sums.len());
    for Target { expr, .. } in of_sums {
        let of = words(expr, "blkin_").into_iter().next().context("the expression names no metric")?;
        let expr = expr.replace("$__rate_interval", "1m").replace("$instance", ".*");
        let expr = serde_json::to_string(&format!("count({expr})"))?;
        let _ = write!(
            tests,
            "- interval: 15s
  input_series: [{{series: '{of}{{instance=\"i\", process=\"osd:1\"}}', values: '0+150x100'}}]
  promql_expr_test: [{{expr: {expr}, eval_time: 10m15s, exp_samples: [{{value: 1}}]}}]
"
        );
    }
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("test.yml"), tests)?;
    promtool(&["test", "rules", "test.yml"], folder.path())?;
    Ok(())
}

#[test]
fn panels_have_unique_ids_titles_and_places_and_a_description() -> Result<()> {
    let panels = dashboard()?.panels;
    let ids: BTreeSet<u32> = panels.iter().map(|panel| panel.id).collect();
    assert_eq!(ids.len(), panels.len());
    let (mut taken, mut titles) = (BTreeSet::new(), BTreeSet::new());
    for Panel { title, description, grid_pos: Place { x, y, w, h }, targets, .. } in &panels {
        ensure!(titles.insert(title), "two panels are called {title}");
        ensure!(targets.is_empty() || description.is_some(), "{title} does not say what it shows");
        ensure!(x + w <= 24, "{title} is too wide");
        let mut cells = (*y..y + h).flat_map(|y| (*x..x + w).map(move |x| (x, y)));
        ensure!(cells.all(|cell| taken.insert(cell)), "{title} lies over another panel");
    }
    Ok(())
}
