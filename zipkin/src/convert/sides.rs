//! The sides of a v1 span: the v2 spans into which it is divided, one for each service that took part.

use std::collections::HashMap;

use crate::model::{Annotation, Endpoint, Kind, Span};

use super::read::V1;

/// The index of a side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Side(usize);

/// Up to this number sides are searched one by one: nearly all spans have one or two. In a span with thousands of sides, each
/// annotation would be compared with all of them.
const FEW: usize = 8;

/// The sides of a span. The first side always exists.
pub(super) struct Sides<'a> {
    source: &'a V1<'a>,
    spans: Vec<Span>,
    /// The first side of each service, once there are more than a few.
    by_service: HashMap<Option<String>, Side>,
}

impl<'a> Sides<'a> {
    /// The first side, which also takes annotations and tags without an endpoint.
    pub(super) const FIRST: Side = Side(0);

    pub(super) fn new(source: &'a V1<'a>) -> Self {
        Sides { source, spans: vec![new_span(source)], by_service: HashMap::new() }
    }

    /// The side of an endpoint. Without an endpoint, that is the first side. If the first side has no endpoint yet, it takes this
    /// one. Otherwise it is the first side of the same service, or a new side if there is none.
    pub(super) fn of(&mut self, endpoint: Option<&Endpoint>) -> Side {
        let Some(endpoint) = endpoint else { return Self::FIRST };
        self.spans[0].local_endpoint.get_or_insert_with(|| endpoint.clone());
        self.known(endpoint.service_name.as_ref()).unwrap_or_else(|| self.fork(endpoint))
    }

    fn known(&mut self, service: Option<&String>) -> Option<Side> {
        let is_of = |span: &Span| service_of(span) == service;
        if self.spans.len() <= FEW {
            return self.spans.iter().position(is_of).map(Side);
        }
        if self.by_service.is_empty() {
            (0..self.spans.len()).for_each(|at| self.note(Side(at)));
        }
        self.by_service.get(&service.cloned()).copied()
    }

    fn note(&mut self, side: Side) {
        let service = service_of(self.span(side)).cloned();
        self.by_service.entry(service).or_insert(side);
    }

    /// Adds a side, even if there is one of the same service already.
    pub(super) fn fork(&mut self, endpoint: &Endpoint) -> Side {
        self.spans.push(Span { local_endpoint: Some(endpoint.clone()), ..new_span(self.source) });
        let side = Side(self.spans.len() - 1);
        if !self.by_service.is_empty() {
            self.note(side);
        }
        side
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

fn service_of(span: &Span) -> Option<&String> {
    span.local_endpoint.as_ref()?.service_name.as_ref()
}

fn new_span(source: &V1<'_>) -> Span {
    Span {
        parent_id: source.parent_id,
        name: source.name.clone(),
        debug: source.debug,
        ..Span::new(source.trace_id, source.id)
    }
}

#[cfg(test)]
mod tests {
    use blkin_thrift::{Annotation, Endpoint, Span};

    use crate::convert::v1_to_v2;

    fn at(value: &str, service: usize, port: i16) -> Annotation {
        let host = Endpoint { service_name: format!("s{service}"), port, ..Endpoint::default() };
        Annotation { timestamp: 1, value: value.to_owned(), host: Some(host), ..Annotation::default() }
    }

    /// If each annotation were compared with all sides, this would take minutes.
    #[test]
    fn many_services_have_one_side_each_in_order_of_appearance() {
        const SERVICES: usize = 100_000;
        let first = (0..SERVICES).map(|service| at("a", service, 1));
        let annotations = first.chain((0..SERVICES).map(|service| at("b", service, 2))).collect();
        let spans = v1_to_v2(&Span { trace_id: 1, id: 1, annotations, ..Span::default() });
        assert_eq!(spans.len(), SERVICES);
        for (service, span) in spans.iter().enumerate() {
            let endpoint = span.local_endpoint.as_ref().unwrap();
            assert_eq!(
                (endpoint.service_name.clone(), endpoint.port),
                (Some(format!("s{service}")), Some(1))
            );
            assert_eq!(span.annotations.len(), 2);
        }
    }

    #[test]
    fn the_first_of_two_sides_of_a_service_has_other_annotations() {
        for others in [0, 20] {
            let mut annotations: Vec<_> = (1..=others).map(|service| at("0", service, 1)).collect();
            annotations.extend([
                at("cs", 0, 1),
                at("cr", 0, 1),
                at("sr", 0, 2),
                at("ss", 0, 2),
                at("z", 0, 2),
            ]);
            let spans = v1_to_v2(&Span { trace_id: 1, id: 1, annotations, ..Span::default() });
            assert_eq!(spans.len(), others + 2);
            let of_service: Vec<_> = spans.iter().filter(|span| span.local_service() == Some("s0")).collect();
            let told: Vec<_> = of_service.iter().map(|span| (span.kind, span.annotations.len())).collect();
            use crate::model::Kind::{Client, Server};
            assert_eq!(told, [(Some(Client), 1), (Some(Server), 0)], "{others}");
        }
    }
}
