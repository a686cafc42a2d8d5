//! HTTP connections that end when their peer is silent: when it neither sends anything nor reads what it is sent. While all
//! places are taken, a short silence is enough.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::sockopt::set_tcp_user_timeout;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::places::{Place, Turns};

/// How long to wait for a silent peer, and how many peers did not read what they were sent. Clones share the count.
#[derive(Debug, Clone)]
pub struct Patience {
    idle_time: Duration,
    stalled: Arc<AtomicU64>,
}

impl Patience {
    /// Connections without any progress end after `idle_time`; the count is 0.
    pub fn new(idle_time: Duration) -> Self {
        Patience { idle_time, stalled: Arc::default() }
    }

    /// Another idle time with the same count.
    pub fn with_idle_time(&self, idle_time: Duration) -> Self {
        Patience { idle_time, ..self.clone() }
    }

    /// The time without progress after which a connection ends.
    pub fn idle_time(&self) -> Duration {
        self.idle_time
    }

    /// Connections, and HTTP/2 answers, that ended because their peer did not read what it was sent, such as a stalled live
    /// viewer.
    pub fn stalled(&self) -> u64 {
        self.stalled.load(Ordering::Relaxed)
    }

    /// Counts one more stalled connection or answer.
    pub(crate) fn count_stalled(&self) {
        self.stalled.fetch_add(1, Ordering::Relaxed);
    }
}

/// A connection, and its place.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    idle: Pin<Box<Sleep>>,
    patience: Patience,
    is_write_blocked: bool,
    place: Place,
    eviction: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Connection {
    /// A connection that ends once its peer is silent for the idle time of `patience`, or once it has lost its `place`.
    pub(crate) fn new(stream: TcpStream, patience: Patience, place: Place) -> Self {
        // Answers are small and the peer waits for them; a failure costs only time.
        let _slower = stream.set_nodelay(true);
        // Occasional writes to a vanished peer would count as progress for a long time: only the kernel knows that nothing
        // arrives.
        let idle_ms = u32::try_from(patience.idle_time.as_millis()).unwrap_or(u32::MAX);
        let _later = set_tcp_user_timeout(&stream, idle_ms);
        let idle = Box::pin(sleep(patience.idle_time));
        let eviction = Box::pin(place.eviction_token().cancelled_owned());
        Connection { stream, idle, patience, is_write_blocked: false, place, eviction }
    }

    /// For the code that answers the requests of the connection.
    pub(crate) fn turns(&self) -> Turns {
        self.place.turns()
    }

    /// Fails once the place is lost: nothing more is read then, so that half a request is not answered as a bad one.
    fn unless_evicted(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.eviction.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::ConnectionAborted.into()),
            Poll::Pending => Ok(()),
        }
    }

    /// Progress restarts the idle time; without progress, the connection fails once that time is over.
    fn unless_idle<T>(
        &mut self,
        context: &mut Context<'_>,
        progress: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(error)) = &progress
            && error.kind() == io::ErrorKind::TimedOut
        {
            // The kernel gave the connection up.
            self.patience.count_stalled();
        }
        if progress.is_ready() {
            self.idle.as_mut().reset(Instant::now() + self.patience.idle_time);
            self.place.progress();
            return progress;
        }
        self.idle.as_mut().poll(context).map(|()| {
            if std::mem::take(&mut self.is_write_blocked) {
                self.patience.count_stalled();
            }
            Err(io::ErrorKind::TimedOut.into())
        })
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.unless_evicted(context)?;
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.unless_idle(context, read)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.unless_evicted(context)?;
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.is_write_blocked = written.is_pending();
        self.place.set_blocked(self.is_write_blocked);
        self.unless_idle(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::places::Places;
    use axum::extract::Request;
    use rustix::net::sockopt::tcp_user_timeout;
    use std::task::Waker;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    const IDLE: Duration = Duration::from_millis(100);

    async fn pair() -> (Connection, TcpStream, Patience) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, address) = listener.accept().await.unwrap();
        let place = Places::new(1).take().unwrap().assign_to(address.ip());
        let patience = Patience::new(IDLE);
        (Connection::new(stream, patience.clone(), place), peer, patience)
    }

    #[tokio::test]
    async fn peer_that_reads_nothing_is_dropped_and_counted() {
        let (mut connection, _peer, patience) = pair().await;
        let more = vec![0; 1 << 20];
        let error = loop {
            if let Err(error) = connection.write_all(&more).await {
                break error;
            }
        };
        assert_eq!((error.kind(), patience.stalled()), (io::ErrorKind::TimedOut, 1));
    }

    #[tokio::test]
    async fn kernel_timeout_of_a_peer_is_counted_as_stalled() {
        let (mut connection, _peer, patience) = pair().await;
        assert_eq!(
            tcp_user_timeout(&connection.stream).unwrap(),
            100,
            "the timeout in the kernel is the idle time"
        );
        let given_up = Poll::Ready(Err::<(), _>(io::ErrorKind::TimedOut.into()));
        assert!(connection.unless_idle(&mut Context::from_waker(Waker::noop()), given_up).is_ready());
        assert_eq!(patience.stalled(), 1);
    }

    // Time passes only while no task can make progress, so no pause is longer than it should be.
    #[tokio::test(start_paused = true)]
    async fn idle_timeout_drops_only_a_peer_that_sends_nothing() {
        let (mut connection, mut peer, patience) = pair().await;
        let mut byte = [0];
        for _ in 0..4 {
            let said = async {
                sleep(IDLE / 2).await;
                peer.write_all(&[0]).await.unwrap();
            };
            tokio::join!(said, connection.read_exact(&mut byte)).1.unwrap();
        }
        let error = connection.read_exact(&mut byte).await.unwrap_err();
        assert_eq!((error.kind(), patience.stalled()), (io::ErrorKind::TimedOut, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn sending_peer_keeps_its_place_and_non_reading_peer_loses_it() {
        const SILENCE: Duration = Duration::from_secs(2);
        let (listener, places) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), Places::new(1));
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, address) = listener.accept().await.unwrap();
        let place = places.take().unwrap().assign_to(address.ip());
        let mut connection = Connection::new(stream, Patience::new(SILENCE * 100), place);
        let _waiting = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        sleep(SILENCE).await;
        peer.write_all(&[0]).await.unwrap();
        connection.read_exact(&mut [0]).await.unwrap();
        assert!(places.make_room_at(&listener));
        assert!(!connection.place.eviction_token().is_cancelled());
        let _answered = connection.turns().begin(Request::new(()));
        assert!(timeout(SILENCE, connection.write_all(&vec![0; 64 << 20])).await.is_err());
        assert!(places.make_room_at(&listener));
        let error = connection.write_all(&[0]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
    }
}
