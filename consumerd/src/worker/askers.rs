//! Asks the kernel whether anybody can still write a program's rings, on threads that nothing waits for.
//!
//! The kernel answers once it has the program's file to itself. It waits for pages that are in use elsewhere, such as in pipes, and
//! older kernels also wait for a process that writes the file from memory whose page never arrives (Linux 6.18 does not). So a
//! program can delay the answer, or prevent it. Therefore each user has a separate thread, and no user can delay the answers for
//! others. Only the end of the process waits for a call from which the kernel does not return.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Instant;

use blkin_ringbuf::Writers;

use crate::hash::Map;

/// The number of a program, and the handle for asking about its writers.
type Question = (u64, Writers);

/// The kernel's answer to one question.
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

/// The thread of one user.
#[derive(Debug)]
struct Asker {
    asking: Sender<Vec<Question>>,
    /// Questions collected for the next [`Askers::send`]: each message wakes the thread, so they are sent together.
    questions: Vec<Question>,
}

impl Default for Askers {
    fn default() -> Self {
        let (answering, answers) = channel();
        Self { threads: Map::default(), answering, answers }
    }
}

impl Askers {
    /// Asks about a program of a user, with the next [`Askers::send`]. Returns whether that is possible: then an answer will come.
    pub(super) fn ask(&mut self, uid: u32, question: Question) -> bool {
        if !self.threads.contains_key(&uid) {
            let Ok(thread) = start(self.answering.clone()) else { return false };
            self.threads.insert(uid, thread);
        }
        let asker = self.threads.get_mut(&uid);
        asker.map(|asker| asker.questions.push(question)).is_some()
    }

    /// Sends the collected questions to the threads.
    pub(super) fn send(&mut self) {
        for asker in self.threads.values_mut().filter(|asker| !asker.questions.is_empty()) {
            // The thread lives as long as this sender.
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

    /// Ends the thread of a user who has no programs any more.
    pub(super) fn forget(&mut self, uid: u32) {
        self.threads.remove(&uid);
    }
}

fn start(answering: Sender<Answer>) -> io::Result<Asker> {
    let (asking, questions) = channel::<Vec<Question>>();
    let work = move || {
        for (program, writers) in questions.into_iter().flatten() {
            // Fails if the asking side has ended.
            let _ = answering.send(Answer { program, are_gone: writers.are_gone() });
        }
    };
    thread::Builder::new().name("blkin-asker".into()).spawn(work)?;
    Ok(Asker { asking, questions: Vec::new() })
}
