//! Core annotations: where a call or a message starts and ends.

use crate::model::{Annotation, Endpoint, Kind, Moment};

use super::Texts;
use super::read::{Event, V1};
use super::sides::Sides;

/// A core annotation. It counts only with an endpoint: without one its side is unknown.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mark<'a> {
    pub(super) timestamp: i64,
    pub(super) nanos: u16,
    pub(super) value: &'a str,
    pub(super) endpoint: &'a Endpoint,
}

impl Mark<'_> {
    /// The mark as a plain annotation.
    pub(super) fn annotation(&self) -> Annotation {
        Annotation { timestamp: self.timestamp, nanos: self.nanos, value: self.value.to_owned() }
    }

    /// The time of the mark.
    pub(super) fn moment(&self) -> Moment {
        Moment { us: self.timestamp, nanos: self.nanos }
    }
}

/// The core annotations of a span. If one occurs twice, the later one counts.
#[derive(Debug, Default)]
pub(super) struct Core<'a> {
    pub(super) client_send: Option<Mark<'a>>,
    pub(super) client_receive: Option<Mark<'a>>,
    pub(super) server_receive: Option<Mark<'a>>,
    pub(super) server_send: Option<Mark<'a>>,
    pub(super) message_send: Option<Mark<'a>>,
    pub(super) message_receive: Option<Mark<'a>>,
    pub(super) wire_send: Option<Mark<'a>>,
    pub(super) wire_receive: Option<Mark<'a>>,
}

impl<'a> Core<'a> {
    /// Collects the core annotations, and sets the kind of their sides. Other annotations are added to their side.
    pub(super) fn take(source: &'a V1<'a>, texts: Texts<'_>, sides: &mut Sides<'_>) -> Self {
        let mut core = Core::default();
        for event in &source.events {
            let side = sides.of(event.endpoint.as_deref());
            match core.take_one(event) {
                CoreRole::Kind(kind) => sides.set_kind(side, kind),
                CoreRole::NotCore if texts.has(event.value) => sides.annotate(side, event.annotation()),
                CoreRole::WithoutKind | CoreRole::NotCore => {}
            }
        }
        core
    }

    fn take_one(&mut self, event: &'a Event<'a>) -> CoreRole {
        let Some(endpoint) = &event.endpoint else { return CoreRole::NotCore };
        let (place, role) = match event.value {
            "cs" => (&mut self.client_send, CoreRole::Kind(Kind::Client)),
            "cr" => (&mut self.client_receive, CoreRole::Kind(Kind::Client)),
            "sr" => (&mut self.server_receive, CoreRole::Kind(Kind::Server)),
            "ss" => (&mut self.server_send, CoreRole::Kind(Kind::Server)),
            "ms" => (&mut self.message_send, CoreRole::Kind(Kind::Producer)),
            "mr" => (&mut self.message_receive, CoreRole::Kind(Kind::Consumer)),
            "ws" => (&mut self.wire_send, CoreRole::WithoutKind),
            "wr" => (&mut self.wire_receive, CoreRole::WithoutKind),
            _ => return CoreRole::NotCore,
        };
        let Event { timestamp, nanos, value, .. } = *event;
        *place = Some(Mark { timestamp, nanos, value, endpoint });
        role
    }

    /// Adds starts that are missing, as in spans that were made from events and not from a model. If the end is the end of
    /// the span's own time, the start is the span's own start.
    pub(super) fn add_missing_starts(&mut self, source: &V1<'_>) {
        self.client_send = self.client_send.or_else(|| start_of(self.client_receive, "cs", source));
        self.server_receive = self.server_receive.or_else(|| start_of(self.server_send, "sr", source));
    }

    /// Whether there is no core annotation of either side of a call.
    pub(super) fn no_call(&self) -> bool {
        let marks = [self.client_send, self.client_receive, self.server_receive, self.server_send];
        marks.iter().all(Option::is_none)
    }
}

/// The classification of an annotation.
enum CoreRole {
    /// A core annotation that tells the kind of its side.
    Kind(Kind),
    /// A core annotation that has a meaning only together with others.
    WithoutKind,
    /// Not a core annotation.
    NotCore,
}

fn start_of<'a>(end: Option<Mark<'a>>, value: &'static str, source: &V1<'_>) -> Option<Mark<'a>> {
    let end = end?;
    let ends_the_span = source.timestamp != 0
        && source.duration != 0
        && source.timestamp.wrapping_add(source.duration) == end.timestamp;
    ends_the_span.then_some(Mark { timestamp: source.timestamp, nanos: 0, value, ..end })
}
