//! How many requests are under way beside others of their connection. Connections have places, of which there are only so many; but one of
//! HTTP/2 may have a hundred requests, each of which holds its head, and most of a small body. So all but one of each connection
//! share room for as many as may have places: what all hold together is bounded by those, whichever HTTP is spoken.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::notices::Notices;

/// Room for requests of all connections.
#[derive(Clone)]
pub(crate) struct Beside {
    shared: Arc<Semaphore>,
    refusals: Arc<Mutex<Notices>>,
}

impl Beside {
    /// For so many beside the one that each connection may have.
    pub(crate) fn new(most: usize) -> Beside {
        let shared = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
        Beside { shared, refusals: Arc::default() }
    }

    /// Room for those of one more connection.
    pub(crate) fn of_connection(&self) -> Room {
        Room { own: Arc::new(Semaphore::new(1)), beside: self.clone() }
    }

    fn tell_of_refusal(&self) {
        let admitted = self.refusals.lock().unwrap_or_else(PoisonError::into_inner).admit(Instant::now());
        if let Some(held_back) = admitted {
            tracing::warn!(
                held_back,
                "refusing an HTTP/2 request: too many requests are under way on all connections together; have clients send \
                 fewer at a time, or raise the limit (http_max_connections of a collector, live_viewers of a relay)"
            );
        }
    }
}

/// Room for requests of a connection.
pub(crate) struct Room {
    own: Arc<Semaphore>,
    beside: Beside,
}

impl Room {
    /// Takes some for a request, which has it as long as what this returns lasts, if there is any.
    pub(crate) fn take(&self) -> Option<OwnedSemaphorePermit> {
        let room = [&self.own, &self.beside.shared];
        let taken = room.into_iter().find_map(|room| room.clone().try_acquire_owned().ok());
        if taken.is_none() {
            self.beside.tell_of_refusal();
        }
        taken
    }
}

/// What who finds none is told.
pub(crate) fn refusal() -> Response {
    let reason = "too many requests are under way: try again later";
    let retry = [(header::RETRY_AFTER, HeaderValue::from_static("1"))];
    (StatusCode::SERVICE_UNAVAILABLE, retry, reason).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_request_of_each_connection_finds_room_whatever_others_have() {
        let beside = Beside::new(2);
        let (many, another) = (beside.of_connection(), beside.of_connection());
        let mut taken: Vec<_> = std::iter::from_fn(|| many.take()).collect();
        assert_eq!(taken.len(), 1 + 2);
        let own = another.take();
        assert!(own.is_some() && another.take().is_none());
        taken.pop();
        let _shared = another.take().unwrap();
        assert!(many.take().is_none());
        drop(own);
        assert!(another.take().is_some());
    }
}
