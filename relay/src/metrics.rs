//! The relay's metrics. As in the collector, names without a unit count annotations; `entries_` counts entries.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use blkin_daemon::prometheus_client::collector::Collector;
use blkin_daemon::prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use blkin_daemon::prometheus_client::metrics::MetricType;
use blkin_daemon::prometheus_client::metrics::counter::ConstCounter;
use blkin_daemon::prometheus_client::metrics::gauge::ConstGauge;
use blkin_daemon::prometheus_client::registry::Registry;
use blkin_daemon::{Patience, Standing, standing};
use blkin_scribe::Budget;

use crate::ledger::{Count, Delivered, Loss};
use crate::live::Live;
use crate::loop_detector::LoopDetector;
use crate::spool::writer::{Gauge, Refused};
use crate::spool::{Figures, Spool};
use crate::upstream::Traffic;

/// The state of an upstream, beside its ledger.
#[derive(Clone)]
pub(crate) struct Known {
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) standing: Arc<Standing>,
}

/// The sources of all figures.
pub(crate) struct Metrics {
    pub(crate) spool: Arc<Spool>,
    pub(crate) gauge: Gauge,
    /// Memory for calls being read.
    pub(crate) budget: Budget,
    /// The upstreams, in the spool's order.
    pub(crate) upstreams: Vec<Known>,
    /// The state of everything that writes to the spool's folder.
    pub(crate) spool_standings: Vec<Arc<Standing>>,
    pub(crate) loop_detector: Arc<LoopDetector>,
    pub(crate) live: Live,
    pub(crate) patience: Patience,
}

/// All metrics of the relay.
pub(crate) fn registry(metrics: Metrics) -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(metrics));
    registry
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

type Unit = fn(Count) -> u64;
const UNITS: [(&str, &str, Unit); 2] = [
    ("", "annotations", |count| count.annotations),
    ("entries_", "entries of Scribe calls", |count| count.entries),
];

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let figures = self.spool.figures();
        for (prefix, what, unit) in UNITS {
            arrived(&mut encoder, &figures, prefix, what, unit)?;
            delivered(&mut encoder, &figures, prefix, what, unit)?;
        }
        self.spool_metrics(&mut encoder, &figures)?;
        self.live_metrics(&mut encoder)?;
        self.standing_metrics(&mut encoder)?;
        self.traffic_metrics(&mut encoder, &figures)
    }
}

impl Metrics {
    fn spool_metrics(&self, encoder: &mut DescriptorEncoder<'_>, figures: &Figures) -> fmt::Result {
        let refused = Refused::ALL.map(|(cause, label)| (vec![("cause", label)], self.gauge.refused(cause)));
        family(encoder, "refused_calls", "calls answered with TRY_LATER", MetricType::Counter, &refused)?;
        let gauges = [
            ("queued_bytes", "bytes of calls that wait to be written to the disk", self.gauge.queued_bytes()),
            (
                "spool_bytes",
                "bytes of the spool's segments, including those that could not be removed",
                figures.bytes,
            ),
            ("spool_limit_bytes", "limit on the bytes of the spool's segments", self.spool.limit_bytes()),
            ("spool_segments", "segments of the spool", figures.segments as u64),
            ("messages_waiting", "calls being read that are waiting for memory", self.budget.waiting()),
        ];
        for (name, help, value) in gauges {
            family(encoder, name, help, MetricType::Gauge, &[(Vec::new(), value)])?;
        }
        let counters = [
            (
                "returned_spans",
                "times that the span which the relay remembers (one at a time) arrived again, since the start",
                self.loop_detector.times(),
            ),
            (
                "messages_dropped",
                "calls dropped because they arrived too slowly while others waited for memory, since the start",
                self.budget.dropped(),
            ),
            ("commits", "groups of calls made durable since the start", figures.commits),
            ("damaged_regions", "regions of the spool that could not be read", figures.damaged_regions),
        ];
        for (name, help, value) in counters {
            family(encoder, name, help, MetricType::Counter, &[(Vec::new(), value)])?;
        }
        Ok(())
    }

    fn standing_metrics(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let upstreams = self.upstreams.iter().map(|Known { standing, .. }| {
            let labels = vec![("upstream", standing.to())];
            (labels, &**standing)
        });
        standing::encode(encoder, "blkin_relay_upstream", "to deliver", &Vec::from_iter(upstreams))?;
        let spool = self.spool_standings.iter().map(|standing| {
            let labels = vec![("what", standing.name())];
            (labels, &**standing)
        });
        standing::encode(encoder, "blkin_relay_spool", "to write to the spool", &Vec::from_iter(spool))
    }

    fn live_metrics(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let live = self.live.figures();
        let viewers = [(Vec::new(), live.viewers)];
        let stalled = [(Vec::new(), self.patience.stalled())];
        let help = "HTTP connections closed, and HTTP/2 answers abandoned, because the client did not read, since the start";
        family(encoder, "http_stalled", help, MetricType::Counter, &stalled)?;
        family(encoder, "live_viewers", "live viewers at this moment", MetricType::Gauge, &viewers)?;
        let spans = [
            ("shown", live.shown),
            ("missed", live.missed),
            ("unseen", live.unseen),
            ("unkept", live.unkept),
        ];
        let spans = spans.map(|(fate, count)| (vec![("fate", fate)], count));
        family(encoder, "live_spans", blkin_live::UNITS, MetricType::Counter, &spans)
    }

    fn traffic_metrics(&self, encoder: &mut DescriptorEncoder<'_>, figures: &Figures) -> fmt::Result {
        let mut each = |name: &str, help: &str, kind: MetricType, value: fn(&Traffic) -> u64| {
            let names = figures.upstreams.iter().map(|(name, _)| vec![("upstream", name.as_str())]);
            let values: Vec<_> =
                names.zip(self.upstreams.iter().map(|known| value(&known.traffic))).collect();
            family(encoder, name, help, kind, &values)
        };
        let help = "1 if the last call was answered with OK, else 0; 0 before the first";
        each("upstream_up", help, MetricType::Gauge, |traffic| traffic.up.load(Ordering::Relaxed))?;
        each("upstream_calls", "calls answered with OK since the start", MetricType::Counter, |traffic| {
            traffic.calls.load(Ordering::Relaxed)
        })?;
        each(
            "upstream_uncertain_entries",
            "entries of calls that broke off or failed after they were sent, and may have arrived, since the start",
            MetricType::Counter,
            |traffic| traffic.uncertain.load(Ordering::Relaxed),
        )
    }
}

fn arrived(
    encoder: &mut DescriptorEncoder<'_>,
    figures: &Figures,
    prefix: &str,
    what: &str,
    unit: Unit,
) -> fmt::Result {
    let arrived = &figures.arrived;
    let counters = [
        ("received", "that arrived", Vec::new(), arrived.received),
        ("accepted", "that were made durable in the spool", Vec::new(), arrived.accepted),
        ("lost", "that could not be read", vec![("cause", "malformed")], arrived.malformed),
        ("forgotten", "kept for upstreams that are no longer configured", Vec::new(), figures.forgotten),
    ];
    for (name, help, labels, count) in counters {
        let (name, help) = (format!("{prefix}{name}"), format!("{what} {help}"));
        family(encoder, &name, &help, MetricType::Counter, &[(labels, unit(count))])?;
    }
    Ok(())
}

fn delivered(
    encoder: &mut DescriptorEncoder<'_>,
    figures: &Figures,
    prefix: &str,
    what: &str,
    unit: Unit,
) -> fmt::Result {
    let mut each = |name: &str, help: &str, kind: MetricType, value: fn(&Delivered) -> Count| {
        let (name, help) = (format!("{prefix}upstream_{name}"), format!("{what} {help}"));
        let upstreams = figures.upstreams.iter();
        let values: Vec<_> =
            upstreams.map(|(name, one)| (vec![("upstream", name.as_str())], unit(value(one)))).collect();
        family(encoder, &name, &help, kind, &values)
    };
    each("offered", "spooled for an upstream", MetricType::Counter, |one| one.offered)?;
    each("acked", "that an upstream acknowledged", MetricType::Counter, |one| one.acked)?;
    each("in_flight", "in the spool for an upstream, or on their way to it", MetricType::Gauge, |one| {
        one.in_flight
    })?;
    let mut lost = Vec::new();
    for (name, one) in &figures.upstreams {
        for cause in Loss::ALL {
            let labels = vec![("upstream", name.as_str()), ("cause", cause.label())];
            lost.push((labels, unit(one.lost[cause as usize])));
        }
    }
    let (name, help) = (format!("{prefix}upstream_lost"), format!("{what} that an upstream does not get"));
    family(encoder, &name, &help, MetricType::Counter, &lost)
}

type Labels<'a> = Vec<(&'a str, &'a str)>;

/// One metric with a value for each set of labels.
fn family(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    kind: MetricType,
    values: &[(Labels<'_>, u64)],
) -> fmt::Result {
    let name = format!("blkin_relay_{name}");
    let is_gauge = matches!(kind, MetricType::Gauge);
    let mut family = encoder.encode_descriptor(&name, help, None, kind)?;
    for (labels, value) in values {
        if labels.is_empty() {
            return one(family, is_gauge, *value);
        }
        one(family.encode_family(labels)?, is_gauge, *value)?;
    }
    Ok(())
}

fn one(encoder: MetricEncoder<'_>, is_gauge: bool, value: u64) -> fmt::Result {
    match is_gauge {
        true => ConstGauge::new(value).encode(encoder),
        false => ConstCounter::new(value).encode(encoder),
    }
}
