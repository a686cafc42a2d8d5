//! Finding traces, and what they tell together.

mod matching;
mod request;
mod search;

pub use matching::matches;
pub use request::{
    BadRequest, DEFAULT_LIMIT, DEFAULT_LOOKBACK_MS, Defaults, Parameters, SearchRequest, TagQuery,
    read_trace_ids,
};
pub use search::{Reading, dependencies, search, trace, traces};
