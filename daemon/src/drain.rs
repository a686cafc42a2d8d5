//! How a server stops: no new work, and a bounded time for the work under way.

use std::future::Future;
use std::time::Duration;

use crate::CancellationToken;

/// The work under way when a server is asked to stop gets this long to finish.
pub const DRAIN_TIME: Duration = Duration::from_secs(20);

/// Serves until `stop`, then waits up to [`DRAIN_TIME`] for the work under way. If that does not end, the log says so and
/// calls it `what`.
pub async fn drain<T>(serving: impl Future<Output = T>, stop: CancellationToken, what: &str) {
    let deadline = async {
        stop.cancelled().await;
        tokio::time::sleep(DRAIN_TIME).await;
    };
    tokio::select! {
        _ = serving => {}
        () = deadline => tracing::warn!("some {what} did not end within {DRAIN_TIME:?}"),
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn drain_gives_up_a_fixed_time_after_the_stop() {
        let (stop, began) = (CancellationToken::new(), Instant::now());
        let asked = stop.clone();
        tokio::spawn(async move {
            tokio::time::sleep(DRAIN_TIME).await;
            asked.cancel();
        });
        drain(pending::<()>(), stop, "calls").await;
        assert_eq!(began.elapsed(), 2 * DRAIN_TIME);
    }

    #[tokio::test(start_paused = true)]
    async fn drain_returns_as_soon_as_the_work_ends() {
        let (stop, began) = (CancellationToken::new(), Instant::now());
        stop.cancel();
        drain(ready(()), stop, "calls").await;
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
