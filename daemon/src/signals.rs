//! SIGTERM and SIGINT ask a daemon to drain and end, SIGHUP to read its configuration again, if it can. SIGXFSZ only comes with
//! an error that says as much.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// SIGXFSZ has this number wherever we run. It comes with EFBIG, for a file beyond the limit of the process.
const FILE_TOO_LARGE: i32 = 25;

/// Returns a token that SIGTERM or SIGINT cancels. Call it before telling that the daemon is ready and before it writes any
/// file, inside a tokio runtime. A second signal while draining ends the process at once with exit code 1. A file that the
/// limit of file sizes forbids is an error from then on; without that it would end the process, and say nothing.
///
/// # Errors
/// When the signal handlers cannot be installed.
pub fn stop_token() -> io::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    // Once there was a handler, the process outlives the signal.
    drop(signal(SignalKind::from_raw(FILE_TOO_LARGE))?);
    let token = CancellationToken::new();
    let stop = token.clone();
    tokio::spawn(async move {
        next(&mut terminate, &mut interrupt).await;
        tracing::info!("stopping: finishing what is under way");
        stop.cancel();
        next(&mut terminate, &mut interrupt).await;
        tracing::warn!("stopped by a second signal before everything was finished");
        std::process::exit(i32::from(crate::exit::RUNTIME_FAILURE));
    });
    Ok(token)
}

/// The requests to read the configuration again. Call it before telling that the daemon is ready, inside a tokio
/// runtime: without it a SIGHUP ends the process.
///
/// # Errors
/// When the signal handler cannot be installed.
pub fn reloads() -> io::Result<Signal> {
    signal(SignalKind::hangup())
}

/// For a daemon that cannot read its configuration again: a SIGHUP, which would end it in the midst of everything, is only
/// told of in the log. Call it where [`reloads`] would be called.
///
/// # Errors
/// When the signal handler cannot be installed.
pub fn outlive_hangups() -> io::Result<()> {
    let mut hangups = reloads()?;
    tokio::spawn(async move {
        while hangups.recv().await.is_some() {
            tracing::warn!("SIGHUP changes nothing: restart to read the configuration again");
        }
    });
    Ok(())
}

async fn next(terminate: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
