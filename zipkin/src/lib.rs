//! Zipkin's spans, for the collector's queries and the live streams of collector and relay.
//!
//! | what | module |
//! |---|---|
//! | a span in Zipkin's v2 model | [`model`] |
//! | conversion of v1 spans, as Scribe brings them, to v2 | [`convert`] |
//! | spans as v2 JSON | [`write`](mod@write) |
//! | the conditions of a search, and whether spans meet them | [`query`] |

pub mod convert;
pub mod model;
pub mod query;
pub mod write;
