//! The conditions of a search, by Zipkin's rules.

mod matching;
mod request;

pub use matching::matches;
pub use request::{
    BadRequest, DEFAULT_LIMIT, DEFAULT_LOOKBACK_MS, Defaults, Parameters, SearchRequest, TagQuery,
    read_trace_ids,
};
