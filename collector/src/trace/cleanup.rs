//! Merges v2 spans that were sent in pieces, for the tree and the links (Zipkin's `Trace.merge`).

use std::cmp::Ordering;
use std::iter::Peekable;
use std::vec::IntoIter;

use crate::model::{Endpoint, Kind, Span, TraceId};

/// Merges pieces of the same span, gives all spans one trace id, and marks servers that share their client's id.
/// The result is sorted by id, a client before its servers.
pub fn merge_for_reading(mut spans: Vec<Span>) -> Vec<Span> {
    if spans.len() <= 1 {
        return spans;
    }
    spans.sort_by(cleanup_order);
    let trace_id = longest_id(&spans);
    let mut merged: Vec<Span> = Vec::with_capacity(spans.len());
    let mut rest = spans.into_iter().peekable();
    while let Some(mut span) = rest.next() {
        let first = FirstPiece { kind: span.kind, has_parent: span.parent_id.is_some() };
        if rest.peek().is_some_and(|next| next.id == span.id) {
            absorb_pieces(&mut span, &mut rest);
        }
        span.trace_id = trace_id.unwrap_or(span.trace_id);
        if let Some(last) = merged.last().filter(|last| last.id == span.id) {
            first.adopt_from(last, &mut span);
        }
        merged.push(span.normalized());
    }
    merged
}

fn longest_id(spans: &[Span]) -> Option<TraceId> {
    spans.iter().map(|span| span.trace_id).find(|id| id.is_long())
}

/// Merges the following pieces of the same span into `span`.
fn absorb_pieces(span: &mut Span, rest: &mut Peekable<IntoIter<Span>>) {
    let mut endpoint = span.local_endpoint.clone().unwrap_or_default();
    while let Some(next) = rest.next_if(|next| same_span(span, &endpoint, next)) {
        endpoint.fill_from(&next.local_endpoint.clone().unwrap_or_default());
        absorb(span, next);
    }
}

fn same_span(span: &Span, endpoint: &Endpoint, next: &Span) -> bool {
    next.id == span.id
        && next.shared == span.shared
        && next.local_endpoint.as_ref().is_none_or(|other| endpoint.agrees_with(other))
}

/// Merges a piece. The first piece that has a member wins; annotations add up; for a tag, the later value counts.
fn absorb(span: &mut Span, next: Span) {
    span.parent_id = span.parent_id.or(next.parent_id);
    span.kind = span.kind.or(next.kind);
    span.name = span.name.take().or(next.name);
    span.timestamp = span.timestamp.or(next.timestamp);
    span.duration = span.duration.or(next.duration);
    absorb_endpoint(&mut span.local_endpoint, next.local_endpoint);
    absorb_endpoint(&mut span.remote_endpoint, next.remote_endpoint);
    span.annotations.extend(next.annotations);
    span.tags.absorb(next.tags);
    span.debug |= next.debug;
}

fn absorb_endpoint(endpoint: &mut Option<Endpoint>, next: Option<Endpoint>) {
    match (endpoint.as_mut(), next) {
        (Some(endpoint), Some(next)) => endpoint.fill_from(&next),
        (None, next) => *endpoint = next,
        (Some(_), None) => {}
    }
}

/// What the first piece of a span had, which decides what the span adopts from the one before.
struct FirstPiece {
    kind: Option<Kind>,
    has_parent: bool,
}

impl FirstPiece {
    /// Completes a server span: not every tracer marks a server that shares its client's id, or gives it the client's parent.
    fn adopt_from(&self, last: &Span, span: &mut Span) {
        if last.kind == Some(Kind::Client) && self.kind == Some(Kind::Server) {
            span.shared = true;
        }
        if span.shared && !self.has_parent {
            span.parent_id = last.parent_id.or(span.parent_id);
        }
    }
}

fn cleanup_order(left: &Span, right: &Span) -> Ordering {
    let rank = |span: &Span| match (span.shared, span.kind) {
        (true, _) => 2,
        (false, Some(Kind::Client)) => 0,
        (false, _) => 1,
    };
    left.id
        .cmp(&right.id)
        .then_with(|| rank(left).cmp(&rank(right)))
        .then_with(|| endpoint_order(left.local_endpoint.as_ref(), right.local_endpoint.as_ref()))
}

/// Spans without an endpoint come first, so that they are merged into the first span with the same id.
fn endpoint_order(left: Option<&Endpoint>, right: Option<&Endpoint>) -> Ordering {
    let (Some(left), Some(right)) = (left, right) else { return left.is_some().cmp(&right.is_some()) };
    none_last(&left.service_name, &right.service_name)
        .then_with(|| none_last(&left.ipv4, &right.ipv4))
        .then_with(|| none_last(&left.ipv6, &right.ipv6))
}

fn none_last<T: Ord>(left: &Option<T>, right: &Option<T>) -> Ordering {
    (left.is_none(), left).cmp(&(right.is_none(), right))
}
