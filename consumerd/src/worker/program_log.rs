//! Log lines about unusable programs, at most one a second of each kind: a user who starts many programs must not fill the disk.

use std::time::Instant;

use blkin_daemon::Notices;
use blkin_ringbuf::{AttachError, ProgramCounters};

use crate::link::Program;

/// The rate limit of each kind of line. `held_back` in a line is how many lines were suppressed before it.
#[derive(Debug, Default)]
pub(super) struct ProgramLog {
    late: Notices,
    unattached: Notices,
    insane: Notices,
    unsound: Notices,
    given_up: Notices,
}

impl ProgramLog {
    /// The worker cannot attach to a program yet.
    pub(super) fn late(&mut self, program: &Program, error: &AttachError) {
        if let Some(held_back) = self.late.admit(Instant::now()) {
            let Program { pid, comm, .. } = program;
            tracing::warn!(pid, comm, held_back, "failed to attach to a program, trying again: {error}");
        }
    }

    /// The worker cannot attach to a program.
    pub(super) fn unattached(&mut self, pid: u32, comm: &str, error: &AttachError) {
        if let Some(held_back) = self.unattached.admit(Instant::now()) {
            tracing::warn!(pid, comm, held_back, "failed to attach to a program: {error}");
        }
    }

    /// A ring of a program has contents that the library never writes.
    pub(super) fn insane(&mut self, process: &str, slot: usize) {
        if let Some(held_back) = self.insane.admit(Instant::now()) {
            tracing::warn!(
                process,
                slot,
                held_back,
                "a ring of the program contradicts itself; it is no longer read"
            );
        }
    }

    /// The counters of a program contradict each other.
    pub(super) fn unsound(&mut self, process: &str, counters: &ProgramCounters) {
        if let Some(held_back) = self.unsound.admit(Instant::now()) {
            let ProgramCounters { attempted, committed, .. } = counters;
            tracing::warn!(
                process,
                attempted,
                committed,
                lost = counters.lost(),
                held_back,
                "counters of a program contradict each other; from now on only what was read from its rings counts"
            );
        }
    }

    /// A flight recorder was given up.
    pub(super) fn given_up(&mut self, process: &str, annotations: u64) {
        if let Some(held_back) = self.given_up.admit(Instant::now()) {
            tracing::warn!(
                process,
                annotations,
                held_back,
                "the flight recorder of a program that has ended was given up: nobody took it in time"
            );
        }
    }

    /// Logs how many lines were suppressed since the last line, also when no more come.
    pub(super) fn rest(&mut self) {
        let now = Instant::now();
        if let Some(programs) = self.late.rest(now) {
            tracing::warn!(programs, "failed to attach to more programs, trying again");
        }
        if let Some(programs) = self.unattached.rest(now) {
            tracing::warn!(programs, "failed to attach to more programs");
        }
        if let Some(programs) = self.insane.rest(now) {
            tracing::warn!(programs, "rings of more programs contradict themselves; they are no longer read");
        }
        if let Some(programs) = self.unsound.rest(now) {
            tracing::warn!(programs, "counters of more programs contradict each other");
        }
        if let Some(programs) = self.given_up.rest(now) {
            tracing::warn!(programs, "the flight recorders of more programs that have ended were given up");
        }
    }
}
