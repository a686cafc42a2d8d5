//! Which workers are alive. A worker beats from inside its own loop. A worker that has not beaten for longer than
//! [`STUCK_AFTER`] is stuck; one whose [`Heartbeat`] was dropped without [`Heartbeat::finish`] is dead.
//!
//! That time counts only while the daemon runs. While no worker beats and nobody asks for the health, nothing ran at all, as on
//! a suspended machine; so the first request after that does not report workers as stuck that had no time to beat.
//!
//! Trouble with another side, such as an upstream that is down, is reported beside the workers and leaves the daemon healthy:
//! the daemon does what it should, and restarting it would not help.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;

use crate::standing::{Standing, Trouble};

/// A worker that has not beaten for this long is stuck. Workers should beat at least every [`BEAT_EVERY`].
pub const STUCK_AFTER: Duration = Duration::from_millis(1500);
/// The longest pause between two beats of a healthy worker.
pub const BEAT_EVERY: Duration = Duration::from_millis(400);
/// Stands for the time of the last beat while the worker waits for something to do.
const RESTS: u64 = u64::MAX;
/// A pause between two signs of life of the daemon counts as at most this long. While the daemon runs, some worker beats
/// much sooner.
const LONGEST_SILENCE: Duration = BEAT_EVERY.saturating_mul(2);

/// All workers of a daemon. Clones show the same workers.
#[derive(Clone)]
pub struct Health {
    shared: Arc<Shared>,
}

struct Shared {
    born_at: SystemTime,
    ran: Mutex<Ran>,
    workers: Mutex<Vec<Arc<Worker>>>,
    standings: Mutex<Vec<Arc<Standing>>>,
}

/// How long the daemon has run, as far as there were signs that it did.
struct Ran {
    time: Duration,
    seen: Instant,
}

impl Ran {
    /// Notes a sign of life at `now`. A time that another thread has already passed does not set the clock back.
    fn seen_at(&mut self, now: Instant) -> Duration {
        self.time += now.saturating_duration_since(self.seen).min(LONGEST_SILENCE);
        self.seen = self.seen.max(now);
        self.time
    }
}

struct Worker {
    name: String,
    last_beat_ms: AtomicU64,
    ended: AtomicBool,
    finished: AtomicBool,
}

/// The state of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It beats, or rests.
    Alive,
    /// It has not beaten for too long.
    Stuck,
    /// It ended although it should not have.
    Dead,
}

/// What `/healthz` reports about one worker.
#[derive(Debug, Clone, Serialize)]
pub struct WorkerReport {
    /// The worker's name.
    pub name: String,
    /// Its state.
    pub state: State,
    /// Time since its last beat, in milliseconds, without any time in which the daemon did not run.
    pub since_last_beat_ms: u64,
}

/// What `/healthz` reports.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Whether every worker is alive.
    pub healthy: bool,
    /// The workers.
    pub workers: Vec<WorkerReport>,
    /// The other sides that currently accept nothing.
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
        let ran = Mutex::new(Ran { time: Duration::ZERO, seen: Instant::now() });
        Health { shared: Arc::new(Shared { born_at: SystemTime::now(), ran, workers, standings }) }
    }

    /// Registers a worker, which must beat from now on.
    pub fn worker(&self, name: impl Into<String>) -> Heartbeat {
        let worker = Arc::new(Worker {
            name: name.into(),
            last_beat_ms: AtomicU64::new(self.ran_ms(Instant::now())),
            ended: AtomicBool::new(false),
            finished: AtomicBool::new(false),
        });
        self.workers().push(worker.clone());
        Heartbeat { health: self.clone(), worker }
    }

    /// Reports the trouble of this other side from now on.
    pub fn register_trouble_source(&self, standing: Arc<Standing>) {
        self.standings().push(standing);
    }

    /// The current state of every worker, and the current trouble.
    pub fn report(&self) -> Report {
        self.report_at(Instant::now())
    }

    fn report_at(&self, now: Instant) -> Report {
        let now_ms = self.ran_ms(now);
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

    /// How long the daemon has run. The call itself is a sign that it runs.
    fn ran_ms(&self, now: Instant) -> u64 {
        let mut ran = self.shared.ran.lock().unwrap_or_else(PoisonError::into_inner);
        u64::try_from(ran.seen_at(now).as_millis()).unwrap_or(u64::MAX)
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

/// A worker's sign of life. Dropping it (also by a panic or an early return) marks the worker as dead.
pub struct Heartbeat {
    health: Health,
    worker: Arc<Worker>,
}

impl Heartbeat {
    /// Says that the worker makes progress or waits where it should.
    pub fn beat(&self) {
        self.beat_at(Instant::now());
    }

    fn beat_at(&self, now: Instant) {
        self.worker.last_beat_ms.store(self.health.ran_ms(now), Ordering::Release);
    }

    /// Says that the worker waits for something to do, for as long as that takes. It counts as alive until it beats again, and
    /// must keep beating from then on. For a worker that seldom has anything to do, and should not be woken only to beat.
    pub fn rest(&self) {
        self.worker.last_beat_ms.store(RESTS, Ordering::Release);
    }

    /// Says that the worker ended as it should: it is no longer reported.
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
    fn resting_worker_is_not_stuck_but_must_beat_after_resting() {
        let health = Health::new();
        let (seldom, other) = (health.worker("seldom"), health.worker("other"));
        let mut now = Instant::now();
        let mut state_after = |seconds: u64| {
            for _ in 0..seconds * 2 {
                now += Duration::from_millis(500);
                other.beat_at(now);
            }
            health.report_at(now).workers[0].state
        };
        seldom.rest();
        assert_eq!(state_after(60), State::Alive);
        seldom.beat();
        assert_eq!(state_after(3), State::Stuck);
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
    fn process_pause_does_not_count_as_worker_silence() {
        let health = Health::new();
        let (silent, other) = (health.worker("silent"), health.worker("other"));
        let mut now = Instant::now();
        now += 100 * STUCK_AFTER;
        assert!(health.report_at(now).healthy, "the whole process was paused");
        for _ in 0..=(STUCK_AFTER.as_millis() / BEAT_EVERY.as_millis()) {
            now += BEAT_EVERY;
            other.beat_at(now);
        }
        let stuck = |health: &Health| -> Vec<String> {
            let workers = health.report_at(now).workers.into_iter();
            workers.filter(|worker| worker.state == State::Stuck).map(|worker| worker.name).collect()
        };
        assert_eq!(stuck(&health), ["silent"]);
        silent.beat_at(now);
        assert!(stuck(&health).is_empty());
    }

    #[test]
    fn frequent_reports_still_detect_a_sole_stuck_worker() {
        let (health, mut now) = (Health::new(), Instant::now());
        let _silent = health.worker("silent");
        let asked_until_told = std::iter::from_fn(|| {
            now += BEAT_EVERY / 2;
            health.report_at(now).healthy.then_some(())
        });
        assert!(asked_until_told.count() <= 8);
    }

    #[test]
    fn trouble_is_reported_and_leaves_the_daemon_healthy() {
        let (health, standing) = (Health::new(), Arc::new(Standing::new("s", "a:1", Cause::OF_UPSTREAM)));
        health.register_trouble_source(standing.clone());
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
    async fn beating_returns_the_heartbeat_when_the_work_ends() {
        let health = Health::new();
        let (heartbeat, output) = health.worker("task").beating(async { 7 }).await;
        assert_eq!(output, 7);
        assert!(health.report().healthy);
        heartbeat.finish();
    }
}
