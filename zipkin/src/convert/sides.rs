//! The spans that a v1 span falls into, one for each service that took part.

use crate::model::{Annotation, Endpoint, Kind, Span};

use super::read::V1;

/// Which of the sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Side(usize);

/// The sides, the first of which always is there.
pub(super) struct Sides<'a> {
    source: &'a V1<'a>,
    spans: Vec<Span>,
}

impl<'a> Sides<'a> {
    /// The side that takes what belongs to nobody.
    pub(super) const FIRST: Side = Side(0);

    pub(super) fn new(source: &'a V1<'a>) -> Self {
        Sides { source, spans: vec![new_span(source)] }
    }

    /// The side of an endpoint: without endpoint the first; else one of the same service, or one that has no endpoint
    /// yet and adopts this; else a new one.
    pub(super) fn of(&mut self, endpoint: Option<&Endpoint>) -> Side {
        let Some(endpoint) = endpoint else { return Self::FIRST };
        for (index, span) in self.spans.iter_mut().enumerate() {
            let local = span.local_endpoint.get_or_insert_with(|| endpoint.clone());
            if local.service_name == endpoint.service_name {
                return Side(index);
            }
        }
        self.fork(endpoint)
    }

    /// A new side, even if there is one of the same service.
    pub(super) fn fork(&mut self, endpoint: &Endpoint) -> Side {
        self.spans.push(Span { local_endpoint: Some(endpoint.clone()), ..new_span(self.source) });
        Side(self.spans.len() - 1)
    }

    pub(super) fn span(&mut self, side: Side) -> &mut Span {
        &mut self.spans[side.0]
    }

    pub(super) fn set_kind(&mut self, side: Side, kind: Kind) {
        self.span(side).kind = Some(kind);
    }

    pub(super) fn set_remote(&mut self, side: Side, endpoint: &Endpoint) {
        self.span(side).remote_endpoint = Some(endpoint.clone());
    }

    pub(super) fn annotate(&mut self, side: Side, annotation: Annotation) {
        self.span(side).annotations.push(annotation);
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Span> {
        self.spans.iter_mut()
    }

    pub(super) fn finish(self) -> Vec<Span> {
        self.spans.into_iter().map(Span::normalized).collect()
    }
}

fn new_span(source: &V1<'_>) -> Span {
    Span {
        parent_id: source.parent_id,
        name: source.name.clone(),
        debug: source.debug,
        ..Span::new(source.trace_id, source.id)
    }
}
