//! What the worker does when the daemon ends.

use std::sync::atomic::{Ordering::SeqCst, fence};
use std::time::{Duration, Instant};

use super::{Engine, Progress};
use crate::staging::StagingError;

/// Longest wait at the end for the kernel's answers about programs.
const LAST_ANSWERS: Duration = Duration::from_millis(500);

impl Engine {
    /// Tells the sinks that the daemon ends: batches no longer wait for more.
    pub(in crate::worker) fn finish(&mut self) {
        self.feeder.hurry();
    }

    /// Lets sinks that are behind read on, and hands them the open spans, as far as they have room. Returns whether every sink has
    /// settled everything. What is not handed over by `due` stays in flight, and is logged as such.
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

    /// Tells every program that it is no longer read, so that it offers itself to another daemon, and drains what was recorded
    /// until then. If a program records more and ends before it is read again, the program itself reports that.
    ///
    /// # Errors
    /// When the staging memory cannot be used.
    pub(in crate::worker) fn drain_last(&mut self) -> Result<(), StagingError> {
        self.programs.values().for_each(|program| program.attachment.mark_attached(false));
        // The rings must be read after the programs can see the mark.
        fence(SeqCst);
        self.round().map(drop)
    }

    /// Annotations that are still in the rings of ended programs: nobody else will read them, and no program is left to report
    /// them. A program about which the kernel does not answer in time counts as alive.
    pub(in crate::worker) fn left_behind(&mut self) -> u64 {
        self.ask_of_writers_by(Instant::now() + LAST_ANSWERS);
        let unread = self.live_programs().filter(|program| !program.is_recorder() && program.has_no_writer());
        unread.map(|program| program.attachment.pending()).sum()
    }

    /// The kept flight recorders of ended programs, the one that ended last first, and how many annotations they hold. They end
    /// with the daemon.
    pub(in crate::worker) fn kept_recorders(&self) -> (Vec<&str>, u64) {
        let mut kept: Vec<_> =
            self.programs.values().filter_map(|program| Some((program.ended_at()?, program))).collect();
        kept.sort_by_key(|(ended_at, _)| std::cmp::Reverse(*ended_at));
        let annotations = kept.iter().map(|(_, program)| program.attachment.pending()).sum();
        (kept.into_iter().map(|(_, program)| program.label.as_str()).collect(), annotations)
    }

    /// Writes a last checkpoint of what is settled.
    ///
    /// # Errors
    /// When the staging memory cannot be used.
    pub(in crate::worker) fn close_books(&mut self) -> Result<(), StagingError> {
        let now = self.now();
        self.retire(now)?;
        self.write_checkpoint(now)
    }
}
