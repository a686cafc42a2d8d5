//! The store's thread: batches that wait together are committed together, too many are refused, and a bad batch harms no
//! other.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::ops::{ControlFlow, RangeInclusive};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use blkin_collector::ledger::{Count, Figure, Ledger};
use blkin_collector::merge::Piece;
use blkin_collector::model::TraceId;
use blkin_collector::store::indexer::Bell;
use blkin_collector::store::memory::Memory;
use blkin_collector::store::writer::{Pending, Refused, Writer, WriterOptions};
use blkin_collector::store::{
    Batch, Beat, Damage, IndexSize, NameKind, Pieces, Retention, Room, Store, StoreError, TraceStore,
    Visited, Wanted,
};
use blkin_daemon::Health;
use blkin_thrift::Span;

/// A store whose commits wait until the test lets them go on. It cannot store the trace `POISON`, and reports each step of
/// retention, and each test of its disk with the number of bytes.
struct Gated {
    store: TraceStore<Memory>,
    begun: SyncSender<usize>,
    go_on: Mutex<Receiver<()>>,
    looked: Sender<()>,
    tried: Sender<usize>,
    has_room: AtomicBool,
    /// How many steps of retention fail before one succeeds.
    failing_looks: AtomicU64,
}

const POISON: i64 = 666;
/// Committing this trace fails as if the store's file had been moved.
const MOVED: i64 = 667;
/// Committing this trace panics.
const PANICS: i64 = 668;
/// Longer than any of these tests takes.
const LONG: Duration = Duration::from_secs(600);

impl Store for Gated {
    fn commit_beating(&self, batches: &[Batch], now_ms: u64, beat: Beat<'_>) -> Result<(), StoreError> {
        self.begun.send(batches.len()).unwrap();
        self.go_on.lock().unwrap().recv().unwrap();
        let has = |trace: i64| {
            let id = TraceId::new(0, trace as u64);
            batches.iter().flat_map(Batch::pieces).any(|piece| piece.trace_id() == id)
        };
        if has(POISON) {
            return Err(StoreError::Damaged("the trace of this test".to_owned()));
        }
        if has(MOVED) {
            return Err(StoreError::Elsewhere { path: "here".into() });
        }
        assert!(!has(PANICS), "as a defect would");
        self.store.commit_beating(batches, now_ms, beat)
    }
    fn try_out(&self, bytes: usize) -> Result<(), StoreError> {
        // As below.
        let _unheard = self.tried.send(bytes);
        if self.has_room.load(Ordering::Acquire) { self.store.try_out(bytes) } else { Err(StoreError::Full) }
    }
    fn ledger(&self) -> Result<Ledger, StoreError> {
        self.store.ledger()
    }
    fn count(&self) -> Result<Count, StoreError> {
        self.store.count()
    }
    fn read_trace(
        &self,
        id: TraceId,
        strict: bool,
        room: &mut Room,
        pieces: &mut Pieces,
    ) -> Result<(), StoreError> {
        self.store.read_trace(id, strict, room, pieces)
    }
    fn traces_by_time(
        &self,
        wanted: &Wanted,
        window_us: RangeInclusive<u64>,
        visit: &mut dyn FnMut(&Visited<'_>) -> Result<ControlFlow<()>, StoreError>,
    ) -> Result<(), StoreError> {
        self.store.traces_by_time(wanted, window_us, visit)
    }
    fn names(&self, kind: NameKind, of: &str) -> Result<Vec<String>, StoreError> {
        self.store.names(kind, of)
    }
    fn newest_arrival_ms(&self) -> Result<u64, StoreError> {
        self.store.newest_arrival_ms()
    }
    fn damage(&self) -> &Damage {
        self.store.damage()
    }
    fn expire(&self, retention: &Retention, now_ms: u64) -> Result<bool, StoreError> {
        let fails = |left: u64| left.checked_sub(1);
        let looked = match self.failing_looks.fetch_update(Ordering::AcqRel, Ordering::Acquire, fails) {
            Ok(_) => Err(StoreError::Full),
            Err(_) => self.store.expire(retention, now_ms),
        };
        // Most tests do not listen.
        let _unheard = self.looked.send(());
        looked
    }
    fn upkeep(&self, beat: Beat<'_>) -> Result<(), StoreError> {
        self.store.upkeep(beat)
    }
    fn bell(&self) -> &Bell {
        self.store.bell()
    }
    fn index_size(&self) -> IndexSize {
        self.store.index_size()
    }
}

struct Gate {
    writer: Writer,
    store: Arc<Gated>,
    begun: Receiver<usize>,
    go_on: SyncSender<()>,
    looks: Receiver<()>,
    trials: Receiver<usize>,
    health: Health,
    thread: std::thread::JoinHandle<Result<(), StoreError>>,
}

fn gate(queue_batches: usize, queue_bytes: usize) -> Gate {
    gate_of(rarely_looking(queue_batches, queue_bytes), 0)
}

fn rarely_looking(queue_batches: usize, queue_bytes: usize) -> WriterOptions {
    WriterOptions {
        queue_batches,
        queue_bytes,
        retention: Retention { max_age_ms: 0, max_bytes: 0 },
        retention_every: Duration::from_secs(3600),
    }
}

fn gate_of(options: WriterOptions, failing_looks: u64) -> Gate {
    let (begun_here, begun) = sync_channel(100);
    let (go_on, waits) = sync_channel(100);
    let ((looked, looks), (tried, trials)) = (channel(), channel());
    let store = TraceStore::new(Memory::default()).unwrap();
    let (go_on_here, has_room) = (Mutex::new(waits), AtomicBool::new(false));
    let store = Arc::new(Gated {
        store,
        begun: begun_here,
        go_on: go_on_here,
        looked,
        tried,
        has_room,
        failing_looks: failing_looks.into(),
    });
    let health = Health::new();
    let (writer, thread) = Writer::start(store.clone(), options, health.worker("store")).unwrap();
    Gate { writer, store, begun, go_on, looks, trials, health, thread }
}

impl Gate {
    /// Waits until, after a step of retention, the thread is as healthy as this; false if it is not after many steps.
    fn becomes(&self, healthy: bool) -> bool {
        self.looks.iter().take(100).any(|()| self.health.report().healthy == healthy)
    }
}

fn batch(trace_id: i64) -> Batch {
    let piece = Piece::V1(Span { trace_id, id: 1, ..Span::default() });
    let mut batch = Batch::default();
    batch.push(&piece);
    *batch.ledger.get_mut(Figure::ReceivedScribe) += Count::piece(0);
    batch
}

/// A batch whose commit has begun, so that nothing of it is in the queue any more.
fn under_way(gate: &Gate) -> Pending {
    let pending = gate.writer.submit(batch(1)).unwrap();
    assert_eq!(gate.begun.recv().unwrap(), 1);
    pending
}

#[tokio::test]
async fn batches_that_wait_together_are_committed_together() {
    let gate = gate(10, 10_000);
    let first = under_way(&gate);
    let waiting: Vec<Pending> = (2..=5).map(|id| gate.writer.submit(batch(id)).unwrap()).collect();
    gate.go_on.send(()).unwrap();
    first.committed().await.unwrap();
    assert_eq!(gate.begun.recv().unwrap(), 4);
    gate.go_on.send(()).unwrap();
    for pending in waiting {
        pending.committed().await.unwrap();
    }
    assert_eq!((gate.writer.commits(), gate.writer.queued_bytes()), (2, 0));
    assert_eq!(gate.writer.ledger().get(Figure::Stored).spans, 5);
}

#[tokio::test]
async fn batches_beyond_the_queue_are_refused_and_not_counted() {
    for gate in [gate(3, 10_000), gate(100, 4 * batch(1).memory())] {
        let first = under_way(&gate);
        let waiting: Vec<Pending> = (2..=4).map(|id| gate.writer.submit(batch(id)).unwrap()).collect();
        assert_eq!(gate.writer.submit(batch(9)).err(), Some(Refused::QueueFull));
        (0..2).for_each(|_| gate.go_on.send(()).unwrap());
        for pending in std::iter::once(first).chain(waiting) {
            pending.committed().await.unwrap();
        }
        assert_eq!(gate.store.ledger().unwrap().received().spans, 4);
        gate.go_on.send(()).unwrap();
        gate.writer.submit(batch(9)).unwrap().committed().await.unwrap();
    }
}

#[tokio::test]
async fn a_waiting_batch_holds_no_memory_for_adding_pieces() {
    let gate = gate(10, 100_000);
    let first = under_way(&gate);
    let before = gate.writer.queued_bytes();
    let mut named = Batch::default();
    named.push(&Piece::V1(Span { trace_id: 2, id: 1, name: "read".to_owned(), ..Span::default() }));
    let memory = named.memory() as u64;
    let waiting = gate.writer.submit(named).unwrap();
    // The memory for adding is a table of recent terms, and one of recent names once a name has a service.
    assert!(
        gate.writer.queued_bytes() - before + 4096 <= memory,
        "{} of {memory}",
        gate.writer.queued_bytes()
    );
    (0..2).for_each(|_| gate.go_on.send(()).unwrap());
    first.committed().await.unwrap();
    waiting.committed().await.unwrap();
    assert_eq!(gate.writer.queued_bytes(), 0);
}

#[tokio::test]
async fn a_batch_that_cannot_be_stored_spoils_no_other() {
    let gate = gate(10, 10_000);
    let first = under_way(&gate);
    let waiting: Vec<Pending> = [2, POISON, 3].map(|id| gate.writer.submit(batch(id)).unwrap()).into();
    (0..5).for_each(|_| gate.go_on.send(()).unwrap());
    first.committed().await.unwrap();
    let mut results = Vec::new();
    for pending in waiting {
        results.push(pending.committed().await);
    }
    assert_eq!(results, [Ok(()), Err(Refused::Failed), Ok(())]);
    assert!(gate.store.ledger().unwrap().balances());
    assert_eq!(gate.store.count().unwrap().spans, 3);
}

#[tokio::test]
async fn an_unrecoverable_error_or_a_panic_ends_the_writer_without_acknowledging() {
    for fatal in [MOVED, PANICS] {
        let gate = gate(10, 10_000);
        let first = under_way(&gate);
        let waiting: Vec<Pending> = [2, fatal, 3].map(|id| gate.writer.submit(batch(id)).unwrap()).into();
        (0..2).for_each(|_| gate.go_on.send(()).unwrap());
        first.committed().await.unwrap();
        for pending in waiting {
            assert_eq!(pending.committed().await, Err(Refused::Stopping));
        }
        let ended = gate.thread.join();
        match fatal {
            PANICS => assert!(ended.is_err()),
            _ => assert!(matches!(ended, Ok(Err(StoreError::Elsewhere { .. })))),
        }
        assert_eq!(gate.store.count().unwrap().spans, 1);
        assert_eq!(gate.writer.submit(batch(4)).err(), Some(Refused::Stopping));
    }
}

/// A gate whose only commit has failed, and whose steps of retention are frequent.
async fn gate_that_failed() -> Gate {
    let often = WriterOptions { retention_every: Duration::from_millis(100), ..rarely_looking(10, 10_000) };
    let gate = gate_of(often, 0);
    (0..2).for_each(|_| gate.go_on.send(()).unwrap());
    assert_eq!(gate.writer.submit(batch(POISON)).unwrap().committed().await, Err(Refused::Failed));
    assert!(gate.becomes(false), "it stays healthy after a failed commit");
    gate
}

#[tokio::test]
async fn after_a_failed_commit_retention_does_not_restore_health() {
    let gate = gate_that_failed().await;
    for () in gate.looks.iter().take(3) {
        assert!(!gate.health.report().healthy);
    }
    gate.writer.submit(batch(1)).unwrap().committed().await.unwrap();
    assert!(gate.becomes(true));
}

#[tokio::test]
async fn after_a_failed_commit_a_trial_write_restores_health() {
    let gate = gate_that_failed().await;
    for _ in 0..2 {
        assert_eq!(gate.trials.recv_timeout(LONG), Ok(batch(POISON).memory()));
    }
    assert!(!gate.health.report().healthy, "a failed trial write does not make it healthy");
    gate.store.has_room.store(true, Ordering::Release);
    assert!(gate.becomes(true));
    let standings = gate.writer.standings();
    assert!(standings.iter().all(|standing| standing.trouble().is_none()));
    assert_eq!(gate.writer.commits(), 0);
}

#[tokio::test]
async fn a_failed_retention_step_is_repeated_before_the_next_is_due() {
    let gate = gate_of(rarely_looking(10, 10_000), 2);
    for _ in 0..3 {
        gate.looks.recv_timeout(LONG).unwrap();
    }
    // Once this commit has succeeded, the thread has reported the result of its last step.
    gate.go_on.send(()).unwrap();
    gate.writer.submit(batch(1)).unwrap().committed().await.unwrap();
    let [_, expiring] = gate.writer.standings();
    assert!(expiring.trouble().is_none());
    assert!(gate.health.report().healthy);
}

#[tokio::test]
async fn the_store_grows_a_bounded_amount_between_retention_steps() {
    const MIB: usize = 1 << 20;
    let store = Arc::new(TraceStore::new(Memory::default()).unwrap());
    let options = WriterOptions {
        queue_batches: 10,
        queue_bytes: 64 * MIB,
        retention: Retention { max_age_ms: 0, max_bytes: MIB as u64 },
        retention_every: Duration::from_secs(3600),
    };
    let (writer, _thread) = Writer::start(store, options, Health::new().worker("store")).unwrap();
    for trace_id in 1..=100 {
        let mut batch = Batch::default();
        batch.push(&Piece::V1(Span { trace_id, id: 1, name: "x".repeat(MIB), ..Span::default() }));
        writer.submit(batch).unwrap().committed().await.unwrap();
        let in_store = writer.ledger().get(Figure::Stored).spans;
        assert!(in_store <= 20, "{in_store} MiB");
    }
}

#[tokio::test]
async fn waiting_batches_are_committed_before_the_writer_ends() {
    let gate = gate(10, 10_000);
    let first = under_way(&gate);
    let last = gate.writer.submit(batch(2)).unwrap();
    drop(gate.writer);
    (0..2).for_each(|_| gate.go_on.send(()).unwrap());
    gate.thread.join().unwrap().unwrap();
    first.committed().await.unwrap();
    last.committed().await.unwrap();
    assert_eq!(gate.store.count().unwrap().spans, 2);
}
