//! Whether the peer reads an answer. If it does not, an HTTP/1 connection stalls as a whole; on an HTTP/2 connection other answers
//! go on, and one that is not read would be kept for as long as they do. So HTTP/2 answers are handed out in parts, each of which
//! is watched until it is written, and an answer is not over before its last part is written.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use http_body::{Frame, SizeHint};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::places::Turn;

/// The size of the largest part. A peer that does not read this much within the time of [`Wait`] counts as not reading.
const PART_BYTES: usize = 16 << 10;

tokio::task_local! {
    /// The parts that are handed out of the answer that this task sends by HTTP/2.
    static UNWRITTEN: Arc<UnwrittenParts>;
}

/// The parts of an answer that were handed out and are not written yet.
#[derive(Default)]
struct UnwrittenParts {
    parts: Mutex<Parts>,
    /// Notified when a part is handed out while no other is.
    begun: Notify,
}

#[derive(Default)]
struct Parts {
    count: usize,
    /// When the oldest of them was handed out, or the part before it was written, whichever is later.
    since: Option<Instant>,
    /// The task that waits until there are none.
    waker: Option<Waker>,
}

impl UnwrittenParts {
    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands out `bytes` as a part, which counts as not written until the last reference to the result is dropped.
    fn give(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        let mut parts = self.parts();
        parts.count += 1;
        if parts.since.is_none() {
            parts.since = Some(Instant::now());
            self.begun.notify_one();
        }
        drop(parts);
        Bytes::from_owner(Part { bytes, unwritten: self.clone() })
    }

    fn poll_none(&self, context: &Context<'_>) -> Poll<()> {
        let mut parts = self.parts();
        if parts.count == 0 {
            return Poll::Ready(());
        }
        parts.waker = Some(context.waker().clone());
        Poll::Pending
    }

    fn since(&self) -> Option<Instant> {
        self.parts().since
    }
}

struct Part {
    bytes: Bytes,
    unwritten: Arc<UnwrittenParts>,
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let mut parts = self.unwritten.parts();
        parts.count -= 1;
        parts.since = (parts.count > 0).then(Instant::now);
        let waker = if parts.count == 0 { parts.waker.take() } else { None };
        drop(parts);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The same answer. After each part it is the peer's turn until the next part is requested; while a part is produced, it is the
/// server's turn.
pub(crate) fn by_turns(answer: Response, turn: Turn) -> Response {
    answer.map(|inner| Body::new(Answer { inner, is_ended: false, rest: Bytes::new(), turn }))
}

/// The body of an answer.
struct Answer {
    inner: Body,
    /// Whether `inner` has ended: then it is not polled any more.
    is_ended: bool,
    /// What is left of a frame that is handed out in parts.
    rest: Bytes,
    turn: Turn,
}

impl Answer {
    fn poll_part(
        &mut self,
        context: &mut Context<'_>,
        unwritten: &Arc<UnwrittenParts>,
    ) -> Poll<Option<PartOfIt>> {
        while self.rest.is_empty() && !self.is_ended {
            match ready!(Pin::new(&mut self.inner).poll_frame(context)) {
                None => self.is_ended = true,
                Some(frame) => match frame?.into_data() {
                    Ok(data) => self.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
            }
        }
        if self.rest.is_empty() {
            return unwritten.poll_none(context).map(|()| None);
        }
        let part = self.rest.split_to(self.rest.len().min(PART_BYTES));
        Poll::Ready(Some(Ok(Frame::data(unwritten.give(part)))))
    }
}

type PartOfIt = Result<Frame<Bytes>, axum::Error>;

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<PartOfIt>> {
        let part = match UNWRITTEN.try_with(Arc::clone) {
            Ok(unwritten) => self.poll_part(context, &unwritten),
            Err(_http1) => Pin::new(&mut self.inner).poll_frame(context),
        };
        self.turn.set_servers_turn(part.is_pending() && !self.is_ended);
        part
    }

    fn is_end_stream(&self) -> bool {
        let is_written = || UNWRITTEN.try_with(|unwritten| unwritten.since().is_none()).unwrap_or(true);
        self.rest.is_empty() && self.inner.is_end_stream() && is_written()
    }

    fn size_hint(&self) -> SizeHint {
        let (inner, rest) = (self.inner.size_hint(), self.rest.len() as u64);
        let mut whole = SizeHint::new();
        whole.set_lower(inner.lower() + rest);
        inner.upper().into_iter().for_each(|upper| whole.set_upper(upper + rest));
        whole
    }
}

/// How long a part of an answer waits for its peer.
#[derive(Clone)]
pub(crate) struct Wait {
    pub(crate) most: Duration,
    /// After this, a part waits no longer than `most_at_stop`, if that is less.
    pub(crate) stop: CancellationToken,
    pub(crate) most_at_stop: Duration,
}

impl Wait {
    /// Waits until a part was not written for too long.
    async fn wait_until_overdue(&self, unwritten: &UnwrittenParts) {
        loop {
            match unwritten.since() {
                None => unwritten.begun.notified().await,
                Some(since) => {
                    self.since(since).await;
                    if unwritten.since() == Some(since) {
                        return;
                    }
                }
            }
        }
    }

    async fn since(&self, since: Instant) {
        tokio::select! {
            () = sleep_until(since + self.most) => {}
            () = async {
                self.stop.cancelled().await;
                sleep_until(since + self.most_at_stop).await;
            } => {}
        }
    }
}

/// Runs `sending`, which sends an answer. Returns false, and drops `sending`, once the peer has not read a part in time.
pub(crate) async fn in_time(sending: impl Future<Output = ()>, wait: Wait) -> bool {
    let unwritten = Arc::<UnwrittenParts>::default();
    tokio::select! {
        biased;
        () = UNWRITTEN.scope(unwritten.clone(), sending) => true,
        () = wait.wait_until_overdue(&unwritten) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::time::sleep;

    use super::*;

    const MOST: Duration = Duration::from_secs(30);

    fn wait() -> Wait {
        Wait { most: MOST, stop: CancellationToken::new(), most_at_stop: MOST / 10 }
    }

    /// Hands out a part of the answer.
    fn given() -> Bytes {
        UNWRITTEN.with(|unwritten| unwritten.give(Bytes::from_static(b"part")))
    }

    #[tokio::test(start_paused = true)]
    async fn answer_may_last_long_if_each_part_is_taken_in_time() {
        let sending = async {
            let mut out = given();
            for _ in 0..5 {
                let next = given();
                sleep(MOST * 2 / 3).await;
                out = next;
            }
            drop(out);
            sleep(10 * MOST).await;
            drop(given());
        };
        assert!(in_time(sending, wait()).await);
    }

    #[tokio::test(start_paused = true)]
    async fn timeout_of_a_part_starts_when_the_previous_one_is_taken() {
        for at_stop in [false, true] {
            let wait = wait();
            let (stop, began) = (wait.stop.clone(), Instant::now());
            let sending = async {
                sleep(MOST).await;
                let (taken, _out) = (given(), given());
                sleep(MOST / 2).await;
                drop(taken);
                if at_stop {
                    stop.cancel();
                }
                sleep(MOST / 20).await;
                let _more = given();
                pending::<()>().await;
            };
            assert!(!in_time(sending, wait).await);
            let time = if at_stop { MOST / 10 } else { MOST };
            assert_eq!(began.elapsed(), MOST + MOST / 2 + time);
        }
    }
}
