//! Who can still write the rings of programs: the kernel is asked, and is not waited for.

use std::time::{Duration, Instant};

use super::Engine;
use crate::worker::askers::Answer;
use crate::worker::program::Program;

impl Engine {
    /// Takes what the kernel has answered, and has it asked again where that is due.
    pub(super) fn ask_of_writers(&mut self, now: Duration) {
        while let Some(answer) = self.askers.answer() {
            self.hear(answer, now);
        }
        for program in self.programs.values_mut() {
            program.ask_at(now, &mut self.askers);
        }
        self.askers.send();
    }

    /// Has the kernel asked about all programs, and waits for its answers until `due`.
    pub(super) fn ask_of_writers_by(&mut self, due: Instant) {
        // What was asked before may have been answered before a program ended.
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

    /// Nobody asks for a user any more who has no program but this one, which has left.
    pub(super) fn forget_asker_of(&mut self, departed: &Program) {
        let uid = departed.identity.uid;
        if self.programs.values().all(|program| program.identity.uid != uid) {
            self.askers.forget(uid);
        }
    }
}
