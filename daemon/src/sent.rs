//! Keeps a value until an answer was sent: until all of the body was handed over to the connection, or the connection ended.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use http_body::{Frame, SizeHint};

/// The same answer, which drops `kept` once it was sent.
pub(crate) fn until_sent(answer: Response, kept: impl Send + Unpin + 'static) -> Response {
    answer.map(|inner| Body::new(Sent { inner, _kept: kept }))
}

/// The body of an answer that keeps a value.
struct Sent<K> {
    inner: Body,
    _kept: K,
}

impl<K: Unpin> HttpBody for Sent<K> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.inner).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
