//! Arbitrary parameters of a search, one `name=value` a line. Accepted parameters must make a search that can be answered.
#![no_main]

use blkin_collector::query::{Defaults, Parameters, SearchRequest, matches, read_trace_ids};
use libfuzzer_sys::fuzz_target;

const DEFAULTS: Defaults = Defaults { now_ms: 1_700_000_000_000, max_traces: 100 };
/// The defaults for a stream of spans, which has no time and no traces.
const OF_STREAM: Defaults = Defaults { now_ms: 1, max_traces: 1 };

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    assert!(read_trace_ids(&text).map_or(2, |ids| ids.len()) >= 2);
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    let parameters = Parameters(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect());
    for defaults in [DEFAULTS, OF_STREAM] {
        let Ok(request) = SearchRequest::read(&parameters, &defaults) else { continue };
        assert!((1..=defaults.max_traces).contains(&request.limit));
        assert!(request.window_us.start() <= request.window_us.end());
        assert!(request.duration_us.as_ref().is_none_or(|range| !range.is_empty()));
        assert!(!matches(&request, &[]));
    }
});
