//! Serving HTTP/1.1 with limits that a plain accept loop does not have: most connections (more wait in the kernel's
//! queue until one ends, or is silent), the time of silence, and the time until a request's head is whole.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use blkin_daemon::health::BEAT_EVERY;
use blkin_daemon::places::{Place, Turns};
use blkin_daemon::{CancellationToken, Connection, Heartbeat, Notices, Patience, Places};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};

use super::half_open::{Answering, GRACE, HalfOpen};
use super::{compression, path};
use crate::settings::Settings;

/// Pause after an error of accept, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Longest head of a request: the longest URI that is read at all, of 64 KiB, and some headers. As many connections as
/// may be hold one each before anybody looks at it.
const HEAD_BYTES: usize = 80 << 10;

/// Who sent a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer(pub(super) SocketAddr);

/// Serves until `stop`, then answers the requests under way; who does not take the answer is given up. Whoever waits for that no
/// longer drops this, and no connection is left.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    max_connections: usize,
    settings: Settings,
    patience: Patience,
    stop: CancellationToken,
    heartbeat: Heartbeat,
) {
    let places = Places::new(max_connections);
    let graceful = GracefulShutdown::new();
    // A connection holds what the daemon waits for when it ends, such as the store.
    let served = CancellationToken::new();
    let _until_dropped = served.clone().drop_guard();
    let mut pulse = tokio::time::interval(BEAT_EVERY);
    let mut told = Told::default();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            _ = pulse.tick() => heartbeat.beat(),
            Some((stream, peer, place)) = accept(&listener, &places, &mut told) => {
                let patience = patience.with_idle_time(settings.now().http_idle_time());
                let connection = connection(stream, peer, place, router.clone(), patience);
                let connection = served.clone().run_until_cancelled_owned(graceful.watch(connection));
                tokio::spawn(async move {
                    if let Some(Err(reason)) = connection.await {
                        tracing::debug!(%peer, "closing an HTTP connection: {reason}");
                    }
                });
            }
        }
    }
    drop(listener);
    tokio::select! {
        () = graceful.shutdown() => {}
        // A live viewer that stands still, for one, would hold up the end for as long as that may take.
        never = places.give_up_blocked() => match never {},
    }
    heartbeat.finish();
}

/// What the log was told of connections that nobody serves.
#[derive(Default)]
struct Told {
    failures: Notices,
    crowds: Notices,
    is_crowded: bool,
}

impl Told {
    /// All places are taken. Nothing else shows it: who asks for the health waits, too, if nobody makes room.
    fn of_crowd(&mut self) {
        if !std::mem::replace(&mut self.is_crowded, true)
            && let Some(held_back) = self.crowds.admit(Instant::now())
        {
            tracing::warn!(
                held_back,
                "there are as many HTTP connections as may be: more wait until one has ended, or was silent for a second \
                 and makes room; raise http_max_connections, or have clients keep fewer"
            );
        }
    }
}

/// The next connection, once there is a place for it.
async fn accept(
    listener: &TcpListener,
    places: &Places,
    told: &mut Told,
) -> Option<(TcpStream, SocketAddr, Place)> {
    if places.are_taken() {
        told.of_crowd();
    }
    let free = places.free(listener).await;
    told.is_crowded = false;
    match listener.accept().await {
        Ok((stream, peer)) => Some((stream, peer, free.to(peer.ip()))),
        Err(error) => {
            if let Some(held_back) = told.failures.admit(Instant::now()) {
                tracing::warn!(held_back, "failed to accept an HTTP connection: {error}");
            }
            tokio::time::sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    place: Place,
    router: Router,
    patience: Patience,
) -> http1::Connection<TokioIo<HalfOpen<Connection>>, Routes> {
    let idle_time = patience.idle_time();
    let answering = Answering::default();
    let connection = Connection::new(stream, patience, place);
    let turns = connection.turns();
    let io = TokioIo::new(HalfOpen::new(connection, answering.clone(), GRACE));
    let routes = Routes { peer: Peer(peer), answering, turns, inner: TowerToHyperService::new(router) };
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(idle_time)
        .max_header_size(HEAD_BYTES)
        .serve_connection(io, routes)
}

/// The routes, told who asks.
struct Routes {
    peer: Peer,
    answering: Answering,
    turns: Turns,
    inner: TowerToHyperService<Router>,
}

impl Service<Request<Incoming>> for Routes {
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        path::simplify(request.uri_mut());
        compression::take_plain_at_last(request.headers_mut());
        request.extensions_mut().insert(self.peer);
        let turns = self.turns.clone();
        let answer = self.inner.call(turns.begin(request));
        let answering = self.answering.clone();
        let answer = self.answering.clone().during(answer);
        Box::pin(async move { Ok(answering.until_sent(turns.end(answer.await?))) })
    }
}
