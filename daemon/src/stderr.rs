//! What a daemon writes to stderr, above all its log. A thread of its own writes it: if the reader of stderr stalls, only that
//! thread waits, and no thread that has work to do. Lines for which there is no room meanwhile are lost and counted, and the log
//! says how many once it goes on.
//!
//! Not `tracing-appender`: it would not report lost lines in the log, it does not count lines that could not be written, and when
//! it ends it prints that its queue is full to stdout, which may be the same pipe that nobody reads.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::journal;

/// Bytes that may wait: thousands of lines, or a single longer one.
const ROOM: usize = 1 << 20;
/// How long a process that ends, or a thread that panics, waits for its last lines to be written.
const LAST_LINES: Duration = Duration::from_millis(500);

/// The lines that wait for the thread; none before [`start`].
static QUEUE: OnceLock<&'static Queue> = OnceLock::new();

/// Starts the thread that writes the lines of [`write`](fn@write) from now on. If the system gives no thread, each caller keeps
/// writing by itself, and may wait. The thread keeps for good what it inherits from its caller, such as capabilities.
pub(crate) fn start() {
    if QUEUE.get().is_some() {
        return;
    }
    let queue: &'static Queue = Box::leak(Box::default());
    let report = |lines| {
        tracing::warn!(
            lines,
            "lines of this log were lost: it was not read in time, or could not be written"
        );
    };
    let writing = move || queue.write_to(io::stderr(), report);
    if std::thread::Builder::new().name("blkin-log".into()).spawn(writing).is_ok() {
        let _other = QUEUE.set(queue);
    }
}

/// Writes lines, or queues them for the thread.
pub(crate) fn write(lines: Vec<u8>) {
    match QUEUE.get() {
        Some(queue) => queue.push(lines),
        // stderr may be closed, and there is no other place to report that.
        None => drop(io::stderr().write_all(&lines)),
    }
}

/// Writes an error, regardless of the log filter.
pub(crate) fn write_error(error: &str) {
    let priority = if journal::reads_stderr() { journal::ERROR } else { "" };
    write(format!("{priority}{error}\n").into_bytes());
}

/// Waits until everything is written, but no longer than [`LAST_LINES`].
pub(crate) fn flush() {
    if let Some(queue) = QUEUE.get() {
        queue.wait_until_written(LAST_LINES);
    }
}

/// Lines of this process that were lost.
pub fn lost_lines() -> u64 {
    QUEUE.get().map_or(0, |queue| queue.state().lost)
}

/// [`write`](fn@write) as an [`io::Write`], for the log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lines;

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        write(line.to_vec());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Vec<u8>>,
    /// Bytes that are not written yet: those that wait, and those that are being written.
    bytes: usize,
    /// There was no room, and half of it is not free again yet. One gap in the log is easier to read than many.
    is_clogged: bool,
    /// Lines that were lost.
    lost: u64,
    /// Lost lines that the log has not reported yet.
    unreported_lost: u64,
}

impl State {
    fn lose_one(&mut self) {
        self.lost += 1;
        self.unreported_lost += 1;
    }
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, line: Vec<u8>) {
        let mut state = self.state();
        // Only if other lines wait: writing them clears the queue again. With none waiting, it would stay clogged for good.
        state.is_clogged |= !state.waiting.is_empty() && state.bytes + line.len() > ROOM;
        if state.is_clogged {
            state.lose_one();
            return;
        }
        state.bytes += line.len();
        state.waiting.push_back(line);
        drop(state);
        self.changed.notify_all();
    }

    /// Writes the lines as they come, for ever; `report` logs how many lines were lost.
    fn write_to(&self, mut out: impl Write, report: impl Fn(u64)) {
        loop {
            let line = self.next();
            let is_written = out.write_all(&line).is_ok();
            if let Some(lost) = self.gap_after(line.len(), is_written) {
                report(lost);
            }
            // Only now: a caller that waits for the last lines has to wait for the line of `report` too.
            self.state().bytes -= line.len();
            self.changed.notify_all();
        }
    }

    fn next(&self) -> Vec<u8> {
        let mut state = self.state();
        loop {
            if let Some(line) = state.waiting.pop_front() {
                return line;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// How many lost lines to report after a line of `bytes`, if that line was written and the queue is not clogged any more.
    fn gap_after(&self, bytes: usize, is_written: bool) -> Option<u64> {
        let mut state = self.state();
        state.is_clogged &= state.bytes - bytes > ROOM / 2;
        if !is_written {
            state.lose_one();
            return None;
        }
        let is_over = !state.is_clogged && state.unreported_lost > 0;
        is_over.then(|| std::mem::take(&mut state.unreported_lost))
    }

    fn wait_until_written(&self, limit: Duration) {
        let waited = self.changed.wait_timeout_while(self.state(), limit, |state| state.bytes > 0);
        drop(waited);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// A reader with which the test decides the outcome of each line: it announces the line, and waits for the outcome.
    struct Reader {
        begun: Sender<String>,
        ends: Receiver<io::Result<()>>,
    }

    impl Write for Reader {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.begun.send(String::from_utf8_lossy(line).into_owned()).map_err(io::Error::other)?;
            self.ends.recv().map_err(io::Error::other)??;
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A queue whose lines are read when the test wants it.
    struct Log {
        queue: &'static Queue,
        begun: Receiver<String>,
        ends: Sender<io::Result<()>>,
    }

    impl Log {
        fn start() -> Log {
            let queue: &'static Queue = Box::leak(Box::default());
            let ((begins, begun), (ends, ended)) = (channel(), channel());
            let reader = Reader { begun: begins, ends: ended };
            let report = |lines| queue.push(format!("{lines} lost").into_bytes());
            std::thread::spawn(move || queue.write_to(reader, report));
            Log { queue, begun, ends }
        }

        /// Waits for the next line, and gives its write this outcome.
        fn read(&self, end: io::Result<()>) -> String {
            let line = self.begun.recv().unwrap();
            self.ends.send(end).unwrap();
            line
        }
    }

    fn full() -> io::Result<()> {
        Err(io::ErrorKind::StorageFull.into())
    }

    #[test]
    fn full_log_queue_drops_lines_and_reports_the_gap_in_place() {
        let log = Log::start();
        let line = vec![b'x'; ROOM / 4];
        (0..9).for_each(|_| log.queue.push(line.clone()));
        assert_eq!(log.queue.state().lost, 5);
        log.read(Ok(()));
        assert_eq!(log.begun.recv().unwrap().len(), ROOM / 4);
        log.queue.push(b"short".to_vec());
        assert_eq!(log.queue.state().lost, 6, "lines are dropped until half of the room is free");
        log.ends.send(Ok(())).unwrap();
        assert_eq!(log.begun.recv().unwrap().len(), ROOM / 4);
        log.queue.push(b"after".to_vec());
        log.ends.send(Ok(())).unwrap();
        let rest = [(); 3].map(|()| log.read(Ok(())));
        assert_eq!([rest[0].len(), ROOM / 4], [ROOM / 4; 2]);
        assert_eq!(rest[1..], ["6 lost", "after"]);
    }

    #[test]
    fn line_longer_than_the_log_queue_passes_alone() {
        let log = Log::start();
        let long = || vec![b'x'; ROOM + 1];
        log.queue.push(long());
        assert_eq!(log.begun.recv().unwrap().len(), ROOM + 1);
        log.queue.push(long());
        log.queue.push(b"lost".to_vec());
        log.ends.send(Ok(())).unwrap();
        assert_eq!(log.read(Ok(())).len(), ROOM + 1);
        assert_eq!(log.read(Ok(())), "1 lost");
        log.queue.push(b"after".to_vec());
        assert_eq!(log.read(Ok(())), "after");
        assert_eq!(log.queue.state().lost, 1);
    }

    #[test]
    fn unwritable_lines_are_reported_once_a_write_succeeds() {
        let log = Log::start();
        for line in ["one", "two", "three", "four"] {
            log.queue.push(line.into());
        }
        let ends = [full(), full(), Ok(()), full(), full()];
        let begun = ends.map(|end| log.read(end));
        assert_eq!(begun, ["one", "two", "three", "four", "2 lost"]);
        log.queue.push(b"five".to_vec());
        assert_eq!([log.read(Ok(())), log.read(Ok(()))], ["five", "2 lost"]);
        assert_eq!(log.queue.state().lost, 4);
    }

    #[test]
    fn shutdown_waits_for_the_last_lines_and_the_loss_report() {
        let log = Log::start();
        for line in ["lost", "last"] {
            log.queue.push(line.into());
        }
        let (queue, patience) = (log.queue, Duration::from_secs(3600));
        let ending = std::thread::spawn(move || queue.wait_until_written(patience));
        let read = [log.read(full()), log.read(Ok(()))];
        assert_eq!(log.begun.recv().unwrap(), "1 lost");
        assert!(!ending.is_finished());
        log.ends.send(Ok(())).unwrap();
        ending.join().unwrap();
        assert_eq!(read, ["lost", "last"]);
    }

    #[test]
    fn shutdown_does_not_wait_for_a_stalled_log_reader() {
        let log = Log::start();
        log.queue.push(b"never".to_vec());
        log.queue.wait_until_written(Duration::from_millis(1));
        assert_eq!(log.queue.state().bytes, 5);
    }
}
