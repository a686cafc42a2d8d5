//! One span, several endpoints: a storage daemon annotates the same span as `osd.0` and as `pg 5.4`. Zipkin's model
//! has one service per span, so the API returns such a span once for each endpoint; a drawing shows it once.

use std::collections::{HashMap, HashSet};

use crate::span::{self, Span};

/// Joins the views of one span by its endpoints, in the order of their begin. The two sides of a call stay separate: they are two
/// places where time was spent.
pub fn joined(spans: &[Span]) -> Vec<Span> {
    let mut order: Vec<&Span> = spans.iter().collect();
    order.sort_by_key(|span| span.extent().map_or(u64::MAX, |extent| extent.0));
    let mut places: HashMap<(&str, Option<&str>), usize> = HashMap::new();
    let mut views: Vec<Vec<&Span>> = Vec::with_capacity(spans.len());
    for span in order {
        let is_local = span.kind.is_none() && !span.shared;
        match places.get(&(span.id.as_str(), span.parent_id.as_deref())) {
            Some(place) if is_local => views[*place].push(span),
            _ => {
                if is_local {
                    places.insert((&span.id, span.parent_id.as_deref()), views.len());
                }
                views.push(vec![span]);
            }
        }
    }
    views.iter().filter_map(|views| one_of(views)).collect()
}

/// How many spans these views belong to: both sides of a call are one span, and so are all endpoints of a span.
pub fn count(views: &[Span]) -> usize {
    views.iter().map(|view| view.id.as_str()).collect::<HashSet<_>>().len()
}

/// One span from all its views; where they differ the first one wins.
fn one_of(views: &[&Span]) -> Option<Span> {
    let (first, others) = views.split_first()?;
    let mut one = (*first).clone();
    if others.is_empty() {
        return Some(one);
    }
    if let Some((begin, end)) = span::extent(views.iter().copied()) {
        one.timestamp = Some(begin);
        one.duration = Some(end - begin);
    }
    let mut known = HashSet::from([""]);
    let services: Vec<&str> =
        views.iter().map(|view| view.service()).filter(|service| known.insert(service)).collect();
    if !services.is_empty() {
        one.local_endpoint.get_or_insert_default().service_name = Some(services.join(", "));
    }
    for other in others {
        one.annotations.extend(other.annotations.iter().cloned());
        for (key, value) in &other.tags {
            one.tags.entry(key.clone()).or_insert_with(|| value.clone());
        }
    }
    Some(one)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::span::{Annotation, Endpoint};

    fn view(id: &str, service: &str, start: u64, duration: u64) -> Span {
        Span {
            id: id.into(),
            timestamp: Some(start),
            duration: Some(duration),
            local_endpoint: Some(Endpoint { service_name: Some(service.into()), ..Endpoint::default() }),
            annotations: vec![Annotation { timestamp: start, nanos: 0, value: service.into() }],
            tags: [(service.to_owned(), "1".to_owned())].into(),
            ..Span::default()
        }
    }

    #[test]
    fn the_views_of_a_span_by_two_endpoints_are_joined() {
        let spans = [view("a", "pg 1.1", 12, 20), view("a", "osd.0", 10, 5), view("b", "osd.0", 11, 1)];
        let joined = joined(&spans);
        assert_eq!(joined.len(), 2);
        assert_eq!(joined[0].service(), "osd.0, pg 1.1");
        assert_eq!(joined[0].extent(), Some((10, 32)));
        assert_eq!((joined[0].annotations.len(), joined[0].tags.len()), (2, 2));
    }

    #[test]
    fn the_two_sides_of_a_call_are_not_joined() {
        let mut sides = [view("a", "bench", 10, 9), view("a", "vlmc", 11, 5)];
        sides[0].kind = Some("CLIENT".into());
        sides[1].kind = Some("SERVER".into());
        sides[1].shared = true;
        assert_eq!(joined(&sides).len(), 2);
    }

    #[test]
    fn many_views_of_one_span_take_linear_time() {
        // By the square of it, this would take most of a minute.
        let views: Vec<Span> =
            (0..100_000).map(|number| view("a", &format!("osd.{number}"), 10, 5)).collect();
        let joined = joined(&views);
        assert_eq!((joined.len(), joined[0].annotations.len()), (1, 100_000));
        assert!(joined[0].service().ends_with(", osd.99998, osd.99999"));
    }
}
