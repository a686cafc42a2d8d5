//! Finding traces, and what they tell together.

mod search;

pub use blkin_zipkin::query::{
    BadRequest, DEFAULT_LIMIT, DEFAULT_LOOKBACK_MS, Defaults, Parameters, SearchRequest, TagQuery, matches,
    read_trace_ids,
};
pub use search::{Reading, dependencies, search, trace, traces};
