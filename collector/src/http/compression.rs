//! Compresses answers for clients that accept gzip, as Zipkin does: lists of spans are repetitive, and the page is large.

use axum::http::{HeaderMap, HeaderValue, header};
use tower_http::CompressionLevel;
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::{And, NotForContentType, Predicate, SizeAbove};

/// An answer that fits into one packet gains nothing from compression.
const SMALL_BYTES: u64 = 1024;
/// Accepts an uncompressed answer where the client accepts nothing else that there is.
const PLAIN_AT_LAST: HeaderValue = HeaderValue::from_static("identity;q=0.001");

/// Compresses answers for which the client asks for it, except small ones and those that are compressed already.
pub(super) fn layer() -> CompressionLayer<And<SizeAbove, NotForContentType>> {
    let worth_it = SizeAbove::new(SMALL_BYTES).and(NotForContentType::IMAGES);
    CompressionLayer::new().quality(CompressionLevel::Fastest).compress_when(worth_it)
}

/// Makes a client that accepts neither an uncompressed answer nor any coding that there is here get it uncompressed, as from
/// Zipkin: the client can still throw it away. The layer would answer 406, with the whole body. If a coding has two values, the
/// layer takes the first, or the higher.
pub(super) fn take_plain_at_last(headers: &mut HeaderMap) {
    let accepted: Vec<_> = headers.get_all(header::ACCEPT_ENCODING).iter().cloned().collect();
    if accepted.is_empty() {
        return;
    }
    headers.insert(header::ACCEPT_ENCODING, PLAIN_AT_LAST);
    for value in accepted {
        headers.append(header::ACCEPT_ENCODING, value);
    }
}
