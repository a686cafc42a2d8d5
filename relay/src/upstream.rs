//! A thread for each upstream: it reads the spool from the upstream's position and sends several calls ahead of the answers; as
//! answers arrive, the position moves on.

mod one_by_one;

use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use blkin_daemon::health::BEAT_EVERY;
use blkin_daemon::{CancellationToken, Cause, Heartbeat, Notices, Standing, threads};
use blkin_scribe::{Backoff, Client, Pipeline, Verdict, Window};
use blkin_thrift::scribe::encode_raw_log_call;

use crate::intake::Counter;
use crate::spool::checkpoint::Position;
use crate::spool::segment::{BadPlace, is_of_bad_place};
use crate::spool::{Batch, Spool};
use one_by_one::OneByOne;

/// After a call that broke off, or a part of the spool that could not be read, calls get smaller, since the upstream may not
/// accept large ones; but never smaller than this.
const MIN_BATCH_BYTES: usize = 4 << 10;
/// After this many connections in a row that broke without an answer, entries are sent one by one.
const BREAKS: u32 = 3;
/// An upstream that has refused this many entries in a row seems to accept none. If it refuses only a few of many, these entries
/// are the problem, and are counted.
const REFUSALS: u32 = 3;
/// A place in the spool that cannot be read from the disk is tried this often before it is skipped.
const READ_TRIES: u32 = 10;
/// During a pause, how often to check whether the relay is stopping.
const PAUSE_SLICE: Duration = Duration::from_millis(50);

/// How to send.
#[derive(Debug, Clone)]
pub struct Options {
    /// Most bytes of a call; a single larger record is a call of its own.
    pub batch_bytes: usize,
    /// Most entries of a call.
    pub batch_entries: u64,
    /// Calls that may wait for their answers.
    pub window: Window,
    /// An upstream that makes no progress for this long is called again.
    pub io_timeout: Duration,
    /// First pause before the upstream is called again; it doubles.
    pub backoff_min: Duration,
    /// Longest pause before the upstream is called again.
    pub backoff_max: Duration,
}

/// When to end.
#[derive(Debug, Clone, Default)]
pub struct Ending {
    /// As soon as the upstream has everything.
    pub when_drained: CancellationToken,
    /// At once.
    pub now: CancellationToken,
}

/// What an upstream's thread counts in addition to the ledger.
#[derive(Debug, Default)]
pub struct Traffic {
    /// Calls that were answered with `OK`.
    pub calls: AtomicU64,
    /// Entries of calls that broke off or failed after they were sent: they may arrive twice.
    pub uncertain: AtomicU64,
    /// 1 after a call that was answered with `OK`, until a call has another answer or none, or cannot be made.
    pub up: AtomicU64,
}

/// The thread's state.
pub struct Upstream {
    name: String,
    number: usize,
    spool: Arc<Spool>,
    counter: Counter,
    pipeline: Pipeline<Batch>,
    /// The end of the last batch in the pipeline.
    read: Option<Position>,
    /// Failed attempts to read since the last one that worked.
    failed_reads: u32,
    backoff: Backoff,
    options: Options,
    batch_bytes: usize,
    /// The entries that are sent one by one; while there are any, nothing else is sent.
    one_by_one: OneByOne,
    /// Connections that broke since the last answer.
    breaks: u32,
    heartbeat: Heartbeat,
    ending: Ending,
    traffic: Arc<Traffic>,
    standing: Arc<Standing>,
    /// Limits the log lines about entries that the upstream refuses.
    refused: Notices,
    /// Entries that it refused in a row.
    refusals: u32,
}

/// What is needed to start an upstream's thread.
pub struct Start<'a> {
    /// Host and port.
    pub name: &'a str,
    /// The spool with its entries.
    pub spool: &'a Arc<Spool>,
    /// Counts the annotations of refused entries.
    pub counter: &'a Counter,
    /// How to send.
    pub options: &'a Options,
    /// When to end.
    pub ending: &'a Ending,
    /// Where the relay itself listens: it must not send there.
    pub own: SocketAddr,
    /// The thread's sign of life.
    pub heartbeat: Heartbeat,
    /// The state of the upstream.
    pub standing: Arc<Standing>,
}

impl Upstream {
    /// The possible causes of trouble: those of any Scribe server, among them that it refuses everything, and that the spool cannot
    /// be read.
    pub const CAUSES: &'static [Cause] =
        &[Cause::Unreachable, Cause::Broken, Cause::TryLater, Cause::Refused, Cause::Failed];

    /// Starts the thread.
    ///
    /// # Errors
    /// When the spool does not know the upstream, or no thread can be started.
    pub fn start(start: Start<'_>) -> io::Result<(JoinHandle<()>, Arc<Traffic>)> {
        let unknown = || io::Error::other(format!("the spool has no upstream {}", start.name));
        let traffic = Arc::new(Traffic::default());
        let client = Client::new(start.name, start.options.io_timeout).never_calling(start.own);
        let upstream = Upstream {
            name: start.name.to_owned(),
            number: start.spool.upstream(start.name).ok_or_else(unknown)?,
            spool: start.spool.clone(),
            counter: start.counter.clone(),
            pipeline: Pipeline::new(client, start.options.window),
            read: None,
            failed_reads: 0,
            backoff: Backoff::new(start.options.backoff_min, start.options.backoff_max),
            options: start.options.clone(),
            batch_bytes: start.options.batch_bytes,
            one_by_one: OneByOne::default(),
            breaks: 0,
            heartbeat: start.heartbeat,
            ending: start.ending.clone(),
            traffic: traffic.clone(),
            standing: start.standing,
            refused: Notices::default(),
            refusals: 0,
        };
        let thread = threads::start("upstream", move || upstream.run())?;
        Ok((thread, traffic))
    }

    fn run(mut self) {
        while !self.is_over() {
            self.heartbeat.beat();
            if let Err(error) = self.step() {
                // A smaller batch may end before the place that cannot be read.
                self.batch_bytes = (self.batch_bytes / 2).max(MIN_BATCH_BYTES);
                self.report_failure_and_pause(Cause::Failed, &format!("failed to read the spool: {error}"));
            }
        }
        self.heartbeat.finish();
    }

    fn is_over(&self) -> bool {
        self.ending.now.is_cancelled()
            || (self.ending.when_drained.is_cancelled() && self.spool.is_drained(self.number))
    }

    /// # Errors
    /// When the spool cannot be read.
    fn step(&mut self) -> io::Result<()> {
        if self.one_by_one.is_empty() && self.breaks >= BREAKS {
            self.hold_next_record()?;
            self.breaks = 0;
        }
        if !self.one_by_one.is_empty() {
            return self.try_one();
        }
        let filled = self.fill();
        // Calls under way are settled even if no more can be read.
        if filled.is_ok() || !self.pipeline.is_empty() {
            self.turn();
        }
        filled
    }

    /// Fills the window with batches from the spool.
    fn fill(&mut self) -> io::Result<()> {
        self.pipeline.retain_waiting(|batch| !self.spool.has_passed(self.number, batch));
        while self.pipeline.has_room() {
            let (bytes, entries) = (self.batch_bytes, self.options.batch_entries);
            let Some(batch) = self.read_batch(self.read, bytes, entries)? else { break };
            self.read = Some(batch.end());
            if batch.is_empty() {
                self.pipeline.push_done(batch);
            } else {
                let bytes = batch.bytes();
                self.pipeline.push(batch, bytes);
            }
        }
        Ok(())
    }

    /// Reads the batch behind `from`. A place that cannot be read from the disk is skipped after [`READ_TRIES`], so that it does
    /// not hold up everything behind it.
    fn read_batch(
        &mut self,
        from: Option<Position>,
        bytes: usize,
        entries: u64,
    ) -> io::Result<Option<Batch>> {
        let next = |bad_place| self.spool.next_batch(self.number, from, bytes, entries, bad_place);
        let batch = next(BadPlace::Fails);
        self.failed_reads = if batch.is_ok() { 0 } else { self.failed_reads + 1 };
        match batch {
            // A bad place that follows directly is skipped at its first failure: the count starts again only after a good read.
            Err(error) if self.failed_reads > READ_TRIES && is_of_bad_place(&error) => {
                next(BadPlace::IsZeros)
            }
            batch => batch,
        }
    }

    /// Sends calls, waits for answers and settles them.
    fn turn(&mut self) {
        let turned = {
            let (bell, due) = (self.spool.bell(self.number), Instant::now() + BEAT_EVERY);
            let mut alive = sign_of_life(&self.heartbeat, &self.ending);
            self.pipeline.turn(encode, bell, Some(due), &mut alive)
        };
        self.settle_answered();
        self.read_again_in_smaller_calls();
        if let Err(trouble) = turned {
            self.report_failure_and_pause(trouble.cause(), &trouble);
        }
    }

    /// Settles the calls that were answered. The entries of a refused batch are sent one by one, before anything behind it.
    fn settle_answered(&mut self) {
        while self.one_by_one.is_empty()
            && let Some((batch, verdict)) = self.pipeline.pop()
        {
            if verdict == Verdict::Refused {
                self.mark_down();
                self.one_by_one.hold(batch);
                continue;
            }
            self.spool.settle(self.number, &batch);
            if !batch.is_empty() {
                self.note_success();
                self.batch_bytes = (self.batch_bytes * 2).min(self.options.batch_bytes);
            }
        }
    }

    fn log_refused(&mut self, what: &impl Display) {
        if let Some(held_back) = self.refused.admit(Instant::now()) {
            tracing::warn!(upstream = self.name, held_back, "{what}");
        }
    }

    /// Notes an answer: whatever it says, the upstream can be reached.
    fn note_answer(&mut self) {
        self.backoff.reset();
        self.breaks = 0;
    }

    /// Notes that the upstream refused an entry.
    fn note_refused_entry(&mut self, why: &str) {
        self.mark_down();
        self.log_refused(&format_args!("the upstream refused an entry: {why}"));
        self.refusals += 1;
        if self.refusals < REFUSALS {
            return;
        }
        let reason = format!("it refuses one entry after another, and each is lost to it: {why}");
        if let Some(begun) = self.standing.failed(Cause::Refused, &reason) {
            let (cause, held_back) = (Cause::Refused.label(), begun.held_back);
            tracing::warn!(upstream = self.name, cause, held_back, "failed to send: {reason}");
        }
    }

    /// Notes that the upstream answered `OK`.
    fn note_success(&mut self) {
        self.note_answer();
        self.refusals = 0;
        self.traffic.calls.fetch_add(1, Ordering::Relaxed);
        self.traffic.up.store(1, Ordering::Relaxed);
        if let Some(over) = self.standing.succeeded() {
            let (seconds, failures) = (over.lasted.as_secs(), over.failures);
            tracing::info!(upstream = self.name, seconds, failures, "sending again");
        }
    }

    /// Notes that a call had another answer than `OK`, or none.
    fn mark_down(&self) {
        self.traffic.up.store(0, Ordering::Relaxed);
    }

    /// After a broken connection, reads the calls with unknown outcome again, in smaller calls: the upstream may not accept large
    /// ones. After several broken connections in a row the entries are sent one by one: it may not accept one of them.
    fn read_again_in_smaller_calls(&mut self) {
        let entries: u64 = self.pipeline.with_unknown_outcome().map(|batch| batch.count().entries).sum();
        if entries == 0 {
            return;
        }
        self.count_uncertain(entries);
        self.batch_bytes = (self.batch_bytes / 2).max(MIN_BATCH_BYTES);
        self.pipeline.clear();
        self.read = None;
        self.breaks += 1;
    }

    fn count_uncertain(&self, entries: u64) {
        self.traffic.uncertain.fetch_add(entries, Ordering::Relaxed);
    }

    fn report_failure_and_pause(&mut self, cause: Cause, reason: &impl Display) {
        // A call that was ended because the relay stops is no trouble of the upstream.
        if self.ending.now.is_cancelled() {
            return;
        }
        // That the spool cannot be read says nothing about the upstream.
        if cause != Cause::Failed {
            self.mark_down();
        }
        if let Some(begun) = self.standing.failed(cause, reason) {
            let (cause, held_back) = (cause.label(), begun.held_back);
            tracing::warn!(
                upstream = self.name,
                cause,
                held_back,
                "failed to send: {reason}; trying again until it works"
            );
        }
        let until = Instant::now() + self.backoff.next_pause();
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            self.heartbeat.beat();
            if self.ending.now.is_cancelled() {
                return;
            }
            std::thread::sleep(left.min(PAUSE_SLICE));
        }
    }
}

fn encode(batch: &Batch, sequence: i32) -> Vec<u8> {
    let count = usize::try_from(batch.count().entries).unwrap_or(usize::MAX);
    encode_raw_log_call(sequence, count, batch.payloads())
}

/// Beats while the thread waits for the upstream; ends the wait when the relay stops.
fn sign_of_life<'a>(
    heartbeat: &'a Heartbeat,
    ending: &'a Ending,
) -> impl FnMut() -> io::Result<()> + use<'a> {
    || {
        heartbeat.beat();
        if ending.now.is_cancelled() {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "the relay is ending"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
