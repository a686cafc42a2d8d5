//! What every daemon's `/metrics` says of the daemon itself: its version, its start, and how its workers are. Whoever collects metrics
//! alone, and does not ask `/healthz`, learns of a stuck worker too.

use std::fmt;
use std::time::UNIX_EPOCH;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::health::{Health, State};

/// The metrics of a daemon with these workers, beside those that it has of its own.
pub(crate) fn registry(health: &Health) -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Presence { health: health.clone() }));
    registry
}

struct Presence {
    health: Health,
}

impl fmt::Debug for Presence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Presence")
    }
}

impl Collector for Presence {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let start = self.health.born_at().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        // Prometheus' own name for it, as other programs have it too.
        let help = "when the daemon started, in seconds since the epoch";
        let gauge = encoder.encode_descriptor("process_start_time_seconds", help, None, MetricType::Gauge)?;
        ConstGauge::new(start).encode(gauge)?;
        let version = [(env!("CARGO_PKG_VERSION").to_owned(), 1)];
        gauges(&mut encoder, "blkin_build_info", "always 1, with the daemon's version", "version", version)?;
        let workers = self.health.report().workers.into_iter();
        let workers = workers.map(|worker| (worker.name, i64::from(worker.state == State::Alive)));
        let help = "1 while the worker shows signs of life; 0 when it is stuck or dead";
        gauges(&mut encoder, "blkin_worker_alive", help, "worker", workers)
    }
}

/// A gauge with one label; each sample is the label's value and the figure.
fn gauges(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    label: &str,
    samples: impl IntoIterator<Item = (String, i64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (of, figure) in samples {
        ConstGauge::new(figure).encode(family.encode_family(&[(label, of)])?)?;
    }
    Ok(())
}
