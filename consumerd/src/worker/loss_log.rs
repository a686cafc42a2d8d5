//! Log lines about annotations for which a sink had no room, while the daemon runs. Their rate is limited, because a flood of
//! losses must not fill the disk. What an upstream refuses is logged elsewhere, by the sink.

use std::time::{Duration, Instant};

use super::ledger::SinkFigures;

/// Pause between two lines of a sink.
const PAUSE: Duration = Duration::from_secs(10);

/// What has been logged of one sink's losses.
#[derive(Debug)]
pub(super) struct LossLog {
    logged: SinkFigures,
    when: Option<Instant>,
}

impl LossLog {
    /// Starts with these figures: earlier losses may have been logged by an earlier worker.
    pub(super) fn from(figures: SinkFigures) -> Self {
        Self { logged: figures, when: None }
    }

    /// The losses since the last line, as `queue_full` and `spool_evicted`, if a line is due now.
    pub(super) fn admit(&mut self, figures: SinkFigures, now: Instant) -> Option<(u64, u64)> {
        if self.when.is_some_and(|when| now.duration_since(when) < PAUSE) {
            return None;
        }
        self.rest(figures).inspect(|_| self.when = Some(now))
    }

    /// The losses since the last line, for a last line at the end.
    pub(super) fn rest(&mut self, figures: SinkFigures) -> Option<(u64, u64)> {
        let logged = std::mem::replace(&mut self.logged, figures);
        let lost = (figures.queue_full - logged.queue_full, figures.spool_evicted - logged.spool_evicted);
        (lost != (0, 0)).then_some(lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_reported_at_once_then_summed_then_at_the_end() {
        let lost =
            |queue_full, spool_evicted| SinkFigures { queue_full, spool_evicted, ..Default::default() };
        let (begin, mut log) = (Instant::now(), LossLog::from(lost(5, 0)));
        assert_eq!(
            log.admit(lost(5, 0), begin),
            None,
            "losses of the previous worker are not reported again"
        );
        assert_eq!(log.admit(lost(6, 0), begin), Some((1, 0)));
        assert_eq!(log.admit(lost(9, 1), begin + PAUSE / 2), None);
        assert_eq!(log.admit(lost(9, 2), begin + PAUSE), Some((3, 2)));
        assert_eq!(log.admit(lost(9, 2), begin + 3 * PAUSE), None, "nothing more was lost");
        assert_eq!(log.admit(lost(10, 2), begin + 3 * PAUSE), Some((1, 0)));
        assert_eq!(log.admit(lost(10, 7), begin + 3 * PAUSE), None);
        assert_eq!((log.rest(lost(10, 7)), log.rest(lost(10, 7))), (Some((0, 5)), None));
    }
}
