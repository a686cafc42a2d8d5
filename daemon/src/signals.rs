//! SIGTERM and SIGINT ask a daemon to drain and stop, SIGHUP to read its configuration again, if it can. SIGXFSZ is caught,
//! because the write that causes it also fails with an error.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::exit;

/// A second request to stop within this time counts as the same one: timeout(1), for example, signals a process and then its
/// group.
const SAME_REQUEST: Duration = Duration::from_secs(1);

/// The number of SIGXFSZ on every platform that we support. The signal comes together with EFBIG, for a file beyond the size
/// limit of the process.
const FILE_TOO_LARGE: i32 = 25;

/// Returns a token that SIGTERM or SIGINT cancels. Call it before announcing that the daemon is ready and before it writes any
/// file, inside a tokio runtime. A second signal while draining, a second or more after the first, ends the process at once
/// with exit code 1. From this call on, writing beyond the limit on file sizes is an error; without it, such a write would kill
/// the process without a message.
///
/// # Errors
/// When the signal handlers cannot be installed.
pub fn stop_token() -> io::Result<CancellationToken> {
    token(StopRequests::Logged)
}

/// As [`stop_token`], without a log line, for a process whose parent logs the request: a signal from a terminal or
/// `kill -- -PID` reaches both.
///
/// # Errors
/// When the signal handlers cannot be installed.
pub fn silent_stop_token() -> io::Result<CancellationToken> {
    token(StopRequests::Unlogged)
}

/// Whether a request to stop is logged.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StopRequests {
    Logged,
    Unlogged,
}

fn token(requests: StopRequests) -> io::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    // Tokio never removes a signal handler once it is installed, so the process survives the signal.
    drop(signal(SignalKind::from_raw(FILE_TOO_LARGE))?);
    let token = CancellationToken::new();
    let stop = token.clone();
    tokio::spawn(async move {
        until_hurried(&stop, requests, |context| poll_either(&mut terminate, &mut interrupt, context)).await;
        if requests == StopRequests::Logged {
            tracing::warn!("stopped by a second signal before everything was finished");
        }
        exit::at_once();
    });
    Ok(token)
}

/// The requests to read the configuration again. Call it before announcing that the daemon is ready, inside a tokio
/// runtime: without it, a SIGHUP ends the process.
///
/// # Errors
/// When the signal handler cannot be installed.
pub fn reloads() -> io::Result<Signal> {
    signal(SignalKind::hangup())
}

/// For a daemon that cannot read its configuration again: a SIGHUP, which would otherwise end it abruptly, is only logged.
/// Call it where [`reloads`] would be called.
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

/// Cancels `stop` at the first request, and returns at the next one that is not a repetition of the first.
async fn until_hurried(
    stop: &CancellationToken,
    requests: StopRequests,
    mut poll_request: impl FnMut(&mut Context<'_>) -> Poll<()>,
) {
    poll_fn(&mut poll_request).await;
    if requests == StopRequests::Logged {
        tracing::info!("stopping: finishing what is under way");
    }
    stop.cancel();
    let asked = Instant::now();
    loop {
        poll_fn(&mut poll_request).await;
        if asked.elapsed() >= SAME_REQUEST {
            return;
        }
    }
}

fn poll_either(one: &mut Signal, other: &mut Signal, context: &mut Context<'_>) -> Poll<()> {
    match one.poll_recv(context) {
        Poll::Pending => other.poll_recv(context).map(|_| ()),
        Poll::Ready(_) => Poll::Ready(()),
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn second_stop_request_hurries_unless_it_repeats_the_first() {
        // No task sleeps: only `advance` makes time pass. The channel holds one request: room in it means that the last was read.
        let (requests, mut heard) = mpsc::channel(1);
        let stop = CancellationToken::new();
        let ending = stop.clone();
        let hurried = tokio::spawn(async move {
            until_hurried(&ending, StopRequests::Logged, |cx| heard.poll_recv(cx).map(Option::unwrap)).await;
        });
        requests.send(()).await.unwrap();
        stop.cancelled().await;
        for pause in [Duration::ZERO, SAME_REQUEST - Duration::from_millis(1)] {
            tokio::time::advance(pause).await;
            requests.send(()).await.unwrap();
            drop(requests.reserve().await.expect("a repeated request ended the wait"));
        }
        tokio::time::advance(Duration::from_millis(1)).await;
        requests.send(()).await.unwrap();
        hurried.await.unwrap();
    }
}
