//! The thread that writes the positions of the upstreams. It removes the segments that all upstreams have passed, retries the
//! removal of other segments that have left the spool, and shrinks a spool that is over its limit after a restart, one segment
//! at a time.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use blkin_daemon::health::BEAT_EVERY;
use blkin_daemon::{CancellationToken, Cause, Heartbeat, Standing, threads};

use crate::spool::Spool;

/// Pause between two sweeps.
const SWEEP_EVERY: Duration = Duration::from_millis(100);

/// Whether the thread's work succeeds.
pub(crate) struct Standings {
    /// Writing the positions.
    pub(crate) positions: Arc<Standing>,
    /// Removing segments that have left the spool.
    pub(crate) removal: Arc<Standing>,
}

/// Starts the thread. After `stop` it sweeps once more, and returns the result of that sweep.
///
/// # Errors
/// When no thread can be started.
pub(crate) fn start(
    spool: Arc<Spool>,
    standings: Standings,
    stop: CancellationToken,
    heartbeat: Heartbeat,
) -> io::Result<JoinHandle<io::Result<()>>> {
    const _: () = assert!(SWEEP_EVERY.as_millis() < BEAT_EVERY.as_millis());
    threads::start("sweeper", move || {
        while !stop.is_cancelled() {
            heartbeat.beat();
            log_outcome(&standings.positions, &POSITIONS, &spool.sweep());
            heartbeat.beat();
            log_outcome(&standings.removal, &REMOVAL, &spool.remove_departed());
            heartbeat.beat();
            spool.shrink();
            std::thread::sleep(SWEEP_EVERY);
        }
        heartbeat.finish();
        spool.sweep()
    })
}

/// What the log says about one task of the thread.
struct Words {
    failed: &'static str,
    meanwhile: &'static str,
    again: &'static str,
}

const POSITIONS: Words = Words {
    failed: "failed to write the positions",
    meanwhile: "after a crash more would be sent twice",
    again: "the positions can be written again",
};
const REMOVAL: Words = Words {
    failed: "failed to remove segments that have left the spool",
    meanwhile: "they take up room until that works",
    again: "removed the segments that had left the spool",
};

/// Logs once when a task fails, and once when it works again.
fn log_outcome(standing: &Standing, words: &Words, done: &io::Result<()>) {
    let Err(error) = done else {
        if let Some(over) = standing.succeeded() {
            let (seconds, failures) = (over.lasted.as_secs(), over.failures);
            tracing::info!(folder = standing.to(), seconds, failures, "{}", words.again);
        }
        return;
    };
    let cause = Cause::of_write(error);
    if let Some(begun) = standing.failed(cause, error) {
        let (folder, cause, held_back) = (standing.to(), cause.label(), begun.held_back);
        tracing::error!(folder, cause, held_back, "{}: {error}; {}", words.failed, words.meanwhile);
    }
}
