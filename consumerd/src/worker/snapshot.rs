//! Snapshots of rings for requests on the control socket, and how long flight recorders of ended programs are kept for them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use blkin_ringbuf::saved::{self, Identity, Saved};

use super::engine::Engine;
use super::program::Program;
use super::program_log::ProgramLog;
use crate::config::Config;
use crate::settings::peer::Reach;
use crate::settings::rules::Target;
use crate::settings::service::{Recorders, RingsCopy};

/// The rings of all programs, for the control socket.
#[derive(Clone)]
pub(super) struct Rings(pub(super) Arc<Mutex<Engine>>);

impl Rings {
    fn engine(&self) -> MutexGuard<'_, Engine> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the rings of a program hold now; `None` once the program is gone. The engine's lock is released between rings, because
    /// other programs' rings would run full while large rings of many CPUs are copied.
    fn save(&self, number: u64) -> Option<Saved> {
        let (identity, rings) = {
            let engine = self.engine();
            let program = engine.programs().get(&number)?;
            (identify(program), program.attachment.slots())
        };
        let mut slots = Vec::new();
        for ring in 0..rings {
            slots.extend(self.engine().programs().get(&number)?.attachment.save_ring(ring));
        }
        Some(self.engine().programs().get(&number)?.attachment.save_with(slots, identity))
    }
}

impl Recorders for Rings {
    fn find(&self, target: &Target, reach: Reach) -> Vec<u64> {
        let engine = self.engine();
        let is_meant = |program: &Program| match target {
            Target::All => true,
            Target::Label(label) => program.identity.comm == *label,
            Target::Pid(pid) => program.identity.pid == *pid,
        };
        let found = engine.programs().iter();
        found
            .filter(|(_, program)| is_meant(program) && reach.holds(program.identity.uid))
            .map(|(number, _)| *number)
            .collect()
    }

    fn copy(&self, number: u64, since: Option<SystemTime>) -> Option<RingsCopy> {
        let mut saved = self.save(number)?;
        if let Some(since) = since {
            saved.keep_since(nanoseconds(since).cast_signed());
        }
        let is_final = saved.identity.ended && since.is_none();
        let mut file = Vec::new();
        saved::write(&saved, &mut file);
        Some(RingsCopy { file, is_final })
    }

    fn note_snapshot_sent(&self, number: u64) {
        if let Some(program) =
            self.engine().programs_mut().get_mut(&number).filter(|p| p.kept_bytes().is_some())
        {
            program.give_up();
        }
    }
}

/// Whose rings are copied. Whether the program has ended is determined before the copy: if it has, the copy holds everything.
fn identify(program: &Program) -> Identity {
    Identity {
        pid: program.identity.pid,
        uid: program.identity.uid,
        ended: program.kept_bytes().is_some(),
        taken_ns: nanoseconds(SystemTime::now()),
        since_ns: 0,
        label: program.identity.comm.clone(),
        host: line_of("/proc/sys/kernel/hostname"),
        boot: line_of("/proc/sys/kernel/random/boot_id"),
    }
}

fn line_of(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// Nanoseconds since 1970.
fn nanoseconds(moment: SystemTime) -> u64 {
    moment.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// Gives up flight recorders of ended programs: those that ended too long ago, and while there are too many or too large ones,
/// the one that ended first. Returns how many were given up.
pub(super) fn keep_within_bounds(
    programs: &mut BTreeMap<u64, Box<Program>>,
    config: &Config,
    now: Duration,
    log: &mut ProgramLog,
) -> u64 {
    let mut kept: Vec<(Duration, u64, u64)> = programs
        .iter()
        .filter_map(|(number, program)| Some((program.ended_at()?, *number, program.kept_bytes()?)))
        .collect();
    kept.sort_unstable();
    let mut bytes: u64 = kept.iter().map(|(_, _, bytes)| bytes).sum();
    let mut left = kept.len();
    let longest = Duration::from_millis(config.recorder_keep_ms);
    let mut evicted = 0;
    for (ended_at, number, own) in kept {
        let is_old = now.saturating_sub(ended_at) >= longest;
        if !is_old && left <= config.recorder_keep && bytes <= config.recorder_keep_bytes {
            break;
        }
        (left, bytes) = (left - 1, bytes - own);
        if let Some(program) = programs.get_mut(&number) {
            let annotations = program.give_up();
            log.given_up(&program.label, annotations);
            evicted += 1;
        }
    }
    evicted
}
