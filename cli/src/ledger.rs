//! The ledger: written = stored + the sum of named losses.
//!
//! Every figure was counted where it happened, by the daemon that reports it; here they are only compared. The unit
//! is one annotation.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::http::Client;
use crate::metrics::Metrics;
use crate::terminal::{Colour, Style, filled, fit, safe, width};

/// A named figure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Term {
    /// Its name in the ledger, such as `lost{full}`.
    pub name: String,
    /// Annotations.
    pub value: i64,
}

impl Term {
    fn is_loss(&self) -> bool {
        self.name.contains("lost{")
    }

    fn is_rare(&self) -> bool {
        self.is_loss() || self.name == DRAINED_BEFORE
    }
}

/// `left = right[0] + right[1] + …` for one program, daemon or sink.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Equation {
    /// Whom it speaks of: `osd:812`, `sink scribe`, `collector`.
    pub scope: String,
    /// The whole.
    pub left: Term,
    /// Its parts.
    pub right: Vec<Term>,
}

/// The steps of an annotation's way that are accounted for, in a few words each.
const STEPS: [&str; 6] = [
    "recorded by programs, into their rings",
    "read out of the rings by consumerd",
    "understood by consumerd",
    "shipped by each sink of consumerd",
    "taken by relays, and passed on to each upstream",
    "stored by the collector",
];
/// The steps that have an equation for each program.
const OF_PROGRAMS: std::ops::Range<usize> = 0..3;
/// Programs that lost nothing have a line each if they are no more than that.
const MOST_LINES: usize = 8;
/// The collector's scope.
const COLLECTOR: &str = "collector";
/// What consumerd calls all programs that have ended.
const DEPARTED: &str = "departed";

impl Equation {
    /// Which of [`STEPS`] it speaks of.
    fn step(&self) -> usize {
        match self.left.name.as_str() {
            "attempted" => 0,
            "committed" => 1,
            "drained" => 2,
            "valid" => 3,
            _ if self.scope == COLLECTOR => 5,
            _ => 4,
        }
    }

    /// Whom it speaks of, for people.
    fn whom(&self) -> String {
        safe(if self.scope == DEPARTED { "ended programs" } else { &self.scope })
    }

    /// Its line, or where that has no room whom it speaks of in one and the rest below. What is rarely other than 0, and is 0,
    /// is left out.
    fn text(&self, widest: usize, style: Style) -> String {
        let (verdict, colour) =
            if self.holds() { ("holds", Colour::Green) } else { ("DOES NOT HOLD", Colour::Red) };
        let shown = self.right.iter().filter(|term| term.value != 0 || !term.is_rare());
        let terms: Vec<String> = shown.map(|term| format!("{} {}", term.name, term.value)).collect();
        let sum = safe(&format!("{} {} = {}", self.left.name, self.left.value, terms.join(" + ")));
        let whom = self.whom();
        let mut text = format!("    {}  {sum}  {verdict}", fit(&whom, widest));
        if width(&text) > style.columns {
            let pieces = sum.split_inclusive(['=', '+']).map(str::trim).chain([verdict]);
            let below = filled(pieces, style.columns.saturating_sub(6));
            text = format!("    {whom}\n      {}", below.join("\n      "));
        }
        text.truncate(text.len() - verdict.len());
        text + &style.paint(colour, verdict)
    }

    /// Whether both sides are equal.
    pub fn holds(&self) -> bool {
        self.left.value == self.right.iter().map(|term| term.value).sum::<i64>()
    }

    /// It is a running program's, holds, and names no loss.
    fn is_uneventful(&self) -> bool {
        let lost = self.right.iter().any(|term| term.is_loss() && term.value != 0);
        OF_PROGRAMS.contains(&self.step()) && self.scope != DEPARTED && self.holds() && !lost
    }

    /// It is that of ended programs, and they recorded nothing.
    fn is_of_no_ended_program(&self) -> bool {
        let terms = std::iter::once(&self.left).chain(&self.right);
        self.scope == DEPARTED && terms.map(|term| term.value).all(|value| value == 0)
    }

    /// All of these programs in one line. It holds as they do.
    fn of_all(uneventful: &[&Equation]) -> Equation {
        let mut sum = Equation {
            scope: format!("{} programs without a loss", uneventful.len()),
            ..uneventful[0].clone()
        };
        for more in &uneventful[1..] {
            sum.left.value += more.left.value;
            for term in &more.right {
                match sum.right.iter_mut().find(|known| known.name == term.name) {
                    Some(known) => known.value += term.value,
                    None => sum.right.push(term.clone()),
                }
            }
        }
        sum
    }
}

/// The equations of a step as they are told: what many programs have in common, in one; of ended programs nothing while
/// there are none, unless nobody else is there.
fn told(mut equations: Vec<&Equation>) -> Vec<Equation> {
    if equations.len() > 1 {
        equations.retain(|equation| !equation.is_of_no_ended_program());
    }
    let (uneventful, others): (Vec<_>, Vec<_>) =
        equations.iter().partition(|equation| equation.is_uneventful());
    if uneventful.len() <= MOST_LINES {
        return equations.into_iter().cloned().collect();
    }
    std::iter::once(Equation::of_all(&uneventful)).chain(others.into_iter().cloned()).collect()
}

/// All equations of one reading.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Ledger {
    /// In the order in which an annotation travels.
    pub equations: Vec<Equation>,
}

/// What the daemons said when they were asked.
#[derive(Debug, Default)]
pub struct Reading {
    /// The equations of those that could be read.
    pub ledger: Ledger,
    /// A sentence for each of the others: which, and why.
    pub unread: Vec<String>,
    /// That a Zipkin server has the collector's place, which counts no annotations.
    pub silent: Option<String>,
}

impl Reading {
    /// Whether every daemon was read, and every equation holds.
    pub fn balances(&self) -> bool {
        self.unread.is_empty() && self.ledger.balances()
    }

    fn take(&mut self, daemon: &str, client: &Client, equations: impl FnOnce(&Metrics) -> Ledger) {
        match client.get_ok("/metrics", &[]) {
            Ok(text) => match equations(&Metrics::parse(&text)).equations {
                none if none.is_empty() && daemon == COLLECTOR && is_zipkins(&text) => {
                    let silence = "a Zipkin server, which does not tell what became of annotations";
                    self.silent = Some(format!("the ledger ends before {}: {silence}", client.base()));
                }
                none if none.is_empty() => self.miss(daemon, client.other(daemon)),
                found => self.ledger.equations.extend(found),
            },
            Err(error) => self.miss(daemon, format!("{error:#}")),
        }
    }

    fn miss(&mut self, daemon: &str, why: String) {
        self.unread.push(format!("{daemon} is missing in the ledger: {why}"));
    }
}

const CONSUMERD_LOST: &str = "blkin_lost_total";
const SINK_LOST: &str = "blkin_sink_lost_total";
/// What an earlier consumerd has drained of a program: shipped, and no longer in this one's figures.
const DRAINED_BEFORE: &str = "drained_before";

impl Ledger {
    /// The program's, consumerd's and the sinks' equations from consumerd's metrics.
    pub fn of_consumerd(metrics: &Metrics) -> Ledger {
        let mut equations = Vec::new();
        for (process, own) in metrics.by("process") {
            if own.has("blkin_program_attempted_total") {
                equations.extend([program(&own, process), drain(&own, process), validity(&own, process)]);
            }
        }
        let sinks = metrics.values("blkin_sink_acked_total", "sink");
        equations.extend(sinks.iter().map(|sink| shipping(metrics, sink)));
        Ledger { equations }
    }

    /// The collector's equation from its metrics; none from those of another daemon.
    pub fn of_collector(metrics: &Metrics) -> Ledger {
        if !metrics.has("blkin_collector_received_total") {
            return Ledger::default();
        }
        let mut right = vec![
            // What is in the store now: what has left it is lost{expired}.
            term("stored", metrics.sum("blkin_collector_in_store", &[])),
            term("duplicate", metrics.sum("blkin_collector_duplicate_total", &[])),
        ];
        right.extend(causes(metrics, "blkin_collector_lost_total", &[]));
        let left = term("received", metrics.sum("blkin_collector_received_total", &[]));
        Ledger { equations: vec![Equation { scope: COLLECTOR.into(), left, right }] }
    }

    /// A relay's equations from its metrics: what arrived, and what each upstream got of it, first in annotations, then in
    /// entries of Scribe calls, which are what a relay passes on. None from those of another daemon.
    pub fn of_relay(name: &str, metrics: &Metrics) -> Ledger {
        if !metrics.has("blkin_relay_received_total") {
            return Ledger::default();
        }
        let mut equations = Vec::new();
        for unit in ["", "entries_"] {
            equations.push(arriving(name, metrics, unit));
            let offered = format!("blkin_relay_{unit}upstream_offered_total");
            let upstreams = metrics.values(&offered, "upstream");
            equations.extend(upstreams.iter().map(|upstream| relaying(name, metrics, unit, upstream)));
        }
        Ledger { equations }
    }

    /// Reads consumerd, the relays behind it, and the collector, as far as they can be read.
    pub fn read(consumerd: &Client, relays: &[Client], collector: &Client) -> Reading {
        let mut reading = Reading::default();
        reading.take("consumerd", consumerd, Ledger::of_consumerd);
        for relay in relays {
            reading.take("relay", relay, |metrics| Ledger::of_relay(relay.host(), metrics));
        }
        reading.take(COLLECTOR, collector, Ledger::of_collector);
        reading
    }

    /// Reads all daemons until nothing is on its way, one cannot be read, or `patience` has passed.
    pub fn settled(consumerd: &Client, relays: &[Client], collector: &Client, patience: Duration) -> Reading {
        const PERIOD: Duration = Duration::from_millis(50);
        let deadline = Instant::now() + patience;
        loop {
            let reading = Ledger::read(consumerd, relays, collector);
            let is_final = reading.ledger.on_the_way() == 0 || !reading.unread.is_empty();
            if is_final || Instant::now() >= deadline {
                return reading;
            }
            std::thread::sleep(PERIOD);
        }
    }

    /// Both together.
    pub fn and(mut self, other: Ledger) -> Ledger {
        self.equations.extend(other.equations);
        self
    }

    /// Whether every equation holds.
    pub fn balances(&self) -> bool {
        self.equations.iter().all(Equation::holds)
    }

    /// Annotations that are on their way: in a ring, in a spool, or shipped and not acknowledged.
    pub fn on_the_way(&self) -> i64 {
        let terms = self.equations.iter().flat_map(|equation| &equation.right);
        terms
            .filter(|term| ["pending", "in_flight"].contains(&term.name.as_str()))
            .map(|term| term.value)
            .sum()
    }

    /// Annotations that were lost, whatever the cause, over all programs and daemons (a sink's losses count once a sink).
    pub fn lost(&self) -> i64 {
        let terms = self.equations.iter().flat_map(|equation| &equation.right);
        terms.filter(|term| term.name.starts_with("lost")).map(|term| term.value).sum()
    }

    /// The causes of what [`Ledger::lost`] counts, such as `queue_full`, with their counts; none is 0.
    pub fn lost_by_cause(&self) -> BTreeMap<&str, i64> {
        let mut causes = BTreeMap::new();
        for term in self.equations.iter().flat_map(|equation| &equation.right) {
            let name = term.name.strip_prefix("lost{").and_then(|rest| rest.strip_suffix('}'));
            if let Some(cause) = name.filter(|_| term.value != 0) {
                *causes.entry(cause).or_default() += term.value;
            }
        }
        causes
    }

    /// A line for each equation, below what the step is that it speaks of; one for many programs that lost nothing.
    pub fn table(&self, style: Style) -> String {
        let of_step = |step| self.equations.iter().filter(|equation| equation.step() == step).collect();
        let steps: Vec<Vec<Equation>> = (0..STEPS.len()).map(|step| told(of_step(step))).collect();
        let mut out = String::new();
        for (equations, what) in steps.iter().zip(STEPS).filter(|(equations, _)| !equations.is_empty()) {
            let _ = writeln!(out, "  {what}");
            let widest = equations.iter().map(|equation| width(&equation.whom())).max().unwrap_or(0);
            for equation in equations {
                let _ = writeln!(out, "{}", equation.text(widest, style));
            }
        }
        out
    }
}

/// Metrics of a Zipkin server, which counts no annotations.
pub(crate) fn is_zipkins(metrics: &str) -> bool {
    metrics.contains("zipkin_collector")
}

fn term(name: &str, value: i64) -> Term {
    Term { name: name.to_owned(), value }
}

/// A term for every cause of a loss counter.
fn causes(metrics: &Metrics, counter: &str, labels: &[(&str, &str)]) -> Vec<Term> {
    let with_cause = |sample: &crate::metrics::Sample| {
        sample.labels.get("cause").map(|cause| (cause.clone(), sample.value))
    };
    let mut by_cause = BTreeMap::new();
    for (cause, value) in metrics.select(counter, labels).filter_map(with_cause) {
        *by_cause.entry(cause).or_insert(0) += value;
    }
    by_cause.into_iter().map(|(cause, value)| term(&format!("lost{{{cause}}}"), value)).collect()
}

fn program(metrics: &Metrics, process: &str) -> Equation {
    let of = [("process", process)];
    let mut right = vec![term("committed", metrics.sum("blkin_program_committed_total", &of))];
    right.extend(causes(metrics, "blkin_program_lost_total", &of));
    let left = term("attempted", metrics.sum("blkin_program_attempted_total", &of));
    Equation { scope: process.to_owned(), left, right }
}

fn drain(metrics: &Metrics, process: &str) -> Equation {
    let of = [("process", process)];
    let lost = |cause| metrics.sum(CONSUMERD_LOST, &[("process", process), ("cause", cause)]);
    let right = vec![
        term("drained", metrics.sum("blkin_drained_total", &of)),
        term(DRAINED_BEFORE, metrics.sum("blkin_drained_before_total", &of)),
        term("pending", metrics.sum("blkin_pending", &of)),
        term("lost{torn}", lost("torn")),
        term("lost{overwritten}", lost("overwritten")),
        term("lost{recorder_released}", lost("recorder_released")),
        term("lost{unsettled}", lost("unsettled")),
    ];
    let left = term("committed", metrics.sum("blkin_program_committed_total", &of));
    Equation { scope: process.to_owned(), left, right }
}

fn validity(metrics: &Metrics, process: &str) -> Equation {
    let of = [("process", process)];
    let invalid = metrics.sum(CONSUMERD_LOST, &[("process", process), ("cause", "invalid")]);
    let right = vec![term("valid", metrics.sum("blkin_valid_total", &of)), term("lost{invalid}", invalid)];
    Equation {
        scope: process.to_owned(),
        left: term("drained", metrics.sum("blkin_drained_total", &of)),
        right,
    }
}

fn shipping(metrics: &Metrics, sink: &str) -> Equation {
    let of = [("sink", sink)];
    let mut right = vec![
        term("acked", metrics.sum("blkin_sink_acked_total", &of)),
        term("in_flight", metrics.sum("blkin_sink_in_flight", &of)),
    ];
    right.extend(causes(metrics, SINK_LOST, &of));
    Equation {
        scope: format!("sink {sink}"),
        left: term("valid", metrics.sum("blkin_valid_total", &[])),
        right,
    }
}

/// Terms of entries carry their unit, so that nobody adds them to annotations.
fn unit_term(unit: &str, name: &str, value: i64) -> Term {
    term(&format!("{unit}{name}"), value)
}

fn relay_scope(name: &str, unit: &str) -> String {
    let what = if unit.is_empty() { "annotations" } else { "entries" };
    format!("relay {name} {what}")
}

fn arriving(name: &str, metrics: &Metrics, unit: &str) -> Equation {
    let sum = |figure: &str| metrics.sum(&format!("blkin_relay_{unit}{figure}_total"), &[]);
    let mut right = vec![unit_term(unit, "accepted", sum("accepted"))];
    let lost = causes(metrics, &format!("blkin_relay_{unit}lost_total"), &[]);
    right.extend(lost.into_iter().map(|lost| unit_term(unit, &lost.name, lost.value)));
    Equation { scope: relay_scope(name, unit), left: unit_term(unit, "received", sum("received")), right }
}

fn relaying(name: &str, metrics: &Metrics, unit: &str, upstream: &str) -> Equation {
    let of = [("upstream", upstream)];
    let sum = |figure: &str| metrics.sum(&format!("blkin_relay_{unit}upstream_{figure}"), &of);
    let mut right =
        vec![unit_term(unit, "acked", sum("acked_total")), unit_term(unit, "in_flight", sum("in_flight"))];
    let lost = causes(metrics, &format!("blkin_relay_{unit}upstream_lost_total"), &of);
    right.extend(lost.into_iter().map(|lost| unit_term(unit, &lost.name, lost.value)));
    Equation {
        scope: format!("{} to {upstream}", relay_scope(name, unit)),
        left: unit_term(unit, "offered", sum("offered_total")),
        right,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::answering;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    const CONSUMERD: &str = "\
blkin_program_attempted_total{process=\"osd:1\"} 116
blkin_program_committed_total{process=\"osd:1\"} 106
blkin_program_lost_total{process=\"osd:1\",cause=\"full\"} 7
blkin_program_lost_total{process=\"osd:1\",cause=\"too_large\"} 3
blkin_drained_total{process=\"osd:1\"} 80
blkin_drained_before_total{process=\"osd:1\"} 10
blkin_lost_total{process=\"osd:1\",cause=\"unsettled\"} 6
blkin_pending{process=\"osd:1\"} 4
blkin_lost_total{process=\"osd:1\",cause=\"overwritten\"} 2
blkin_lost_total{process=\"osd:1\",cause=\"recorder_released\"} 3
blkin_lost_total{process=\"osd:1\",cause=\"torn\"} 1
blkin_lost_total{process=\"osd:1\",cause=\"invalid\"} 2
blkin_valid_total{process=\"osd:1\"} 78
blkin_sink_acked_total{sink=\"scribe\"} 70
blkin_sink_in_flight{sink=\"scribe\"} 5
blkin_sink_lost_total{sink=\"scribe\",cause=\"queue_full\"} 3
";
    const COLLECTOR: &str = "\
blkin_collector_received_total{transport=\"scribe\"} 60
blkin_collector_received_total{transport=\"http_v2\"} 10
blkin_collector_in_store 58
blkin_collector_duplicate_total 4
blkin_collector_lost_total{cause=\"malformed\"} 1
blkin_collector_lost_total{cause=\"expired\"} 7
";
    const ZIPKIN: &str = r#"{"counter.zipkin_collector.spans.http":4.0}"#;
    const RELAY: &str = "\
blkin_relay_received_total 50
blkin_relay_accepted_total 48
blkin_relay_lost_total{cause=\"malformed\"} 2
blkin_relay_upstream_offered_total{upstream=\"a:1\"} 48
blkin_relay_upstream_acked_total{upstream=\"a:1\"} 40
blkin_relay_upstream_in_flight{upstream=\"a:1\"} 5
blkin_relay_upstream_lost_total{upstream=\"a:1\",cause=\"spool_evicted\"} 3
blkin_relay_entries_received_total 12
blkin_relay_entries_accepted_total 10
blkin_relay_entries_lost_total{cause=\"malformed\"} 2
blkin_relay_entries_upstream_offered_total{upstream=\"a:1\"} 10
blkin_relay_entries_upstream_acked_total{upstream=\"a:1\"} 9
blkin_relay_entries_upstream_in_flight{upstream=\"a:1\"} 1
blkin_relay_entries_upstream_lost_total{upstream=\"a:1\",cause=\"spool_evicted\"} 0
";

    #[test]
    fn a_relay_has_equations_in_both_units_and_each_figure_counts() {
        let of = |text: &str| Ledger::of_relay("r:1", &Metrics::parse(text));
        let ledger = of(RELAY);
        assert_eq!(ledger.equations.len(), 4);
        assert!(ledger.balances());
        assert_eq!((ledger.lost(), ledger.on_the_way()), (2 + 3, 5), "entries are not annotations");
        assert_eq!(ledger.equations[3].scope, "relay r:1 entries to a:1");
        for place in 0..RELAY.lines().count() {
            let more = |(at, line): (usize, &str)| format!("{line}{}\n", if at == place { "1" } else { "" });
            let mutated: String = RELAY.lines().enumerate().map(more).collect();
            assert!(!of(&mutated).balances(), "mutation {place} went unseen");
        }
    }

    fn ledger(consumerd: &str, collector: &str) -> Ledger {
        Ledger::of_consumerd(&Metrics::parse(consumerd)).and(Ledger::of_collector(&Metrics::parse(collector)))
    }

    #[test]
    fn a_sound_ledger_balances_and_names_its_losses() {
        let ledger = ledger(CONSUMERD, COLLECTOR);
        assert_eq!(ledger.equations.len(), 5);
        assert!(ledger.balances());
        assert_eq!(ledger.lost(), 7 + 3 + 1 + 5 + 6 + 2 + 3 + 1 + 7);
        let shown = ledger.table(Style { columns: 100, colours: false });
        assert!(
            shown.contains(
                "    osd:1  attempted 116 = committed 106 + lost{full} 7 + lost{too_large} 3  holds\n"
            ),
            "{shown}"
        );
    }

    #[test]
    fn a_loss_of_entries_that_is_none_is_left_out_too() {
        let right = vec![term("entries_accepted", 4), term("entries_lost{malformed}", 0)];
        let equation = Equation { scope: "relay".into(), left: term("entries_received", 4), right };
        let shown = Ledger { equations: vec![equation] }.table(Style { columns: 100, colours: false });
        let expected = "    relay  entries_received 4 = entries_accepted 4  holds";
        assert_eq!(shown.lines().skip(1).collect::<Vec<_>>(), [expected]);
    }

    #[test]
    fn what_a_terminal_has_no_room_for_goes_on_below_whom_it_speaks_of() {
        let of_relay = Ledger::of_relay("relay.site-a.example:9413", &Metrics::parse(RELAY));
        let all = ledger(&CONSUMERD.replace("osd:1", "store-daemon:4711"), COLLECTOR).and(of_relay);
        for columns in [50, 60, 80, 100] {
            let shown = all.table(Style { columns, colours: false });
            // Names are never cut: one of a relay has its upstream's behind it.
            let wide = shown.lines().filter(|line| width(line) > columns);
            assert!(wide.into_iter().all(|line| line.trim().starts_with("relay ")), "{shown}");
            assert_eq!(shown.matches(" holds\n").count(), all.equations.len(), "{shown}");
        }
        let shown = all.table(Style { columns: 60, colours: true });
        let expected = "    store-daemon:4711\n      attempted 116 = committed 106 + lost{full} 7 +\n      \
                        lost{too_large} 3 \u{1b}[32mholds\u{1b}[0m\n";
        assert!(shown.contains(expected), "{shown}");
    }

    #[test]
    fn each_step_is_told_once_and_ended_programs_are_called_that() {
        let departed = CONSUMERD.lines().filter(|line| line.contains("osd:1"));
        let departed: String = departed.map(|line| line.replace("osd:1", DEPARTED) + "\n").collect();
        let of_relay = Ledger::of_relay("r:1", &Metrics::parse(RELAY));
        let all = ledger(&(departed + CONSUMERD), COLLECTOR).and(of_relay);
        let shown = all.table(Style { columns: 200, colours: false });
        let told: Vec<&str> = shown.lines().filter_map(|line| line.strip_prefix("  ")).collect();
        let (lines, steps): (Vec<&str>, Vec<&str>) = told.into_iter().partition(|line| line.starts_with(' '));
        assert_eq!(steps, STEPS);
        assert_eq!(lines.len(), all.equations.len());
        assert_eq!(lines.iter().filter(|line| line.trim_start().starts_with("ended programs ")).count(), 3);
    }

    #[test]
    fn ended_programs_are_told_of_once_they_recorded_something_or_if_nobody_else_is_there() {
        let of = |process: &str, attempted: u32| {
            format!("blkin_program_attempted_total{{process=\"{process}\"}} {attempted}\n")
        };
        let told_of = |metrics: &str| {
            let ledger = Ledger::of_consumerd(&Metrics::parse(metrics));
            ledger.table(Style { columns: 100, colours: false }).matches("ended programs ").count()
        };
        assert_eq!(told_of(&(of(DEPARTED, 0) + &of("osd:1", 4))), 0);
        assert_eq!(told_of(&(of(DEPARTED, 1) + &of("osd:1", 4))), 1, "it does not hold, what is more");
        assert_eq!(told_of(&of(DEPARTED, 0)), 3);
    }

    #[test]
    fn many_programs_that_lost_nothing_share_a_line_and_one_that_did_or_does_not_balance_has_its_own() {
        let of = |process: &str, attempted: u32, full: u32| {
            let of = format!("process=\"{process}\"");
            format!(
                "blkin_program_attempted_total{{{of}}} {attempted}\nblkin_program_committed_total{{{of}}} 5\n\
                 blkin_program_lost_total{{{of},cause=\"full\"}} {full}\nblkin_drained_total{{{of}}} 3\n\
                 blkin_pending{{{of}}} 2\nblkin_valid_total{{{of}}} 3\n"
            )
        };
        let sound: String = (0..300).map(|pid| of(&format!("osd:{pid}"), 5, 0)).collect();
        let metrics = sound + &of("lossy:1", 7, 2) + &of("wrong:1", 6, 0) + &of(DEPARTED, 5, 0);
        let shown = ledger(&metrics, COLLECTOR).table(Style { columns: 100, colours: false });
        let told: Vec<String> =
            shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let of_rings = [
            "300 programs without a loss attempted 1500 = committed 1500 holds",
            "ended programs attempted 5 = committed 5 holds",
            "lossy:1 attempted 7 = committed 5 + lost{full} 2 holds",
            "wrong:1 attempted 6 = committed 5 DOES NOT HOLD",
        ];
        for line in of_rings
            .into_iter()
            .chain(["302 programs without a loss committed 1510 = drained 906 + pending 604 holds"])
        {
            assert!(told.iter().any(|told| told == line), "{line} in {shown}");
        }
        assert_eq!(told.len(), 5 + 3 + 3 + 2, "{shown}");
    }

    #[test]
    fn the_ledger_of_many_programs_takes_time_by_their_number() {
        // By the square of it, this would take an hour.
        let of = |pid: u32| format!("blkin_program_attempted_total{{process=\"osd:{pid}\"}} 0\n");
        let metrics: String = (0..100_000).map(of).collect();
        assert_eq!(Ledger::of_consumerd(&Metrics::parse(&metrics)).equations.len(), 300_000);
    }

    #[test]
    fn a_daemon_that_cannot_be_read_hides_none_of_the_others() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let collector = Client::new(&listener.local_addr().unwrap().to_string());
        let nobody = Client::new("127.0.0.1:1");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                let _asked = stream.read(&mut [0; 4096]).unwrap();
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", COLLECTOR.len());
                stream.write_all(format!("{head}{COLLECTOR}").as_bytes()).unwrap();
            });
            let reading =
                Ledger::settled(&nobody, &[Client::new("127.0.0.1:2")], &collector, Duration::from_secs(60));
            let scopes: Vec<&str> =
                reading.ledger.equations.iter().map(|found| found.scope.as_str()).collect();
            assert_eq!(scopes, ["collector"]);
            assert!(reading.ledger.balances() && !reading.balances());
            assert_eq!(reading.unread.len(), 2);
            assert!(reading.unread[0].starts_with("consumerd is missing in "), "{:?}", reading.unread);
            assert!(reading.unread[1].contains("http://127.0.0.1:2"), "{:?}", reading.unread);
        });
    }

    fn serving(metrics: &'static str) -> Client {
        answering(move |_| ("200 OK", metrics))
    }

    #[test]
    fn whoever_is_another_daemon_or_none_is_missing_in_it() {
        let read = |[consumerd, relay, collector]: [&'static str; 3]| {
            Ledger::read(&serving(consumerd), &[serving(relay)], &serving(collector).named_by("--collector"))
        };
        assert!(read([CONSUMERD, RELAY, COLLECTOR]).balances());
        for (metrics, missing) in [
            (["hi", "hi", "hi"], &["consumerd", "relay", "collector"][..]),
            ([RELAY, COLLECTOR, CONSUMERD], &["consumerd", "relay", "collector"]),
            ([ZIPKIN, ZIPKIN, ZIPKIN], &["consumerd", "relay"]),
            ([CONSUMERD, COLLECTOR, RELAY], &["relay", "collector"]),
        ] {
            let reading = read(metrics);
            let told: Vec<&str> = reading.unread.iter().map(|why| why.split(' ').next().unwrap()).collect();
            assert_eq!(told, missing, "{:?}", reading.unread);
            assert!(!reading.balances());
        }
        let wrong = read([CONSUMERD, RELAY, RELAY]).unread.remove(0);
        assert!(wrong.contains(" has no figures of a collector (is it"), "{wrong}");
    }

    #[test]
    fn a_zipkin_server_has_no_equation_and_is_said_not_to_tell() {
        let reading = Ledger::read(&serving(CONSUMERD), &[], &serving(ZIPKIN));
        assert_eq!(reading.ledger, Ledger::of_consumerd(&Metrics::parse(CONSUMERD)));
        assert!(reading.balances(), "{:?}", reading.unread);
        assert!(reading.silent.unwrap().contains("a Zipkin server, which does not tell"));
        assert_eq!(Ledger::read(&serving(CONSUMERD), &[], &serving(COLLECTOR)).silent, None);
    }

    #[test]
    fn one_annotation_missing_anywhere_turns_it_red() {
        for place in 0..CONSUMERD.lines().count() + COLLECTOR.lines().count() {
            let mutate = |text: &str, from: usize| -> String {
                let less = |line: &str| {
                    let (name, value) = line.rsplit_once(' ').unwrap();
                    format!("{name} {}\n", value.parse::<i64>().unwrap() - 1)
                };
                let numbered = text.lines().enumerate();
                numbered
                    .map(|(at, line)| if at + from == place { less(line) } else { format!("{line}\n") })
                    .collect()
            };
            let mutated = ledger(&mutate(CONSUMERD, 0), &mutate(COLLECTOR, CONSUMERD.lines().count()));
            assert!(!mutated.balances(), "mutation {place} went unseen");
        }
    }
}
