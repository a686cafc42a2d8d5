//! Whether a trace meets the conditions of a search.

use super::request::{SearchRequest, TagQuery};
use crate::model::Span;

/// Whether every condition is met by some span; different spans may meet different conditions. If the request names a service,
/// only its spans count.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Annotation, Endpoint, SpanId, TraceId};

    fn span(service: &str, name: &str, duration: i64) -> Span {
        Span {
            name: Some(name.to_owned()),
            duration: Some(duration),
            local_endpoint: Some(Endpoint::service(service)),
            remote_endpoint: Some(Endpoint::service("disk")),
            annotations: vec![Annotation::new(7, "journalled")],
            tags: [("pool".to_owned(), "ssd".to_owned())].into(),
            ..Span::new(TraceId::new(0, 1).unwrap(), SpanId::new(1).unwrap())
        }
    }

    fn asked() -> SearchRequest {
        SearchRequest {
            service: None,
            remote_service: None,
            span_name: None,
            tags: Vec::new(),
            duration_us: None,
            window_us: 1..=2,
            limit: 1,
        }
    }

    fn tagged(tag: TagQuery) -> SearchRequest {
        SearchRequest { tags: vec![tag], ..asked() }
    }

    fn named(name: &str) -> Option<String> {
        Some(name.to_owned())
    }

    #[test]
    fn a_trace_must_meet_every_condition() {
        let trace = [span("osd", "write", 50)];
        assert!(matches(&asked(), &trace) && !matches(&asked(), &[]));
        let cases = [
            ("osd", "other", |service| SearchRequest { service, ..asked() }),
            ("disk", "other", |remote_service| SearchRequest { remote_service, ..asked() }),
            ("write", "other", |span_name| SearchRequest { span_name, ..asked() }),
        ] as [(&str, &str, fn(Option<String>) -> SearchRequest); 3];
        for (met, other, request) in cases {
            assert!(
                matches(&request(named(met)), &trace) && !matches(&request(named(other)), &trace),
                "{met}"
            );
        }
        for (range, met) in [(50..=50, true), (0..=49, false), (51..=99, false)] {
            assert_eq!(matches(&SearchRequest { duration_us: Some(range), ..asked() }, &trace), met);
        }
    }

    #[test]
    fn a_text_matches_annotations_and_tag_keys_a_pair_matches_tags() {
        let trace = [span("osd", "write", 50)];
        for (text, met) in [("journalled", true), ("pool", true), ("ssd", false)] {
            assert_eq!(matches(&tagged(TagQuery::Present(text.to_owned())), &trace), met, "{text}");
        }
        for (key, value, met) in [("pool", "ssd", true), ("pool", "hdd", false), ("journalled", "", false)] {
            assert_eq!(matches(&tagged(TagQuery::Equals(key.into(), value.into())), &trace), met, "{key}");
        }
    }

    #[test]
    fn conditions_are_met_by_any_spans_of_the_searched_service() {
        let trace = [span("osd", "write", 50), span("osd", "read", 9), span("gateway", "put", 99)];
        let by_osd = |span_name: &str, least: u64| SearchRequest {
            service: named("osd"),
            span_name: named(span_name),
            duration_us: Some(least..=u64::MAX),
            ..asked()
        };
        assert!(matches(&by_osd("read", 50), &trace));
        assert!(!matches(&by_osd("put", 50), &trace) && !matches(&by_osd("read", 99), &trace));
    }
}
