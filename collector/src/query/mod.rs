//! Finding traces, and what they tell together.

mod intervals;
mod links;
mod remembered;
mod search;

pub use blkin_zipkin::query::{
    BadRequest, DEFAULT_LIMIT, Defaults, Parameters, SearchRequest, TagQuery, matches, read_trace_ids,
};
pub use intervals::{IntervalRequest, Intervals, ServiceIntervals, intervals};
pub use links::dependencies;
pub use remembered::RememberedLinks;
pub use search::{Answer, Cut, Reading, search, trace, traces};
