//! `blkin doctor`: whether tracing works on this machine and, if not, why and what to do.

mod clocks;
mod daemons;
mod kernel;
pub mod losses;
mod programs;
mod room;
mod scan;
mod socket;

use std::fmt::Write as _;
use std::path::PathBuf;

use serde::Serialize;

use crate::http::Client;
use crate::ledger::Ledger;
use crate::terminal::{Colour, Style, safe, wrapped};

/// The addresses of this node's daemons, and of those behind it.
#[derive(Debug)]
pub struct Places {
    /// consumerd's socket.
    pub socket: PathBuf,
    /// consumerd's metrics and health.
    pub consumerd: Client,
    /// The relays to check, nearest first.
    pub relays: Vec<Client>,
    /// The collector.
    pub collector: Client,
}

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// As it should be.
    Ok,
    /// Tracing works, but not as well as it could, or not for everyone.
    Warning,
    /// Tracing does not work.
    Failed,
}

/// One thing that was checked.
#[derive(Debug, Clone, Serialize)]
pub struct Check {
    /// What was checked.
    pub name: &'static str,
    /// How it ended.
    pub status: Status,
    /// What was found.
    pub found: String,
    /// What to do, unless all is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Check {
        Check { name, status: Status::Ok, found: found.into(), advice: None }
    }

    fn warning(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Check {
        Check { name, status: Status::Warning, found: found.into(), advice: Some(advice.into()) }
    }

    fn failed(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Check {
        Check { name, status: Status::Failed, found: found.into(), advice: Some(advice.into()) }
    }
}

/// Everything found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// No check failed and the ledger balances.
    pub healthy: bool,
    /// All checks, in the order in which an annotation travels.
    pub checks: Vec<Check>,
    /// Whether the ledger has equations, and every one holds.
    pub balanced: bool,
    /// The ledger, as far as its daemons could be read.
    pub ledger: Vec<crate::ledger::Equation>,
}

/// Runs all checks.
pub fn examine(places: Places) -> Report {
    let mut checks = vec![kernel::memfd(), kernel::rseq(), kernel::clock()];
    let answers = daemons::DaemonAnswers::ask(places.consumerd, "/healthz");
    checks.push(socket::check(&places.socket, &answers));
    checks.push(daemons::consumerd(&answers));
    checks.extend(daemons::sinks(&answers));
    let consumerd = answers.metrics();
    checks.extend(consumerd.as_ref().and_then(daemons::no_sink));
    checks.extend(consumerd.iter().flat_map(|metrics| daemons::unreached(&answers, metrics)));
    let mut ledgers = vec![consumerd.as_ref().map(Ledger::of_consumerd).unwrap_or_default()];
    checks.push(programs::attachment(consumerd.as_ref(), &places.socket));
    checks.extend(consumerd.as_ref().map(programs::offers));
    checks.extend(consumerd.as_ref().and_then(room::of_consumerd));
    checks.extend(consumerd.iter().flat_map(losses::of_consumerd));
    for relay in places.relays {
        let relay = daemons::DaemonAnswers::ask(relay, "/healthz");
        checks.push(daemons::relay(&relay));
        checks.extend(daemons::deliveries(&relay));
        let metrics = relay.metrics().unwrap_or_default();
        ledgers.push(Ledger::of_relay(&relay.host, &metrics));
        checks.extend(room::of_relay(&relay.base, &metrics));
        checks.extend(losses::of_relay(&relay.base, &metrics));
    }
    let collector = daemons::DaemonAnswers::ask_collector(places.collector);
    checks.push(daemons::collector(&collector, consumerd.as_ref()));
    checks.extend(daemons::disk_and_clock(&collector));
    checks.extend(clocks::check(&collector));
    let metrics = collector.metrics().unwrap_or_default();
    ledgers.push(Ledger::of_collector(&metrics));
    checks.extend(room::of_collector(&collector.base, &metrics));
    checks.extend(losses::of_collector(&metrics));
    let are_all_read = ledgers.iter().all(|of_one| !of_one.equations.is_empty());
    let ledger = ledgers.into_iter().fold(Ledger::default(), Ledger::and);
    checks.push(ledger_check(&ledger, are_all_read));
    let balanced = ledger.balances() && !ledger.equations.is_empty();
    let healthy = ledger.balances() && checks.iter().all(|check| check.status != Status::Failed);
    Report { healthy, checks, balanced, ledger: ledger.equations }
}

/// Causes by which only those annotations are lost that the configuration says: old traces, what sampling leaves out, what a flight
/// recorder overwrites, and what it still held when it was released.
const AS_CONFIGURED: [&str; 4] = ["expired", "sampled_out", "overwritten", "recorder_released"];

/// Whether the ledger of the daemons that could be read balances. Losses at the others are not known.
fn ledger_check(ledger: &Ledger, are_all_read: bool) -> Check {
    const NAME: &str = "ledger";
    let (configured, unwanted): (Vec<_>, Vec<_>) =
        ledger.lost_by_cause().into_iter().partition(|(cause, _)| AS_CONFIGURED.contains(cause));
    if ledger.equations.is_empty() {
        Check::warning(
            NAME,
            "no daemon could be read",
            "start blkin-consumerd and blkin-collector, or name them",
        )
    } else if !ledger.balances() {
        Check::failed(
            NAME,
            "an equation does not hold: annotations disappeared without being counted",
            "report this as a bug, with this output",
        )
    } else if !unwanted.is_empty() {
        Check::warning(
            NAME,
            format!("balances; annotations were lost: {}", counted(&unwanted)),
            losses::advice(unwanted.iter().map(|(cause, _)| *cause)),
        )
    } else if !configured.is_empty() {
        Check::ok(
            NAME,
            format!("balances; annotations were left out only as configured: {}", counted(&configured)),
        )
    } else if are_all_read {
        Check::ok(NAME, "balances, nothing was lost")
    } else {
        Check::ok(NAME, "what could be read balances; nothing was lost there")
    }
}

/// `full 12, queue_full 3`
fn counted(causes: &[(&str, i64)]) -> String {
    let counts: Vec<String> = causes.iter().map(|(cause, count)| format!("{cause} {count}")).collect();
    counts.join(", ")
}

/// The report as text, with a final newline.
pub fn text(report: &Report, style: Style) -> String {
    let widest = report.checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let mut out = String::new();
    for check in &report.checks {
        put_check(&mut out, check, widest, style);
    }
    if !report.ledger.is_empty() {
        let _ = writeln!(out, "\n{}", style.paint(Colour::Bold, "Ledger (annotations)"));
        out.push_str(&Ledger { equations: report.ledger.clone() }.table(style));
    }
    let verdict = match (report.healthy, report.checks.iter().all(|check| check.status == Status::Ok)) {
        (true, true) => style.paint(Colour::Green, "Tracing works on this machine."),
        (true, false) => style.paint(Colour::Yellow, "Tracing works on this machine, see the warnings."),
        (false, _) => style.paint(Colour::Red, "Tracing does not work as it should: see what FAILED."),
    };
    let _ = writeln!(out, "\n{verdict}");
    out
}

/// One check: its mark, its name in `widest` columns, then what was found and what to do.
fn put_check(out: &mut String, check: &Check, widest: usize, style: Style) {
    let (mark, colour) = match check.status {
        Status::Ok => ("ok     ", Colour::Green),
        Status::Warning => ("warning", Colour::Yellow),
        Status::Failed => ("FAILED ", Colour::Red),
    };
    let beside = mark.len() + 2 + widest + 2;
    let lines = |text: &str, before: usize| {
        let indented = format!("\n{:indent$}", "", indent = beside + before);
        wrapped(&safe(text), style.columns.saturating_sub(beside + before)).join(&indented)
    };
    let mark = style.paint(colour, mark);
    let _ = writeln!(out, "{mark}  {:<widest$}  {}", check.name, lines(&check.found, 0));
    for advice in check.advice.iter().flat_map(|advice| advice.lines()) {
        let _ = writeln!(out, "{:beside$}→ {}", "", lines(advice, 2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::answering;
    use crate::ledger::{Equation, Term};

    fn nobody() -> Places {
        Places {
            socket: "/nonexistent/consumerd.sock".into(),
            consumerd: Client::new("127.0.0.1:1"),
            relays: vec![Client::new("127.0.0.1:1")],
            collector: Client::new("127.0.0.1:1"),
        }
    }

    #[test]
    fn checks_without_daemons_fail_with_advice() {
        let report = examine(nobody());
        assert!(!report.healthy && !report.balanced);
        let failed: Vec<&str> = report
            .checks
            .iter()
            .filter(|check| check.status == Status::Failed)
            .map(|check| check.name)
            .collect();
        assert_eq!(failed, ["consumerd's socket", "consumerd", "relay", "collector"]);
        assert!(report.checks.iter().all(|check| (check.status == Status::Ok) == check.advice.is_none()));
        let text = text(&report, Style { columns: 100, colours: false });
        assert!(text.contains("FAILED ") && text.contains("→ "), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }

    fn losing(causes: &[(&str, i64)]) -> Check {
        let term = |name: &str, value| Term { name: name.to_owned(), value };
        let lost = causes.iter().map(|(cause, count)| term(&format!("lost{{{cause}}}"), *count));
        let left = term("received", causes.iter().map(|(_, count)| count).sum());
        let equation = Equation { scope: "x".into(), left, right: lost.collect() };
        ledger_check(&Ledger { equations: vec![equation.clone(), equation] }, true)
    }

    #[test]
    fn the_ledger_check_names_the_causes_of_losses() {
        let check = losing(&[("full", 0), ("queue_full", 3), ("expired", 9)]);
        assert_eq!(
            (check.status, check.found.as_str()),
            (Status::Warning, "balances; annotations were lost: queue_full 6")
        );
    }

    #[test]
    fn losses_by_configuration_are_not_a_warning() {
        let check = losing(&[("expired", 2), ("overwritten", 1), ("recorder_released", 3), ("full", 0)]);
        assert_eq!(check.status, Status::Ok);
        assert!(check.found.ends_with("expired 4, overwritten 2, recorder_released 6"), "{}", check.found);
        assert_eq!(losing(&[("full", 0)]).found, "balances, nothing was lost");
    }

    #[test]
    fn without_a_collectors_figures_the_ledger_check_covers_the_rest() {
        let of_consumerd = "blkin_sink_acked_total{sink=\"scribe\"} 0\n";
        let ledger = |collector: &'static str| {
            let consumerd = answering(move |_| ("200 OK", of_consumerd));
            let collector = answering(move |_| ("200 OK", collector));
            let places = Places { consumerd, relays: Vec::new(), collector, ..nobody() };
            let report = examine(places);
            let check = report.checks.into_iter().find(|check| check.name == "ledger").unwrap();
            (check.status, check.found)
        };
        assert_eq!(
            ledger("blkin_collector_received_total 0\n"),
            (Status::Ok, "balances, nothing was lost".to_owned())
        );
        for other in [r#"{"counter.zipkin_collector.spans.http":4.0}"#, "hi"] {
            let part = "what could be read balances; nothing was lost there".to_owned();
            assert_eq!(ledger(other), (Status::Ok, part), "{other}");
        }
    }

    #[test]
    fn the_report_can_be_serialized_as_json() {
        let json = serde_json::to_value(examine(nobody())).unwrap();
        assert_eq!(json["healthy"], false);
        assert_eq!(json["checks"][0]["name"], "memfd");
    }
}
