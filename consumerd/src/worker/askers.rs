//! Asks the kernel whether anybody can still write a program's rings, on threads that nothing waits for.
//!
//! It answers once it has the program's file to itself: it waits for pages that are in use elsewhere, such as in pipes, and
//! older kernels wait for whoever writes the file from memory of which a page never comes (Linux 6.18 does not). A program can
//! so have it answer late, or never. Therefore the programs of each user have a thread of their own: no others are seen late
//! to have ended.

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
    threads: Map<u32, Sender<Question>>,
    answering: Sender<Answer>,
    answers: Receiver<Answer>,
}

impl Default for Askers {
    fn default() -> Self {
        let (answering, answers) = channel();
        Self { threads: Map::default(), answering, answers }
    }
}

impl Askers {
    /// Asks about a program of a user. Says whether that could be done: an answer comes then.
    pub(super) fn ask(&mut self, uid: u32, question: Question) -> bool {
        if !self.threads.contains_key(&uid) {
            let Ok(thread) = start(self.answering.clone()) else { return false };
            self.threads.insert(uid, thread);
        }
        self.threads.get(&uid).is_some_and(|thread| thread.send(question).is_ok())
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

fn start(answering: Sender<Answer>) -> io::Result<Sender<Question>> {
    let (asking, questions) = channel::<Question>();
    let work = move || {
        for (program, writers) in questions {
            // Whoever asked may have ended.
            let _ = answering.send(Answer { program, are_gone: writers.are_gone() });
        }
    };
    thread::Builder::new().name("blkin-asker".into()).spawn(work)?;
    Ok(asking)
}
