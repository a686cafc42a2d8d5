//! The thread that maintains the store's index, so that the committing thread need not.

use std::io;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use blkin_daemon::health::BEAT_EVERY;
use blkin_daemon::{Heartbeat, Standing, threads};

use super::{Store, StoreError};

/// Pause after a failure.
const RETRY_AFTER: Duration = Duration::from_secs(2);

/// Wakes the thread when there is something to do.
#[derive(Debug, Default)]
pub struct Bell {
    rung: Mutex<bool>,
    heard: Condvar,
}

impl Bell {
    /// Wakes the thread: there is something to do.
    pub(super) fn ring(&self) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.heard.notify_one();
    }

    /// Waits until it rings, or a heartbeat is due.
    fn wait(&self) {
        let rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.heard.wait_timeout_while(rung, BEAT_EVERY, |rung| !*rung);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }
}

/// The thread. When this is dropped, the thread ends at the next beat of its work.
pub struct Indexer {
    standing: Arc<Standing>,
    stop: Arc<AtomicBool>,
    store: Arc<dyn Store>,
    thread: Option<JoinHandle<()>>,
}

impl Indexer {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system does not let it.
    pub fn start(store: Arc<dyn Store>, heartbeat: Heartbeat) -> io::Result<Indexer> {
        let stop = Arc::new(AtomicBool::new(false));
        let standing = super::with_disk("index");
        let (of_thread, stops, stands) = (store.clone(), stop.clone(), standing.clone());
        let thread = threads::start("blkin-index", move || run(&*of_thread, &stops, &stands, heartbeat))?;
        Ok(Indexer { standing, stop, store, thread: Some(thread) })
    }

    /// The state of the disk, as this thread sees it.
    pub fn standing(&self) -> Arc<Standing> {
        self.standing.clone()
    }
}

impl Drop for Indexer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.store.bell().ring();
        if let Some(thread) = self.thread.take() {
            // A panic has already been logged.
            let _ended = thread.join();
        }
    }
}

fn run(store: &dyn Store, stop: &AtomicBool, standing: &Standing, heartbeat: Heartbeat) {
    let mut healthy = true;
    while !stop.load(Ordering::Acquire) {
        if healthy {
            heartbeat.beat();
        }
        store.bell().wait();
        // After a failure, the thread shows no heartbeat until it has done all its work.
        let was_healthy = healthy;
        let beat = || {
            if was_healthy {
                heartbeat.beat();
            }
            if stop.load(Ordering::Acquire) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        healthy = match store.upkeep(&beat) {
            Ok(()) => {
                if let Some(over) = standing.succeeded() {
                    let (seconds, failures) = (over.lasted.as_secs(), over.failures);
                    tracing::info!(seconds, failures, "work on the index succeeds again");
                }
                true
            }
            Err(StoreError::Ended) => true,
            // If the store is damaged, the committing thread ends the collector. A full disk may have room again.
            Err(error) => {
                if let Some(begun) = standing.failed(error.cause_of_trouble(), &error) {
                    tracing::error!(held_back = begun.held_back, "failed to work on the index: {error}");
                }
                std::thread::sleep(RETRY_AFTER);
                false
            }
        };
    }
    heartbeat.finish();
}
