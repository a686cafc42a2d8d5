//! Continues where the previous daemon stopped, with what systemd kept of it.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::fs::{FlockOperation, flock};

use super::admission::ANY_QUOTA;
use super::counters::{self, Count};
use super::held::{HeldPrograms, Refusal};
use super::numbers::{self, Numbers};
use super::store::{Store, tell_failure};
use super::{Holder, SHORT_TICK};
use crate::config::Config;
use crate::link::Program;
use crate::staging::{Memfd, Staging, StagingError};

/// Most time for telling systemd of the last programs before the daemon ends.
const LAST_MESSAGES: Duration = Duration::from_secs(1);
/// Longest wait for the kernel to release the locks of the programs that a killed worker had.
const LAST_HOLD: Duration = Duration::from_secs(1);

impl Holder<'_> {
    /// Holds what the previous daemon held.
    pub(super) fn restore(
        &mut self,
        programs: Vec<(Program, OwnedFd, OwnedFd)>,
        useless: Vec<String>,
        is_staging_kept: bool,
    ) {
        self.go_on_counting();
        match Numbers::read(&self.staging, self.config.geometry(), &mut self.held) {
            Ok(numbers) => self.numbers = numbers,
            Err(error) => tell_unnoted(&error),
        }
        let came = programs.len();
        for (program, segment, control) in programs {
            self.restore_one(program, segment, control);
        }
        if let Some(store) = &mut self.store {
            useless.into_iter().for_each(|name| store.forget(name));
        }
        if came > 0 || is_staging_kept {
            let (programs, refused) = (self.held.len(), came - self.held.len());
            tracing::info!(
                programs,
                refused,
                "continuing where the previous daemon stopped: systemd kept what it held"
            );
        }
    }

    /// Continues the previous daemon's counters, so that no number is given twice. If they are damaged, numbers start above all
    /// of which a trace is left.
    fn go_on_counting(&mut self) {
        match counters::read(&self.staging) {
            Some(counters) => self.counters = counters,
            None => {
                tracing::error!("the holder's saved counters were damaged; they restart at 0");
                let last = numbers::last_given(&self.staging, self.config.geometry());
                self.counters.set(Count::NextNumber, last.saturating_add(1));
            }
        }
        self.held.count_from(self.counters.get(Count::NextNumber));
    }

    /// Admits the programs that offer themselves already, in addition to those that a [scan](Self::scan) found. If a program of
    /// the previous daemon is not held after this, what is staged of it is given up as soon as a worker runs.
    pub(super) async fn readmit_programs(&mut self) {
        self.take_offers();
        let due = Instant::now() + LAST_HOLD;
        while self.waiting.any(|offer| self.held.has_reserved_number(&offer.segment)) && Instant::now() < due
        {
            tokio::time::sleep(SHORT_TICK).await;
            self.take_offers();
        }
        self.held.drop_reserved_numbers();
        self.note(|numbers, staging, held| numbers.agree(staging, held));
        self.publish_counters();
    }

    /// Notes an admitted program for the next daemon, in the table of numbers and in systemd.
    pub(super) fn note_admitted(&mut self, number: u64) {
        self.note(|numbers, staging, held| {
            held.get(number).map_or(Ok(()), |held| numbers.note(staging, number, held.identity))
        });
        self.store.iter_mut().for_each(|store| store.admitted(number));
    }

    /// Removes a released program from the table of numbers and from systemd.
    pub(super) fn note_released(&mut self, number: u64) {
        self.note(|numbers, staging, _| numbers.forget(staging, number));
        self.store.iter_mut().for_each(|store| store.released(number));
    }

    fn note(&mut self, note: impl FnOnce(&mut Numbers, &mut Memfd, &HeldPrograms) -> io::Result<()>) {
        if let Err(error) = note(&mut self.numbers, &mut self.staging, &self.held) {
            tell_unnoted(&error);
        }
    }

    /// Restores a program that the previous daemon held. systemd kept its descriptors, and so the lock of its control page.
    fn restore_one(&mut self, program: Program, segment: OwnedFd, control: OwnedFd) {
        let restored = match flock(&control, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => self.held.restore(program.clone(), segment, control),
            Err(_) => Err(Refusal::Elsewhere),
        };
        self.tell_refused(&program, restored.err(), ANY_QUOTA);
        if let Some(store) = &mut self.store {
            store.restored(&program);
            if restored.is_err() {
                store.released(program.number);
            }
        }
    }

    /// Log text: what becomes of drained annotations that are not shipped when this daemon ends.
    pub(super) fn fate_of_the_rest(&self) -> &'static str {
        match self.store {
            Some(_) => "what it had drained is kept for a restart",
            None => "what it had drained is lost",
        }
    }

    /// Tells systemd the changes that are still to be told, for the next daemon.
    pub(super) async fn keep_last(&mut self) {
        let due = Instant::now() + LAST_MESSAGES;
        while self.store.as_ref().is_some_and(Store::is_behind) && Instant::now() < due {
            update_store(&mut self.store, |store| store.tell_all(&self.held));
            tokio::time::sleep(SHORT_TICK).await;
        }
    }
}

fn tell_unnoted(error: &io::Error) {
    tracing::warn!("failed to record the programs' numbers for the next daemon: {error}");
}

/// Tells systemd something. If that fails, logs it, and keeps nothing from then on.
pub(super) fn update_store(store: &mut Option<Store>, update: impl FnOnce(&mut Store) -> io::Result<()>) {
    if let Some(Err(error)) = store.as_mut().map(update) {
        tell_failure(&error);
        *store = None;
    }
}

/// The staging memory that systemd kept and `true`, if this daemon can use it; otherwise a new one and `false`.
///
/// # Errors
/// When no memory can be created.
pub(super) fn staging_of(config: &Config, kept: Option<Memfd>) -> anyhow::Result<(Memfd, bool)> {
    let geometry = config.geometry();
    if let Some(staging) = kept {
        if Staging::is_of(&staging, geometry) {
            return Ok((staging, true));
        }
        let annotations = staged(staging).ok();
        tracing::warn!(
            annotations,
            "gave up what the previous daemon had not shipped: its staging memory has another version or size \
             (`staging_bytes`, `max_programs`, or a limit of open files that leaves room for fewer programs)"
        );
    }
    let mut staging = Memfd::create(geometry.total_bytes()).context("failed to create staging memory")?;
    Staging::format(&mut staging, geometry).context("failed to prepare staging memory")?;
    Ok((staging, false))
}

/// How many annotations are staged in a memory.
fn staged(staging: Memfd) -> Result<u64, StagingError> {
    let (staging, recovered) = Staging::open(staging)?;
    let (mut annotations, mut at) = (0, recovered.tail);
    while let Some((frame, end)) = staging.read_frame(at)? {
        annotations += u64::from(frame.records);
        at = end;
    }
    Ok(annotations)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::staging::Frame;

    fn memory_of(config: &Config) -> Memfd {
        staging_of(config, None).unwrap().0
    }

    #[test]
    fn staging_is_counted_and_reused_only_with_equal_geometry() {
        let config = Config::default();
        let kept = memory_of(&config);
        let (mut log, _) = Staging::open(kept.duplicate().unwrap()).unwrap();
        let frame = Frame { program: 1, records: 3, ..Frame::default() };
        for _ in 0..2 {
            log.append(&frame).unwrap();
        }
        log.commit().unwrap();
        assert_eq!(staged(kept.duplicate().unwrap()).unwrap(), 6);
        let other = Config { max_programs: 2 * config.max_programs, ..Config::default() };
        assert_ne!(config.geometry(), other.geometry());
        assert!(!staging_of(&other, Some(kept.duplicate().unwrap())).unwrap().1);
        assert!(staging_of(&config, Some(kept)).unwrap().1);
    }

    #[test]
    fn memory_without_a_staging_header_is_not_reused() {
        assert!(!staging_of(&Config::default(), Some(Memfd::create(100).unwrap())).unwrap().1);
        assert!(!staging_of(&Config::default(), Some(Memfd::create(1 << 20).unwrap())).unwrap().1);
    }
}
