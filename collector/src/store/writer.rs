//! The one thread that changes the store's data. It commits all waiting batches in one transaction, so that many senders
//! share one sync of the disk, and takes a step of retention now and then.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use blkin_daemon::health::BEAT_EVERY;
use blkin_daemon::held_bytes::{Held, HeldBytes};
use blkin_daemon::{Cause, Heartbeat, Refusal, Standing, threads};
use tokio::sync::oneshot;

use super::commit_delay::{self, CommitDelay};
use super::queue::{Bounds, Giver, NotGiven, Taker, WaitError, Wanted, queue};
use super::retention_clock::RetentionClock;
use super::{Batch, Damage, IndexSize, Retention, Store, StoreError};
use crate::ledger::Ledger;

/// Most batches of one transaction.
const MAX_GROUP: usize = 256;
/// Most bytes of one transaction, apart from its first batch.
const MAX_GROUP_BYTES: usize = 8 << 20;

/// After so many committed bytes a step of retention follows, however recent the last one was: otherwise busy senders could
/// exceed a small limit by much in the meantime.
const LOOK_AFTER_BYTES: usize = 16 << 20;

/// Longest time for which a commit waits for more senders.
const MAX_GATHER_TIME: Duration = Duration::from_millis(2);

/// How much may wait, and how long traces are kept.
#[derive(Debug, Clone, Copy)]
pub struct WriterOptions {
    /// Batches that may wait.
    pub queue_batches: usize,
    /// Bytes that may wait.
    pub queue_bytes: usize,
    /// How long, and how much, the store keeps.
    pub retention: Retention,
    /// Pause between two steps of retention.
    pub retention_every: Duration,
}

/// Why a batch was not stored. The sender still has it and should send it again later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Too much waits already.
    #[error("failed to store: too much is waiting for the disk; send again later")]
    QueueFull,
    /// The commit failed; the log says why.
    #[error("failed to store: the commit failed; send again later")]
    Failed,
    /// The collector is stopping.
    #[error("failed to store: the collector is stopping; send again later")]
    Stopping,
}

struct Job {
    batch: Batch,
    done: oneshot::Sender<Result<(), Refused>>,
    held: Held,
}

/// The handle of the writing thread. Clones share it; when the last one is dropped, the thread stores what waits and ends.
#[derive(Clone)]
pub struct Writer {
    jobs: Arc<Giver<Job>>,
    shared: Arc<Shared>,
}

struct Shared {
    store: Arc<dyn Store>,
    queued: HeldBytes,
    queue_bytes: u64,
    retention: LiveRetention,
    ledger: Mutex<Ledger>,
    commits: AtomicUsize,
    /// Whether commits succeed. While the disk is full, each attempt of each sender fails, so log lines are limited.
    committing: Arc<Standing>,
    expiring: Arc<Standing>,
    /// Whether retention follows the clock.
    clock: Arc<Standing>,
}

/// How long, and how much, the store keeps; this may change while the thread runs. Clones share it.
#[derive(Clone)]
pub struct LiveRetention(Arc<Mutex<Retention>>);

impl LiveRetention {
    fn new(retention: Retention) -> Self {
        LiveRetention(Arc::new(Mutex::new(retention)))
    }

    fn get(&self) -> Retention {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes it, from the next step of retention on.
    pub fn set(&self, retention: Retention) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = retention;
    }
}

impl Writer {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the store cannot be read, or the thread cannot be started.
    pub fn start(
        store: Arc<dyn Store>,
        options: WriterOptions,
        heartbeat: Heartbeat,
    ) -> anyhow::Result<(Writer, JoinHandle<Result<(), StoreError>>)> {
        let (jobs, waiting) = queue(Bounds {
            waiting: options.queue_batches,
            together: MAX_GROUP,
            bytes_together: MAX_GROUP_BYTES,
        });
        let shared = Arc::new(Shared {
            store: store.clone(),
            queued: HeldBytes::default(),
            queue_bytes: options.queue_bytes as u64,
            retention: LiveRetention::new(options.retention),
            ledger: Mutex::new(store.ledger()?),
            commits: AtomicUsize::new(0),
            committing: super::with_disk("store"),
            expiring: super::with_disk("retention"),
            clock: Arc::new(Standing::new("retention", "clock", &[Cause::Clock])),
        });
        let expiry_every = options.retention_every;
        let retention_clock = RetentionClock::start(store.newest_arrival_ms()?);
        let thread = Thread {
            store,
            waiting,
            shared: shared.clone(),
            expiry_every,
            heartbeat,
            refused: None,
            expiry_works: true,
            last_expiry: None,
            unlooked_bytes: 0,
            retention_clock,
            last_group: 0,
            last_commit: Duration::ZERO,
            commit_delay: CommitDelay::default(),
        };
        let handle = threads::start("blkin-store", move || thread.run())?;
        Ok((Writer { jobs: Arc::new(jobs), shared }, handle))
    }

    /// Hands over a batch; the answer comes once the batch is committed. A refused batch is not stored and not counted.
    ///
    /// # Errors
    /// When too much is waiting, or the thread is gone.
    pub fn submit(&self, mut batch: Batch) -> Result<Pending, Refused> {
        batch.complete();
        let bytes = batch.memory();
        let held = self.shared.queued.hold(bytes as u64, self.shared.queue_bytes);
        let held = held.ok_or(Refused::QueueFull)?;
        let (done, pending) = oneshot::channel();
        self.jobs.give(Job { batch, done, held }, bytes).map_err(|refused| match refused {
            NotGiven::Full => Refused::QueueFull,
            NotGiven::NobodyThere => Refused::Stopping,
        })?;
        Ok(Pending(pending))
    }

    /// The retention settings, to change them. They do not keep the thread alive.
    pub fn retention(&self) -> LiveRetention {
        self.shared.retention.clone()
    }

    /// The ledger as of the last commit.
    pub fn ledger(&self) -> Ledger {
        *self.shared.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts of what the store found damaged so far.
    pub fn damage(&self) -> &Damage {
        self.shared.store.damage()
    }

    /// How large the store's index is.
    pub fn index_size(&self) -> IndexSize {
        self.shared.store.index_size()
    }

    /// Bytes that wait.
    pub fn queued_bytes(&self) -> u64 {
        self.shared.queued.now()
    }

    /// The state of the disk, for commits and for retention.
    pub fn standings(&self) -> [Arc<Standing>; 2] {
        [self.shared.committing.clone(), self.shared.expiring.clone()]
    }

    /// Whether retention follows the clock.
    pub fn clock(&self) -> Arc<Standing> {
        self.shared.clock.clone()
    }

    /// Commits so far.
    pub fn commits(&self) -> usize {
        self.shared.commits.load(Ordering::Acquire)
    }
}

/// A batch that waits for its commit.
pub struct Pending(oneshot::Receiver<Result<(), Refused>>);

impl Pending {
    /// Waits for the commit.
    ///
    /// # Errors
    /// When the commit failed or the thread ended.
    pub async fn committed(self) -> Result<(), Refused> {
        self.0.await.unwrap_or(Err(Refused::Stopping))
    }
}

struct Thread {
    store: Arc<dyn Store>,
    waiting: Taker<Job>,
    shared: Arc<Shared>,
    expiry_every: Duration,
    heartbeat: Heartbeat,
    /// What the disk refused, if the last commit failed; and whether the last step of retention succeeded. The two are separate:
    /// a step that succeeds, often without writing anything, does not mean that commits succeed again.
    refused: Option<Refusal>,
    expiry_works: bool,
    last_expiry: Option<Instant>,
    /// Bytes that were committed since then.
    unlooked_bytes: usize,
    /// The time that decides which traces are too old.
    retention_clock: RetentionClock,
    /// How many batches the last commit had, and how long it took.
    last_group: usize,
    last_commit: Duration,
    commit_delay: CommitDelay,
}

impl Thread {
    /// Runs until all handles are dropped and nothing waits, or until only a restart can help the store.
    fn run(mut self) -> Result<(), StoreError> {
        loop {
            self.beat();
            match self.group() {
                Ok(group) => self.commit(group)?,
                Err(WaitError::TimedOut) => self.try_disk()?,
                Err(WaitError::GiversGone) => break,
            }
            if self.expiry_is_due() {
                self.expiry_works = self.expire()?;
            }
        }
        self.heartbeat.finish();
        Ok(())
    }

    /// Shows the heartbeat, unless commits or retention fail.
    fn beat(&self) {
        if self.refused.is_none() && self.expiry_works {
            self.heartbeat.beat();
        }
    }

    fn commit(&mut self, group: Vec<Job>) -> Result<(), StoreError> {
        let begun = Instant::now();
        self.last_group = group.len();
        let parts = group.into_iter().map(|job| (job.batch, (job.done, job.held)));
        let (batches, (answers, held)): (Vec<_>, (Vec<_>, Vec<_>)) = parts.unzip();
        let bytes: usize = batches.iter().map(Batch::memory).sum();
        let least = batches.iter().map(Batch::memory).min().unwrap_or(0);
        let results = self.store_each(batches)?;
        drop(held);
        self.refused = (!results.contains(&Ok(()))).then(|| Refusal::of(least));
        if self.refused.is_none() {
            self.publish();
            self.unlooked_bytes = self.unlooked_bytes.saturating_add(bytes);
        }
        self.last_commit = begun.elapsed();
        for (answer, result) in answers.into_iter().zip(results) {
            // A sender that went away does not need its answer.
            let _gone = answer.send(result);
        }
        Ok(())
    }

    /// The batches of the next commit: those that wait, and those that senders are about to send who have just got their answer.
    /// A commit costs nearly the same for one batch as for many, so with several senders it pays to wait a moment for all of
    /// them. The thread waits until as many more batches are there as the last commit had, but no longer than a commit takes; a
    /// bit longer if that is little and some senders do not wait for answers.
    fn group(&mut self) -> Result<Vec<Job>, WaitError> {
        let there = self.waiting.count();
        if there == 0 {
            let pause = if self.expiry_is_due() { Duration::ZERO } else { BEAT_EVERY };
            self.waiting.wait(Wanted::items(1), pause)?;
        }
        let begun = Instant::now();
        let crowd = Wanted::items(self.last_group + there);
        self.waiting.wait(crowd, self.last_commit.min(MAX_GATHER_TIME))?;
        let expected = self.waiting.count();
        if self.waiting.bytes() < commit_delay::ENOUGH_BYTES && self.commit_delay.is_due() {
            self.waiting.wait(
                Wanted::bytes(commit_delay::ENOUGH_BYTES),
                commit_delay::LONGEST.saturating_sub(begun.elapsed()),
            )?;
            self.commit_delay.learn(self.waiting.count() > expected);
        }
        Ok(self.waiting.take())
    }

    /// Commits all batches together; if that fails, each alone, so that a batch that cannot be stored harms no other.
    fn store_each(&self, batches: Vec<Batch>) -> Result<Vec<Result<(), Refused>>, StoreError> {
        let refused = Err(Refused::Failed);
        if self.store_group(&batches)? {
            return Ok(vec![Ok(()); batches.len()]);
        }
        if batches.len() == 1 {
            return Ok(vec![refused]);
        }
        let alone = |batch| Ok(if self.store_group(&[batch])? { Ok(()) } else { refused });
        batches.into_iter().map(alone).collect()
    }

    /// Commits batches together; returns whether they were stored.
    fn store_group(&self, batches: &[Batch]) -> Result<bool, StoreError> {
        let beat = || {
            self.beat();
            ControlFlow::Continue(())
        };
        let stored = self.tell(self.store.commit_beating(batches, now_ms(), &beat))?;
        if stored {
            self.shared.commits.fetch_add(1, Ordering::AcqRel);
        }
        Ok(stored)
    }

    /// After a commit that failed, tests now and then whether the disk takes as much again. Senders may not come back by
    /// themselves: a load balancer that checks the health sends none to a collector that is unhealthy.
    fn try_disk(&mut self) -> Result<(), StoreError> {
        let Some(bytes) = Refusal::take_if_due(&mut self.refused) else { return Ok(()) };
        let took = self.tell(self.store.try_out(bytes))?;
        self.refused = (!took).then(|| Refusal::of(bytes));
        Ok(())
    }

    /// Logs and notes whether a write succeeded, and returns whether it did.
    fn tell(&self, written: Result<(), StoreError>) -> Result<bool, StoreError> {
        match written {
            Ok(()) => {
                if let Some(over) = self.shared.committing.succeeded() {
                    let (seconds, failures) = (over.lasted.as_secs(), over.failures);
                    tracing::info!(seconds, failures, "commits succeed again");
                }
                Ok(true)
            }
            Err(error) if error.wants_new_start() => Err(error),
            Err(error) => {
                if let Some(begun) = self.shared.committing.failed(error.cause_of_trouble(), &error) {
                    let held_back = begun.held_back;
                    tracing::error!(
                        held_back,
                        "{error}; senders are told to send again until commits succeed"
                    );
                }
                Ok(false)
            }
        }
    }

    fn publish(&self) {
        match self.store.ledger() {
            Ok(ledger) => *self.shared.ledger.lock().unwrap_or_else(PoisonError::into_inner) = ledger,
            Err(error) => tracing::error!("{error}"),
        }
    }

    /// After a step that failed, the next one comes as soon as the disk is tested: until one succeeds, retention counts as failing.
    fn expiry_is_due(&self) -> bool {
        let every =
            if self.expiry_works { self.expiry_every } else { self.expiry_every.min(Refusal::TRY_EVERY) };
        self.unlooked_bytes >= LOOK_AFTER_BYTES || self.last_expiry.is_none_or(|last| last.elapsed() >= every)
    }

    fn tell_of_clock(&self) {
        match self.retention_clock.doubt() {
            Some(doubt) => {
                if let Some(begun) = self.shared.clock.failed(Cause::Clock, doubt) {
                    tracing::error!(held_back = begun.held_back, "{doubt}");
                }
            }
            None => {
                if let Some(over) = self.shared.clock.succeeded() {
                    tracing::info!(seconds = over.lasted.as_secs(), "retention follows the clock again");
                }
            }
        }
    }

    /// Takes a step of retention; returns whether it succeeded.
    fn expire(&mut self) -> Result<bool, StoreError> {
        self.unlooked_bytes = 0;
        let retention = self.shared.retention.get();
        let now_ms = self.retention_clock.now_ms(retention.max_age_ms);
        self.tell_of_clock();
        match self.store.expire(&retention, now_ms) {
            Ok(more) => {
                // With more to do, the next step comes right after the batches that wait.
                self.last_expiry = (!more).then(Instant::now);
                self.publish();
                if let Some(over) = self.shared.expiring.succeeded() {
                    let (seconds, failures) = (over.lasted.as_secs(), over.failures);
                    tracing::info!(seconds, failures, "retention works again");
                }
                Ok(true)
            }
            Err(error) if error.wants_new_start() => Err(error),
            Err(error) => {
                if let Some(begun) = self.shared.expiring.failed(error.cause_of_trouble(), &error) {
                    tracing::error!(held_back = begun.held_back, "failed to remove expired traces: {error}");
                }
                self.last_expiry = Some(Instant::now());
                Ok(false)
            }
        }
    }
}

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
