//! Attaching to programs. If the system lacks a resource for it, such as addresses, the worker tries again for a while: the program
//! may have ended meanwhile, and then nobody else would read what it recorded.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use blkin_ringbuf::{AttachError, UnreadReason};
use rustix::io::Errno;

use super::{Engine, folded};
use crate::link;
use crate::worker::program::Program;

/// How long the worker tries to attach. A program that is still alive offers itself again after that.
const PATIENCE: Duration = Duration::from_secs(10);

/// A program that the holder has named.
pub(super) struct Offered {
    identity: link::Program,
    segment: Arc<OwnedFd>,
    control: OwnedFd,
    /// When trying to attach ends.
    due: Duration,
}

impl Engine {
    /// Attaches to a program, or releases it if its memory is unusable. If the system lacks a resource, tries again later.
    ///
    /// # Errors
    /// When the system lacks a resource before the state is rebuilt: frames of the program may be staged, and need it.
    pub(in crate::worker) fn attach(
        &mut self,
        identity: link::Program,
        segment: OwnedFd,
        control: OwnedFd,
    ) -> Result<(), AttachError> {
        let number = identity.number;
        // It was released before, but the holder did not get the message, or was killed before it had told systemd.
        let was_let_go = self.saved.get(&number).map_or(number <= self.last_program, |state| state.folded);
        if was_let_go {
            self.to_release.insert(number, folded(number));
            return Ok(());
        }
        self.last_program = self.last_program.max(number);
        let now = self.now();
        let offered = Offered { identity, segment: Arc::new(segment), control, due: now + PATIENCE };
        match self.try_attach(&offered) {
            Err(error) if !self.is_rebuilt && is_shortage(&error) => return Err(error),
            Err(error) if is_shortage(&error) => {
                self.program_log.late(&offered.identity, &error);
                self.late.push(offered);
            }
            Err(error) => self.reject(&offered, &error),
            Ok(()) => {}
        }
        Ok(())
    }

    /// The largest number such that no program up to it still waits to be attached to. The next worker takes programs up to this
    /// number for released, except those in its checkpoint.
    pub(super) fn last_settled(&self) -> u64 {
        let waiting = self.late.iter().map(|offered| offered.identity.number);
        waiting.fold(self.last_program, |last, number| last.min(number.saturating_sub(1)))
    }

    /// Tries again to attach to the programs for which a resource was missing.
    pub(super) fn attach_late(&mut self, now: Duration) {
        for offered in std::mem::take(&mut self.late) {
            match self.try_attach(&offered) {
                Err(error) if is_shortage(&error) && now < offered.due => self.late.push(offered),
                Err(error) => self.reject(&offered, &error),
                Ok(()) => {}
            }
        }
    }

    fn try_attach(&mut self, offered: &Offered) -> Result<(), AttachError> {
        let Offered { identity, segment, control, .. } = offered;
        let (number, pid, comm) = (identity.number, identity.pid, &identity.comm);
        let saved = self.saved.get(&number);
        let program = Program::attach(identity.clone(), segment.clone(), control, &self.boot, saved)?;
        program.attachment.mark_attached(true);
        // An earlier worker may have been killed while it slept.
        program.attachment.control().set_sleeping(false);
        // With the name that the program gave itself, if the kernel had none.
        self.settings.attach(&program.identity, program.attachment.control());
        tracing::debug!(pid, comm, "attached");
        self.programs.insert(number, Box::new(program));
        Ok(())
    }

    fn reject(&mut self, offered: &Offered, error: &AttachError) {
        let Offered { identity, control, .. } = offered;
        self.program_log.unattached(identity.pid, &identity.comm, error);
        if matches!(error, AttachError::Version { .. }) {
            // If the program cannot be told, it has brought that about itself.
            let _ = UnreadReason::Version.write_to(control);
        }
        self.rejected_programs += 1;
        self.to_release.insert(identity.number, folded(identity.number));
    }
}

/// Whether the system lacks a resource that it may have later. No program can cause these errors by what it offers.
fn is_shortage(error: &AttachError) -> bool {
    let AttachError::System(_, errno) = error else { return false };
    matches!(*errno, Errno::NOMEM | Errno::AGAIN | Errno::MFILE | Errno::NFILE)
}
