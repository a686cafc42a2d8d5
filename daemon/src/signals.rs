//! SIGTERM and SIGINT ask a daemon to drain and end, SIGHUP to read its configuration again, if it can. SIGXFSZ only comes with
//! an error that says as much.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::exit;

/// A request to end that comes again within this time is still the same one: timeout(1), for one, signals a process and
/// then its group.
const SAME_REQUEST: Duration = Duration::from_secs(1);

/// SIGXFSZ has this number wherever we run. It comes with EFBIG, for a file beyond the limit of the process.
const FILE_TOO_LARGE: i32 = 25;

/// Returns a token that SIGTERM or SIGINT cancels. Call it before telling that the daemon is ready and before it writes any
/// file, inside a tokio runtime. A second signal while draining, a second or more after the first, ends the process at once
/// with exit code 1. A file that the limit of file sizes forbids is an error from then on; without that it would end the
/// process, and say nothing.
///
/// # Errors
/// When the signal handlers cannot be installed.
pub fn stop_token() -> io::Result<CancellationToken> {
    token(Tells::Yes)
}

/// The same for a process whose parent tells what there is to tell: what a terminal or `kill -- -PID` sends goes to both.
///
/// # Errors
/// When the signal handlers cannot be installed.
pub fn silent_stop_token() -> io::Result<CancellationToken> {
    token(Tells::No)
}

/// Whether the log tells of a request to end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tells {
    Yes,
    No,
}

fn token(tells: Tells) -> io::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    // Once there was a handler, the process outlives the signal.
    drop(signal(SignalKind::from_raw(FILE_TOO_LARGE))?);
    let token = CancellationToken::new();
    let stop = token.clone();
    tokio::spawn(async move {
        until_hurried(&stop, tells, |context| poll_either(&mut terminate, &mut interrupt, context)).await;
        if tells == Tells::Yes {
            tracing::warn!("stopped by a second signal before everything was finished");
        }
        exit::at_once();
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

/// Cancels `stop` at the first request, and returns at the first further one that is no repetition of it.
async fn until_hurried(
    stop: &CancellationToken,
    tells: Tells,
    mut poll_request: impl FnMut(&mut Context<'_>) -> Poll<()>,
) {
    poll_fn(&mut poll_request).await;
    if tells == Tells::Yes {
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
    async fn only_a_request_that_is_no_repetition_of_the_first_cuts_the_end_short() {
        // Nobody sleeps: time passes by `advance` alone. With room for one request, the last was heard once there is room.
        let (requests, mut heard) = mpsc::channel(1);
        let stop = CancellationToken::new();
        let ending = stop.clone();
        let hurried = tokio::spawn(async move {
            until_hurried(&ending, Tells::Yes, |cx| heard.poll_recv(cx).map(Option::unwrap)).await;
        });
        requests.send(()).await.unwrap();
        stop.cancelled().await;
        for pause in [Duration::ZERO, SAME_REQUEST - Duration::from_millis(1)] {
            tokio::time::advance(pause).await;
            requests.send(()).await.unwrap();
            drop(requests.reserve().await.expect("it waits for more"));
        }
        tokio::time::advance(Duration::from_millis(1)).await;
        requests.send(()).await.unwrap();
        hurried.await.unwrap();
    }
}
