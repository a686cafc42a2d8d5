//! Finds out which programs' rings can still be written: the kernel is asked, and its answers are not waited for.

use std::time::{Duration, Instant};

use super::Engine;
use crate::worker::askers::Answer;
use crate::worker::program::Program;

impl Engine {
    /// Takes the kernel's answers, and asks again about the programs for which that is due.
    pub(super) fn ask_of_writers(&mut self, now: Duration) {
        while let Some(answer) = self.askers.answer() {
            self.hear(answer, now);
        }
        for program in self.programs.values_mut() {
            program.ask_at(now, &mut self.askers);
        }
        self.askers.send();
    }

    /// Asks the kernel about all programs, and waits for its answers until `due`.
    pub(super) fn ask_of_writers_by(&mut self, due: Instant) {
        // Earlier questions may have been answered before a program ended, so each program is asked about again.
        self.hear_all_by(due);
        for program in self.programs.values_mut() {
            program.ask(&mut self.askers);
        }
        self.askers.send();
        self.hear_all_by(due);
    }

    fn hear_all_by(&mut self, due: Instant) {
        while self.programs.values().any(|program| program.is_asked()) {
            let Some(answer) = self.askers.answer_by(due) else { return };
            self.hear(answer, self.now());
        }
    }

    fn hear(&mut self, answer: Answer, now: Duration) {
        if let Some(program) = self.programs.get_mut(&answer.program) {
            program.hear(answer.are_gone, now);
        }
    }

    /// Ends the asking thread of a user whose last program has departed.
    pub(super) fn forget_asker_of(&mut self, departed: &Program) {
        let uid = departed.identity.uid;
        if self.programs.values().all(|program| program.identity.uid != uid) {
            self.askers.forget(uid);
        }
    }
}
