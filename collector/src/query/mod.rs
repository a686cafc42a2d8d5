//! Finds and reads traces, and answers questions over many of them: links between services, times between annotations.

mod groups;
mod intervals;
mod links;
mod remembered;
mod search;
mod times;

pub use blkin_zipkin::query::{
    BadRequest, DEFAULT_LIMIT, Defaults, Parameters, SearchRequest, TagQuery, matches, read_trace_ids,
};
pub use intervals::{IntervalRequest, Intervals, RememberedTimes, ServiceIntervals, intervals};
pub use links::{RememberedLinks, dependencies};
pub use remembered::Weighed;
pub use search::{Answer, Cut, Reading, search, trace, traces};
