//! Decides when a file that failed is written to again.

use std::time::{Duration, Instant};

use blkin_daemon::{Cause, Standing};

use super::StoreError;

/// When a file that failed may be written to again; for example, a file fails while its disk is full. After each failure the file
/// is opened again, and read from end to end for that. If this happened for each batch that a sender repeats, queries would get
/// no time.
#[derive(Debug)]
pub(super) struct Retry {
    pub(super) not_before: Option<Instant>,
    /// The reason of the failure; none if the disk was full.
    reason: Option<String>,
    /// Whether the file can be written to. Used only to limit log lines, because the writing thread reports its own state.
    standing: Standing,
}

impl Default for Retry {
    fn default() -> Self {
        Retry { not_before: None, reason: None, standing: Standing::new("store", "", &[Cause::Failed]) }
    }
}

impl Retry {
    /// The pause is this many times as long as opening took, but at most `MOST`, because senders should not wait longer once the
    /// disk has room; and at least as long as opening took.
    const PATIENCE: u32 = 10;
    const MOST: Duration = Duration::from_secs(10);

    pub(super) fn opened(&mut self, begun: Instant, now: Instant) {
        let took = now.saturating_duration_since(begun);
        self.not_before = Some(now + (took * Self::PATIENCE).min(Self::MOST).max(took));
    }

    pub(super) fn failed(&mut self, error: &StoreError) {
        self.reason = match error {
            StoreError::Full => None,
            // The reason is known from the failure before.
            StoreError::Closed => return,
            StoreError::Engine(reason) | StoreError::Open { reason, .. } => Some(reason.clone()),
            other => Some(other.to_string()),
        };
    }

    /// Notes, and logs now and then, that the file can only be read.
    pub(super) fn note_read_only(&self) {
        if let Some(held_back) = self.begins_to_only_read() {
            tracing::warn!(
                held_back,
                "the disk refuses writes: queries are answered, and nothing is stored until the disk takes writes again"
            );
        }
    }

    /// A disk may take other files but not this one, which then is opened for reading again and again. That is logged once until
    /// something was written. Returns, if it is to be logged now, how often it was held back before.
    fn begins_to_only_read(&self) -> Option<u64> {
        self.standing.failed(Cause::Failed, "").map(|begun| begun.held_back)
    }

    pub(super) fn wrote(&self) {
        let _said_by_the_writer = self.standing.succeeded();
    }

    pub(super) fn may_write(&self, now: Instant) -> bool {
        self.not_before.is_none_or(|moment| now >= moment)
    }

    /// The error for a write that comes too early.
    pub(super) fn refusal(&self) -> StoreError {
        self.reason.clone().map_or(StoreError::Full, StoreError::Engine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_before_a_retry_depends_on_the_opening_time() {
        let mut retry = Retry::default();
        let begun = Instant::now();
        assert!(retry.may_write(begun));
        for (took_ms, pause_ms) in [(5, 50), (900, 9000), (8000, 10_000), (30_000, 30_000)] {
            let opened = begun + Duration::from_millis(took_ms);
            retry.opened(begun, opened);
            assert!(!retry.may_write(opened + Duration::from_millis(pause_ms - 1)));
            assert!(retry.may_write(opened + Duration::from_millis(pause_ms)));
        }
    }

    #[test]
    fn opening_read_only_is_reported_once() {
        let retry = Retry::default();
        retry.wrote();
        assert_eq!(retry.begins_to_only_read(), Some(0));
        assert!((0..1000).all(|_| retry.begins_to_only_read().is_none()));
        retry.wrote();
        assert_eq!(
            retry.begins_to_only_read(),
            None,
            "a disk that often fails and recovers does not fill the log"
        );
    }
}
