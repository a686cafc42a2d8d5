//! The daemon ends.

use std::sync::atomic::{Ordering::SeqCst, fence};
use std::time::{Duration, Instant};

use super::{Engine, Progress};
use crate::staging::StagingError;

/// Longest wait for what the kernel says of programs, at the end.
const LAST_ANSWERS: Duration = Duration::from_millis(500);

impl Engine {
    /// The daemon ends: nothing lingers in the sinks any longer.
    pub(in crate::worker) fn finish(&mut self) {
        self.feeder.hurry();
    }

    /// Lets sinks that are behind read on, and hands the spans that are open to them, as far as they have room. Says whether
    /// every sink has settled everything. What was not handed over by `due` stays on its way, and is named with the rest of that.
    ///
    /// # Errors
    /// When the staging memory cannot be used.
    pub(in crate::worker) fn finish_more(&mut self, due: Instant) -> Result<bool, StagingError> {
        self.settle();
        self.refill(&mut Progress::default())?;
        if self.feeder.unread_by_join().is_none() {
            let mut out = Vec::new();
            self.join.leave_all(&mut out);
            self.last.extend(out);
        }
        while self.feeder.push_spans_with_room() {
            let Some(piece) = self.last.pop_front() else {
                if !self.feeder.is_behind() {
                    self.feeder.end();
                }
                return Ok(self.ledger.is_settled());
            };
            self.encode(piece);
            if Instant::now() >= due {
                break;
            }
        }
        Ok(false)
    }

    /// Tells every program that nobody reads any more, so that it offers itself to another, and takes what was recorded
    /// until then: what comes later its program names itself, should it end before it is read.
    ///
    /// # Errors
    /// When the staging memory cannot be used.
    pub(in crate::worker) fn drain_last(&mut self) -> Result<(), StagingError> {
        self.programs.values().for_each(|program| program.attachment.mark_attached(false));
        // The rings are looked at after that can be seen.
        fence(SeqCst);
        self.round().map(drop)
    }

    /// Annotations that are still in the rings of programs that have ended: nobody else will read them, nor does anybody live
    /// who would name them. A program about which the kernel does not answer in time counts as alive.
    pub(in crate::worker) fn left_behind(&mut self) -> u64 {
        self.ask_of_writers_by(Instant::now() + LAST_ANSWERS);
        let unread = self.live_programs().filter(|program| !program.is_recorder() && program.has_no_writer());
        unread.map(|program| program.attachment.pending()).sum()
    }

    /// Flight recorders that are kept of programs that have ended, the one that ended last first, and the annotations in
    /// them: they end with the daemon.
    pub(in crate::worker) fn kept_recorders(&self) -> (Vec<&str>, u64) {
        let mut kept: Vec<_> =
            self.programs.values().filter_map(|program| Some((program.ended_at()?, program))).collect();
        kept.sort_by_key(|(ended_at, _)| std::cmp::Reverse(*ended_at));
        let annotations = kept.iter().map(|(_, program)| program.attachment.pending()).sum();
        (kept.into_iter().map(|(_, program)| program.label.as_str()).collect(), annotations)
    }

    /// Says how much is settled.
    ///
    /// # Errors
    /// When the staging memory cannot be used.
    pub(in crate::worker) fn close_books(&mut self) -> Result<(), StagingError> {
        let now = self.now();
        self.retire(now)?;
        self.write_checkpoint(now)
    }
}
