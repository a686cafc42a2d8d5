//! The thread that writes down how far upstreams are, and removes what every one of them has passed, what else has left, and, one
//! segment at a time, what is more than a restart has left room for.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use blkin_daemon::health::BEAT_EVERY;
use blkin_daemon::{CancellationToken, Cause, Heartbeat, Standing};

use crate::spool::Spool;

/// Pause between two looks.
const SWEEP_EVERY: Duration = Duration::from_millis(100);

/// How it stands with what the thread does.
pub(crate) struct Standings {
    /// To write down positions.
    pub(crate) positions: Arc<Standing>,
    /// To remove segments that have left.
    pub(crate) removal: Arc<Standing>,
}

/// Starts the thread. It sweeps once more when it is to `stop`, and answers what became of that.
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
    std::thread::Builder::new().name("sweeper".into()).spawn(move || {
        while !stop.is_cancelled() {
            heartbeat.beat();
            tell_positions(&standings.positions, &spool.sweep());
            tell_removal(&standings.removal, &spool.remove_left());
            spool.shrink();
            std::thread::sleep(SWEEP_EVERY);
        }
        heartbeat.finish();
        spool.sweep()
    })
}

/// Tells once when positions cannot be written down, and once when they can again.
fn tell_positions(standing: &Standing, swept: &io::Result<()>) {
    let Err(error) = swept else {
        if let Some(over) = standing.succeeded() {
            let (seconds, failures) = (over.lasted.as_secs(), over.failures);
            tracing::info!(folder = standing.to(), seconds, failures, "writing down positions again");
        }
        return;
    };
    let cause = Cause::of_write(error);
    if let Some(begun) = standing.failed(cause, error) {
        let (folder, cause, held_back) = (standing.to(), cause.label(), begun.held_back);
        tracing::warn!(
            folder,
            cause,
            held_back,
            "failed to write down positions: {error}; after a crash more would be sent twice"
        );
    }
}

/// Tells once when what has left the spool cannot be removed, and once when it can again.
fn tell_removal(standing: &Standing, removed: &io::Result<()>) {
    let Err(error) = removed else {
        if let Some(over) = standing.succeeded() {
            let (seconds, failures) = (over.lasted.as_secs(), over.failures);
            tracing::info!(folder = standing.to(), seconds, failures, "removed what has left the spool");
        }
        return;
    };
    if let Some(begun) = standing.failed(Cause::Failed, error) {
        let (folder, held_back) = (standing.to(), begun.held_back);
        tracing::warn!(
            folder,
            held_back,
            "failed to remove what has left the spool: {error}; it takes its room until that works"
        );
    }
}
