//! The collector's metrics. The ledger's totals are read from the last commit, so they hold across restarts.

use std::fmt;
use std::sync::Arc;

use blkin_daemon::prometheus_client::collector::Collector;
use blkin_daemon::prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use blkin_daemon::prometheus_client::metrics::MetricType;
use blkin_daemon::prometheus_client::metrics::counter::ConstCounter;
use blkin_daemon::prometheus_client::metrics::gauge::ConstGauge;
use blkin_daemon::prometheus_client::registry::Registry;
use blkin_daemon::{Patience, Standing, standing};
use blkin_scribe::Budget;

use crate::ingest::{ALL_TRANSPORTS, Ingest, Rejects};
use crate::ledger::{Count, Figure, Ledger};
use crate::live::Live;
use crate::refusal::ALL_CAUSES;
use crate::store::writer::{Refused, Writer};

/// All metrics of the collector.
pub fn registry(metrics: Metrics) -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(metrics));
    registry
}

/// The sources of the metrics.
pub struct Metrics {
    /// Handle of the store's thread.
    pub writer: Writer,
    /// Reads the spans that arrive.
    pub ingest: Arc<Ingest>,
    /// Memory for messages being read.
    pub budget: Budget,
    /// Live viewers.
    pub live: Live,
    /// Idle time of HTTP connections, and the count of those that stalled.
    pub patience: Patience,
    /// The state of the disk, as each of its writers sees it.
    pub disk: Vec<Arc<Standing>>,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

const RECEIVED: [(&str, Figure); 3] = [
    ("scribe", Figure::ReceivedScribe),
    ("http_v1", Figure::ReceivedHttpV1),
    ("http_v2", Figure::ReceivedHttpV2),
];
const LOST: [(&str, Figure); 3] =
    [("malformed", Figure::Malformed), ("sampled_out", Figure::SampledOut), ("expired", Figure::Expired)];
const REFUSED: [(&str, Refused); 3] =
    [("queue_full", Refused::QueueFull), ("failed", Refused::Failed), ("stopping", Refused::Stopping)];

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        self.of_arrivals(&mut encoder)?;
        self.of_viewers(&mut encoder)?;
        self.of_store(&mut encoder)?;
        self.of_disk(encoder)
    }
}

impl Metrics {
    /// What arrived, and what became of it.
    fn of_arrivals(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let ledger = self.writer.ledger();
        ledger_metrics(encoder, &ledger, "", "annotations", |count| count.annotations)?;
        ledger_metrics(encoder, &ledger, "spans_", "pieces of spans", |count| count.spans)?;
        let refused = REFUSED.map(|(label, cause)| (label, self.ingest.refused_batches(cause)));
        counters(encoder, "refused_batches", "batches given back to their senders", "cause", &refused)?;
        rejected(encoder, self.ingest.rejects())?;
        let help = "Scribe entries skipped because their category is not scribe_category";
        counter(encoder, "skipped_entries", help, self.ingest.skipped().entries())?;
        let help = "messages half read that wait for memory at this moment";
        gauge(encoder, "messages_waiting", help, self.budget.waiting())?;
        let help = "messages dropped because they arrived too slowly while others waited for memory";
        counter(encoder, "messages_dropped", help, self.budget.dropped())?;
        let help = "HTTP connections closed, and HTTP/2 answers given up, because the client did not read what it was sent";
        counter(encoder, "http_stalled", help, self.patience.stalled())
    }

    fn of_viewers(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let live = self.live.figures();
        gauge(encoder, "live_viewers", "live viewers at this moment", live.viewers)?;
        let spans = [
            ("shown", live.shown),
            ("missed", live.missed),
            ("unseen", live.unseen),
            ("unkept", live.unkept),
        ];
        counters(encoder, "live_spans", blkin_live::UNITS, "fate", &spans)
    }

    fn of_disk(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let disk = self.disk.iter().map(|standing| (vec![("what", standing.name())], &**standing));
        standing::encode(&mut encoder, &full("disk"), "to write to the disk", &Vec::from_iter(disk))
    }

    fn of_store(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let queued = self.writer.queued_bytes();
        gauge(encoder, "queued_bytes", "bytes that wait for the store", queued)?;
        counter(encoder, "commits", "transactions of the store", self.writer.commits() as u64)?;
        let index = self.writer.index_size();
        gauge(encoder, "index_segments", "segments of the store's index", index.segments)?;
        gauge(encoder, "index_bytes", "bytes of the index's segments on disk", index.bytes)?;
        let help = "traces whose index entries are in memory and not yet in a segment on disk";
        gauge(encoder, "index_memory_traces", help, index.traces_in_memory)?;
        let help = "1 while the index in memory is over its limit: nothing is stored until the disk takes it";
        gauge(encoder, "index_overfull", help, u64::from(index.is_overfull))?;
        let help = "seconds since retention stopped following the machine's clock, which cannot be right; 0 while it follows it";
        let clock = self.writer.clock().trouble().map_or(0, |trouble| trouble.seconds);
        gauge(encoder, "clock_trouble_seconds", help, clock)?;
        let damage = self.writer.damage();
        counter(encoder, "damaged_pieces", "times that a damaged piece was left out", damage.pieces())?;
        counter(encoder, "damaged_files", "damaged files of the store that were set aside", damage.files())?;
        let help = "pieces of spans recovered from damaged files that were set aside";
        counter(encoder, "salvaged_spans", help, damage.salvaged())
    }
}

fn ledger_metrics(
    encoder: &mut DescriptorEncoder<'_>,
    ledger: &Ledger,
    prefix: &str,
    what: &str,
    unit: fn(Count) -> u64,
) -> fmt::Result {
    let value = |figure| unit(ledger.get(figure));
    let name = |name: &str| format!("{prefix}{name}");
    let help = |text: &str| format!("{what} {text}");
    let received = RECEIVED.map(|(label, figure)| (label, value(figure)));
    counters(encoder, &name("received"), &help("that arrived"), "transport", &received)?;
    counter(encoder, &name("stored"), &help("that were committed to the store"), value(Figure::Committed))?;
    gauge(encoder, &name("in_store"), &help("that are in the store now"), value(Figure::Stored))?;
    counter(encoder, &name("duplicate"), &help("that were in the store already"), value(Figure::Duplicate))?;
    let lost = LOST.map(|(label, figure)| (label, value(figure)));
    counters(encoder, &name("lost"), &help("that are not in the store"), "cause", &lost)
}

/// Counts since the start of the process. The ledger has rejected entries too, but only as lost, without the cause.
fn rejected(encoder: &mut DescriptorEncoder<'_>, rejects: &Rejects) -> fmt::Result {
    let (name, help) = (full("rejected"), "entries, or annotations of entries, that were rejected");
    let mut family = encoder.encode_descriptor(&name, help, None, MetricType::Counter)?;
    for transport in ALL_TRANSPORTS {
        for cause in ALL_CAUSES {
            let labels = [("transport", transport.label()), ("cause", cause.label())];
            let count = rejects.count(transport, cause);
            ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

fn full(name: &str) -> String {
    format!("blkin_collector_{name}")
}

fn counter(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    let metric = ConstCounter::new(value);
    metric.encode(encoder.encode_descriptor(&full(name), help, None, MetricType::Counter)?)
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    let metric = ConstGauge::new(value);
    metric.encode(encoder.encode_descriptor(&full(name), help, None, MetricType::Gauge)?)
}

fn counters(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    label: &str,
    values: &[(&str, u64)],
) -> fmt::Result {
    let name = full(name);
    let mut family = encoder.encode_descriptor(&name, help, None, MetricType::Counter)?;
    for (value_of_label, value) in values {
        ConstCounter::new(*value).encode(family.encode_family(&[(label, *value_of_label)])?)?;
    }
    Ok(())
}
