//! `/metrics`: the ledger of every program and sink. The unit is one annotation unless a name says otherwise.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

use blkin_daemon::prometheus_client::collector::Collector;
use blkin_daemon::prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use blkin_daemon::prometheus_client::metrics::MetricType;
use blkin_daemon::prometheus_client::metrics::counter::ConstCounter;
use blkin_daemon::prometheus_client::metrics::gauge::ConstGauge;
use blkin_daemon::{Standing, standing};

use super::engine::{Engine, Snapshot};
use super::totals::Totals;
use super::waker::Wakes;
use crate::holder::counters::{Count, Counters};
use crate::settings::rules::InForce;
use crate::settings::{Figures, Settings};
use crate::sinks::queue::Fill;

/// Takes all figures from the engine at each scrape, so that they are of one moment.
pub(super) struct EngineCollector {
    pub(super) engine: Arc<Mutex<Engine>>,
    pub(super) settings: Settings,
    pub(super) wakes: Wakes,
    pub(super) standings: Vec<Arc<Standing>>,
}

impl fmt::Debug for EngineCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EngineCollector")
    }
}

type Labels<'a> = Vec<(&'static str, &'a str)>;
type Sample<'a> = (Labels<'a>, u64);
/// A cause of loss, and the figure that counts it.
type Cause = (&'static str, fn(&Totals) -> u64);

impl Collector for EngineCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let snapshot = {
            let mut engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
            engine.note_shown().map_err(|_| fmt::Error)?;
            engine.snapshot()
        };
        encode_programs(&mut encoder, &snapshot)?;
        encode_sinks(&mut encoder, &snapshot)?;
        let others = self.standings.iter().map(|other| {
            let labels = vec![("sink", other.name()), ("to", other.to())];
            (labels, &**other)
        });
        standing::encode(&mut encoder, "blkin_sink", "to deliver", &others.collect::<Vec<_>>())?;
        encode_spans(&mut encoder, &snapshot)?;
        encode_daemon(&mut encoder, &snapshot)?;
        let wakes = one(self.wakes.load(Relaxed));
        counters_of(&mut encoder, "blkin_wakes", "sleeps of the worker that a program ended early", wakes)?;
        encode_settings(&mut encoder, &self.settings.figures())
    }
}

fn encode_programs(encoder: &mut DescriptorEncoder<'_>, snapshot: &Snapshot) -> fmt::Result {
    let mut all = by_label(&snapshot.programs);
    all.push(("departed", snapshot.departed));
    let counter = |encoder: &mut DescriptorEncoder<'_>, name, help, figure: fn(&Totals) -> u64| {
        let samples = all.iter().map(|(label, totals)| (vec![("process", *label)], figure(totals)));
        counters_of(encoder, name, help, samples.collect())
    };
    counter(encoder, "blkin_program_attempted", "calls to record an annotation of a sampled trace", |t| {
        t.counters.attempted
    })?;
    counter(encoder, "blkin_program_committed", "records that got a place in a ring", |t| {
        t.counters.committed
    })?;
    counter(
        encoder,
        "blkin_program_truncated",
        "calls to record with a text that was cut, whether or not the record found room",
        |t| t.counters.truncated,
    )?;
    counter(encoder, "blkin_program_not_interned", "texts for which the table of names had no room", |t| {
        t.counters.not_interned
    })?;
    counter(encoder, "blkin_drained_before", "records drained by an earlier daemon", |t| t.drained_before)?;
    counter(encoder, "blkin_drained", "records copied out of the rings", |t| t.drain.drained)?;
    counter(encoder, "blkin_valid", "records that passed validation", |t| t.drain.valid)?;
    let causes: [Cause; 5] = [
        ("full", |t| t.counters.full),
        ("no_segment", |t| t.counters.no_segment),
        ("too_large", |t| t.counters.too_large),
        ("starting", |t| t.counters.starting),
        ("stalled", |t| t.counters.stalled),
    ];
    let lost = by_cause(&all, &causes);
    counters_of(encoder, "blkin_program_lost", "records lost in the program", lost)?;
    let causes: [Cause; 5] = [
        ("torn", |t| t.drain.torn),
        ("invalid", |t| t.drain.invalid),
        ("overwritten", |t| t.counters.overwritten),
        ("recorder_released", |t| t.released),
        ("unsettled", |t| t.unsettled),
    ];
    counters_of(
        encoder,
        "blkin_lost",
        "records lost in the rings or while they were drained",
        by_cause(&all, &causes),
    )?;
    let pending = all.iter().map(|(label, totals)| (vec![("process", *label)], totals.pending));
    gauges_of(encoder, "blkin_pending", "records that wait in the rings", pending.collect())
}

/// Sums the programs of each process: one process can have several, from before an exec, or for each copy of the library. A
/// series may appear only once in an answer.
fn by_label(programs: &[(String, Totals)]) -> Vec<(&str, Totals)> {
    let mut sums: BTreeMap<&str, Totals> = BTreeMap::new();
    for (label, totals) in programs {
        let sum = sums.entry(label).or_default();
        *sum = sum.plus(totals);
    }
    sums.into_iter().collect()
}

fn by_cause<'a>(all: &[(&'a str, Totals)], causes: &[Cause]) -> Vec<Sample<'a>> {
    let of_program = |(label, totals): &(&'a str, Totals)| {
        let sample = |(cause, figure): &Cause| (vec![("process", *label), ("cause", *cause)], figure(totals));
        causes.iter().map(sample).collect::<Vec<_>>()
    };
    all.iter().flat_map(of_program).collect()
}

fn encode_sinks(encoder: &mut DescriptorEncoder<'_>, snapshot: &Snapshot) -> fmt::Result {
    let sinks = &snapshot.sinks;
    let acked = sinks.iter().map(|(name, sink)| (vec![("sink", *name)], sink.acked));
    counters_of(
        encoder,
        "blkin_sink_acked",
        "annotations that the other side acknowledged",
        acked.collect(),
    )?;
    let valid = sinks.iter().map(|(name, sink)| (vec![("sink", *name)], sink.valid));
    counters_of(encoder, "blkin_sink_valid", "annotations given to the sink", valid.collect())?;
    let lost = sinks.iter().flat_map(|(name, sink)| {
        let causes = sink.lost(name).into_iter();
        causes.map(|(cause, figure)| (vec![("sink", *name), ("cause", cause)], figure))
    });
    counters_of(encoder, "blkin_sink_lost", "annotations that the sink lost", lost.collect())?;
    let in_flight = sinks.iter().map(|(name, sink)| (vec![("sink", *name)], sink.in_flight));
    gauges_of(
        encoder,
        "blkin_sink_in_flight",
        "annotations given to the sink, neither acknowledged nor lost yet",
        in_flight.collect(),
    )?;
    encode_queues(encoder, &snapshot.queues)
}

fn encode_queues(encoder: &mut DescriptorEncoder<'_>, queues: &[(&str, Fill)]) -> fmt::Result {
    let mut gauge = |name, help, figure: fn(&Fill) -> usize| {
        let samples = queues.iter().map(|(sink, fill)| (vec![("sink", *sink)], figure(fill) as u64));
        gauges_of(encoder, name, help, samples.collect())
    };
    gauge("blkin_sink_queued_bytes", "bytes in the sink's queue", |fill| fill.bytes)?;
    gauge("blkin_sink_queue_bytes", "bytes that may be in the sink's queue", |fill| fill.limit_bytes)?;
    let help = "bytes that the program with the most in the sink's queue may add before it loses annotations";
    gauge("blkin_sink_queue_room_bytes", help, |fill| fill.room_bytes)
}

fn encode_spans(encoder: &mut DescriptorEncoder<'_>, snapshot: &Snapshot) -> fmt::Result {
    let spans = snapshot.spans;
    let left = [
        ("complete", spans.complete),
        ("quiet", spans.quiet),
        ("split", spans.split),
        ("ending", spans.ending),
    ];
    let left = left.map(|(reason, figure)| (vec![("reason", reason)], figure));
    counters_of(encoder, "blkin_spans_left", "pieces of spans passed to the sinks, by reason", left.into())?;
    counters_of(
        encoder,
        "blkin_spans_late",
        "pieces of spans of which an earlier piece had left already",
        one(spans.late),
    )?;
    gauges_of(
        encoder,
        "blkin_spans_open",
        "spans being joined, not passed to the sinks yet",
        one(snapshot.open_spans),
    )?;
    gauges_of(encoder, "blkin_spans_open_bytes", "bytes in spans being joined", one(snapshot.open_span_bytes))
}

fn encode_daemon(encoder: &mut DescriptorEncoder<'_>, snapshot: &Snapshot) -> fmt::Result {
    let programs = snapshot.programs.len() as u64;
    gauges_of(encoder, "blkin_programs", "programs attached", one(programs))?;
    counters_of(
        encoder,
        "blkin_programs_departed",
        "programs that have ended",
        one(snapshot.departed_programs),
    )?;
    let help =
        "programs whose rings are not drained because they fill their share of memory and no sink keeps up";
    gauges_of(encoder, "blkin_programs_held_back", help, one(snapshot.programs_held_back as u64))?;
    let kept = one(snapshot.recorders_kept);
    gauges_of(encoder, "blkin_recorders_kept", "flight recorders of ended programs that are kept", kept)?;
    let evicted = one(snapshot.recorders_evicted);
    counters_of(
        encoder,
        "blkin_recorders_evicted",
        "flight recorders given up because nobody took them in time",
        evicted,
    )?;
    let rejected = one(snapshot.rejected_programs);
    counters_of(
        encoder,
        "blkin_programs_rejected",
        "offered programs that could not be attached to",
        rejected,
    )?;
    let help = "programs whose own counters contradicted each other";
    counters_of(encoder, "blkin_programs_unsound", help, one(snapshot.unsound_programs))?;
    let help = "staging memory in use: everything from the oldest annotation that is not settled onwards";
    gauges_of(encoder, "blkin_staging_used_bytes", help, one(snapshot.staging_used_bytes))?;
    let help = "how much of staging_bytes may be in use before the oldest annotations are given up";
    gauges_of(encoder, "blkin_staging_bytes", help, one(snapshot.staging_limit_bytes))?;
    encode_holder(encoder, &snapshot.holder)
}

fn encode_holder(encoder: &mut DescriptorEncoder<'_>, holder: &Counters) -> fmt::Result {
    let offers = [
        ("taken", Count::Taken),
        ("already_held", Count::AlreadyHeld),
        ("refused_quota", Count::Quota),
        ("refused_malformed", Count::Malformed),
        ("refused_elsewhere", Count::Elsewhere),
    ];
    let offers = offers.map(|(outcome, count)| (vec![("outcome", outcome)], holder.get(count)));
    counters_of(encoder, "blkin_offers", "offers of programs, by outcome", offers.into())?;
    let lines = "lines of the holder's log that nobody read in time, or that could not be written";
    let counters = [
        ("blkin_holder_log_lines_lost", lines, Count::LogLinesLost),
        ("blkin_scan_found", "programs found by the scan at start", Count::Scan),
        ("blkin_worker_restarts", "workers that ended before they were asked to", Count::Restarts),
        ("blkin_worker_stuck_kills", "workers killed because they showed no sign of life", Count::StuckKills),
    ];
    for (name, help, count) in counters {
        counters_of(encoder, name, help, one(holder.get(count)))?;
    }
    gauges_of(encoder, "blkin_programs_held", "programs held for the worker", one(holder.get(Count::Held)))
}

fn encode_settings(encoder: &mut DescriptorEncoder<'_>, figures: &Figures) -> fmt::Result {
    gauges_of(encoder, "blkin_rules", "rules made by `blkin set`", one(figures.rules))?;
    let of_each = |figure: fn(&InForce) -> u64| {
        let sample = |(label, in_force): (&'_ String, &InForce)| (label.clone(), figure(in_force));
        figures.programs.iter().map(sample).collect::<Vec<_>>()
    };
    let blocked = of_each(|in_force| u64::from(in_force.blocked_levels()));
    let help = "levels that the program is told not to record, bit n for level n; 255: all, recording is off";
    gauges_of(encoder, "blkin_program_blocked_levels", help, by_process(&blocked))?;
    let rate = of_each(|in_force| in_force.rate);
    let help = "the program is told to trace one of this many requests; 0: the program decides";
    gauges_of(encoder, "blkin_program_rate", help, by_process(&rate))
}

fn by_process(figures: &[(String, u64)]) -> Vec<Sample<'_>> {
    figures.iter().map(|(label, value)| (vec![("process", label.as_str())], *value)).collect()
}

fn one(value: u64) -> Vec<Sample<'static>> {
    vec![(Vec::new(), value)]
}

fn counters_of(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: Vec<Sample<'_>>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (labels, value) in samples {
        let metric = ConstCounter::new(value);
        if labels.is_empty() {
            return metric.encode(family);
        }
        metric.encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

fn gauges_of(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: Vec<Sample<'_>>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in samples {
        let metric = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
        if labels.is_empty() {
            return metric.encode(family);
        }
        metric.encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::ledger::DrainFigures;

    #[test]
    fn programs_of_one_process_share_their_series() {
        let totals = |drained, pending| Totals {
            pending,
            drain: DrainFigures { drained, ..DrainFigures::default() },
            ..Totals::default()
        };
        let programs = [("osd:1", totals(5, 1)), ("osd:2", totals(7, 0)), ("osd:1", totals(u64::MAX, 2))];
        let programs = programs.map(|(label, totals)| (label.to_owned(), totals));
        let expected = [("osd:1", totals(4, 3)), ("osd:2", totals(7, 0))];
        assert_eq!(by_label(&programs), expected);
    }
}
