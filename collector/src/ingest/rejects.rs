//! Rejected entries, and why they were rejected. They are counted by cause and transport, logged at a limited rate so that a
//! flood of bad entries does not flood the log, and the most recent ones are kept (`GET /api/blkin/rejects`, `blkin rejects`).

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::refusal::{ALL_CAUSES, Cause, Refusal};
use crate::store::writer::now_ms;

const WINDOW: Duration = Duration::from_secs(10);
const LINES_PER_WINDOW: u64 = 5;
/// Reasons quote what was sent; a longer reason is cut to this.
const MAX_REASON_CHARS: usize = 300;
/// How many rejects are kept; the oldest are dropped.
pub const MOST_RECENT: usize = 256;

/// The ways by which entries arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// Scribe.
    Scribe,
    /// `POST /api/v1/spans`.
    HttpV1,
    /// `POST /api/v2/spans`.
    HttpV2,
}

/// All transports, in the order of their numbers.
pub const ALL_TRANSPORTS: [Transport; 3] = [Transport::Scribe, Transport::HttpV1, Transport::HttpV2];

impl Transport {
    /// The label of metrics.
    pub fn label(self) -> &'static str {
        match self {
            Transport::Scribe => "scribe",
            Transport::HttpV1 => "http_v1",
            Transport::HttpV2 => "http_v2",
        }
    }
}

/// Where an entry came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    /// The way by which it came.
    pub transport: Transport,
    /// The sender's address, if known.
    pub peer: Option<SocketAddr>,
}

/// One rejected entry.
#[derive(Debug, Clone, Serialize)]
pub struct Reject {
    /// When it was rejected, in milliseconds since 1970.
    pub time_ms: u64,
    /// The way by which it came.
    pub transport: Transport,
    /// The sender's address, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<SocketAddr>,
    /// The cause under which it is counted.
    pub cause: Cause,
    /// What exactly was wrong.
    pub reason: String,
}

/// All rejects since the start of the process.
#[derive(Default)]
pub struct Rejects {
    counts: [[AtomicU64; ALL_CAUSES.len()]; ALL_TRANSPORTS.len()],
    recent: Mutex<VecDeque<Reject>>,
    window: Mutex<Option<Window>>,
}

struct Window {
    opened: Instant,
    told: u64,
}

impl Rejects {
    /// Counts `times` equal rejects, and logs and keeps one of them.
    pub(crate) fn tell(&self, source: Source, refusal: &dyn Refusal, times: u64) {
        let Source { transport, peer } = source;
        let cause = refusal.cause();
        self.counts[transport as usize][cause as usize].fetch_add(times, Ordering::Relaxed);
        let reason: String = refusal.to_string().chars().take(MAX_REASON_CHARS).collect();
        if let Some(held_back) = self.admit(Instant::now()) {
            let (transport, cause) = (transport.label(), cause.label());
            let peer = peer.map(tracing::field::display);
            tracing::warn!(transport, peer, cause, held_back, "rejected an entry: {reason}");
        }
        self.keep(Reject { time_ms: now_ms(), transport, peer, cause, reason });
    }

    /// How many were rejected for this cause.
    pub fn count(&self, transport: Transport, cause: Cause) -> u64 {
        self.counts[transport as usize][cause as usize].load(Ordering::Relaxed)
    }

    /// The most recent ones, the latest first.
    pub fn recent(&self) -> Vec<Reject> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner).iter().rev().cloned().collect()
    }

    fn keep(&self, reject: Reject) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.len() == MOST_RECENT {
            recent.pop_front();
        }
        recent.push_back(reject);
    }

    /// Whether a line may be logged now; if so, how many lines were held back in the window before.
    fn admit(&self, now: Instant) -> Option<u64> {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        match window.as_mut() {
            Some(open) if now.duration_since(open.opened) < WINDOW => {
                open.told += 1;
                (open.told <= LINES_PER_WINDOW).then_some(0)
            }
            before => {
                let held_back = before.map_or(0, |w| w.told.saturating_sub(LINES_PER_WINDOW));
                *window = Some(Window { opened: now, told: 1 });
                Some(held_back)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refusal::BadEntry;

    #[test]
    fn floods_of_rejects_are_throttled_in_the_log_and_counted() {
        let rejects = Rejects::default();
        let start = Instant::now();
        let lines = (0..100).filter(|_| rejects.admit(start).is_some()).count();
        assert_eq!(lines, LINES_PER_WINDOW as usize);
        assert_eq!(rejects.admit(start + WINDOW), Some(95));
    }

    #[test]
    fn rejects_are_counted_and_the_latest_kept_with_cut_reasons() {
        let rejects = Rejects::default();
        let source = Source { transport: Transport::HttpV2, peer: None };
        for number in 0..MOST_RECENT + 10 {
            rejects.tell(source, &BadEntry::Kind(format!("{number} {}", "x".repeat(10_000))), 1);
        }
        rejects.tell(source, &BadEntry::IncompleteAnnotation, 3);
        assert_eq!(rejects.count(Transport::HttpV2, Cause::BadValue), MOST_RECENT as u64 + 10);
        assert_eq!(rejects.count(Transport::HttpV2, Cause::EmptyAnnotation), 3);
        assert_eq!(rejects.count(Transport::Scribe, Cause::BadValue), 0);
        let recent = rejects.recent();
        assert_eq!((recent.len(), recent[0].cause), (MOST_RECENT, Cause::EmptyAnnotation));
        assert!(recent[1].reason.contains(&format!("\"{} x", MOST_RECENT + 9)));
        assert_eq!(recent[1].reason.chars().count(), MAX_REASON_CHARS);
    }
}
