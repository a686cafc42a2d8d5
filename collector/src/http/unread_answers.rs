//! Bounds the memory of large answers that clients have not read yet. What queries hold while they run is bounded elsewhere; but
//! a client that asks again and again and reads nothing would make the collector hold every answer until it times out.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody, to_bytes};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use blkin_daemon::held_bytes::{Held, HeldBytes};
use bytes::Bytes;
use http_body::{Frame, SizeHint};

use super::Problem;
use crate::settings::Settings;

/// Smaller answers are not counted: all connections together hold few bytes of them, though an HTTP/2 connection may have a
/// hundred.
const SMALL_BYTES: u64 = 4 << 10;
/// How much a connection is given at a time. An HTTP/1 connection copies it, and asks for more once it has sent some.
const PART_BYTES: usize = 64 << 10;

/// Counts the bytes that answers hold. Clones share the count.
#[derive(Clone)]
pub(super) struct UnreadAnswers {
    settings: Settings,
    held: HeldBytes,
}

impl UnreadAnswers {
    pub(super) fn new(settings: Settings) -> UnreadAnswers {
        UnreadAnswers { settings, held: HeldBytes::default() }
    }

    fn hold(&self, bytes: u64) -> Option<Held> {
        self.held.hold(bytes, self.settings.now().most_unread_bytes())
    }
}

/// An answer that is counted as long as any part of it is held: an HTTP/2 connection keeps what it is given until its peer has
/// taken it.
struct Text {
    text: Bytes,
    _held: Held,
}

impl AsRef<[u8]> for Text {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

/// The rest of an answer, which is handed out in parts.
struct Parts {
    rest: Bytes,
}

impl HttpBody for Parts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let length = self.rest.len().min(PART_BYTES);
        let part = self.rest.split_to(length);
        Poll::Ready((length > 0).then_some(Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}

/// Counts an answer whose body is complete, or refuses it.
pub(super) async fn count(State(unread): State<UnreadAnswers>, answer: Response) -> Response {
    let Some(bytes) = answer.body().size_hint().exact().filter(|&bytes| bytes > SMALL_BYTES) else {
        return answer;
    };
    let Some(held) = unread.hold(bytes) else {
        return Problem::unavailable(
            "all memory for large answers is held by answers that their clients have not read yet: ask again later",
        )
        .into_response();
    };
    let (head, body) = answer.into_parts();
    match to_bytes(body, usize::MAX).await {
        Ok(text) => {
            let rest = Bytes::from_owner(Text { text, _held: held });
            Response::from_parts(head, Body::new(Parts { rest }))
        }
        Err(error) => Problem::unavailable(format!("failed to write an answer: {error}")).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use axum::http::StatusCode;

    use super::*;
    use crate::config::Config;

    const MIB: usize = 1 << 20;

    /// The status of an answer of so many bytes, and its body.
    async fn answered(unread: &UnreadAnswers, bytes: usize) -> (StatusCode, Body) {
        let answer = count(State(unread.clone()), Body::from("x".repeat(bytes)).into_response()).await;
        (answer.status(), answer.into_body())
    }

    /// The next part that a connection would take.
    async fn part(body: &mut Body) -> Option<Bytes> {
        let frame = poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await?;
        Some(frame.unwrap().into_data().unwrap())
    }

    async fn taken(body: &mut Body) -> Option<usize> {
        part(body).await.map(|part| part.len())
    }

    #[tokio::test]
    async fn an_answer_counts_while_any_part_of_it_is_held() {
        let unread = UnreadAnswers::new(Settings::new(Config { query_max_mib: 1, ..Config::default() }));
        let (_, mut body) = answered(&unread, MIB).await;
        let part = part(&mut body).await;
        drop(body);
        let most = unread.settings.now().most_unread_bytes() as usize;
        assert_eq!(answered(&unread, most).await.0, StatusCode::SERVICE_UNAVAILABLE);
        drop(part);
        assert_eq!(answered(&unread, most).await.0, StatusCode::OK);
    }

    #[tokio::test]
    async fn unread_large_answers_are_limited_in_total() {
        let config = Config { query_concurrency: 1, query_max_mib: 1, ..Config::default() };
        assert_eq!(config.most_unread_bytes(), 2 * MIB as u64);
        let unread = UnreadAnswers::new(Settings::new(config));
        let (_, mut first) = answered(&unread, MIB).await;
        assert_eq!(first.size_hint().exact(), Some(MIB as u64));
        assert_eq!(taken(&mut first).await, Some(PART_BYTES));
        let (status, second) = answered(&unread, MIB).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(answered(&unread, MIB).await.0, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(answered(&unread, SMALL_BYTES as usize).await.0, StatusCode::OK, "a small answer");
        let mut rest = 0;
        while let Some(length) = taken(&mut first).await {
            rest += length;
        }
        assert_eq!(rest, MIB - PART_BYTES);
        drop(first);
        let (status, third) = answered(&unread, MIB).await;
        assert_eq!(status, StatusCode::OK);
        drop((second, third));
        assert_eq!(
            answered(&unread, 3 * MIB).await.0,
            StatusCode::OK,
            "a huge answer, when it is the only one"
        );
    }
}
