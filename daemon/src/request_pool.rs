//! Limits the requests under way on all HTTP/2 connections together. The number of connections is limited, but one HTTP/2
//! connection may have a hundred requests under way, each of which holds its head and most of a small body. So one request of
//! each connection is always allowed, and all further requests share a pool as large as the limit on connections (or as the
//! limit of one connection, if that is more). So that limit bounds the memory for requests, for HTTP/2 as for HTTP/1.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::notices::Notices;

/// The pool for requests of all connections.
#[derive(Clone)]
pub(crate) struct RequestPool {
    shared: Arc<Semaphore>,
    refusals: Arc<Mutex<Notices>>,
}

impl RequestPool {
    /// A pool of `most` requests, beside the one request that each connection may always have.
    pub(crate) fn new(most: usize) -> RequestPool {
        let shared = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
        RequestPool { shared, refusals: Arc::default() }
    }

    /// The room of one more connection.
    pub(crate) fn of_connection(&self) -> Room {
        Room { own: Arc::new(Semaphore::new(1)), pool: self.clone() }
    }

    fn log_refusal(&self) {
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

/// The room for requests of one connection: one request of its own, and the shared pool.
pub(crate) struct Room {
    own: Arc<Semaphore>,
    pool: RequestPool,
}

impl Room {
    /// Takes room for one request, if there is any, and keeps it as long as the returned permit lives.
    pub(crate) fn take(&self) -> Option<OwnedSemaphorePermit> {
        let room = [&self.own, &self.pool.shared];
        let taken = room.into_iter().find_map(|room| room.clone().try_acquire_owned().ok());
        if taken.is_none() {
            self.pool.log_refusal();
        }
        taken
    }
}

/// The answer to a request for which there is no room.
pub(crate) fn refusal() -> Response {
    let reason = "too many requests are under way: try again later";
    let retry = [(header::RETRY_AFTER, HeaderValue::from_static("1"))];
    (StatusCode::SERVICE_UNAVAILABLE, retry, reason).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_connection_can_always_have_one_request() {
        let pool = RequestPool::new(2);
        let (many, another) = (pool.of_connection(), pool.of_connection());
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
