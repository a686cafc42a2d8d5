//! Answers compressed for who takes gzip, as Zipkin's are: lists of spans repeat themselves, and the page is large.

use tower_http::CompressionLevel;
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::{And, NotForContentType, Predicate, SizeAbove};

/// What fits into one packet as it is gains nothing.
const SMALL_BYTES: u64 = 1024;

/// Compresses what is asked for, but what is small or is compressed already.
pub(super) fn layer() -> CompressionLayer<And<SizeAbove, NotForContentType>> {
    let worth_it = SizeAbove::new(SMALL_BYTES).and(NotForContentType::IMAGES);
    CompressionLayer::new().quality(CompressionLevel::Fastest).compress_when(worth_it)
}
