//! A fair lock: threads get their turn in the order in which they came, and show their heartbeat while they wait.
//!
//! A thread can take a mutex again at once, before a waiting thread has woken up: a thread that commits without a pause
//! would keep the thread that writes the index from writing for seconds.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use blkin_daemon::health::BEAT_EVERY;

use super::{Beat, StoreError, check_beat};

/// The right to do something, which one thread at a time has.
#[derive(Debug, Default)]
pub(super) struct FairLock {
    line: Mutex<Line>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct Line {
    next: u64,
    /// The number whose turn it is, and behind it those that wait, in order of arrival.
    numbers: VecDeque<u64>,
}

/// A turn, which is over when this is dropped.
#[derive(Debug)]
pub(super) struct Turn<'t>(&'t FairLock);

impl FairLock {
    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a turn.
    ///
    /// # Errors
    /// When `beat` ends the wait.
    pub(super) fn take(&self, beat: Beat<'_>) -> Result<Turn<'_>, StoreError> {
        let mut line = self.line();
        let number = line.next;
        line.next += 1;
        line.numbers.push_back(number);
        while line.numbers.front() != Some(&number) {
            line = self.moved.wait_timeout(line, BEAT_EVERY).unwrap_or_else(PoisonError::into_inner).0;
            if let Err(ended) = check_beat(beat) {
                line.numbers.retain(|waiting| *waiting != number);
                self.moved.notify_all();
                return Err(ended);
            }
        }
        Ok(Turn(self))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.line().numbers.pop_front();
        self.0.moved.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;
    use std::sync::mpsc::channel;
    use std::thread;

    use super::super::TO_THE_END;
    use super::*;

    /// Returns once so many threads wait or have their turn.
    fn until_there_are(lock: &FairLock, count: usize) {
        while lock.line().numbers.len() < count {
            thread::yield_now();
        }
    }

    #[test]
    fn waiting_threads_go_before_one_that_just_had_a_turn() {
        let lock = FairLock::default();
        let (went, order) = channel();
        let first = lock.take(TO_THE_END).unwrap();
        thread::scope(|scope| {
            for name in ["second", "third"] {
                let (lock, went) = (&lock, went.clone());
                let before = lock.line().numbers.len();
                scope.spawn(move || {
                    let _turn = lock.take(TO_THE_END).unwrap();
                    went.send(name).unwrap();
                });
                until_there_are(lock, before + 1);
            }
            drop(first);
            let _again = lock.take(TO_THE_END).unwrap();
            went.send("first again").unwrap();
        });
        assert_eq!(order.iter().take(3).collect::<Vec<_>>(), ["second", "third", "first again"]);
    }

    #[test]
    fn a_waiting_thread_beats_and_may_give_up_its_place() {
        let lock = FairLock::default();
        let first = lock.take(TO_THE_END).unwrap();
        let given_up = lock.take(&|| ControlFlow::Break(()));
        assert!(matches!(given_up, Err(StoreError::Ended)));
        drop(first);
        drop(lock.take(TO_THE_END).unwrap());
        assert!(lock.line().numbers.is_empty());
    }
}
