//! The thread that appends. Calls that wait together are made durable together: one `fdatasync` for many calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use blkin_daemon::health::BEAT_EVERY;
use blkin_daemon::held_bytes::{Held, HeldBytes};
use blkin_daemon::{Cause, Heartbeat, Refusal, Standing, threads};
use tokio::sync::oneshot;

use super::{AppendError, Draft, Spool, size_of};

/// Most bytes that are made durable together.
const GROUP_BYTES: usize = 8 << 20;
/// What happens to senders until the spool accepts entries again, for the log.
const REFUSED: &str = "senders are told TRY_LATER until that works";
/// Most calls that wait.
const QUEUE_CALLS: usize = 65_536;

/// Why a call was answered with `TRY_LATER`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// Too many calls or bytes wait for the disk.
    QueueFull,
    /// The spool is full, and `when_full` is `refuse`.
    SpoolFull,
    /// The disk refuses.
    Disk,
    /// The relay is stopping.
    Stopping,
}

impl Refused {
    /// All causes, with their labels in the metrics.
    pub const ALL: [(Refused, &'static str); 4] = [
        (Refused::QueueFull, "queue_full"),
        (Refused::SpoolFull, "spool_full"),
        (Refused::Disk, "disk"),
        (Refused::Stopping, "stopping"),
    ];
}

type Answer = Result<(), Refused>;

/// A call that waits to become durable with its group.
#[derive(Debug)]
pub struct Pending(oneshot::Receiver<Answer>);

struct Job {
    draft: Draft,
    done: oneshot::Sender<Answer>,
    held: Held,
}

#[derive(Debug)]
struct Shared {
    queued: HeldBytes,
    max_queued_bytes: u64,
    refused: [AtomicU64; Refused::ALL.len()],
}

/// Hands calls to the thread. The thread ends when every clone is dropped.
#[derive(Debug, Clone)]
pub struct Writer {
    jobs: SyncSender<Job>,
    shared: Arc<Shared>,
}

/// How many calls were answered with `TRY_LATER`, and how much waits. It does not keep the thread running.
#[derive(Debug, Clone)]
pub struct Gauge(Arc<Shared>);

impl Writer {
    /// Starts the thread. At most `max_queued_bytes` wait for the disk; `standing` is the state of writing to it.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(
        spool: Arc<Spool>,
        max_queued_bytes: u64,
        standing: Arc<Standing>,
        heartbeat: Heartbeat,
    ) -> std::io::Result<(Writer, JoinHandle<()>)> {
        let (jobs, queue) = sync_channel(QUEUE_CALLS);
        let refused = Default::default();
        let shared = Arc::new(Shared { queued: HeldBytes::default(), max_queued_bytes, refused });
        let thread = Thread { spool, queue, standing, heartbeat, refused: None };
        let thread = threads::start("spool", || thread.run())?;
        Ok((Writer { jobs, shared }, thread))
    }

    /// Queues a call.
    ///
    /// # Errors
    /// When too much waits already, or the thread has ended.
    pub fn submit(&self, draft: Draft) -> Result<Pending, Refused> {
        self.queue(draft).inspect_err(|cause| self.shared.count(*cause))
    }

    fn queue(&self, draft: Draft) -> Result<Pending, Refused> {
        let held = self.shared.queued.hold(draft.bytes() as u64, self.shared.max_queued_bytes);
        let held = held.ok_or(Refused::QueueFull)?;
        let (done, answer) = oneshot::channel();
        match self.jobs.try_send(Job { draft, done, held }) {
            Ok(()) => Ok(Pending(answer)),
            Err(TrySendError::Full(_)) => Err(Refused::QueueFull),
            Err(TrySendError::Disconnected(_)) => Err(Refused::Stopping),
        }
    }

    /// Waits until a call is durable.
    ///
    /// # Errors
    /// When it did not become durable; its sender still has it.
    pub async fn durable(&self, pending: Pending) -> Result<(), Refused> {
        let answer = pending.0.await.unwrap_or(Err(Refused::Stopping));
        answer.inspect_err(|cause| self.shared.count(*cause))
    }

    /// The figures for the metrics.
    pub fn gauge(&self) -> Gauge {
        Gauge(self.shared.clone())
    }
}

impl Gauge {
    /// Calls that were answered with `TRY_LATER` for this cause.
    pub fn refused(&self, cause: Refused) -> u64 {
        self.0.refused[cause as usize].load(Ordering::Relaxed)
    }

    /// Bytes of calls that wait for the disk.
    pub fn queued_bytes(&self) -> u64 {
        self.0.queued.now()
    }
}

impl Shared {
    fn count(&self, cause: Refused) {
        self.refused[cause as usize].fetch_add(1, Ordering::Relaxed);
    }
}

struct Thread {
    spool: Arc<Spool>,
    queue: Receiver<Job>,
    standing: Arc<Standing>,
    heartbeat: Heartbeat,
    /// The last write, if it failed.
    refused: Option<Refusal>,
}

impl Thread {
    fn run(mut self) {
        let most = GROUP_BYTES.min(usize::try_from(self.spool.limits.bytes / 4).unwrap_or(GROUP_BYTES));
        loop {
            self.heartbeat.beat();
            match self.queue.recv_timeout(BEAT_EVERY) {
                Ok(first) => self.append(first, most),
                Err(RecvTimeoutError::Timeout) => self.try_out(),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.heartbeat.finish();
    }

    fn append(&mut self, first: Job, most: usize) {
        let Group { drafts, waiting, held } = group(first, &self.queue, most);
        let appended = self.spool.append(&drafts, &|| self.heartbeat.beat());
        drop(held);
        self.learn(size_of(&drafts), &appended);
        let answer = match &appended {
            Ok(()) => Ok(()),
            Err(AppendError::Full) => Err(Refused::SpoolFull),
            Err(AppendError::Disk(_)) => Err(Refused::Disk),
        };
        // A connection that was closed meanwhile no longer waits.
        for done in waiting {
            let _closed = done.send(answer);
        }
    }

    /// After a failed append, tries from time to time whether the spool accepts as much again: senders may have gone elsewhere,
    /// or have nothing to send.
    fn try_out(&mut self) {
        let Some(bytes) = Refusal::take_if_due(&mut self.refused) else { return };
        let tried = self.spool.try_out(bytes, &|| self.heartbeat.beat());
        self.learn(bytes, &tried);
    }

    fn learn(&mut self, bytes: usize, written: &Result<(), AppendError>) {
        log_outcome(&self.standing, written);
        self.refused = written.is_err().then(|| Refusal::of(bytes));
    }
}

/// Calls that are appended together.
#[derive(Default)]
struct Group {
    drafts: Vec<Draft>,
    waiting: Vec<oneshot::Sender<Answer>>,
    held: Vec<Held>,
}

impl Group {
    fn push(&mut self, job: Job) {
        self.drafts.push(job.draft);
        self.waiting.push(job.done);
        self.held.push(job.held);
    }
}

fn group(first: Job, queue: &Receiver<Job>, most: usize) -> Group {
    let mut bytes = first.draft.bytes();
    let mut group = Group::default();
    group.push(first);
    while bytes < most {
        let Ok(job) = queue.try_recv() else { break };
        bytes += job.draft.bytes();
        group.push(job);
    }
    group
}

/// Logs once that the spool refuses entries, and once that it accepts them again.
fn log_outcome(standing: &Standing, written: &Result<(), AppendError>) {
    let Err(error) = written else {
        if let Some(over) = standing.succeeded() {
            let (seconds, failures) = (over.lasted.as_secs(), over.failures);
            tracing::info!(folder = standing.to(), seconds, failures, "the spool takes entries again");
        }
        return;
    };
    let cause = match error {
        AppendError::Full => Cause::Bound,
        AppendError::Disk(error) => Cause::of_write(error),
    };
    let Some(begun) = standing.failed(cause, error) else { return };
    let (folder, held_back) = (standing.to(), begun.held_back);
    if cause == Cause::Bound {
        tracing::warn!(folder, cause = cause.label(), held_back, "{error}; {REFUSED}");
    } else {
        tracing::error!(folder, cause = cause.label(), held_back, "{error}; {REFUSED}");
    }
}
