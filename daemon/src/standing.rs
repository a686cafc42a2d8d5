//! The state of another side that a daemon delivers to, such as an upstream or a file: whether it accepts what it is given,
//! since when it does not, and why.
//!
//! Trouble begins with a failed attempt and ends with the next one that works. Each gets one line in the log, however many
//! attempts there are in between. A side that works and fails by turns would fill the disk with such pairs of lines. So trouble
//! that begins within [`PAUSE`] of the last such line is logged only if it still lasts after that pause, and otherwise counted.

use std::fmt;
use std::io::{self, ErrorKind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use serde::Serialize;

/// Least time between two log lines that report the beginning of trouble.
pub const PAUSE: Duration = Duration::from_secs(10);

/// Why an attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// No connection could be made.
    Unreachable,
    /// The connection broke, or its other end was silent, before there was an answer.
    Broken,
    /// The other side asks to try again later.
    TryLater,
    /// The other side says of each entry that it will never accept it.
    Refused,
    /// The limit in the configuration is reached.
    Bound,
    /// The disk has no room, or the user's quota is used up.
    DiskFull,
    /// No process reads the named pipe.
    NoReader,
    /// The machine's clock cannot be right.
    Clock,
    /// Any other error of the system.
    Failed,
}

impl Cause {
    /// The possible causes for a Scribe server.
    pub const OF_UPSTREAM: &'static [Cause] =
        &[Cause::Unreachable, Cause::Broken, Cause::TryLater, Cause::Refused];
    /// The possible causes for a file or a named pipe.
    pub const OF_FILE: &'static [Cause] = &[Cause::DiskFull, Cause::NoReader, Cause::Failed];
    /// The possible causes for a folder with a limit on its size.
    pub const OF_FOLDER: &'static [Cause] = &[Cause::Bound, Cause::DiskFull, Cause::Failed];

    /// The cause of a failed write to a disk.
    pub fn of_write(error: &io::Error) -> Cause {
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Cause::DiskFull,
            _ => Cause::Failed,
        }
    }

    /// The cause's name in logs and metrics.
    pub fn label(self) -> &'static str {
        match self {
            Cause::Unreachable => "unreachable",
            Cause::Broken => "broken",
            Cause::TryLater => "try_later",
            Cause::Refused => "refused",
            Cause::Bound => "bound",
            Cause::DiskFull => "disk_full",
            Cause::NoReader => "no_reader",
            Cause::Clock => "clock",
            Cause::Failed => "failed",
        }
    }
}

/// A log line is due: trouble has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    /// How often trouble has begun and ended without a log line since the last line.
    pub held_back: u64,
}

/// A log line is due: the trouble that was logged is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Over {
    /// How long the trouble lasted.
    pub lasted: Duration,
    /// Attempts that failed.
    pub failures: u64,
}

/// Current trouble, as `/healthz` reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Trouble {
    /// The part of the daemon that delivers.
    pub name: String,
    /// Where it delivers to: an upstream, a file.
    pub to: String,
    /// Why the last attempt failed.
    pub cause: Cause,
    /// The error message of that attempt.
    pub reason: String,
    /// How long the trouble has lasted.
    pub seconds: u64,
    /// Attempts that failed since the trouble began.
    pub failures: u64,
}

/// The state of one other side.
#[derive(Debug)]
pub struct Standing {
    name: String,
    to: String,
    causes: &'static [Cause],
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Before the first success, the time of the start.
    last_success: Instant,
    failures: Vec<u64>,
    current: Option<Current>,
    last_line: Option<Instant>,
    held_back: u64,
}

#[derive(Debug)]
struct Current {
    since: Instant,
    cause: Cause,
    reason: String,
    failures: u64,
    is_said: bool,
}

impl Standing {
    /// No attempt yet. `name` says what delivers, and `to` where to; `causes` are those for which an attempt can fail.
    pub fn new(name: impl Into<String>, to: impl Into<String>, causes: &'static [Cause]) -> Self {
        let state = State {
            last_success: Instant::now(),
            failures: vec![0; causes.len()],
            current: None,
            last_line: None,
            held_back: 0,
        };
        Standing { name: name.into(), to: to.into(), causes, state: Mutex::new(state) }
    }

    /// The part of the daemon that delivers.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it delivers to.
    pub fn to(&self) -> &str {
        &self.to
    }

    /// Notes that an attempt failed. Returns something if a log line is due.
    pub fn failed(&self, cause: Cause, reason: impl fmt::Display) -> Option<Begun> {
        self.failed_at(Instant::now(), cause, &reason)
    }

    fn failed_at(&self, now: Instant, cause: Cause, reason: &dyn fmt::Display) -> Option<Begun> {
        let mut state = self.lock();
        if let Some(index) = self.causes.iter().position(|possible| *possible == cause) {
            state.failures[index] += 1;
        }
        let is_soon = state.last_line.is_some_and(|last| now.duration_since(last) < PAUSE);
        let current = state.current.get_or_insert_with(|| Current::new(now, cause));
        current.cause = cause;
        current.reason = reason.to_string();
        current.failures += 1;
        if is_soon || std::mem::replace(&mut current.is_said, true) {
            return None;
        }
        state.last_line = Some(now);
        Some(Begun { held_back: std::mem::take(&mut state.held_back) })
    }

    /// Notes that an attempt worked. Returns something if a log line is due.
    pub fn succeeded(&self) -> Option<Over> {
        self.succeeded_at(Instant::now())
    }

    fn succeeded_at(&self, now: Instant) -> Option<Over> {
        let mut state = self.lock();
        state.last_success = now;
        let over = state.current.take()?;
        if !over.is_said {
            state.held_back += 1;
            return None;
        }
        Some(Over { lasted: now.duration_since(over.since), failures: over.failures })
    }

    /// The current trouble, if any.
    pub fn trouble(&self) -> Option<Trouble> {
        let state = self.lock();
        let current = state.current.as_ref()?;
        Some(Trouble {
            name: self.name.clone(),
            to: self.to.clone(),
            cause: current.cause,
            reason: current.reason.clone(),
            seconds: current.since.elapsed().as_secs(),
            failures: current.failures,
        })
    }

    /// How many attempts failed for each cause.
    fn failures(&self) -> Vec<(Cause, u64)> {
        self.causes.iter().copied().zip(self.lock().failures.iter().copied()).collect()
    }

    fn seconds_since_success(&self) -> u64 {
        self.lock().last_success.elapsed().as_secs()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Current {
    fn new(since: Instant, cause: Cause) -> Self {
        Current { since, cause, reason: String::new(), failures: 0, is_said: false }
    }
}

/// The labels of one time series.
type Labels<'a> = Vec<(&'static str, &'a str)>;

/// Encodes the state of several other sides, each with its labels, as `PREFIX_failures` by cause, `PREFIX_trouble` (1 for the
/// cause for which the last attempt failed), `PREFIX_trouble_seconds` and `PREFIX_since_success_seconds`. `to` completes the
/// help texts: they speak of an attempt "to deliver", for example.
///
/// # Errors
/// When the encoder fails.
pub fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    prefix: &str,
    to: &str,
    standings: &[(Labels<'_>, &Standing)],
) -> fmt::Result {
    let name = format!("{prefix}_failures");
    let help = format!("attempts {to} that failed since the start, by cause");
    let mut family = encoder.encode_descriptor(&name, &help, None, MetricType::Counter)?;
    for (labels, standing) in standings {
        for (cause, count) in standing.failures() {
            let labels = with_cause(labels, cause);
            ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
        }
    }
    let name = format!("{prefix}_trouble");
    let help = format!(
        "1 for the cause for which the last attempt {to} failed, else 0; 0 for every cause if it worked"
    );
    let mut family = encoder.encode_descriptor(&name, &help, None, MetricType::Gauge)?;
    for (labels, standing) in standings {
        let now = standing.trouble().map(|trouble| trouble.cause);
        for cause in standing.causes {
            let labels = with_cause(labels, *cause);
            ConstGauge::new(i64::from(now == Some(*cause))).encode(family.encode_family(&labels)?)?;
        }
    }
    let lasts = |standing: &Standing| standing.trouble().map_or(0, |trouble| trouble.seconds);
    let help = format!("seconds for which attempts {to} have been failing; 0 while they work");
    encode_seconds(encoder, &format!("{prefix}_trouble_seconds"), &help, standings, lasts)?;
    let help = format!("seconds since an attempt {to} last worked, or since the start if none has");
    let name = format!("{prefix}_since_success_seconds");
    encode_seconds(encoder, &name, &help, standings, Standing::seconds_since_success)
}

fn with_cause<'a>(labels: &Labels<'a>, cause: Cause) -> Labels<'a> {
    [&labels[..], &[("cause", cause.label())]].concat()
}

fn encode_seconds(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    standings: &[(Labels<'_>, &Standing)],
    seconds: impl Fn(&Standing) -> u64,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, standing) in standings {
        ConstGauge::new(seconds(standing)).encode(family.encode_family(labels)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn standing() -> Standing {
        Standing::new("scribe", "10.0.0.5:9410", Cause::OF_UPSTREAM)
    }

    #[test]
    fn trouble_is_logged_only_when_it_begins_and_ends() {
        let (standing, begin) = (standing(), Instant::now());
        assert_eq!(standing.succeeded_at(begin), None);
        assert_eq!(standing.failed_at(begin, Cause::Unreachable, &"refused"), Some(Begun { held_back: 0 }));
        for second in 1..60 {
            assert_eq!(standing.failed_at(begin + SECOND * second, Cause::TryLater, &"later"), None);
        }
        let trouble = standing.trouble().unwrap();
        assert_eq!(
            (trouble.cause, trouble.reason.as_str(), trouble.failures),
            (Cause::TryLater, "later", 60)
        );
        let over = Over { lasted: 60 * SECOND, failures: 60 };
        assert_eq!(standing.succeeded_at(begin + 60 * SECOND), Some(over));
        assert_eq!(standing.succeeded_at(begin + 61 * SECOND), None);
        assert_eq!(standing.trouble(), None);
    }

    #[test]
    fn alternating_failures_are_logged_rarely_with_a_count() {
        let (standing, begin) = (standing(), Instant::now());
        let mut lines = (0, 0);
        for tenth in 0..1000 {
            let now = begin + SECOND / 10 * tenth;
            lines.0 += u32::from(standing.failed_at(now, Cause::TryLater, &"").is_some());
            lines.1 += u32::from(standing.succeeded_at(now).is_some());
        }
        assert_eq!(lines, (10, 10));
        let again = standing.failed_at(begin + 100 * SECOND, Cause::TryLater, &"");
        assert_eq!(again, Some(Begun { held_back: 99 }));
    }

    #[test]
    fn trouble_soon_after_the_last_is_logged_once_it_lasts() {
        let (standing, begin) = (standing(), Instant::now());
        standing.failed_at(begin, Cause::Broken, &"");
        standing.succeeded_at(begin);
        assert_eq!(standing.failed_at(begin + SECOND, Cause::Unreachable, &""), None);
        assert_eq!(standing.failed_at(begin + 9 * SECOND, Cause::Unreachable, &""), None);
        let said = standing.failed_at(begin + PAUSE, Cause::Unreachable, &"");
        assert_eq!(said, Some(Begun { held_back: 0 }));
        let over = Over { lasted: 19 * SECOND, failures: 3 };
        assert_eq!(standing.succeeded_at(begin + 20 * SECOND), Some(over));
    }

    #[test]
    fn metric_help_names_the_attempted_action() {
        #[derive(Debug)]
        struct Disk(Standing);
        impl prometheus_client::collector::Collector for Disk {
            fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
                encode(&mut encoder, "disk", "to write", &[(Vec::new(), &self.0)])
            }
        }
        let mut registry = prometheus_client::registry::Registry::default();
        registry.register_collector(Box::new(Disk(standing())));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let help: Vec<&str> = text.lines().filter(|line| line.starts_with("# HELP ")).collect();
        assert_eq!(help.len(), 4);
        assert!(help.iter().all(|line| line.contains(" to write ") && !line.contains("deliver")), "{help:?}");
    }

    #[test]
    fn full_disk_and_failing_disk_have_different_causes() {
        let of = |kind: ErrorKind| Cause::of_write(&kind.into());
        assert_eq!(of(ErrorKind::StorageFull), Cause::DiskFull);
        assert_eq!(of(ErrorKind::QuotaExceeded), Cause::DiskFull);
        assert_eq!(of(ErrorKind::PermissionDenied), Cause::Failed);
    }
}
