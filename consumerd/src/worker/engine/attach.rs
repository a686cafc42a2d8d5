//! Attaching to programs. One for which the system lacks something now, such as addresses, is tried again for a while: many a
//! program has ended by then, and nobody else would read what it recorded.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use blkin_ringbuf::{AttachError, Unread};
use rustix::io::Errno;

use super::{Engine, folded};
use crate::link;
use crate::worker::program::Program;

/// For so long. Whoever lives offers itself again after that.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the holder has of a program.
pub(super) struct Offered {
    identity: link::Program,
    segment: Arc<OwnedFd>,
    control: OwnedFd,
    /// When it is given up.
    due: Duration,
}

impl Engine {
    /// Takes a program in, or lets it go if it is no good. One for which something is missing is tried again.
    ///
    /// # Errors
    /// When something is missing before everything is rebuilt: frames of the program may be staged.
    pub(in crate::worker) fn attach(
        &mut self,
        identity: link::Program,
        segment: OwnedFd,
        control: OwnedFd,
    ) -> Result<(), AttachError> {
        let number = identity.number;
        // It was let go before, but its holder was killed before systemd knew, or did not hear of it itself.
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
                self.told.late(&offered.identity, &error);
                self.late.push(offered);
            }
            Err(error) => self.reject(&offered, &error),
            Ok(()) => {}
        }
        Ok(())
    }

    /// The largest number of a program before which the next worker finds none that waits to be attached to: those up to there
    /// it takes for let go, but for what it is told of.
    pub(super) fn last_settled(&self) -> u64 {
        let waiting = self.late.iter().map(|offered| offered.identity.number);
        waiting.fold(self.last_program, |last, number| last.min(number.saturating_sub(1)))
    }

    /// Tries again.
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
        // An earlier worker may have been killed in its sleep.
        program.attachment.control().set_sleeping(false);
        // It may know its name alone.
        self.settings.attach(&program.identity, program.attachment.control());
        tracing::debug!(pid, comm, "attached");
        self.programs.insert(number, Box::new(program));
        Ok(())
    }

    fn reject(&mut self, offered: &Offered, error: &AttachError) {
        let Offered { identity, control, .. } = offered;
        self.told.unattached(identity.pid, &identity.comm, error);
        if matches!(error, AttachError::Version { .. }) {
            // Whatever keeps it from being told is of its own making.
            let _ = Unread::Version.tell(control);
        }
        self.rejected_programs += 1;
        self.to_release.insert(identity.number, folded(identity.number));
    }
}

/// Whether the system lacks something that it may have later; no program can bring that about by what it offers.
fn is_shortage(error: &AttachError) -> bool {
    let AttachError::System(_, errno) = error else { return false };
    matches!(*errno, Errno::NOMEM | Errno::AGAIN | Errno::MFILE | Errno::NFILE)
}
