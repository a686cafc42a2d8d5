//! Which workers are alive. A worker beats from inside its own loop; one that stopped beating for longer than
//! [`STUCK_AFTER`] is stuck, one whose [`Heartbeat`] was dropped without [`Heartbeat::finish`] is dead.
//!
//! Trouble with another side, such as an upstream that is away, is told beside them and leaves the daemon healthy: it does
//! what it should, and starting it anew would help nobody.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;

use crate::standing::{Standing, Trouble};

/// A worker that has not beaten for this long is stuck. Workers should beat at least every [`BEAT_EVERY`].
pub const STUCK_AFTER: Duration = Duration::from_millis(1500);
/// The longest pause between two beats of a healthy worker.
pub const BEAT_EVERY: Duration = Duration::from_millis(400);

/// All workers of a daemon. Clones show the same workers.
#[derive(Clone)]
pub struct Health {
    shared: Arc<Shared>,
}

struct Shared {
    born: Instant,
    born_at: SystemTime,
    workers: Mutex<Vec<Arc<Worker>>>,
    standings: Mutex<Vec<Arc<Standing>>>,
}

struct Worker {
    name: String,
    last_beat_ms: AtomicU64,
    ended: AtomicBool,
    finished: AtomicBool,
}

/// How a worker is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It beats.
    Alive,
    /// It has not beaten for too long.
    Stuck,
    /// It ended although it should not have.
    Dead,
}

/// What `/healthz` tells of one worker.
#[derive(Debug, Clone, Serialize)]
pub struct WorkerReport {
    /// The worker's name.
    pub name: String,
    /// How it is.
    pub state: State,
    /// Time since its last beat, in milliseconds.
    pub since_last_beat_ms: u64,
}

/// What `/healthz` tells.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Whether every worker is alive.
    pub healthy: bool,
    /// The workers.
    pub workers: Vec<WorkerReport>,
    /// The other sides that take nothing at this moment.
    pub troubles: Vec<Trouble>,
}

impl Default for Health {
    fn default() -> Self {
        Self::new()
    }
}

impl Health {
    /// A daemon without workers: healthy.
    pub fn new() -> Self {
        let (workers, standings) = (Mutex::default(), Mutex::default());
        Health {
            shared: Arc::new(Shared { born: Instant::now(), born_at: SystemTime::now(), workers, standings }),
        }
    }

    /// Registers a worker, which must beat from now on.
    pub fn worker(&self, name: impl Into<String>) -> Heartbeat {
        let worker = Arc::new(Worker {
            name: name.into(),
            last_beat_ms: AtomicU64::new(self.now_ms()),
            ended: AtomicBool::new(false),
            finished: AtomicBool::new(false),
        });
        self.workers().push(worker.clone());
        Heartbeat { health: self.clone(), worker }
    }

    /// Tells of this other side from now on.
    pub fn tells_of(&self, standing: Arc<Standing>) {
        self.standings().push(standing);
    }

    /// How every worker is now, and what trouble there is.
    pub fn report(&self) -> Report {
        let now_ms = self.now_ms();
        let mut workers = self.workers();
        workers.retain(|w| !w.finished.load(Ordering::Acquire));
        let workers: Vec<WorkerReport> = workers.iter().map(|w| w.report(now_ms)).collect();
        let troubles = self.standings().iter().filter_map(|standing| standing.trouble()).collect();
        Report { healthy: workers.iter().all(|w| w.state == State::Alive), workers, troubles }
    }

    /// When the daemon started.
    pub fn born_at(&self) -> SystemTime {
        self.shared.born_at
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.shared.born.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn workers(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Worker>>> {
        self.shared.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn standings(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Standing>>> {
        self.shared.standings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Worker {
    fn report(&self, now_ms: u64) -> WorkerReport {
        let since_last_beat_ms = now_ms.saturating_sub(self.last_beat_ms.load(Ordering::Acquire));
        let state = if self.ended.load(Ordering::Acquire) {
            State::Dead
        } else if u128::from(since_last_beat_ms) > STUCK_AFTER.as_millis() {
            State::Stuck
        } else {
            State::Alive
        };
        WorkerReport { name: self.name.clone(), state, since_last_beat_ms }
    }
}

/// A worker's sign of life. Dropping it (also by a panic or an early return) tells that the worker is dead.
pub struct Heartbeat {
    health: Health,
    worker: Arc<Worker>,
}

impl Heartbeat {
    /// Tells that the worker makes progress or waits where it should.
    pub fn beat(&self) {
        self.worker.last_beat_ms.store(self.health.now_ms(), Ordering::Release);
    }

    /// Tells that the worker ended as it should: it is no longer reported.
    pub fn finish(self) {
        self.worker.finished.store(true, Ordering::Release);
    }

    /// Runs `work` to its end while beating, and hands the heartbeat back: [`finish`](Self::finish) it if that end
    /// was expected, drop it otherwise. The beats come from the same task, so they stop if `work` blocks its thread.
    pub async fn beating<F: Future>(self, work: F) -> (Self, F::Output) {
        let mut work = std::pin::pin!(work);
        loop {
            self.beat();
            match tokio::time::timeout(BEAT_EVERY, &mut work).await {
                Ok(output) => return (self, output),
                Err(_) => continue,
            }
        }
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.worker.ended.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cause;

    #[test]
    fn no_workers_is_healthy() {
        assert!(Health::new().report().healthy);
    }

    #[test]
    fn a_dropped_worker_is_dead_and_turns_the_report_red() {
        let health = Health::new();
        let kept = health.worker("kept");
        drop(health.worker("lost"));
        let report = health.report();
        assert!(!report.healthy);
        let states: Vec<State> = report.workers.iter().map(|w| w.state).collect();
        assert_eq!(states, [State::Alive, State::Dead]);
        kept.finish();
    }

    #[test]
    fn a_finished_worker_is_forgotten() {
        let health = Health::new();
        health.worker("once").finish();
        let report = health.report();
        assert!(report.healthy && report.workers.is_empty());
    }

    #[test]
    fn a_silent_worker_is_stuck_until_it_beats_again() {
        let health = Health::new();
        let heartbeat = health.worker("slow");
        let limit_ms = STUCK_AFTER.as_millis() as u64;
        assert_eq!(heartbeat.worker.report(limit_ms + 1000).state, State::Stuck);
        heartbeat.worker.last_beat_ms.store(limit_ms + 1000, Ordering::Release);
        assert_eq!(heartbeat.worker.report(limit_ms + 1000).state, State::Alive);
    }

    #[test]
    fn trouble_with_another_side_is_told_and_leaves_the_daemon_healthy() {
        let (health, standing) = (Health::new(), Arc::new(Standing::new("s", "a:1", Cause::OF_UPSTREAM)));
        health.tells_of(standing.clone());
        assert!(health.report().troubles.is_empty());
        standing.failed(Cause::Unreachable, "refused");
        let report = health.report();
        assert!(report.healthy);
        let trouble = serde_json::to_value(&report.troubles[0]).unwrap();
        let expected = serde_json::json!({
            "name": "s", "to": "a:1", "cause": "unreachable", "reason": "refused", "seconds": 0, "failures": 1
        });
        assert_eq!(trouble, expected);
        standing.succeeded();
        assert!(health.report().troubles.is_empty());
    }

    #[tokio::test]
    async fn work_that_ends_hands_the_heartbeat_back() {
        let health = Health::new();
        let (heartbeat, output) = health.worker("task").beating(async { 7 }).await;
        assert_eq!(output, 7);
        assert!(health.report().healthy);
        heartbeat.finish();
    }
}
