//! Serves HTTP/1.1, and HTTP/2 to clients that begin with it, with limits that a plain accept loop does not have: the number of
//! connections (further ones wait in the kernel's queue until one ends, or makes room because it is silent), the time of
//! silence, the time until a request's head is complete, and how much may be under way on one connection and on all together.

use std::convert::Infallible;
use std::future::ready;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::Request;
use axum::http::Version;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::{http1, http2};
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use crate::answer_parts::{self, Wait};
use crate::connection::{Connection, Patience};
use crate::half_open::{Answering, GRACE, HalfOpen};
use crate::notices::Notices;
use crate::places::{LEAST_SILENCE, Place, Places, Turns};
use crate::protocol::{First, Protocol};
use crate::request_pool::{self, RequestPool, Room};
use crate::sent::until_sent;

/// Pause after an error of accept, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Longest head of an HTTP/1 request: the longest URI that is accepted, 64 KiB, and some headers. Every connection may hold one
/// such head before any code looks at it.
const HEAD_BYTES: usize = 80 << 10;
/// Longest head of an HTTP/2 request, of which a connection may hold many: twice what Zipkin's server accepts.
const STREAM_HEAD_BYTES: u32 = 16 << 10;

/// Requests that may be under way on one HTTP/2 connection at a time; its peer keeps others back. Not lower: a peer may send
/// 100 before it has received a limit (RFC 9113, 6.5.2), and not every peer tries again what is refused then.
const STREAMS: u32 = 100;
/// Bytes of one request body that an HTTP/2 peer may send before they are read; less than for all, to leave room for the others.
const STREAM_WINDOW: u32 = 128 << 10;
/// Bytes of all request bodies that an HTTP/2 peer may send before they are read.
const CONNECTION_WINDOW: u32 = 512 << 10;
/// Bytes that are buffered of an HTTP/2 answer that waits for its peer, beside the part that waits to be buffered.
const SEND_BUFFER: usize = 16 << 10;

/// The address of the client that sent a request.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub SocketAddr);

/// Changes a request before it is routed.
pub type Prepare = fn(&mut Request<Incoming>);

/// A server: its listener, its routes and its limits.
pub struct Server {
    listener: TcpListener,
    router: Router,
    prepare: Prepare,
    max_connections: usize,
    patience: Patience,
    idle_time: Box<dyn Fn() -> Duration + Send + Sync>,
}

impl Server {
    /// Serves `router`. At `max_connections`, further peers wait to be accepted until a connection ends, or makes room because it
    /// is silent. A connection that is silent for longer than the idle time of `patience` is closed.
    pub fn new(listener: TcpListener, router: Router, max_connections: usize, patience: Patience) -> Server {
        let idle_time = patience.idle_time();
        Server {
            listener,
            router,
            prepare: |_| {},
            max_connections,
            patience,
            idle_time: Box::new(move || idle_time),
        }
    }

    /// Changes each request by `prepare` before it is routed.
    #[must_use]
    pub fn prepared_by(self, prepare: Prepare) -> Server {
        Server { prepare, ..self }
    }

    /// Calls `idle_time` for each new connection, since the setting may have changed.
    #[must_use]
    pub fn idle_for(self, idle_time: impl Fn() -> Duration + Send + Sync + 'static) -> Server {
        Server { idle_time: Box::new(idle_time), ..self }
    }

    /// Serves until `stop`, then answers the requests under way; a peer that does not read its answer is given up. Dropping the
    /// future ends every connection.
    pub async fn serve(self, stop: CancellationToken) {
        let places = Places::new(self.max_connections);
        // Enough for one connection to use all its streams, if it is the only one.
        let request_pool = RequestPool::new(self.max_connections.max(STREAMS as usize));
        let graceful = GracefulShutdown::new();
        // Connections hold what the daemon waits for when it ends, such as the store, so none may outlive this future.
        let served = CancellationToken::new();
        let _until_dropped = served.clone().drop_guard();
        let mut log_limits = LogLimits::default();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                (stream, peer, place) = accept(&self.listener, &places, &mut log_limits) => {
                    let connection = self.connection(stream, peer, place, request_pool.of_connection(), &served, &stop);
                    let serving = connection.serve(graceful.watcher(), stop.clone());
                    let serving = served.clone().run_until_cancelled_owned(serving);
                    tokio::spawn(async move {
                        if let Some(Err(reason)) = serving.await {
                            tracing::debug!(%peer, "closing an HTTP connection: {reason:#}");
                        }
                    });
                }
            }
        }
        drop(self.listener);
        tokio::select! {
            () = graceful.shutdown() => {}
            // Otherwise a stalled live viewer would hold up the end for as long as its idle time; so would an HTTP/2 peer that
            // does not acknowledge the end, or half a request head.
            never = places.give_up_silent() => match never {},
        }
    }

    fn connection(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        place: Place,
        room: Room,
        served: &CancellationToken,
        stop: &CancellationToken,
    ) -> Accepted {
        let patience = self.patience.with_idle_time((self.idle_time)());
        let idle_time = patience.idle_time();
        let wait = Wait { most: idle_time, stop: stop.clone(), most_at_stop: LEAST_SILENCE };
        let answers = Answers { served: served.clone(), patience: patience.clone(), wait };
        let connection = Connection::new(stream, patience, place);
        let turns = connection.turns();
        let inner = TowerToHyperService::new(self.router.clone());
        let answering = Answering::default();
        let routes = Routes { peer: Peer(peer), prepare: self.prepare, answering, turns, room, inner };
        Accepted { connection, routes, idle_time, answers }
    }
}

/// A connection of which nothing was read yet.
struct Accepted {
    connection: Connection,
    routes: Routes,
    idle_time: Duration,
    answers: Answers,
}

impl Accepted {
    /// Serves the connection until it ends, or until its watcher asks it to end and the requests under way are answered. A
    /// connection whose protocol is still unknown at `stop` is closed at once.
    async fn serve(mut self, watcher: Watcher, stop: CancellationToken) -> anyhow::Result<()> {
        let begins = tokio::time::timeout(self.idle_time, First::read(&mut self.connection));
        let (protocol, first) = tokio::select! {
            biased;
            begun = begins => begun??,
            () = stop.cancelled() => return Ok(()),
        };
        let answering = self.routes.answering.clone();
        let io = TokioIo::new(HalfOpen::new(self.connection, first, answering, GRACE));
        match protocol {
            Protocol::Http1 => {
                let connection = http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(self.idle_time)
                    .max_header_size(HEAD_BYTES)
                    .serve_connection(io, self.routes);
                watcher.watch(connection).await?;
            }
            Protocol::Http2 => {
                let connection = http2::Builder::new(self.answers)
                    .timer(TokioTimer::new())
                    .max_header_list_size(STREAM_HEAD_BYTES)
                    .max_concurrent_streams(STREAMS)
                    .initial_stream_window_size(STREAM_WINDOW)
                    .initial_connection_window_size(CONNECTION_WINDOW)
                    .max_send_buf_size(SEND_BUFFER)
                    .serve_connection(io, self.routes);
                watcher.watch(connection).await?;
            }
        }
        Ok(())
    }
}

/// Runs the tasks that answer the requests of an HTTP/2 connection, as long as the server lives and the peer reads the answer.
#[derive(Clone)]
struct Answers {
    served: CancellationToken,
    patience: Patience,
    wait: Wait,
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Answers {
    fn execute(&self, answer: F) {
        let (patience, in_time) = (self.patience.clone(), answer_parts::in_time(answer, self.wait.clone()));
        let answered = async move {
            if !in_time.await {
                patience.count_stalled();
            }
        };
        tokio::spawn(self.served.clone().run_until_cancelled_owned(answered));
    }
}

/// Limits how often the log reports connections that cannot be served.
#[derive(Default)]
struct LogLimits {
    failures: Notices,
    crowds: Notices,
}

impl LogLimits {
    /// Logs that all places are taken. Nothing else shows it: a request for the health waits too, if no connection makes room.
    fn log_places_full(&mut self) {
        if let Some(held_back) = self.crowds.admit(Instant::now()) {
            tracing::warn!(
                held_back,
                "the limit on HTTP connections is reached: further ones wait until a connection ends, or makes room because \
                 it was silent for a second; have clients keep fewer open, or raise the limit (http_max_connections of a \
                 collector, live_viewers of a relay)"
            );
        }
    }
}

/// The next connection, once there is a place for it and it can be accepted.
async fn accept(
    listener: &TcpListener,
    places: &Places,
    log_limits: &mut LogLimits,
) -> (TcpStream, SocketAddr, Place) {
    loop {
        if places.are_taken() {
            log_limits.log_places_full();
        }
        let reserved = places.wait_for_place(listener).await;
        match listener.accept().await {
            Ok((stream, peer)) => return (stream, peer, reserved.assign_to(peer.ip())),
            Err(error) => {
                if let Some(held_back) = log_limits.failures.admit(Instant::now()) {
                    tracing::warn!(held_back, "failed to accept an HTTP connection: {error}");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// The routes, which learn who sent each request.
struct Routes {
    peer: Peer,
    prepare: Prepare,
    answering: Answering,
    turns: Turns,
    room: Room,
    inner: TowerToHyperService<Router>,
}

impl Service<Request<Incoming>> for Routes {
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        // An HTTP/1 connection has only one request under way.
        let room = (request.version() == Version::HTTP_2).then(|| self.room.take());
        (self.prepare)(&mut request);
        request.extensions_mut().insert(self.peer);
        let ((request, turn), work) = (self.turns.begin(request), self.answering.begin());
        if matches!(room, Some(None)) {
            return Box::pin(ready(Ok(work.until_sent(turn.end(request_pool::refusal())))));
        }
        let answer = self.inner.call(request);
        Box::pin(async move { Ok(until_sent(work.until_sent(turn.end(answer.await?)), room)) })
    }
}

#[cfg(test)]
mod tests;
