//! Whether the peer takes an answer. A connection of HTTP/1 stands still where its peer does not; on one of HTTP/2 others go on, and one
//! that is not taken would be kept for as long as they do.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use http_body::{Frame, SizeHint};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::places::Turn;

tokio::task_local! {
    /// Since when a part of the answer that is being sent waits for the peer.
    static WAITS_SINCE: Cell<Option<Instant>>;
}

/// The same answer, of which each part is the peer's turn until the next is asked for, and the wait for a part the server's.
pub(crate) fn by_turns(answer: Response, turn: Turn) -> Response {
    answer.map(|inner| Body::new(Answer { inner, turn }))
}

/// The body of an answer.
struct Answer {
    inner: Body,
    turn: Turn,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.inner).poll_frame(context);
        self.turn.is_servers(frame.is_pending());
        // One of HTTP/1 is watched by its connection.
        let _unwatched = WAITS_SINCE.try_with(|since| since.set(frame.is_ready().then(Instant::now)));
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// How long a part of an answer waits for its peer.
#[derive(Clone)]
pub(crate) struct Wait {
    pub(crate) most: Duration,
    /// From then on there is less time, if that is less.
    pub(crate) stop: CancellationToken,
    pub(crate) most_at_stop: Duration,
}

impl Wait {
    /// Until a part that waits since then has waited for long enough.
    async fn since(self, since: Instant) {
        tokio::select! {
            () = sleep_until(since + self.most) => {}
            () = async {
                self.stop.cancelled().await;
                sleep_until(since + self.most_at_stop).await;
            } => {}
        }
    }
}

/// Does what sends an answer; says whether the peer has taken each part of it in time. If not, the rest is left.
pub(crate) async fn in_time(sending: impl Future<Output = ()>, wait: Wait) -> bool {
    let mut sending = pin!(sending);
    let (mut since, mut waited) = (None, None);
    poll_fn(|context| {
        let before = since;
        let sent = WAITS_SINCE.sync_scope(Cell::new(before), || {
            let sent = sending.as_mut().poll(context);
            since = WAITS_SINCE.with(Cell::get);
            sent
        });
        if sent.is_ready() {
            return Poll::Ready(true);
        }
        if since != before {
            waited = since.map(|since| Box::pin(wait.clone().since(since)));
        }
        let Some(waited) = &mut waited else { return Poll::Pending };
        ready!(waited.as_mut().poll(context));
        Poll::Ready(false)
    })
    .await
}
