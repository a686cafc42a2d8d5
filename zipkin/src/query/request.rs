//! The parameters of a search, as in Zipkin's query API.

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::str::FromStr;

use crate::model::TraceId;

/// The parameters of a request: names with values. If a name occurs twice, the first value counts.
#[derive(Debug, Clone, Default)]
pub struct Parameters(pub Vec<(String, String)>);

/// A parameter cannot be used. The text is the answer to the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadRequest(pub String);

impl BadRequest {
    fn missing(name: &str) -> Self {
        BadRequest(format!("missing parameter {name}: add ?{name}="))
    }
}

/// Defaults and limits for parameters.
#[derive(Debug, Clone, Copy)]
pub struct Defaults {
    /// The current time in milliseconds since 1970: the default of `endTs`.
    pub now_ms: u64,
    /// The most traces in one answer, whatever the client asks for.
    pub max_traces: usize,
}

/// One condition of an annotation query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TagQuery {
    /// An annotation with this value, or a tag with this key.
    Present(String),
    /// A tag with this key and value.
    Equals(String, String),
}

/// What to search for. Every condition must be met by some span; if a service is named, by one of its spans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchRequest {
    /// The service, in lower case.
    pub service: Option<String>,
    /// The service on the other side, in lower case.
    pub remote_service: Option<String>,
    /// The name of a span, in lower case.
    pub span_name: Option<String>,
    /// Conditions on annotations and tags.
    pub tags: Vec<TagQuery>,
    /// Duration of a span in microseconds.
    pub duration_us: Option<RangeInclusive<u64>>,
    /// Time of the trace in microseconds since 1970.
    pub window_us: RangeInclusive<u64>,
    /// The most traces to answer with.
    pub limit: usize,
}

/// The default of `lookback`, in milliseconds: one day.
pub const DEFAULT_LOOKBACK_MS: u64 = 86_400_000;
/// The default of `limit`, in traces.
pub const DEFAULT_LIMIT: usize = 10;
/// The most conditions of an annotation query; the rest of the text is part of the last one, as in Zipkin.
const MAX_CONDITIONS: usize = 100;

impl Parameters {
    /// The value of a parameter; an empty one counts as not given.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.found(name).filter(|value| !value.is_empty())
    }

    fn found(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The value of a parameter that must be given, but may be empty.
    ///
    /// # Errors
    /// If it is not given.
    pub fn present(&self, name: &str) -> Result<&str, BadRequest> {
        self.found(name).ok_or_else(|| BadRequest::missing(name))
    }

    /// The value of a parameter that must be given and not be empty.
    ///
    /// # Errors
    /// If it is not given, or is empty.
    pub fn required(&self, name: &str) -> Result<&str, BadRequest> {
        self.get(name).ok_or_else(|| BadRequest::missing(name))
    }

    /// The value of a parameter that is a signed 64-bit number above zero, if it is given.
    ///
    /// # Errors
    /// If it is given, but is not such a number.
    pub fn number(&self, name: &str) -> Result<Option<u64>, BadRequest> {
        self.get(name).map(|text| above_zero::<i64>(name, text)).transpose()
    }

    /// The time window that ends at `endTs` and is `lookback` long, in microseconds since 1970. `endUs`, which Zipkin does not
    /// have, may end the window earlier, to the microsecond: clients that read page by page can then get past a millisecond
    /// with very many traces.
    ///
    /// # Errors
    /// If one of the three is not a number above zero.
    pub fn window_us(&self, defaults: &Defaults) -> Result<RangeInclusive<u64>, BadRequest> {
        let end_ms = self.number("endTs")?.unwrap_or(defaults.now_ms);
        let lookback_ms = self.number("lookback")?.unwrap_or(DEFAULT_LOOKBACK_MS);
        let start_us = end_ms.saturating_sub(lookback_ms).saturating_mul(1000).max(1);
        let end_us = end_ms.saturating_mul(1000).min(self.number("endUs")?.unwrap_or(u64::MAX));
        Ok(start_us..=end_us.max(start_us))
    }
}

impl SearchRequest {
    /// Reads the parameters of `/api/v2/traces`.
    ///
    /// # Errors
    /// If one of them cannot be used.
    pub fn read(parameters: &Parameters, defaults: &Defaults) -> Result<SearchRequest, BadRequest> {
        let lower = |name: &str| parameters.get(name).map(str::to_lowercase);
        // Zipkin reads it as a 32-bit number, and refuses an empty one.
        let limit = parameters.found("limit").map(|text| above_zero::<i32>("limit", text)).transpose()?;
        let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(DEFAULT_LIMIT);
        Ok(SearchRequest {
            service: lower("serviceName"),
            remote_service: lower("remoteServiceName"),
            span_name: lower("spanName").filter(|name| name != "all"),
            tags: parameters.get("annotationQuery").map(read_tags).unwrap_or_default(),
            duration_us: read_duration(parameters)?,
            window_us: parameters.window_us(defaults)?,
            limit: limit.min(defaults.max_traces),
        })
    }
}

/// Reads a number of the type `N` that Zipkin uses for it; it must be above zero.
fn above_zero<N: FromStr + TryInto<u64>>(name: &str, text: &str) -> Result<u64, BadRequest> {
    let number: N = text.parse().map_err(|_| {
        BadRequest(format!("{name} is not a whole number of {} bits: {text:?}", 8 * size_of::<N>()))
    })?;
    let number = number.try_into().ok().filter(|&number| number > 0);
    number.ok_or_else(|| BadRequest(format!("{name} <= 0: give a number above zero")))
}

fn read_duration(parameters: &Parameters) -> Result<Option<RangeInclusive<u64>>, BadRequest> {
    match (parameters.number("minDuration")?, parameters.number("maxDuration")?) {
        (None, None) => Ok(None),
        (None, Some(_)) => Err(BadRequest("maxDuration is only valid with minDuration".to_owned())),
        (Some(least), Some(most)) if most < least => Err(BadRequest("maxDuration < minDuration".to_owned())),
        (Some(least), most) => Ok(Some(least..=most.unwrap_or(u64::MAX))),
    }
}

/// Reads the conditions of an annotation query, as Zipkin does. A condition without a value asks whether the key is there.
/// If a key occurs twice the later value counts, and a condition with a value counts rather than one without.
fn read_tags(query: &str) -> Vec<TagQuery> {
    let mut tags: Vec<(&str, &str)> = Vec::new();
    for condition in query.splitn(MAX_CONDITIONS, " and ") {
        let (key, value) =
            condition.split_once('=').map_or((condition, None), |(key, value)| (key, Some(value)));
        let key = trimmed(key);
        match (tags.iter_mut().find(|(known, _)| *known == key), value) {
            (None, value) => tags.push((key, trimmed(value.unwrap_or("")))),
            (Some(known), Some(value)) => known.1 = trimmed(value),
            (Some(_), None) => {}
        }
    }
    tags.into_iter()
        .map(|(key, value)| match value {
            "" => TagQuery::Present(key.to_owned()),
            value => TagQuery::Equals(key.to_owned(), value.to_owned()),
        })
        .collect()
}

/// The text without the characters that Java's `trim()` removes at both ends.
fn trimmed(text: &str) -> &str {
    text.trim_matches(|c| c <= ' ')
}

/// Reads the ids of `/api/v2/traceMany`. As in Zipkin, ids with the same low 64 bits count as different, even if their traces
/// are one.
///
/// # Errors
/// If there are fewer than two ids, if one is malformed, or if one occurs twice.
pub fn read_trace_ids(text: &str) -> Result<Vec<TraceId>, BadRequest> {
    let (mut ids, mut seen) = (Vec::new(), HashSet::new());
    for part in text.split(',') {
        let id: TraceId = part.parse().map_err(|e| BadRequest(format!("{part:?}: {e}")))?;
        if !seen.insert(id) {
            return Err(BadRequest(format!("redundant trace id {part}")));
        }
        ids.push(id);
    }
    if ids.len() < 2 {
        return Err(BadRequest("traceIds has one id: use /api/v2/trace/{traceId} for that".to_owned()));
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULTS: Defaults = Defaults { now_ms: 200_000_000, max_traces: 100 };

    fn read(pairs: &[(&str, &str)]) -> Result<SearchRequest, BadRequest> {
        let pairs = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        SearchRequest::read(&Parameters(pairs), &DEFAULTS)
    }

    #[test]
    fn default_search_is_for_ten_traces_of_the_last_day() {
        let request = read(&[("serviceName", ""), ("spanName", "all")]).unwrap();
        assert_eq!((request.limit, request.service, request.span_name), (10, None, None));
        assert_eq!(request.window_us, 113_600_000_000..=200_000_000_000);
    }

    #[test]
    fn required_parameters_are_checked_and_the_first_value_counts() {
        let pairs = [("empty", ""), ("key", "a"), ("key", "b")];
        let given = Parameters(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
        assert_eq!([given.present("key"), given.required("key")], [Ok("a"), Ok("a")]);
        assert_eq!(given.present("empty"), Ok(""));
        for missing in [given.required("empty"), given.required("none"), given.present("none")] {
            assert!(missing.unwrap_err().0.starts_with("missing parameter "));
        }
    }

    #[test]
    fn the_end_in_microseconds_is_clamped_to_the_window() {
        let window = |end_us: &str| {
            read(&[("endTs", "150"), ("lookback", "50"), ("endUs", end_us)]).map(|request| request.window_us)
        };
        assert_eq!(window("120001").unwrap(), 100_000..=120_001);
        assert_eq!(window("150001").unwrap(), 100_000..=150_000);
        assert_eq!(window("99999").unwrap(), 100_000..=100_000, "a window is never empty");
        assert!(window("0").is_err());
    }

    #[test]
    fn names_are_lowercased_and_annotation_queries_split_at_and() {
        let request = read(&[
            ("serviceName", "OSD.0"),
            ("annotationQuery", "error and http.method=GET and journal written and empty="),
        ])
        .unwrap();
        assert_eq!(request.service.as_deref(), Some("osd.0"));
        let equals = |k: &str, v: &str| TagQuery::Equals(k.to_owned(), v.to_owned());
        let present = |v: &str| TagQuery::Present(v.to_owned());
        assert_eq!(
            request.tags,
            [present("error"), equals("http.method", "GET"), present("journal written"), present("empty")]
        );
    }

    #[test]
    fn the_last_value_of_a_repeated_key_is_searched_for() {
        let tags = |query: &str| read(&[("annotationQuery", query)]).unwrap().tags;
        let is_v = [TagQuery::Equals("k".to_owned(), "v".to_owned())];
        for query in ["k=w and k=v", "k and k=v", "k=v and k", " k = v ", "k=v and k  and k "] {
            assert_eq!(tags(query), is_v, "{query}");
        }
        assert_eq!(tags("k=v=w"), [TagQuery::Equals("k".to_owned(), "v=w".to_owned())]);
        assert_eq!(tags(" "), [TagQuery::Present(String::new())], "a blank query searches for an empty text");
        let many: Vec<String> = (0..1000).map(|number| format!("k{number}")).collect();
        assert_eq!(tags(&many.join(" and ")).len(), MAX_CONDITIONS);
    }

    #[test]
    fn durations_and_limits_are_checked() {
        assert_eq!(read(&[("minDuration", "5")]).unwrap().duration_us, Some(5..=u64::MAX));
        assert_eq!(read(&[("limit", "5000")]).unwrap().limit, 100);
        for (name, value) in [
            ("minDuration", "0"),
            ("minDuration", "x"),
            ("maxDuration", "3"),
            ("limit", "0"),
            ("limit", "-1"),
            ("limit", ""),
            ("limit", " 5"),
            ("limit", "2147483648"),
            ("endTs", "0"),
            ("endTs", "9223372036854775808"),
            ("lookback", "0"),
            ("lookback", "-1"),
            ("lookback", "1.5"),
        ] {
            assert!(read(&[(name, value)]).is_err(), "{name}={value}");
        }
        assert!(read(&[("minDuration", "5"), ("maxDuration", "4")]).is_err());
        let both = |most| read(&[("minDuration", "5"), ("maxDuration", most)]).unwrap().duration_us;
        assert_eq!((both("5"), both("6")), (Some(5..=5), Some(5..=6)));
        let most = i64::MAX.to_string();
        let ever = read(&[("endTs", &most), ("lookback", &most), ("limit", "2147483647")]).unwrap();
        assert_eq!((ever.window_us, ever.limit), (1..=u64::MAX, 100));
    }

    #[test]
    fn lists_of_trace_ids_need_two_or_more_distinct_ids() {
        assert_eq!(read_trace_ids("1,2").unwrap().len(), 2);
        for text in ["", "1", "1,1", "1,x", "1,", "1,,2", "1, 2", "1,0000000000000001"] {
            assert!(read_trace_ids(text).is_err(), "{text}");
        }
        assert_eq!(
            read_trace_ids("10000000000000002,2").unwrap().len(),
            2,
            "ids with the same low half may differ"
        );
    }
}
