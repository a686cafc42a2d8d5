//! Whose turn it is with each request of a connection. A connection whose peer keeps the server waiting may be closed to make
//! room; a connection whose peer waits for the server may not.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use axum::body::HttpBody;
use axum::extract::Request;
use axum::response::Response;
use http_body::{Frame, SizeHint};

use super::Seat;
use crate::answer_parts;

/// The requests under way on a connection.
#[derive(Debug, Clone)]
pub(crate) struct Turns(Arc<Seat>);

impl Turns {
    pub(super) fn of(seat: Arc<Seat>) -> Turns {
        Turns(seat)
    }

    /// Notes that a request has arrived: it is the server's turn. While the server waits for the body, it is the peer's turn.
    pub(crate) fn begin<B>(&self, request: Request<B>) -> (Request<RequestBody<B>>, Turn) {
        self.0.under_way.fetch_add(1, Ordering::Relaxed);
        let turn = Turn(Arc::new(TurnState { is_servers: AtomicBool::new(false), seat: self.0.clone() }));
        turn.set_servers_turn(true);
        let body = turn.clone();
        (request.map(|inner| RequestBody { inner, turn: body }), turn)
    }
}

/// Whose turn it is with a request: the peer's, which has to send something, or the server's. The request is over when the last
/// clone is dropped.
#[derive(Debug, Clone)]
pub(crate) struct Turn(Arc<TurnState>);

#[derive(Debug)]
struct TurnState {
    is_servers: AtomicBool,
    seat: Arc<Seat>,
}

impl Turn {
    /// The request has its `response`. Until all of that was handed over, it is the server's turn while it produces a part, and
    /// the peer's turn while it does not read one.
    pub(crate) fn end(self, response: Response) -> Response {
        self.set_servers_turn(true);
        answer_parts::by_turns(response, self)
    }

    /// Sets whether it is now the server's turn.
    pub(crate) fn set_servers_turn(&self, is_servers: bool) {
        self.0.set_servers_turn(is_servers);
    }
}

impl TurnState {
    fn set_servers_turn(&self, is_servers: bool) {
        match (self.is_servers.swap(is_servers, Ordering::Relaxed), is_servers) {
            (false, true) => self.seat.begin_serving(),
            (true, false) => self.seat.end_serving(),
            _ => {}
        }
    }
}

impl Drop for TurnState {
    fn drop(&mut self) {
        self.set_servers_turn(false);
        self.seat.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The body of a request.
#[derive(Debug)]
pub(crate) struct RequestBody<B> {
    inner: B,
    turn: Turn,
}

impl<B: HttpBody + Unpin> HttpBody for RequestBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = Pin::new(&mut self.inner).poll_frame(context);
        self.turn.set_servers_turn(frame.is_ready());
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
