//! The rules applied to the programs that are attached now.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use blkin_ringbuf::ControlPage;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use super::file::RulesFile;
use super::message::{Answer, Cause, ProgramView, Request};
use super::peer::Reach;
use super::rules::{Change, InForce, Rule, Rules, Subject, Target};
use crate::link::{COMM_BYTES, Program, shown_name};
use crate::process::started;
use crate::staging::Memfd;

/// An error names at most this many programs.
const MAX_NAMED: usize = 20;

/// The rules and the attached programs, shared between threads.
#[derive(Clone, Debug, Default)]
pub struct Settings(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    rules: Rules,
    /// None only in tests.
    file: Option<RulesFile>,
    programs: BTreeMap<u64, AttachedProgram>,
    /// How often a program was attached or departed.
    changes: u64,
}

#[derive(Debug)]
struct AttachedProgram {
    subject: Subject,
    page: ControlPage,
}

/// The figures for `/metrics`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Number of rules.
    pub rules: u64,
    /// What is in force for each process; only one entry for a process that has several programs.
    pub programs: BTreeMap<String, InForce>,
}

impl Settings {
    /// Starts with the rules of a file.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn of_file(file: Memfd) -> io::Result<Self> {
        let (file, rules) = RulesFile::open(file)?;
        let inner = Inner { rules, file: Some(file), ..Inner::default() };
        Ok(Self(Arc::new(Mutex::new(inner))))
    }

    /// Adds a program, and writes what the rules say about it to its control page.
    pub fn attach(&self, program: &Program, page: ControlPage) {
        let (uid, pid, comm) = (program.uid, program.pid, program.comm.clone());
        let attached = AttachedProgram { subject: Subject { uid, pid, born: born(pid), comm }, page };
        let mut inner = self.lock();
        attached.apply_rules(&inner.rules);
        inner.programs.insert(program.number, attached);
        inner.changes += 1;
    }

    /// Removes a program, and with it the rules about its process.
    pub fn depart(&self, number: u64) {
        let mut inner = self.lock();
        if inner.programs.remove(&number).is_some() {
            inner.changes += 1;
            inner.forget_dead();
        }
    }

    /// Every program of an earlier worker has been attached: drops the rules about processes that are not among them.
    pub fn complete(&self) {
        self.lock().forget_dead();
    }

    /// The control pages of all programs, by number.
    pub fn pages(&self) -> Vec<(u64, ControlPage)> {
        self.lock().programs.iter().map(|(number, program)| (*number, program.page.clone())).collect()
    }

    /// A number that grows whenever a program is attached or departs.
    pub fn changes(&self) -> u64 {
        self.lock().changes
    }

    /// The figures for `/metrics`.
    pub fn figures(&self) -> Figures {
        let inner = self.lock();
        let label = |subject: &Subject| format!("{}:{}", subject.comm, subject.pid);
        let in_force =
            |program: &AttachedProgram| (label(&program.subject), inner.rules.in_force(&program.subject));
        Figures {
            rules: inner.rules.all().len() as u64,
            programs: inner.programs.values().map(in_force).collect(),
        }
    }

    /// Executes a request. When this returns, the change is in force.
    pub fn ask(&self, request: Request, reach: Reach) -> Answer {
        let mut inner = self.lock();
        let asked = match request {
            Request::Show {} => Ok(inner.shown(|_| true)),
            Request::Reset { target } => inner.reset(target.map(as_kernel_has_it).as_ref(), reach),
            Request::Set { target, says } => inner.set(as_kernel_has_it(target), reach, says),
        };
        asked.unwrap_or_else(|refusal| refusal)
    }

    /// The answer to a request for rings when no program matches.
    pub(super) fn no_match_answer(&self, target: &Target, reach: Reach) -> Answer {
        let nobody = "no program that you may read is attached";
        let whom = match target {
            Target::All => return Answer::refused(Cause::UnknownPid, nobody),
            Target::Label(label) => format!("under the name {label:?}"),
            Target::Pid(pid) => format!("under process id {pid}"),
        };
        let others = self.lock().named(reach, |_| true);
        Answer::refused(Cause::UnknownPid, format!("{nobody} {whom}; {others}"))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn set(&mut self, target: Target, reach: Reach, says: Change) -> Result<Answer, Answer> {
        let rule = match target {
            Target::Pid(pid) => Rule::about_process(self.process(pid, reach)?, says),
            many => Rule::about_many(many, reach, says),
        };
        let mut rules = self.rules.clone();
        rules
            .change(rule.clone(), reach)
            .map_err(|full| Answer::refused(Cause::TooManyRules, full.to_string()))?;
        self.replace(rules)?;
        Ok(self.shown(|subject| rule.concerns(subject)))
    }

    fn reset(&mut self, target: Option<&Target>, reach: Reach) -> Result<Answer, Answer> {
        if let Some(Target::Pid(pid)) = target {
            self.process(*pid, reach)?;
        }
        let mut rules = self.rules.clone();
        rules.reset(target, reach);
        self.replace(rules)?;
        Ok(self.shown(|subject| {
            let is_target = match target {
                Some(Target::Pid(pid)) => subject.pid == *pid,
                Some(Target::Label(label)) => subject.comm == *label,
                Some(Target::All) | None => true,
            };
            is_target && reach.holds(subject.uid)
        }))
    }

    /// Writes the rules to the file, then puts them in force. If they cannot be written, nothing changes.
    fn replace(&mut self, rules: Rules) -> Result<(), Answer> {
        if let Some(file) = &mut self.file {
            let failed = |e| Answer::refused(Cause::Failed, format!("failed to keep the rules: {e}"));
            file.write(&rules).map_err(failed)?;
        }
        self.rules = rules;
        self.programs.values().for_each(|program| program.apply_rules(&self.rules));
        Ok(())
    }

    /// The program of a process, if the client may set it.
    fn process(&self, pid: u32, reach: Reach) -> Result<&Subject, Answer> {
        // The last: after a restart, the worker cannot tell an ended process from a later one with the same process id.
        let Some(subject) = self.running().filter(|subject| subject.pid == pid).last() else {
            let others = self.named(reach, |subject| !has_ended(subject));
            let why = format!("no program of process {pid} is attached; {others}");
            return Err(Answer::refused(Cause::UnknownPid, why));
        };
        if reach.holds(subject.uid) {
            return Ok(subject);
        }
        let why = format!(
            "process {pid} belongs to user {}; only root, the daemon's user and that user may set it",
            subject.uid
        );
        Err(Answer::refused(Cause::NotAllowed, why))
    }

    /// Programs that still run.
    fn running(&self) -> impl Iterator<Item = &Subject> {
        self.programs.values().map(|program| &program.subject).filter(|subject| !has_ended(subject))
    }

    /// Text for people: which programs the client may set or read.
    fn named(&self, reach: Reach, is_meant: impl Fn(&Subject) -> bool) -> String {
        let subjects = self.programs.values().map(|program| &program.subject);
        let mut within: Vec<String> = subjects
            .filter(|subject| reach.holds(subject.uid) && is_meant(subject))
            .map(|subject| format!("{} ({})", subject.pid, subject.comm))
            .collect();
        within.dedup();
        match within.len() {
            0 => "there are none that you may set or read".into(),
            more if more > MAX_NAMED => {
                format!("these are, the first {MAX_NAMED} of {more}: {}", within[..MAX_NAMED].join(", "))
            }
            _ => format!("these are: {}", within.join(", ")),
        }
    }

    fn shown(&self, is_meant: impl Fn(&Subject) -> bool) -> Answer {
        let meant = self.running().filter(|subject| is_meant(subject));
        let view = |subject: &Subject| ProgramView {
            pid: subject.pid,
            comm: subject.comm.clone(),
            uid: subject.uid,
            in_force: self.rules.in_force(subject),
        };
        Answer::Done { rules: self.rules.all().to_vec(), programs: meant.map(view).collect() }
    }

    fn forget_dead(&mut self) {
        let mut rules = self.rules.clone();
        let programs = &self.programs;
        let lives = |pid, born| {
            programs.values().any(|program| (program.subject.pid, program.subject.born) == (pid, born))
        };
        if rules.forget_dead(lives) && self.replace(rules).is_err() {
            // These rules concern no program, and will be dropped with the next change.
            tracing::debug!("failed to forget the rules about a process that has ended");
        }
    }
}

impl AttachedProgram {
    fn apply_rules(&self, rules: &Rules) {
        let in_force = rules.in_force(&self.subject);
        self.page.block_levels(in_force.blocked_levels());
        self.page.set_rate(in_force.rate);
    }
}

/// Cuts a label to the length that the kernel keeps of a name, and makes it printable, as [`Program::comm`] is.
pub(super) fn as_kernel_has_it(target: Target) -> Target {
    match target {
        Target::Label(label) => {
            let kept = label.len().min(COMM_BYTES - 1);
            Target::Label(shown_name(&label.as_bytes()[..kept]))
        }
        other => other,
    }
}

/// Whether a program's process is known to have ended. Its rings may be held longer, until they are shipped or taken by a snapshot.
fn has_ended(subject: &Subject) -> bool {
    match subject.born {
        // It had ended before it was held, or its start time cannot be read, or it has no process id here.
        0 => subject.pid != 0 && !is_there(subject.pid),
        started => born(subject.pid) != started,
    }
}

/// Whether there is a live process with this id, even one of which nothing can be read. A dead process may still be listed, until
/// its parent has waited for it.
fn is_there(pid: u32) -> bool {
    #[cfg(test)]
    if tests::MADE_UP.contains(&pid) {
        return true;
    }
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
    match std::fs::read(stat_path(pid)) {
        Ok(stat) => started(&stat).is_some(),
        Err(_) => number.is_some_and(|number| test_kill_process(number) != Err(Errno::SRCH)),
    }
}

/// When a process started, in the kernel's ticks since boot; 0 if that cannot be read, or the process is dead.
fn born(pid: u32) -> u64 {
    let stat = std::fs::read(stat_path(pid)).unwrap_or_default();
    started(&stat).unwrap_or(0)
}

fn stat_path(pid: u32) -> String {
    format!("/proc/{pid}/stat")
}

#[cfg(test)]
mod tests;
