//! Asks the kernel whether anybody can still write a program's rings, on threads that nothing waits for.
//!
//! It answers once it has the program's file to itself: it waits for pages that are in use elsewhere, such as in pipes, and
//! older kernels wait for whoever writes the file from memory of which a page never comes (Linux 6.18 does not). A program can
//! so have it answer late, or never. Therefore the programs of each user have a thread of their own: no others are seen late
//! to have ended. Only the end of the process waits for a call that the kernel does not come back from.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Instant;

use blkin_ringbuf::Writers;

use crate::hash::Map;

/// About the writers of the program of this number.
type Question = (u64, Writers);

/// The kernel's word on one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// The program's number.
    pub(super) program: u64,
    /// Nobody can write its rings any more.
    pub(super) are_gone: bool,
}

/// The threads, by user.
#[derive(Debug)]
pub(super) struct Askers {
    threads: Map<u32, Asker>,
    answering: Sender<Answer>,
    answers: Receiver<Answer>,
}

/// One thread.
#[derive(Debug)]
struct Asker {
    asking: Sender<Vec<Question>>,
    /// What it is to be asked next, together: each time it wakes.
    questions: Vec<Question>,
}

impl Default for Askers {
    fn default() -> Self {
        let (answering, answers) = channel();
        Self { threads: Map::default(), answering, answers }
    }
}

impl Askers {
    /// Asks about a program of a user, with the next [`Askers::send`]. Says whether that can be done: an answer comes then.
    pub(super) fn ask(&mut self, uid: u32, question: Question) -> bool {
        if !self.threads.contains_key(&uid) {
            let Ok(thread) = start(self.answering.clone()) else { return false };
            self.threads.insert(uid, thread);
        }
        let asker = self.threads.get_mut(&uid);
        asker.map(|asker| asker.questions.push(question)).is_some()
    }

    /// Has the threads ask.
    pub(super) fn send(&mut self) {
        for asker in self.threads.values_mut().filter(|asker| !asker.questions.is_empty()) {
            // It lives as long as this side.
            let _ = asker.asking.send(std::mem::take(&mut asker.questions));
        }
    }

    /// The next answer, if it has come.
    pub(super) fn answer(&self) -> Option<Answer> {
        self.answers.try_recv().ok()
    }

    /// The next answer, if it comes in time.
    pub(super) fn answer_by(&self, due: Instant) -> Option<Answer> {
        self.answers.recv_timeout(due.saturating_duration_since(Instant::now())).ok()
    }

    /// Has no programs of a user any more.
    pub(super) fn forget(&mut self, uid: u32) {
        self.threads.remove(&uid);
    }
}

fn start(answering: Sender<Answer>) -> io::Result<Asker> {
    let (asking, questions) = channel::<Vec<Question>>();
    let work = move || {
        for (program, writers) in questions.into_iter().flatten() {
            // Whoever asked may have ended.
            let _ = answering.send(Answer { program, are_gone: writers.are_gone() });
        }
    };
    thread::Builder::new().name("blkin-asker".into()).spawn(work)?;
    Ok(Asker { asking, questions: Vec::new() })
}
