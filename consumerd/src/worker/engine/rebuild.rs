//! Takes over what an earlier worker left in the staging memory.

use super::{Engine, Staged};
use crate::config::Config;
use crate::staging::{Memfd, Recovered, Staging, StagingError};
use crate::worker::shown_figures::ShownFigures;

/// Frames that are read between two heartbeats.
const FRAMES_A_BEAT: usize = 64;

/// Opens the staging memory that the holder keeps. The holder made it for this configuration: if its header says anything else,
/// the header is damaged, and is repaired.
pub(super) fn open(mut staging: Memfd, config: &Config) -> Result<(Staging<Memfd>, Recovered), StagingError> {
    let geometry = config.geometry();
    if !Staging::is_of(&staging, geometry) {
        tracing::error!("the staging memory's header was damaged; rewrote it");
        Staging::format(&mut staging, geometry)?;
    }
    let (staging, recovered) = Staging::open(staging)?;
    if recovered.is_cut {
        tracing::error!(
            "the staging memory was damaged: its log ended before it began; continuing with an empty log"
        );
    }
    Ok((staging, recovered))
}

impl Engine {
    /// Counts what an earlier worker had staged, for the sinks to read again. Every program that it knew must have been attached
    /// to before.
    ///
    /// # Errors
    /// When the staging memory cannot be used.
    pub(in crate::worker) fn rebuild(&mut self, tail: u64) -> Result<(), StagingError> {
        self.clocks.tick();
        self.feeder.fall_behind(self.ledger.first_frame());
        let unreadable = self.read_staged(tail)?;
        self.close_gaps()?;
        for program in self.programs.values_mut() {
            (0..program.attachment.slots()).for_each(|slot| program.attachment.publish(slot));
        }
        if unreadable > 0 {
            tracing::warn!(
                annotations = unreadable,
                "gave up staged annotations of programs that are no longer held: only the programs' memory has the names in them \
                 (counted as invalid)"
            );
        }
        self.fold_lost();
        self.go_on_from_shown()?;
        self.is_rebuilt = true;
        Ok(())
    }

    /// Counts every staged frame, up to the first damaged one. Returns how many annotations belong to programs that are not held.
    fn read_staged(&mut self, tail: u64) -> Result<u64, StagingError> {
        let (mut at, mut unreadable) = (tail, 0);
        loop {
            let (frame, end) = match self.staging.read_next(at) {
                Ok(Some(found)) => found,
                Ok(None) => return Ok(unreadable),
                Err(StagingError::Damaged(what)) => {
                    tracing::error!(
                        "the staging memory was damaged: {what}; continuing without what cannot be read"
                    );
                    self.staging.cut(at)?;
                    return Ok(unreadable);
                }
                Err(error) => return Err(error),
            };
            match self.programs.get_mut(&frame.program) {
                Some(program) => program.resume_after(&frame),
                None => unreadable += u64::from(frame.records),
            }
            self.take_frame(&frame, end - at, end);
            at = end;
            if self.ledger.open_frames().is_multiple_of(FRAMES_A_BEAT) {
                self.staging.beat()?;
            }
        }
    }

    /// Stages ranges without records for what programs' rings show as drained and is not staged, which happens only if the staging
    /// memory was damaged. So the lost records count as invalid, and count once.
    fn close_gaps(&mut self) -> Result<(), StagingError> {
        let gaps: Vec<_> = self.programs.values().flat_map(|program| program.gaps()).collect();
        let (mut staged, mut annotations) = (Vec::new(), 0);
        for frame in gaps {
            let before = self.staging.end();
            let (_, end) = self.staging.append(&frame)?;
            self.programs
                .get_mut(&frame.program)
                .into_iter()
                .for_each(|program| program.resume_after(&frame));
            annotations += u64::from(frame.records);
            staged.push(Staged { frame, bytes: end - before, end });
        }
        if annotations > 0 {
            tracing::error!(
                annotations,
                "annotations drained from programs are missing from the staging memory (counted as invalid)"
            );
        }
        self.take_staged(&mut staged)
    }

    /// Continues from the figures that `/metrics` last showed, so that no counter goes back.
    fn go_on_from_shown(&mut self) -> Result<(), StagingError> {
        let shown = ShownFigures::read(&self.shown)?.unwrap_or_else(|| {
            tracing::error!("the staging memory was damaged: the counters last shown in /metrics are unknown, and may go back");
            ShownFigures::default()
        });
        self.ledger.goes_on_from(|sink| shown.settled(sink));
        self.spans.split = self.spans.split.max(shown.spans_split());
        // Written again, because there may be other sinks than before.
        self.note_shown()
    }
}
