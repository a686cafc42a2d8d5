//! The memory of large answers until their readers have taken them. What queries hold while they run is bounded; who asks
//! again and again, and reads none of it, would have the collector hold every answer until its time is over.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::body::{Body, HttpBody, to_bytes};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;

use super::Problem;
use crate::settings::Settings;

/// What is smaller is not counted: all connections together hold little of such.
const SMALL_BYTES: u64 = 64 << 10;

/// Counts what answers hold. Clones share it.
#[derive(Clone)]
pub(super) struct Untaken {
    settings: Settings,
    held: Arc<AtomicU64>,
}

impl Untaken {
    pub(super) fn new(settings: Settings) -> Untaken {
        Untaken { settings, held: Arc::default() }
    }

    /// Holds so many bytes, if all are not more than is allowed, or if nothing else is held.
    fn hold(&self, bytes: u64) -> Option<Held> {
        let most = self.settings.now().most_untaken_bytes();
        let with_these = |held: u64| (held == 0 || held + bytes <= most).then_some(held + bytes);
        self.held.fetch_update(Ordering::AcqRel, Ordering::Acquire, with_these).ok()?;
        Some(Held { bytes, all: self.held.clone() })
    }
}

/// Some bytes that are held until this is dropped.
struct Held {
    bytes: u64,
    all: Arc<AtomicU64>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// The text of an answer, counted for as long as any part of it is there.
struct Counted {
    text: Bytes,
    _held: Held,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

/// Counts an answer that is written already, or refuses it.
pub(super) async fn count(State(untaken): State<Untaken>, answer: Response) -> Response {
    let Some(bytes) = answer.body().size_hint().exact().filter(|&bytes| bytes > SMALL_BYTES) else {
        return answer;
    };
    let Some(held) = untaken.hold(bytes) else {
        return Problem::unavailable(
            "large answers whose readers have not taken them hold all memory for such: ask again later",
        )
        .into_response();
    };
    let (head, body) = answer.into_parts();
    match to_bytes(body, usize::MAX).await {
        Ok(text) => Response::from_parts(head, Body::from(Bytes::from_owner(Counted { text, _held: held }))),
        Err(error) => Problem::unavailable(format!("failed to write an answer: {error}")).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;

    use super::*;
    use crate::config::Config;

    const MIB: usize = 1 << 20;

    /// The status of an answer of so many bytes, and its text.
    async fn answered(untaken: &Untaken, bytes: usize) -> (StatusCode, Bytes) {
        let answer = count(State(untaken.clone()), Body::from("x".repeat(bytes)).into_response()).await;
        (answer.status(), to_bytes(answer.into_body(), usize::MAX).await.unwrap())
    }

    #[tokio::test]
    async fn large_answers_that_nobody_takes_hold_so_much_and_no_more() {
        let config = Config { query_concurrency: 1, query_max_mib: 1, ..Config::default() };
        assert_eq!(config.most_untaken_bytes(), 2 * MIB as u64);
        let untaken = Untaken::new(Settings::new(config));
        let (status, first) = answered(&untaken, MIB).await;
        assert_eq!((status, first.len()), (StatusCode::OK, MIB));
        let begin_of_first = first.slice(..1);
        drop(first);
        let (status, second) = answered(&untaken, MIB).await;
        assert_eq!(status, StatusCode::OK);
        let refused = answered(&untaken, MIB).await;
        assert_eq!(refused.0, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(answered(&untaken, SMALL_BYTES as usize).await.0, StatusCode::OK, "of a small one");
        drop(begin_of_first);
        let (status, third) = answered(&untaken, MIB).await;
        assert_eq!(status, StatusCode::OK);
        drop((second, third));
        assert_eq!(answered(&untaken, 3 * MIB).await.0, StatusCode::OK, "of a huge one that is alone");
    }
}
