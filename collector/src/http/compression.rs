//! Answers compressed for who takes gzip, as Zipkin's are: lists of spans repeat themselves, and the page is large.

use axum::http::{HeaderMap, HeaderValue, header};
use tower_http::CompressionLevel;
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::{And, NotForContentType, Predicate, SizeAbove};

/// What fits into one packet as it is gains nothing.
const SMALL_BYTES: u64 = 1024;
/// An answer as it is, where nothing else is taken.
const PLAIN_AT_LAST: HeaderValue = HeaderValue::from_static("identity;q=0.001");

/// Compresses what is asked for, but what is small or is compressed already.
pub(super) fn layer() -> CompressionLayer<And<SizeAbove, NotForContentType>> {
    let worth_it = SizeAbove::new(SMALL_BYTES).and(NotForContentType::IMAGES);
    CompressionLayer::new().quality(CompressionLevel::Fastest).compress_when(worth_it)
}

/// Who takes no answer as it is, and none in a coding that there is here, gets it as it is, as from Zipkin: it can still be
/// thrown away. The layer would answer 406, with all of it; of two values for one coding it takes the first, or the higher.
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
