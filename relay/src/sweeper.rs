//! The thread that writes down how far upstreams are, and removes what every one of them has passed.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use blkin_daemon::health::BEAT_EVERY;
use blkin_daemon::{CancellationToken, Cause, Heartbeat, Standing};

use crate::spool::Spool;

/// Pause between two looks.
const SWEEP_EVERY: Duration = Duration::from_millis(100);

/// Starts the thread. It sweeps once more when it is to `stop`, and answers what became of that.
///
/// # Errors
/// When no thread can be started.
pub(crate) fn start(
    spool: Arc<Spool>,
    standing: Arc<Standing>,
    stop: CancellationToken,
    heartbeat: Heartbeat,
) -> io::Result<JoinHandle<io::Result<()>>> {
    const _: () = assert!(SWEEP_EVERY.as_millis() < BEAT_EVERY.as_millis());
    std::thread::Builder::new().name("sweeper".into()).spawn(move || {
        while !stop.is_cancelled() {
            heartbeat.beat();
            tell(&standing, &spool.sweep());
            std::thread::sleep(SWEEP_EVERY);
        }
        heartbeat.finish();
        spool.sweep()
    })
}

/// Tells once when positions cannot be written down, and once when they can again.
fn tell(standing: &Standing, swept: &io::Result<()>) {
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
