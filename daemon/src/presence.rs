//! What `/metrics` says about the daemon itself: its version, its start, the resources that it uses, the state of its workers,
//! and whether it could start again. So a stuck worker also shows where only metrics are collected and nothing asks
//! `/healthz`.

use std::fmt;
use std::fs;
use std::time::{Duration, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

use crate::health::{Health, State};
use crate::{settings, stderr};

/// The metrics that every daemon has, for a daemon with these workers.
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
        // The standard Prometheus names (`process_*`), as other programs use them.
        let help = "when the daemon started, in seconds since the epoch";
        gauge(&mut encoder, "process_start_time_seconds", help, start)?;
        usage(&mut encoder)?;
        let version = [(env!("CARGO_PKG_VERSION").to_owned(), 1)];
        gauges(&mut encoder, "blkin_build_info", "always 1, with the daemon's version", "version", version)?;
        let help = "times in a row that the daemon read its configuration again and could not use it; above 0, a restart would fail too";
        gauge(&mut encoder, "blkin_config_refused", help, settings::refused())?;
        let help = "lines of the process's log that were lost: nobody read them in time, or they could not be written";
        counter(&mut encoder, "blkin_log_lines_lost", help, stderr::lost_lines())?;
        let workers = self.health.report().workers.into_iter();
        let workers = workers.map(|worker| (worker.name, i64::from(worker.state == State::Alive)));
        let help = "1 while the worker is alive; 0 when it is stuck or dead";
        gauges(&mut encoder, "blkin_worker_alive", help, "worker", workers)
    }
}

/// The resources that the process uses. A figure that the system does not provide is left out.
fn usage(encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    let used = Duration::try_from(used).unwrap_or_default().as_secs_f64();
    let help = "CPU time that the process has used, in seconds";
    counter(encoder, "process_cpu_seconds", help, used)?;
    let figures = [
        ("process_resident_memory_bytes", "memory of the process that is resident in RAM", resident_bytes()),
        ("process_open_fds", "file descriptors that the process has open", open_files()),
        (
            "process_max_fds",
            "file descriptors that the process may have open",
            getrlimit(Resource::Nofile).current,
        ),
    ];
    figures.into_iter().try_for_each(|(name, help, figure)| match figure {
        Some(figure) => gauge(encoder, name, help, figure),
        None => Ok(()),
    })
}

fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"))?;
    Some(kib.parse::<u64>().ok()? << 10)
}

/// Open file descriptors, without the one that is open for counting them.
fn open_files() -> Option<u64> {
    Some(fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1) as u64)
}

fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    figure: impl EncodeGaugeValue,
) -> fmt::Result {
    ConstGauge::new(figure).encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
}

fn counter(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    figure: impl EncodeCounterValue,
) -> fmt::Result {
    ConstCounter::new(figure).encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)
}

/// A gauge with one label; each sample is a value of the label, and the figure.
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
