//! A Scribe server as a sink: many messages in one `Log` call over framed TBinary, and several calls under way, because an
//! answer may have to wait for a disk.

use std::fmt::Display;
use std::io;
use std::time::{Duration, Instant};

use blkin_daemon::health::BEAT_EVERY;
use blkin_daemon::{Cause, Notices};
use blkin_scribe::trial::TIMES;
use blkin_scribe::{Client, Pipeline, Reply, Trial, Trouble, Verdict, Window};
use blkin_thrift::writer::LogCallWriter;

use super::pump::{Outlet, Pump};
use super::queue::{Batch, Entry, Next, Outcome};
use super::thread_progress::ThreadProgress;
use crate::config::Config;

/// After this many connections in a row that broke without an answer, entries are sent one by one.
const BREAKS: u32 = 3;
/// An upstream that has refused this many entries in a row seems to take none at all. An upstream that refuses a few of many has
/// trouble with those entries only, and they are counted.
const REFUSALS: u32 = 3;

/// The sink of one upstream.
#[derive(Debug)]
pub struct Scribe {
    upstream: String,
    category: String,
    pipeline: Pipeline<Batch>,
    /// Batches of one entry each, made because larger calls with these entries failed. While there are any, nothing else is sent.
    trial: Trial<Batch>,
    /// Connections that broke since the last answer.
    breaks: u32,
    /// Rate limit of the log lines about refused messages.
    refused: Notices,
    /// How many entries in a row were refused.
    refusals: u32,
}

impl Scribe {
    /// Starts without a connection.
    pub fn new(upstream: &str, category: &str, config: &Config) -> Self {
        let client = Client::new(upstream, Duration::from_millis(config.io_timeout_ms));
        let window = Window { calls: config.window_calls, bytes: config.window_bytes };
        Self {
            upstream: upstream.into(),
            category: category.into(),
            pipeline: Pipeline::new(client, window),
            trial: Trial::default(),
            breaks: 0,
            refused: Notices::default(),
            refusals: 0,
        }
    }

    /// Hands over as many batches as the window has room for. Returns until when there is nothing more to do; `None` once there
    /// never will be.
    fn fill(&mut self, pump: &Pump) -> Option<Option<Instant>> {
        self.pipeline.retain_waiting(|batch| pump.queue.holds(batch));
        while self.pipeline.has_room() {
            match pump.queue.next(Instant::now()) {
                Next::Batch(batch) => {
                    let bytes = batch.entries.iter().map(|entry| entry.lines.len()).sum();
                    self.pipeline.push(batch, bytes);
                }
                Next::Wait(due) => return Some(due),
                Next::Ended => return (!self.pipeline.is_empty()).then_some(None),
            }
        }
        Some(None)
    }

    /// Sends, waits and settles.
    fn turn(&mut self, due: Option<Instant>, pump: &mut Pump) -> io::Result<()> {
        let category = &self.category;
        let call = |batch: &Batch, sequence| encode(category, &batch.entries, sequence);
        let progress = pump.queue.progress();
        let due = until(due, self.pipeline.is_empty(), progress);
        let turned = self.pipeline.turn(call, pump.queue.bell(), due, &mut || sign_of(progress));
        progress.note_progress();
        self.settle_answered(pump);
        if self.pipeline.with_unknown_outcome().next().is_some() {
            pump.queue.give_back(self.pipeline.take_waiting().into_iter());
            self.breaks += 1;
            if self.breaks >= BREAKS {
                pump.queue.next_single().into_iter().for_each(|suspect| self.trial.push(suspect));
            }
        }
        match turned {
            Err(trouble) => pump.report_failure_and_pause(trouble.cause(), &trouble),
            Ok(()) => Ok(()),
        }
    }

    /// Settles the batches that were answered. The entries of a refused batch are tried one by one, before the batches behind it.
    fn settle_answered(&mut self, pump: &mut Pump) {
        while self.trial.is_empty()
            && let Some((batch, verdict)) = self.pipeline.pop()
        {
            match verdict {
                Verdict::Refused => {
                    self.answered(pump);
                    pump.queue.split(batch).into_iter().for_each(|single| self.trial.push(single));
                }
                Verdict::Taken => {
                    self.succeeded(pump);
                    pump.queue.settle(&batch, Outcome::Acked);
                }
            }
        }
    }

    fn answered(&mut self, pump: &mut Pump) {
        self.breaks = 0;
        pump.note_answered();
    }

    /// The upstream answered `OK`.
    fn succeeded(&mut self, pump: &mut Pump) {
        self.answered(pump);
        self.refusals = 0;
        pump.note_shipped();
    }

    /// The upstream refused an entry.
    fn was_refused(&mut self, why: &str, pump: &mut Pump) {
        self.answered(pump);
        self.tell_refused(&format_args!("a message was refused: {why}"));
        self.refusals += 1;
        if self.refusals >= REFUSALS {
            pump.note_refused(&format_args!(
                "the upstream refuses one message after another, and each of them is lost: {why}"
            ));
        }
    }

    /// Sends one entry by itself.
    fn try_one(&mut self, pump: &mut Pump) -> io::Result<()> {
        self.trial.retain(|batch| pump.queue.holds(batch));
        if self.trial.wants_more() {
            pump.queue.next_single().into_iter().for_each(|witness| self.trial.push(witness));
        }
        if self.trial.wants_connection() {
            self.pipeline.disconnect();
        }
        let Some(batch) = self.trial.next() else { return Ok(()) };
        let call = |sequence| encode(&self.category, &batch.entries, sequence);
        let progress = pump.queue.progress();
        let outcome = match self.pipeline.call(call, &mut || sign_of(progress)) {
            Ok(Reply::Ok) => {
                self.succeeded(pump);
                Outcome::Acked
            }
            Ok(Reply::Refused(why)) => {
                self.was_refused(&why, pump);
                Outcome::Rejected
            }
            Ok(Reply::TryLater) => return pump.report_failure_and_pause(Cause::TryLater, &Trouble::TryLater),
            Ok(Reply::Failed(why)) => return self.failed(&Trouble::Failed(why), pump),
            Err(trouble) => return self.failed(&trouble, pump),
        };
        self.decide(outcome, pump);
        Ok(())
    }

    /// A call with one entry failed without an answer about that entry.
    fn failed(&mut self, trouble: &Trouble, pump: &mut Pump) -> io::Result<()> {
        if matches!(trouble, Trouble::Broken(_) | Trouble::Failed(_)) {
            self.trial.broke();
        }
        pump.report_failure_and_pause(trouble.cause(), trouble)
    }

    /// A call with one entry was answered, which may also decide that another entry is given up.
    fn decide(&mut self, outcome: Outcome, pump: &Pump) {
        let (answered, given_up) = self.trial.answered();
        answered.iter().for_each(|batch| pump.queue.settle_single(batch, outcome));
        if let Some(batch) = given_up {
            self.tell_refused(&format_args!(
                "the upstream disconnected or failed {TIMES} times in a row on the same message, and on no other: the message \
                 is given up"
            ));
            pump.queue.settle_single(&batch, Outcome::Rejected);
        }
    }

    fn tell_refused(&mut self, what: &impl Display) {
        if let Some(held_back) = self.refused.admit(Instant::now()) {
            tracing::warn!(upstream = self.upstream, held_back, "{what}");
        }
    }
}

impl Outlet for Scribe {
    fn run(mut self, mut pump: Pump) -> io::Result<()> {
        loop {
            if !self.trial.is_empty() {
                self.try_one(&mut pump)?;
            } else if let Some(due) = self.fill(&pump) {
                self.turn(due, &mut pump)?;
            } else {
                return Ok(());
            }
        }
    }
}

/// Until when the thread may wait. While no call is under way it rests, waiting for something to do; otherwise it wakes up often
/// enough to show progress.
fn until(due: Option<Instant>, is_idle: bool, progress: &ThreadProgress) -> Option<Instant> {
    if is_idle {
        progress.note_rest();
        return due;
    }
    progress.note_progress();
    let sign_due = Instant::now() + BEAT_EVERY;
    Some(due.map_or(sign_due, |due| due.min(sign_due)))
}

fn sign_of(progress: &ThreadProgress) -> io::Result<()> {
    progress.note_progress();
    Ok(())
}

/// About how many bytes a call takes on the wire in addition to its messages; too low a guess costs a copy.
const CALL_BYTES: usize = 64;
/// About how many bytes each message takes in addition to its texts.
const ENTRY_BYTES: usize = 16;

fn encode(category: &str, entries: &[Entry], sequence: i32) -> Vec<u8> {
    let of_entry = |entry: &Entry| entry.lines.len() + entry.messages * (category.len() + ENTRY_BYTES);
    let mut request = Vec::with_capacity(CALL_BYTES + entries.iter().map(of_entry).sum::<usize>());
    let mut writer = LogCallWriter::begin(&mut request, sequence);
    for entry in entries {
        match entry.lines.strip_suffix(b"\n") {
            Some(message) if entry.messages == 1 => writer.entry(category, message),
            _ => {
                let lines = entry.lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
                lines.for_each(|line| writer.entry(category, line));
            }
        }
    }
    writer.end();
    request
}

#[cfg(test)]
mod tests;
