//! The equations, from the metrics of each daemon.

use std::collections::BTreeMap;

use super::{COLLECTOR, DRAINED_BEFORE, Equation, Ledger, Term};
use crate::metrics::{Metrics, Sample};

const CONSUMERD_LOST: &str = "blkin_lost_total";
const SINK_LOST: &str = "blkin_sink_lost_total";

impl Ledger {
    /// The equations of programs, consumerd and sinks from consumerd's metrics.
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

    /// The collector's equation from its metrics; none if these are of another daemon.
    pub fn of_collector(metrics: &Metrics) -> Ledger {
        if !metrics.has("blkin_collector_received_total") {
            return Ledger::default();
        }
        let mut right = vec![
            // What is in the store now: what has left it counts as lost{expired}.
            term("stored", metrics.sum("blkin_collector_in_store", &[])),
            term("duplicate", metrics.sum("blkin_collector_duplicate_total", &[])),
        ];
        right.extend(causes(metrics, "blkin_collector_lost_total", &[]));
        let left = term("received", metrics.sum("blkin_collector_received_total", &[]));
        Ledger { equations: vec![Equation { scope: COLLECTOR.into(), left, right }] }
    }

    /// A relay's equations from its metrics: what arrived, and what each upstream got of it, first in annotations, then in
    /// entries of Scribe calls, which are what a relay forwards. None if the metrics are of another daemon.
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
}

pub(super) fn term(name: &str, value: i64) -> Term {
    Term { name: name.to_owned(), value }
}

/// A term for every cause of a loss counter.
fn causes(metrics: &Metrics, counter: &str, labels: &[(&str, &str)]) -> Vec<Term> {
    let with_cause = |sample: &Sample| sample.labels.get("cause").map(|cause| (cause.clone(), sample.value));
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

/// The names of terms in entries contain the unit, so that nobody adds them to annotations.
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
