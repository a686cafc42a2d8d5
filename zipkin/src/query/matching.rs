//! Whether a trace is what a search asks for.

use super::request::{SearchRequest, TagQuery};
use crate::model::Span;

/// Whether every condition is met by some span of the service, if one is named; different spans may meet different
/// conditions.
pub fn matches(request: &SearchRequest, spans: &[Span]) -> bool {
    let of_service = |span: &&Span| match &request.service {
        Some(service) => span.local_service() == Some(service.as_str()),
        None => true,
    };
    let met = |condition: &dyn Fn(&Span) -> bool| spans.iter().filter(of_service).any(condition);
    met(&|_| true)
        && request.remote_service.as_ref().is_none_or(|name| met(&|s| s.remote_service() == Some(name)))
        && request.span_name.as_ref().is_none_or(|name| met(&|s| s.name.as_ref() == Some(name)))
        && request.tags.iter().all(|tag| met(&|s| has_tag(s, tag)))
        && request.duration_us.as_ref().is_none_or(|range| {
            met(&|s| s.duration.is_some_and(|d| u64::try_from(d).is_ok_and(|d| range.contains(&d))))
        })
}

fn has_tag(span: &Span, query: &TagQuery) -> bool {
    match query {
        TagQuery::Equals(key, value) => span.tags.get(key) == Some(value),
        TagQuery::Present(text) => {
            span.tags.contains_key(text) || span.annotations.iter().any(|a| a.value == *text)
        }
    }
}
