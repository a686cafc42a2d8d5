//! A span in Zipkin's v2 model: one side of one operation, in one service.

mod endpoint;
mod ids;
mod tags;

use std::collections::HashSet;

use serde::Serialize;

pub use endpoint::Endpoint;
pub use ids::lower_hex;
pub use ids::{BadId, SpanId, TraceId};
pub use tags::Tags;

/// One span of one service. The order of the fields is the order in which Zipkin writes them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Span {
    /// The trace that this span is part of.
    pub trace_id: TraceId,
    /// The id of the span that caused this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<SpanId>,
    /// The id of this span. Both sides of a call may have the same id; then the server's span is `shared`.
    pub id: SpanId,
    /// Which side of what kind of call; `None` for work inside a service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<Kind>,
    /// The name of the operation, in lower case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Start in microseconds since 1970, above zero.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<i64>,
    /// Duration in microseconds, above zero.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration: Option<i64>,
    /// The endpoint that recorded this span.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_endpoint: Option<Endpoint>,
    /// The endpoint on the other side of a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_endpoint: Option<Endpoint>,
    /// The events, in the order of [`Annotation`]; each pair of microsecond and value occurs once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub annotations: Vec<Annotation>,
    /// The tags, sorted by key.
    #[serde(skip_serializing_if = "Tags::is_empty")]
    pub tags: Tags,
    /// Whether samplers must keep this span.
    #[serde(skip_serializing_if = "is_false")]
    pub debug: bool,
    /// Whether the other side of the call recorded a span of the same id.
    #[serde(skip_serializing_if = "is_false")]
    pub shared: bool,
    /// The core annotations that became this span's time, if there were any. Zipkin's JSON has no place for them.
    #[serde(skip)]
    pub marks: Marks,
}

/// Begin and end of a call or message, from its core annotations. `timestamp` and `duration` tell less: they have no duration
/// of 0, and are the sender's own if it gave some.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Marks {
    /// The begin; `None` if no core annotation states it.
    pub begin: Option<Moment>,
    /// The end; `None` if no core annotation states it, or if that stayed an annotation, as it does without a begin.
    pub end: Option<Moment>,
}

/// A point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment {
    /// Microseconds since 1970.
    pub us: i64,
    /// 0 to 999 nanoseconds below the microsecond; also 0 if not known.
    pub nanos: u16,
}

/// An event: something that happened at a time. Ordered by microsecond, nanoseconds and value: Zipkin's order, except for
/// the nanoseconds, which Zipkin does not know.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Annotation {
    /// Microseconds since 1970.
    pub timestamp: i64,
    /// 0 to 999 nanoseconds below the microsecond; also 0 if not known. Zipkin's JSON has no place for them: there they
    /// show only in the order of the annotations.
    #[serde(skip)]
    pub nanos: u16,
    /// What happened.
    pub value: String,
}

impl Annotation {
    /// An annotation without nanoseconds.
    pub fn new(timestamp: i64, value: impl Into<String>) -> Annotation {
        Annotation { timestamp, nanos: 0, value: value.into() }
    }

    /// The time of the annotation.
    pub fn moment(&self) -> Moment {
        Moment { us: self.timestamp, nanos: self.nanos }
    }
}

/// Which side of what kind of call a span is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Kind {
    /// The side that makes a call.
    Client,
    /// The side that answers a call.
    Server,
    /// The side that sends a message.
    Producer,
    /// The side that receives a message.
    Consumer,
}

impl Kind {
    /// The kind with this name, in capitals as Zipkin writes it.
    pub fn from_name(name: &str) -> Option<Kind> {
        match name {
            "CLIENT" => Some(Kind::Client),
            "SERVER" => Some(Kind::Server),
            "PRODUCER" => Some(Kind::Producer),
            "CONSUMER" => Some(Kind::Consumer),
            _ => None,
        }
    }
}

impl Span {
    /// A span that holds only ids.
    pub fn new(trace_id: TraceId, id: SpanId) -> Span {
        Span {
            trace_id,
            parent_id: None,
            id,
            kind: None,
            name: None,
            timestamp: None,
            duration: None,
            local_endpoint: None,
            remote_endpoint: None,
            annotations: Vec::new(),
            tags: Tags::default(),
            debug: false,
            shared: false,
            marks: Marks::default(),
        }
    }

    /// The name of the service that recorded this span.
    pub fn local_service(&self) -> Option<&str> {
        self.local_endpoint.as_ref()?.service_name.as_deref()
    }

    /// The name of the service on the other side.
    pub fn remote_service(&self) -> Option<&str> {
        self.remote_endpoint.as_ref()?.service_name.as_deref()
    }

    /// The number of annotations and tags together: the unit in which losses are counted.
    pub fn annotation_count(&self) -> usize {
        self.annotations.len() + self.tags.len()
    }

    /// Brings a span into normal form: no empty parts, no annotation twice, no span that is its own parent, no shared
    /// client.
    #[must_use]
    pub fn normalized(mut self) -> Span {
        self.timestamp = self.timestamp.filter(|&timestamp| timestamp > 0);
        self.duration = self.duration.filter(|&duration| duration > 0);
        self.parent_id = self.parent_id.filter(|&parent| parent != self.id);
        self.shared &= self.kind != Some(Kind::Client);
        self.local_endpoint = self.local_endpoint.filter(|endpoint| !endpoint.is_empty());
        self.remote_endpoint = self.remote_endpoint.filter(|endpoint| !endpoint.is_empty());
        put_in_order(&mut self.annotations);
        self
    }

    /// The span as it would be read from Zipkin's JSON: without nanoseconds and marks.
    #[must_use]
    pub fn as_by_json(mut self) -> Span {
        self.marks = Marks::default();
        self.annotations.iter_mut().for_each(|annotation| annotation.nanos = 0);
        self.annotations.sort();
        self
    }
}

/// Sorts annotations by time and removes repetitions. If the same value occurs twice in one microsecond only the first stays, as
/// in Zipkin, even if the nanoseconds differ. If some nanoseconds are known, annotations of the same moment keep their order.
fn put_in_order(annotations: &mut Vec<Annotation>) {
    if annotations.iter().all(|annotation| annotation.nanos == 0) {
        annotations.sort();
        annotations.dedup();
        return;
    }
    annotations.sort_by_key(Annotation::moment);
    if annotations.windows(2).all(|pair| pair[0].timestamp < pair[1].timestamp) {
        return;
    }
    let mut seen = HashSet::with_capacity(annotations.len());
    let first = annotations.iter().map(|annotation| seen.insert((annotation.timestamp, &annotation.value)));
    let mut first = first.collect::<Vec<_>>().into_iter();
    annotations.retain(|_| first.next() == Some(true));
}

/// The name of a span or service as Zipkin keeps it: in lower case; `None` if empty.
pub fn lower_name(name: &str) -> Option<String> {
    (!name.is_empty()).then(|| name.to_lowercase())
}

fn is_false(flag: &bool) -> bool {
    !flag
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(timestamp: i64, nanos: u16, value: &str) -> Annotation {
        Annotation { nanos, ..Annotation::new(timestamp, value) }
    }

    fn in_order(annotations: &[Annotation]) -> Vec<Annotation> {
        let span = Span::new(TraceId::new(0, 1).unwrap(), SpanId::new(2).unwrap());
        Span { annotations: annotations.to_vec(), ..span }.normalized().annotations
    }

    #[test]
    fn kinds_round_trip_by_name() {
        for kind in [Kind::Client, Kind::Server, Kind::Producer, Kind::Consumer] {
            let written = serde_json::to_value(kind).unwrap();
            assert_eq!(written.as_str().and_then(Kind::from_name), Some(kind));
        }
        assert_eq!(["client", ""].map(Kind::from_name), [None, None]);
    }

    #[test]
    fn non_positive_times_and_empty_endpoints_are_dropped() {
        let plain = Span::new(TraceId::new(0, 1).unwrap(), SpanId::new(2).unwrap());
        for time in [0, -1, i64::MIN] {
            let empty = || Some(Endpoint::default());
            let (timestamp, duration) = (Some(time), Some(time));
            let span = Span { timestamp, duration, local_endpoint: empty(), ..plain.clone() };
            assert_eq!(Span { remote_endpoint: empty(), ..span }.normalized(), plain);
        }
        let least = Span { timestamp: Some(1), duration: Some(1), ..plain };
        assert_eq!(least.clone().normalized(), least);
    }

    #[test]
    fn the_annotation_count_includes_tags() {
        let span = Span::new(TraceId::new(0, 1).unwrap(), SpanId::new(2).unwrap());
        let tags = ["a", "b", "c"].map(|key| (key.to_owned(), String::new())).into();
        let annotations = vec![at(7, 0, "x"), at(8, 0, "x")];
        assert_eq!(Span { annotations, tags, ..span }.annotation_count(), 5);
    }

    #[test]
    fn annotations_of_one_microsecond_are_sorted_by_nanosecond() {
        let expected = [at(6, 999, "z"), at(7, 10, "Enqueuing op"), at(7, 20, "Enqueued op"), at(8, 0, "a")];
        let mut mixed = expected.clone();
        mixed.reverse();
        assert_eq!(in_order(&mixed), expected);
    }

    #[test]
    fn annotations_of_one_nanosecond_keep_their_order() {
        let expected = [at(7, 10, "b"), at(7, 20, "mid"), at(7, 20, "end"), at(7, 30, "a")];
        let mixed = [at(7, 30, "a"), at(7, 20, "mid"), at(7, 20, "end"), at(7, 10, "b"), at(7, 20, "mid")];
        assert_eq!(in_order(&mixed), expected);
    }

    #[test]
    fn annotations_without_nanoseconds_are_in_zipkins_order() {
        let mixed = [at(7, 0, "Enqueuing op"), at(8, 0, "a"), at(7, 0, "Enqueued op")];
        assert_eq!(in_order(&mixed), [at(7, 0, "Enqueued op"), at(7, 0, "Enqueuing op"), at(8, 0, "a")]);
    }

    #[test]
    fn repeated_values_of_one_microsecond_keep_the_first() {
        let mixed = [at(7, 30, "again"), at(7, 20, "other"), at(7, 10, "again"), at(8, 0, "again")];
        assert_eq!(in_order(&mixed), [at(7, 10, "again"), at(7, 20, "other"), at(8, 0, "again")]);
    }

    #[test]
    fn nanoseconds_are_not_serialized() {
        let json = serde_json::to_string(&at(7, 10, "x")).unwrap();
        assert_eq!(json, r#"{"timestamp":7,"value":"x"}"#);
    }
}
