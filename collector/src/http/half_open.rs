//! Answers for who has said all and closes one direction, as `nc`, `socat` and some proxies do: they wait for the answer on
//! the other. It looks the same when somebody has gone, and then nobody shall do their work for long; so the end of what
//! they say is held back for a moment while a request is worked on. Once there is an answer, it is held back until all of that
//! was handed over: who has gone refuses what he is sent, which ends the connection.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::header;
use axum::response::Response;
use blkin_daemon::sent::until_sent;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// How long who may have gone is worked for. A commit takes less, and most queries.
pub(super) const GRACE: Duration = Duration::from_secs(2);

/// A stream that has no end of its own. Who watches one has gone more likely than closed one direction.
const ENDLESS: &str = "text/event-stream";

/// Whether a request of a connection is being answered. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Answering {
    is_worked_on: Arc<AtomicBool>,
    is_being_sent: Arc<AtomicBool>,
}

impl Answering {
    /// Runs what answers a request. It is on from now: the connection reads on before it runs that for the first time.
    pub(super) fn during<F: Future>(self, answer: F) -> impl Future<Output = F::Output> {
        self.is_worked_on.store(true, Ordering::Release);
        async move {
            let answered = answer.await;
            self.is_worked_on.store(false, Ordering::Release);
            answered
        }
    }

    /// It is on until all of an answer was handed over.
    pub(super) fn until_sent(self, answer: Response) -> Response {
        if answer.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == ENDLESS) {
            return answer;
        }
        self.is_being_sent.store(true, Ordering::Release);
        until_sent(answer, Sending(self))
    }
}

/// The end is held back as long as this lasts.
struct Sending(Answering);

impl Drop for Sending {
    fn drop(&mut self) {
        self.0.is_being_sent.store(false, Ordering::Release);
    }
}

/// A connection whose other side may have closed its own direction.
pub(super) struct HalfOpen<C> {
    inner: C,
    answering: Answering,
    grace: Duration,
    /// Once all was said, until when that is held back.
    held_back: Option<Pin<Box<Sleep>>>,
}

impl<C> HalfOpen<C> {
    pub(super) fn new(inner: C, answering: Answering, grace: Duration) -> Self {
        HalfOpen { inner, answering, grace, held_back: None }
    }
}

impl<C: AsyncRead + Unpin> AsyncRead for HalfOpen<C> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(context, buffer))?;
        let is_end = buffer.filled().len() == before && buffer.remaining() > 0;
        // Once the answer is there, or was sent, whoever runs the connection reads again: nobody else has to wake it.
        if is_end && self.answering.is_being_sent.load(Ordering::Acquire) {
            return Poll::Pending;
        }
        if is_end && self.answering.is_worked_on.load(Ordering::Acquire) {
            let grace = self.grace;
            let held_back = self.held_back.get_or_insert_with(|| Box::pin(sleep(grace)));
            ready!(held_back.as_mut().poll(context));
        }
        Poll::Ready(Ok(()))
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for HalfOpen<C> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Waker;

    use tokio::io::AsyncReadExt;

    use axum::body::{Body, HttpBody};

    use super::*;

    /// What is read at once, if anything is.
    fn read_now(connection: &mut HalfOpen<&[u8]>) -> Option<usize> {
        let mut buffer = [0; 8];
        match pin!(connection.read(&mut buffer)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(read) => Some(read.unwrap()),
            Poll::Pending => None,
        }
    }

    #[tokio::test]
    async fn an_end_is_held_back_while_something_is_answered_and_nothing_else_is() {
        let answering = Answering::default();
        let mut connection = HalfOpen::new(&b"GET"[..], answering.clone(), Duration::from_secs(600));
        answering.clone().during(async { assert_eq!(read_now(&mut connection), Some(3)) }).await;
        assert_eq!(read_now(&mut connection), Some(0));
        answering.during(async { assert_eq!(read_now(&mut connection), None) }).await;
        assert_eq!(read_now(&mut connection), Some(0));
    }

    #[test]
    fn an_end_is_held_back_until_an_answer_was_sent_unless_that_has_no_end() {
        let answering = Answering::default();
        let mut connection = HalfOpen::new(&b""[..], answering.clone(), Duration::ZERO);
        let sent = answering.clone().until_sent(Response::new(Body::from("text")));
        assert_eq!(sent.body().size_hint().exact(), Some(4));
        assert_eq!(read_now(&mut connection), None);
        drop(sent);
        assert_eq!(read_now(&mut connection), Some(0));
        let stream = Response::builder().header(header::CONTENT_TYPE, ENDLESS).body(Body::empty()).unwrap();
        let _endless = answering.until_sent(stream);
        assert_eq!(read_now(&mut connection), Some(0));
    }

    #[tokio::test]
    async fn an_end_is_held_back_for_a_moment() {
        let answering = Answering::default();
        let mut connection = HalfOpen::new(&b""[..], answering.clone(), Duration::from_millis(1));
        assert_eq!(answering.during(connection.read(&mut [0; 8])).await.unwrap(), 0);
    }
}
