//! Notices entries that come back: if upstreams lead back to this relay through other relays, it receives what it has sent, for
//! ever.
//!
//! Scribe calls do not say where they have been, and entries are passed on unchanged. But spans differ in their ids and times, so
//! each arrives again and again in a loop, and hardly any does elsewhere: only a sender that did not receive its answer sends a
//! span once more. So the relay remembers one span at a time, and counts how often it arrives again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use blkin_daemon::{Cause, Standing};
use blkin_thrift::scribe::RawEntry;

/// An entry that has arrived this many times more counts as being in a loop.
const TIMES: u64 = 16;
/// An entry that has not arrived for this long is forgotten, and another one is remembered.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longer entries are not remembered.
const MAX_BYTES: usize = 64 << 10;

/// Remembers an entry, and counts how often it comes back.
#[derive(Debug)]
pub struct LoopDetector {
    watch: Mutex<Watch>,
    times: AtomicU64,
    standing: Arc<Standing>,
}

#[derive(Debug)]
struct Watch {
    /// The number of entries that were remembered so far; it identifies the current one.
    number: u64,
    /// The remembered entry; empty before the first.
    entry: Vec<u8>,
    last_seen: Instant,
    times: u64,
}

/// How often a call contains the remembered entry. It counts only once the call was accepted: after `TRY_LATER`, the call is
/// expected to arrive again.
#[derive(Debug, Default)]
pub struct Sightings {
    number: u64,
    times: u64,
    /// The entry to remember next, if it is time for that.
    next: Option<Vec<u8>>,
}

impl LoopDetector {
    /// The only cause of this trouble; there is no special name for it.
    pub const CAUSES: &'static [Cause] = &[Cause::Failed];

    /// Nothing is remembered yet. `standing` gets trouble when an entry is in a loop.
    pub fn new(standing: Arc<Standing>) -> Self {
        let watch = Watch { number: 0, entry: Vec::new(), last_seen: Instant::now(), times: 0 };
        LoopDetector { watch: Mutex::new(watch), times: AtomicU64::new(0), standing }
    }

    /// How often a remembered entry arrived again.
    pub fn times(&self) -> u64 {
        self.times.load(Ordering::Relaxed)
    }

    /// Looks for the remembered entry among the spans of a call.
    pub fn look<'a, 'b: 'a>(&self, spans: impl Iterator<Item = &'a RawEntry<'b>>) -> Sightings {
        self.look_at(Instant::now(), spans)
    }

    fn look_at<'a, 'b: 'a>(&self, now: Instant, spans: impl Iterator<Item = &'a RawEntry<'b>>) -> Sightings {
        let watch = self.lock();
        let (mut times, mut last) = (0, None);
        for span in spans.filter(|span| span.bytes.len() <= MAX_BYTES) {
            times += u64::from(span.bytes == watch.entry);
            last = Some(span.bytes);
        }
        let next = last.filter(|_| times == 0 && watch.is_over(now)).map(<[u8]>::to_vec);
        Sightings { number: watch.number, times, next }
    }

    /// Counts what was seen in a call that was accepted.
    pub fn commit_sightings(&self, sightings: Sightings) {
        self.commit_sightings_at(Instant::now(), sightings);
    }

    fn commit_sightings_at(&self, now: Instant, sightings: Sightings) {
        if sightings.times == 0 && sightings.next.is_none() {
            return;
        }
        let mut watch = self.lock();
        if watch.number != sightings.number {
            return;
        }
        if let Some(entry) = sightings.next {
            let came_round = watch.times >= TIMES;
            *watch = Watch { number: watch.number + 1, entry, last_seen: now, times: 0 };
            drop(watch);
            if came_round {
                self.log_loop_over();
            }
            return;
        }
        watch.times += sightings.times;
        watch.last_seen = now;
        let times = watch.times;
        drop(watch);
        self.times.fetch_add(sightings.times, Ordering::Relaxed);
        if times >= TIMES {
            self.log_loop(times);
        }
    }

    fn log_loop(&self, times: u64) {
        let reason = format!(
            "the same span arrived {times} more times: upstreams lead back to this relay through others, or a sender does not \
             receive its answers"
        );
        if let Some(begun) = self.standing.failed(Cause::Failed, &reason) {
            let (upstreams, held_back) = (self.standing.to(), begun.held_back);
            tracing::warn!(upstreams, held_back, "{reason}; check where each upstream sends to");
        }
    }

    fn log_loop_over(&self) {
        if let Some(over) = self.standing.succeeded() {
            let (seconds, times) = (over.lasted.as_secs(), over.failures);
            tracing::info!(seconds, times, "spans no longer come back");
        }
    }

    fn lock(&self) -> MutexGuard<'_, Watch> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch {
    fn is_over(&self, now: Instant) -> bool {
        self.entry.is_empty() || now.duration_since(self.last_seen) >= PATIENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detector() -> LoopDetector {
        LoopDetector::new(Arc::new(Standing::new("loop", "b:1", LoopDetector::CAUSES)))
    }

    fn look(detector: &LoopDetector, now: Instant, spans: &[&[u8]]) -> Sightings {
        let entries = spans.iter().map(|bytes| RawEntry { category: b"zipkin", message: b"", bytes });
        detector.look_at(now, entries.collect::<Vec<_>>().iter())
    }

    fn take(detector: &LoopDetector, now: Instant, spans: &[&[u8]]) {
        detector.commit_sightings_at(now, look(detector, now, spans));
    }

    #[test]
    fn returning_span_is_reported_as_a_loop_until_it_stops() {
        let (detector, now) = (detector(), Instant::now());
        take(&detector, now, &[b"a", b"b"]);
        for time in 0..TIMES {
            assert!(detector.standing.trouble().is_none(), "after {time}");
            take(&detector, now + PATIENCE * time as u32, &[b"c", b"b"]);
        }
        let told = detector.standing.trouble().unwrap();
        assert!(
            told.reason.contains("arrived 16 more times") && detector.times() == TIMES,
            "{}",
            told.reason
        );
        let later = now + PATIENCE * (TIMES as u32 + 1);
        take(&detector, later, &[b"d"]);
        assert!(detector.standing.trouble().is_none());
        take(&detector, later, &[b"b"]);
        assert_eq!(detector.times(), TIMES, "the old span is forgotten");
    }

    #[test]
    fn distinct_spans_and_resent_spans_are_not_a_loop() {
        let (detector, now) = (detector(), Instant::now());
        for number in 0..1000_u32 {
            let span = number.to_be_bytes();
            let now = now + Duration::from_millis(100) * number;
            // Answered with `TRY_LATER`, and then sent twice.
            for _ in 0..5 {
                look(&detector, now, &[&span]);
            }
            take(&detector, now, &[&span, &span]);
            take(&detector, now, &[&span]);
        }
        assert!(detector.standing.trouble().is_none());
        assert!((1..100).contains(&detector.times()), "{}", detector.times());
    }

    #[test]
    fn a_span_that_is_too_long_is_not_remembered() {
        let (detector, now) = (detector(), Instant::now());
        let long = vec![7; MAX_BYTES + 1];
        take(&detector, now, &[&long]);
        take(&detector, now, &[&long]);
        assert_eq!((detector.times(), detector.lock().entry.len()), (0, 0));
    }
}
