//! Zipkin's spans, for whoever answers with them: the collector's queries, the live streams of collector and relay.
//!
//! | what | module |
//! |---|---|
//! | a span as the v2 API has it | [`model`] |
//! | v1 spans, as Scribe brings them, turned into such | [`convert`] |
//! | spans as v2 JSON | [`write`](mod@write) |
//! | what a search asks for, and whether spans are it | [`query`] |

pub mod convert;
pub mod model;
pub mod query;
pub mod write;
