//! Answers for clients that close their direction after the request, as `nc`, `socat` and some proxies do: they wait for the
//! answer on the other direction. A client that has gone away looks the same, and the daemon should not work for it for long. So
//! the end of the input is held back from the HTTP server for [`GRACE`] while a request is being answered, and again after each
//! part of the answer that is sent: a client that has gone away refuses what it is sent, and that ends the connection. An HTTP/2
//! peer that has closed its direction cannot open its window for the rest of an answer; then nothing is sent, and the end is
//! reported after [`GRACE`] too. An HTTP/2 connection reads before it writes what was handed over to it: so the end is reported
//! only once that was written.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::header;
use axum::response::Response;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use crate::protocol::First;
use crate::sent::until_sent;

/// How long the daemon works for a client that may have gone away. A commit takes less, and so do most queries.
pub(crate) const GRACE: Duration = Duration::from_secs(2);

/// The content type of a stream without an end. A client of such a stream has more likely gone away than closed one direction.
const ENDLESS: &str = "text/event-stream";

/// How many requests of a connection are being answered. Clones share the count.
#[derive(Debug, Clone, Default)]
pub(crate) struct Answering(Arc<AtomicUsize>);

impl Answering {
    /// Counts a request as being answered for as long as the returned value lives.
    pub(crate) fn begin(&self) -> Work {
        self.0.fetch_add(1, Ordering::AcqRel);
        Work(self.clone())
    }

    fn is_under_way(&self) -> bool {
        self.0.load(Ordering::Acquire) > 0
    }
}

/// A request that is being answered.
pub(crate) struct Work(Answering);

impl Work {
    /// Keeps the request counted until all of its answer was handed over, unless the answer is an endless stream.
    pub(crate) fn until_sent(self, answer: Response) -> Response {
        if answer.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == ENDLESS) {
            return answer;
        }
        until_sent(answer, self)
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A connection whose other side may have closed its own direction.
pub(crate) struct HalfOpen<C> {
    inner: C,
    first: First,
    answering: Answering,
    grace: Duration,
    /// After the end of the input: the time until which that end is held back if nothing is sent.
    held_back: Option<Pin<Box<Sleep>>>,
    is_write_blocked: bool,
    /// Whether the connection was made to read once more, so that it writes what it has.
    is_read_again: bool,
}

impl<C> HalfOpen<C> {
    /// A connection whose `first` bytes were already read.
    pub(crate) fn new(inner: C, first: First, answering: Answering, grace: Duration) -> Self {
        let (held_back, is_write_blocked, is_read_again) = (None, false, false);
        HalfOpen { inner, first, answering, grace, held_back, is_write_blocked, is_read_again }
    }
}

impl<C: AsyncRead + Unpin> AsyncRead for HalfOpen<C> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.first.give(buffer) {
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(context, buffer))?;
        let is_end = buffer.filled().len() == before && buffer.remaining() > 0;
        if !is_end {
            return Poll::Ready(Ok(()));
        }
        // The server polls the connection again once the socket can be written, and then reads again.
        if self.is_write_blocked {
            return Poll::Pending;
        }
        // The timer also covers an answer that arrives or ends meanwhile: nothing else need wake this task.
        if self.answering.is_under_way() {
            let grace = self.grace;
            let held_back = self.held_back.get_or_insert_with(|| Box::pin(sleep(grace)));
            ready!(held_back.as_mut().poll(context));
        } else if !std::mem::replace(&mut self.is_read_again, true) {
            // An HTTP/2 connection writes the last of its answers after it has read.
            context.waker().wake_by_ref();
            return Poll::Pending;
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
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        if std::mem::replace(&mut self.is_write_blocked, written.is_pending()) && written.is_ready() {
            // An HTTP/2 connection has read before this write, and must read again.
            context.waker().wake_by_ref();
        }
        let until = Instant::now() + self.grace;
        if let Some(held_back) = &mut self.held_back {
            held_back.as_mut().reset(until);
        }
        written
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
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Waker;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex, join};
    use tokio::time::timeout;

    use axum::body::{Body, HttpBody};

    use super::*;

    /// What a read, or a second read right after it, returns without waiting, if anything.
    fn read_now(connection: &mut HalfOpen<&[u8]>) -> Option<usize> {
        let mut buffer = [0; 8];
        let mut reading = pin!(connection.read(&mut buffer));
        let mut context = Context::from_waker(Waker::noop());
        (0..2).find_map(|_| match reading.as_mut().poll(&mut context) {
            Poll::Ready(read) => Some(read.unwrap()),
            Poll::Pending => None,
        })
    }

    #[tokio::test]
    async fn only_end_of_input_is_held_back_while_answering() {
        let answering = Answering::default();
        let mut connection =
            HalfOpen::new(&b"GET"[..], First::default(), answering.clone(), Duration::from_secs(600));
        let (work, other) = (answering.begin(), answering.begin());
        assert_eq!(read_now(&mut connection), Some(3));
        drop(other);
        assert_eq!(read_now(&mut connection), None);
        drop(work);
        assert_eq!(read_now(&mut connection), Some(0));
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_read_ahead_are_returned_without_waiting_for_more() {
        let (mut peer, mut connection) = duplex(8);
        peer.write_all(b"GE").await.unwrap();
        let (_, first) = First::read(&mut connection).await.unwrap();
        let mut connection = HalfOpen::new(connection, first, Answering::default(), GRACE);
        assert_eq!(timeout(GRACE, connection.read(&mut [0; 8])).await.unwrap().unwrap(), 2);
    }

    #[tokio::test]
    async fn end_of_input_is_held_back_until_a_finite_answer_is_sent() {
        let answering = Answering::default();
        let mut connection =
            HalfOpen::new(&b""[..], First::default(), answering.clone(), Duration::from_secs(600));
        let text = Response::builder().header(header::CONTENT_TYPE, "text/plain").body(Body::from("text"));
        let sent = answering.begin().until_sent(text.unwrap());
        assert_eq!(sent.body().size_hint().exact(), Some(4));
        assert_eq!(read_now(&mut connection), None);
        drop(sent);
        assert_eq!(read_now(&mut connection), Some(0));
        let stream = Response::builder().header(header::CONTENT_TYPE, ENDLESS).body(Body::empty()).unwrap();
        let _endless = answering.begin().until_sent(stream);
        assert_eq!(read_now(&mut connection), Some(0));
    }

    #[tokio::test]
    async fn end_of_input_is_held_back_only_for_the_grace_time() {
        let answering = Answering::default();
        let mut connection =
            HalfOpen::new(&b""[..], First::default(), answering.clone(), Duration::from_millis(1));
        let _work = answering.begin();
        assert_eq!(connection.read(&mut [0; 8]).await.unwrap(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn end_of_input_is_held_back_while_the_answer_makes_progress() {
        let (answering, grace) = (Answering::default(), Duration::from_secs(2));
        let (mut peer, sends) = duplex(8);
        let mut connection = HalfOpen::new(join(&b""[..], sends), First::default(), answering.clone(), grace);
        let _sent = answering.begin().until_sent(Response::new(Body::from("text")));
        for _ in 0..3 {
            assert!(timeout(grace * 2 / 3, connection.read_u8()).await.is_err());
            connection.write_all(b"some").await.unwrap();
            peer.read_exact(&mut [0; 4]).await.unwrap();
        }
        assert!(timeout(grace, connection.write_all(b"more than is taken")).await.is_err());
        assert!(timeout(grace * 600, connection.read_u8()).await.is_err());
        peer.read_exact(&mut [0; 8]).await.unwrap();
        connection.write_all(b"taken").await.unwrap();
        let began = Instant::now();
        assert_eq!(connection.read(&mut [0; 8]).await.unwrap(), 0);
        assert_eq!(began.elapsed(), grace);
    }

    /// As an HTTP/2 connection, which reads before it writes.
    #[tokio::test(start_paused = true)]
    async fn end_of_input_during_a_blocked_write_is_read_afterwards() {
        let (mut peer, sends) = duplex(8);
        let mut connection =
            HalfOpen::new(join(&b""[..], sends), First::default(), Answering::default(), GRACE);
        assert!(timeout(GRACE, connection.write_all(b"more than it takes")).await.is_err());
        let mut left = 8;
        let served = poll_fn(|context| {
            let mut buffer = [0; 8];
            let mut buffer = ReadBuf::new(&mut buffer);
            let read = Pin::new(&mut connection).poll_read(context, &mut buffer);
            if left > 0
                && let Poll::Ready(written) = Pin::new(&mut connection).poll_write(context, &[0; 8][..left])
            {
                left -= written.unwrap();
            }
            read
        });
        let takes = async { peer.read_exact(&mut [0; 8]).await.unwrap() };
        let (served, _) = tokio::join!(timeout(GRACE * 600, served), takes);
        served.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn blocked_writer_is_not_woken_repeatedly() {
        let (_peer, sends) = duplex(8);
        let mut connection =
            HalfOpen::new(join(&b""[..], sends), First::default(), Answering::default(), GRACE);
        assert!(timeout(GRACE, connection.write_all(b"more than it takes")).await.is_err());
        let mut looks = 0;
        let standing = poll_fn(|context| {
            looks += 1;
            // The last look is the one at the end.
            assert!(looks <= 2);
            Pin::new(&mut connection).poll_write(context, b"more")
        });
        assert!(timeout(GRACE, standing).await.is_err());
    }
}
