//! The parameters of a search, as Zipkin's query API takes them.

use std::ops::RangeInclusive;

use crate::model::TraceId;

/// The parameters of a request: names with values, each name at most once counts (the first).
#[derive(Debug, Clone, Default)]
pub struct Parameters(pub Vec<(String, String)>);

/// A parameter that cannot be used; the text is the answer to the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadRequest(pub String);

impl BadRequest {
    fn missing(name: &str) -> Self {
        BadRequest(format!("missing parameter {name}: add ?{name}="))
    }
}

/// What is taken for parameters that are not given.
#[derive(Debug, Clone, Copy)]
pub struct Defaults {
    /// Now, in milliseconds since 1970.
    pub now_ms: u64,
    /// Most traces of one answer, whatever the client asks for.
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

/// What to search for. Every condition has to be met by some span of the service, if one is named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchRequest {
    /// The service, in lower case.
    pub service: Option<String>,
    /// The service on the other side, in lower case.
    pub remote_service: Option<String>,
    /// The name of a span, in lower case.
    pub span_name: Option<String>,
    /// Annotations and tags.
    pub tags: Vec<TagQuery>,
    /// Duration in microseconds.
    pub duration_us: Option<RangeInclusive<u64>>,
    /// Time of the trace in microseconds.
    pub window_us: RangeInclusive<u64>,
    /// Most traces to answer with.
    pub limit: usize,
}

/// Time that is looked back unless a request says otherwise, in milliseconds.
pub const DEFAULT_LOOKBACK_MS: u64 = 86_400_000;
/// Traces that are answered unless a request says otherwise.
pub const DEFAULT_LIMIT: usize = 10;

impl Parameters {
    /// A parameter; an empty one counts as not given.
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.trim()).filter(|value| !value.is_empty())
    }

    /// A parameter that must be there, but may be empty.
    ///
    /// # Errors
    /// When it is not there.
    pub fn present(&self, name: &str) -> Result<&str, BadRequest> {
        let found = self.0.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.trim()).ok_or_else(|| BadRequest::missing(name))
    }

    /// A parameter that must be there.
    ///
    /// # Errors
    /// When it is not, or is empty.
    pub fn required(&self, name: &str) -> Result<&str, BadRequest> {
        self.get(name).ok_or_else(|| BadRequest::missing(name))
    }

    /// A parameter that is a whole number, not negative.
    ///
    /// # Errors
    /// When it is there, and is not.
    pub fn number(&self, name: &str) -> Result<Option<u64>, BadRequest> {
        self.get(name)
            .map(|text| {
                text.parse().map_err(|_| BadRequest(format!("{name} is not a whole number: {text:?}")))
            })
            .transpose()
    }

    /// The window of time that ends at `endTs` and is `lookback` long, in microseconds.
    ///
    /// # Errors
    /// When one of them is no number, or zero.
    pub fn window_us(&self, defaults: &Defaults) -> Result<RangeInclusive<u64>, BadRequest> {
        let end_ms = self.number("endTs")?.unwrap_or(defaults.now_ms);
        let lookback_ms = self.number("lookback")?.unwrap_or(DEFAULT_LOOKBACK_MS.min(end_ms.max(1)));
        for (name, value) in [("endTs", end_ms), ("lookback", lookback_ms)] {
            if value == 0 {
                return Err(BadRequest(format!("{name} <= 0: give milliseconds above zero")));
            }
        }
        let start_us = end_ms.saturating_sub(lookback_ms).saturating_mul(1000).max(1);
        Ok(start_us..=end_ms.saturating_mul(1000))
    }
}

impl SearchRequest {
    /// Reads the parameters of `/api/v2/traces`.
    ///
    /// # Errors
    /// When one cannot be used.
    pub fn read(parameters: &Parameters, defaults: &Defaults) -> Result<SearchRequest, BadRequest> {
        let lower = |name: &str| parameters.get(name).map(str::to_lowercase);
        let limit = parameters.number("limit")?.map_or(DEFAULT_LIMIT, |limit| limit as usize);
        if limit == 0 {
            return Err(BadRequest("limit <= 0: ask for at least one trace".to_owned()));
        }
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

fn read_duration(parameters: &Parameters) -> Result<Option<RangeInclusive<u64>>, BadRequest> {
    match (parameters.number("minDuration")?, parameters.number("maxDuration")?) {
        (None, None) => Ok(None),
        (None, Some(_)) => Err(BadRequest("maxDuration is only valid with minDuration".to_owned())),
        (Some(0), _) => Err(BadRequest("minDuration <= 0".to_owned())),
        (Some(least), Some(most)) if most < least => Err(BadRequest("maxDuration < minDuration".to_owned())),
        (Some(least), most) => Ok(Some(least..=most.unwrap_or(u64::MAX))),
    }
}

fn read_tags(query: &str) -> Vec<TagQuery> {
    let conditions = query.split(" and ").map(str::trim).filter(|condition| !condition.is_empty());
    conditions
        .map(|condition| match condition.split_once('=') {
            Some((key, value)) => TagQuery::Equals(key.trim().to_owned(), value.trim().to_owned()),
            None => TagQuery::Present(condition.to_owned()),
        })
        .collect()
}

/// Reads the ids of `/api/v2/traceMany`.
///
/// # Errors
/// When there are less than two, one is malformed, or one comes twice.
pub fn read_trace_ids(text: &str, strict: bool) -> Result<Vec<TraceId>, BadRequest> {
    let mut ids: Vec<TraceId> = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let id: TraceId = part.parse().map_err(|e| BadRequest(format!("{part:?}: {e}")))?;
        if ids.iter().any(|&other| other == id || (!strict && other.low() == id.low())) {
            return Err(BadRequest(format!("redundant trace id {part}")));
        }
        ids.push(id);
    }
    match ids.len() {
        0 => Err(BadRequest("traceIds is empty: give two or more".to_owned())),
        1 => Err(BadRequest("traceIds has one id: use /api/v2/trace/{traceId} for that".to_owned())),
        _ => Ok(ids),
    }
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
    fn nothing_given_means_ten_traces_of_the_last_day() {
        let request = read(&[("serviceName", ""), ("spanName", "all")]).unwrap();
        assert_eq!((request.limit, request.service, request.span_name), (10, None, None));
        assert_eq!(request.window_us, 113_600_000_000..=200_000_000_000);
    }

    #[test]
    fn names_are_lower_cased_and_conditions_split_at_and() {
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
            [present("error"), equals("http.method", "GET"), present("journal written"), equals("empty", "")]
        );
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
            ("endTs", "0"),
            ("lookback", "0"),
            ("lookback", "1.5"),
        ] {
            assert!(read(&[(name, value)]).is_err(), "{name}={value}");
        }
        assert!(read(&[("minDuration", "5"), ("maxDuration", "4")]).is_err());
    }

    #[test]
    fn many_ids_are_two_or_more_and_different() {
        assert_eq!(read_trace_ids("1,2", true).unwrap().len(), 2);
        for text in ["", "1", "1,1", "1,x", "1,", "1,0000000000000001"] {
            assert!(read_trace_ids(text, true).is_err(), "{text}");
        }
        let same_low = "10000000000000002,2";
        assert!(read_trace_ids(same_low, true).is_ok() && read_trace_ids(same_low, false).is_err());
    }
}
