//! Retires settled frames, and writes checkpoints.

use std::time::Duration;

use super::Engine;
use crate::staging::{Checkpoint, StagingError};
use crate::worker::program::Program;
use crate::worker::totals::Totals;

/// Least time between two checkpoints.
const CHECKPOINT_EVERY: Duration = Duration::from_millis(20);

impl Engine {
    pub(super) fn retire(&mut self, now: Duration) -> Result<(), StagingError> {
        while let Some(frame) = self.ledger.retire_first() {
            self.checkpoint_due = true;
            let Some(note) = self.notes.pop_front() else { break };
            self.retired_end = note.end;
            if let Some(program) = self.programs.get_mut(&frame.program) {
                program.retire(frame.figures, note.slot, note.to, note.bytes);
            } else {
                Totals::of_unreadable(0, 0, frame.figures).fold_into(&mut self.departed);
            }
        }
        let over: Vec<u64> =
            self.programs.iter().filter(|(_, p)| p.ended && p.open_frames == 0).map(|(n, _)| *n).collect();
        if over.is_empty()
            && (!self.checkpoint_due || now.saturating_sub(self.last_checkpoint) < CHECKPOINT_EVERY)
        {
            return Ok(());
        }
        let folded: Vec<_> = over.into_iter().filter_map(|number| self.fold(number)).collect();
        self.write_checkpoint(now)?;
        // Another daemon may wait to read these programs.
        folded.iter().for_each(|program| program.publish_settled());
        Ok(())
    }

    /// Moves the figures of an ended program to the sums of departed programs, and returns the program.
    fn fold(&mut self, number: u64) -> Option<Box<Program>> {
        let program = self.programs.remove(&number)?;
        let mut totals = program.totals().without_broken_off();
        if !totals.is_sound() {
            self.program_log.unsound(&program.label, &totals.counters);
            self.unsound_programs += 1;
            totals = totals.without_its_word();
        }
        totals.fold_into(&mut self.departed);
        self.departed_programs += 1;
        self.forget_asker_of(&program);
        self.to_release.insert(number, program.state(true));
        Some(program)
    }

    pub(super) fn write_checkpoint(&mut self, now: Duration) -> Result<(), StagingError> {
        let mut programs: Vec<_> = self.programs.values().map(|program| program.state(false)).collect();
        programs.extend(self.to_release.values().cloned());
        let checkpoint = Checkpoint {
            next_frame: self.ledger.first_frame(),
            spans_split: self.spans.split,
            programs_departed: self.departed_programs,
            last_program: self.last_settled(),
            departed: self.departed,
            sinks: self.ledger.checkpoint(),
            programs,
        };
        self.staging.retire(&checkpoint, self.retired_end)?;
        self.programs.values().for_each(|program| program.publish_settled());
        self.checkpoint_due = false;
        self.last_checkpoint = now;
        Ok(())
    }

    /// Moves the figures of saved programs that could not be attached to again to the sums of departed programs.
    pub(super) fn fold_lost(&mut self) {
        for state in std::mem::take(&mut self.saved).into_values() {
            if !state.folded && !self.programs.contains_key(&state.program) {
                Totals::of_unreadable(state.drained_before, state.unsettled, state.figures())
                    .fold_into(&mut self.departed);
                self.departed_programs += 1;
                self.checkpoint_due = true;
            }
        }
    }
}
