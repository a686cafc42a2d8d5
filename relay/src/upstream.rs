//! A thread for each upstream: reads its place in the spool and sends, several calls ahead of the answers; with them it
//! moves on.

mod singly;

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
use singly::Singly;

/// After a call that broke off, or could not be read, less is sent, for the upstream may not take large ones; never less
/// than this.
const MIN_BATCH_BYTES: usize = 4 << 10;
/// After so many connections in a row that broke without an answer entries are called one by one.
const BREAKS: u32 = 3;
/// An upstream that has refused so many entries in a row takes none, it seems. One that refuses a few of many has trouble with
/// these, and they are counted.
const REFUSALS: u32 = 3;
/// A place in the spool that the disk does not give back is tried so often before it is passed over.
const READ_TRIES: u32 = 10;
/// Looks at whether the relay is ending, while it pauses.
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
    /// First pause before that; it doubles.
    pub backoff_min: Duration,
    /// Longest pause.
    pub backoff_max: Duration,
}

/// When to end.
#[derive(Debug, Clone, Default)]
pub struct Ending {
    /// As soon as the upstream has everything.
    pub when_drained: CancellationToken,
    /// Now.
    pub now: CancellationToken,
}

/// What an upstream's thread counts beside the ledger.
#[derive(Debug, Default)]
pub struct Traffic {
    /// Calls that were answered with `OK`.
    pub calls: AtomicU64,
    /// Entries of calls that broke off after they were sent: they may arrive twice.
    pub uncertain: AtomicU64,
    /// 1 from a call that was answered with `OK` on, until one has another answer or none, or cannot be made.
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
    /// Attempts to read that failed since the last one that did not.
    failed_reads: u32,
    backoff: Backoff,
    options: Options,
    batch_bytes: usize,
    /// What is tried one by one; while there is any, nothing else is sent.
    singly: Singly,
    /// Connections that broke since the last answer.
    breaks: u32,
    heartbeat: Heartbeat,
    ending: Ending,
    traffic: Arc<Traffic>,
    standing: Arc<Standing>,
    /// Of entries that the upstream refuses,
    refused: Notices,
    /// and how many in a row.
    refusals: u32,
}

/// What is needed to start one.
pub struct Start<'a> {
    /// Host and port.
    pub name: &'a str,
    /// Where its entries are.
    pub spool: &'a Arc<Spool>,
    /// Counts what an upstream refuses.
    pub counter: &'a Counter,
    /// How to send.
    pub options: &'a Options,
    /// When to end.
    pub ending: &'a Ending,
    /// Where the relay itself listens: what it sent there would come back.
    pub own: SocketAddr,
    /// Its sign of life.
    pub heartbeat: Heartbeat,
    /// What is known of it.
    pub standing: Arc<Standing>,
}

impl Upstream {
    /// Why it may get nothing: as any Scribe server, because it refuses everything, or because the spool cannot be read.
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
            singly: Singly::default(),
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
                // What lies before the place that cannot be read can be, by itself.
                self.batch_bytes = (self.batch_bytes / 2).max(MIN_BATCH_BYTES);
                self.later(Cause::Failed, &format!("failed to read the spool: {error}"));
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
        if self.singly.is_empty() && self.breaks >= BREAKS {
            self.read_singly()?;
            self.breaks = 0;
        }
        if !self.singly.is_empty() {
            return self.try_one();
        }
        let filled = self.fill();
        // What is under way is settled, whether more can be read or not.
        if filled.is_ok() || !self.pipeline.is_empty() {
            self.turn();
        }
        filled
    }

    /// Hands over what the window has room for.
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

    /// Reads the batch behind `from`. What the disk does not give back for long is passed over, so that it does not keep
    /// all that lies behind it.
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
            // What follows, and cannot be read either, is not tried as often again.
            Err(error) if self.failed_reads > READ_TRIES && is_of_bad_place(&error) => {
                next(BadPlace::IsZeros)
            }
            batch => batch,
        }
    }

    /// Sends, waits and settles.
    fn turn(&mut self) {
        let turned = {
            let (bell, due) = (self.spool.bell(self.number), Instant::now() + BEAT_EVERY);
            let mut alive = sign_of_life(&self.heartbeat, &self.ending);
            self.pipeline.turn(encode, bell, Some(due), &mut alive)
        };
        self.settle_answered();
        self.read_again_in_smaller_calls();
        if let Err(trouble) = turned {
            self.later(trouble.cause(), &trouble);
        }
    }

    /// Settles what was answered. Of a batch that is refused the entries are tried one by one, before what is behind it.
    fn settle_answered(&mut self) {
        while self.singly.is_empty()
            && let Some((batch, verdict)) = self.pipeline.pop()
        {
            if verdict == Verdict::Refused {
                self.is_down();
                self.singly.hold(batch);
                continue;
            }
            self.spool.settle(self.number, &batch);
            if !batch.is_empty() {
                self.succeeded();
                self.batch_bytes = (self.batch_bytes * 2).min(self.options.batch_bytes);
            }
        }
    }

    fn tell_refused(&mut self, what: &impl Display) {
        if let Some(held_back) = self.refused.admit(Instant::now()) {
            tracing::warn!(upstream = self.name, held_back, "{what}");
        }
    }

    /// Whatever it says to a call, an upstream that answers is there.
    fn answered(&mut self) {
        self.backoff.reset();
        self.breaks = 0;
    }

    /// It refused an entry.
    fn was_refused(&mut self, why: &str) {
        self.is_down();
        self.tell_refused(&format_args!("the upstream refused an entry: {why}"));
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

    /// It answered `OK`.
    fn succeeded(&mut self) {
        self.answered();
        self.refusals = 0;
        self.traffic.calls.fetch_add(1, Ordering::Relaxed);
        self.traffic.up.store(1, Ordering::Relaxed);
        if let Some(over) = self.standing.succeeded() {
            let (seconds, failures) = (over.lasted.as_secs(), over.failures);
            tracing::info!(upstream = self.name, seconds, failures, "sending again");
        }
    }

    /// A call had another answer than `OK`, or none.
    fn is_down(&self) {
        self.traffic.up.store(0, Ordering::Relaxed);
    }

    /// After a connection that broke, what is in the dark is read again, in smaller calls: the upstream may not take large
    /// ones. Once that has happened several times in a row, the entries come one by one: it may not take one of them.
    fn read_again_in_smaller_calls(&mut self) {
        let entries: u64 = self.pipeline.in_the_dark().map(|batch| batch.count().entries).sum();
        if entries == 0 {
            return;
        }
        self.uncertain(entries);
        self.batch_bytes = (self.batch_bytes / 2).max(MIN_BATCH_BYTES);
        self.pipeline.clear();
        self.read = None;
        self.breaks += 1;
    }

    fn uncertain(&self, entries: u64) {
        self.traffic.uncertain.fetch_add(entries, Ordering::Relaxed);
    }

    fn later(&mut self, cause: Cause, reason: &impl Display) {
        // What breaks off because the relay ends is no trouble of the upstream.
        if self.ending.now.is_cancelled() {
            return;
        }
        // That the spool cannot be read says nothing of the upstream.
        if cause != Cause::Failed {
            self.is_down();
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

/// Told while an upstream is waited for; ends the wait when the relay ends.
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
