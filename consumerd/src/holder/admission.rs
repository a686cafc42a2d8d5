//! Admission of programs: which are taken, which are refused, which have to wait, and what the log says of them.

use std::io;
use std::time::Instant;

use blkin_daemon::Notices;
use blkin_ringbuf::UnreadReason;

use super::claim::claim;
use super::counters::Count;
use super::held::Refusal;
use super::offers::Offer;
use super::waiting::{WaitOutcome, Waiter};
use super::worker_process::WorkerProcess;
use super::{Holder, SHORT_TICK, scan};
use crate::link::Program;

/// How often offers are looked for while the daemon ends, [`SHORT_TICK`] apart.
const LAST_LOOKS: usize = 20;

/// Why programs are refused, in the log; [`ANY_QUOTA`] says what to raise where the exceeded quota is not known.
const OVER_QUOTA: &str = "over quota; raise";
pub(super) const ANY_QUOTA: &str = "max_programs*, max_shared_bytes_per_uid or the limit of open files";
const ELSEWHERE: &str = "another daemon reads it";
/// Log text about programs that another daemon may be reading.
const UNCLAIMED: &str = "failed to find out whether another daemon reads";
/// Log text: what to do about programs without a process id.
const NO_IDS: &str = "run consumerd in the machine's PID namespace (--pid=host, hostPID: true)";
/// Log text: why programs wait.
const NO_DESCRIPTORS: &str =
    "no file descriptors are left; raise the limit of open files (LimitNOFILE, ulimit -n)";

impl Holder<'_> {
    pub(super) fn scan(&mut self) {
        for offer in scan::live_programs(&self.staging) {
            let known = self.held.check(&offer.program, &offer.segment, &offer.control);
            if known == Err(Refusal::AlreadyHeld) {
                continue;
            }
            tracing::info!(pid = offer.program.pid, comm = offer.program.comm, "found a live program");
            self.counters.add(Count::Scan);
            self.admit(offer, Instant::now());
        }
    }

    /// Admits a program if no other daemon reads it and the quotas allow it. Otherwise the program waits for a while.
    fn admit(&mut self, offer: Offer, since: Instant) {
        self.tell_foreign(offer.program.pid);
        let admitted = match self.claim(offer) {
            Ok(offer) => self.held.admit(offer.program, offer.segment, offer.control).map(|number| {
                self.note_admitted(number);
            }),
            Err((refusal @ (Refusal::Elsewhere | Refusal::Quota), offer)) => {
                match self.waiting.push(Waiter::new(offer, since, refusal), self.held.len()) {
                    WaitOutcome::Waiting => return,
                    WaitOutcome::AlreadyWaiting => Err(Refusal::AlreadyHeld),
                    WaitOutcome::Refused(waiter) => return self.refuse(&waiter),
                }
            }
            Err((refusal, _)) => Err(refusal),
        };
        self.count(admitted);
    }

    /// Refuses a program that has waited long enough.
    fn refuse(&mut self, waiter: &Waiter) {
        let Waiter { offer, refusal, .. } = waiter;
        if *refusal == Refusal::Quota {
            // If the program cannot be told, it has brought that about itself.
            let _ = UnreadReason::NoRoom.write_to(&offer.control);
        }
        let to_raise = self.held.to_raise(&offer.program, &offer.segment, &offer.control);
        self.tell_refused(&offer.program, Some(*refusal), to_raise.unwrap_or(ANY_QUOTA));
        self.count(Err(*refusal));
    }

    /// Logs a refused program, but not each of many: `held_back` is how many were refused since the last line.
    pub(super) fn tell_refused(&mut self, program: &Program, refusal: Option<Refusal>, to_raise: &str) {
        let Program { pid, uid, .. } = *program;
        let now = Instant::now();
        match refusal {
            Some(Refusal::Quota) => {
                if let Some(held_back) = self.over_quota.admit(now) {
                    tracing::warn!(pid, uid, held_back, "refused a program: {OVER_QUOTA} {to_raise}");
                }
            }
            Some(Refusal::Elsewhere) => {
                if let Some(held_back) = self.elsewhere.admit(now) {
                    tracing::warn!(pid, uid, held_back, "refused a program: {ELSEWHERE}");
                }
            }
            Some(Refusal::Malformed | Refusal::AlreadyHeld) | None => {}
        }
    }

    /// Logs a program that another daemon may be reading, too. A program can cause this, with a page that nobody may open again.
    fn tell_unclaimed(&mut self, pid: u32, error: &io::Error) {
        if let Some(held_back) = self.unclaimed.admit(Instant::now()) {
            tracing::warn!(pid, held_back, "{UNCLAIMED} a program: {error}");
        }
    }

    /// Warns once about programs of another PID namespace, which have no process id here.
    fn tell_foreign(&mut self, pid: u32) {
        if pid == 0 && !std::mem::replace(&mut self.was_foreign, true) {
            tracing::warn!(
                "programs of another PID namespace are shown without a process id, under names that they chose themselves; {NO_IDS}"
            );
        }
    }

    /// Logs how many programs no line named since the last one, also when no more come.
    pub(super) fn tell_held_back(&mut self, of: impl Fn(&mut Notices) -> Option<u64>) {
        if let Some(programs) = of(&mut self.over_quota) {
            tracing::warn!(programs, "refused more programs: {OVER_QUOTA} {ANY_QUOTA}");
        }
        if let Some(programs) = of(&mut self.elsewhere) {
            tracing::warn!(programs, "refused more programs: {ELSEWHERE}");
        }
        if let Some(programs) = of(&mut self.unclaimed) {
            tracing::warn!(programs, "{UNCLAIMED} more programs");
        }
    }

    /// Returns the offer with its control page locked for this daemon.
    fn claim(&mut self, mut offer: Offer) -> Result<Offer, (Refusal, Offer)> {
        if let Err(refusal) = self.held.check(&offer.program, &offer.segment, &offer.control) {
            return Err((refusal, offer));
        }
        match claim(&offer.control) {
            Ok(Some(control)) => offer.control = control,
            Ok(None) => return Err((Refusal::Elsewhere, offer)),
            Err(error) => self.tell_unclaimed(offer.program.pid, &error),
        }
        Ok(offer)
    }

    fn count(&mut self, admitted: Result<(), Refusal>) {
        self.counters.add(match admitted {
            Ok(()) => Count::Taken,
            Err(Refusal::AlreadyHeld) => Count::AlreadyHeld,
            Err(Refusal::Quota) => Count::Quota,
            Err(Refusal::Malformed) => Count::Malformed,
            Err(Refusal::Elsewhere) => Count::Elsewhere,
        });
        self.publish_counters();
    }

    /// Admits the waiting programs, as far as that is possible by now.
    pub(super) fn take_waiting(&mut self) {
        for Waiter { offer, since, .. } in self.waiting.take() {
            self.admit(offer, since);
        }
    }

    pub(super) fn take_offers(&mut self) {
        self.take_waiting();
        for offer in self.offers.take() {
            match offer {
                Ok(offer) => self.admit(offer, Instant::now()),
                Err(refusal) => self.count(Err(refusal)),
            }
        }
        self.held.forget_released(self.offers.handled_connections(), self.offers.has_waiting());
        self.tell_short_of_descriptors();
    }

    /// Logs when programs begin to wait for file descriptors, and when they need not wait any more.
    fn tell_short_of_descriptors(&mut self) {
        let is_short = self.offers.is_short();
        match (std::mem::replace(&mut self.was_short, is_short), is_short) {
            (false, true) => tracing::warn!("programs wait to be admitted: {NO_DESCRIPTORS}"),
            (true, false) => tracing::info!("there are enough file descriptors for all programs again"),
            _ => {}
        }
    }

    /// Takes the offers that came before the daemon was asked to end, and names their programs to the worker: they may
    /// have ended since, relying on being read. Programs that still have to wait after this are refused.
    pub(super) async fn take_last_offers(&mut self, worker: &WorkerProcess) {
        for _ in 0..LAST_LOOKS {
            self.take_offers();
            self.announce_programs(worker, true);
            if !self.is_anyone_waiting() {
                break;
            }
            tokio::time::sleep(SHORT_TICK).await;
        }
        for waiter in self.waiting.take_last() {
            self.refuse(&waiter);
        }
        self.tell_held_back(Notices::last);
    }
}
