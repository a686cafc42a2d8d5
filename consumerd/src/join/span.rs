//! A span, or a piece of one, as it leaves.

use super::part::Part;
use crate::annotation::Annotation;

/// Why a piece left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Every side of it was closed.
    Complete,
    /// Nothing was added for some time.
    Quiet,
    /// Memory was needed.
    Split,
    /// The daemon ends.
    Ending,
}

/// Start and duration in microseconds, of spans which this node starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// Start since 1970.
    pub timestamp_us: Option<i64>,
    /// At least 1.
    pub duration_us: Option<i64>,
}

/// Annotations of one span that leave together.
#[derive(Clone, Debug)]
pub struct SpanPiece {
    /// Trace.
    pub trace_id: u64,
    /// Span.
    pub span_id: u64,
    /// Parent, 0 for none.
    pub parent_span_id: u64,
    /// In the order in which they were drained.
    pub annotations: Vec<Annotation>,
    /// Why it left.
    pub reason: Reason,
    /// Another piece of this span left before.
    pub late: bool,
    first_frame: u64,
    /// Memory of its parts, on its way back to the join.
    pub(super) parts: Vec<Part>,
}

impl SpanPiece {
    /// A piece without annotations yet, to be kept in the given memory.
    pub(crate) fn new(trace_id: u64, span_id: u64, annotations: Vec<Annotation>) -> Self {
        Self {
            trace_id,
            span_id,
            parent_span_id: 0,
            annotations,
            reason: Reason::Complete,
            late: false,
            first_frame: u64::MAX,
            parts: Vec::new(),
        }
    }

    /// Trace and span.
    pub(super) fn key(&self) -> (u64, u64) {
        (self.trace_id, self.span_id)
    }

    /// Adds an annotation; the first parent that is given stays.
    #[inline]
    pub fn add(&mut self, annotation: Annotation) {
        if self.parent_span_id == 0 {
            self.parent_span_id = annotation.parent_span_id;
        }
        self.first_frame = self.first_frame.min(annotation.origin.frame);
        self.annotations.push(annotation);
    }

    /// Oldest staged frame with an annotation of it.
    pub fn first_frame(&self) -> u64 {
        self.first_frame
    }

    /// The name that the earliest event gives; without events, the first annotation's.
    pub fn name(&self) -> Option<&str> {
        let events = self.annotations.iter().filter(|a| a.time_ns().is_some());
        let first = events.min_by_key(|a| a.time_ns()).or_else(|| self.annotations.first());
        first.map(|a| &*a.labels.name)
    }

    /// Start and duration, if this piece starts the span: it holds "cs", or it is local. A server that only takes
    /// part in somebody else's span, and what comes late, say nothing about it.
    pub fn timing(&self) -> Timing {
        self.timing_of(&self.annotations)
    }

    /// The same for some of its annotations: those of one of its services.
    pub fn timing_of(&self, part: &[Annotation]) -> Timing {
        let times = Times::of(part);
        if let Some(start) = times.client_send {
            return timing(start, times.client_receive);
        }
        if self.late || self.annotations.iter().any(is_core) {
            return Timing::default();
        }
        match (times.first, times.last) {
            (Some(first), Some(last)) if times.events > 1 && self.reason != Reason::Split => {
                timing(first, Some(last))
            }
            (Some(first), _) => timing(first, None),
            _ => Timing::default(),
        }
    }
}

/// What timing looks at, gathered in one pass.
#[derive(Default)]
struct Times {
    events: usize,
    first: Option<i64>,
    last: Option<i64>,
    client_send: Option<i64>,
    client_receive: Option<i64>,
}

impl Times {
    fn of(part: &[Annotation]) -> Self {
        let mut times = Self::default();
        for (annotation, time) in part.iter().filter_map(|a| Some((a, a.time_ns()?))) {
            times.events += 1;
            earliest(&mut times.first, time);
            times.last = times.last.max(Some(time));
            match &*annotation.labels.key {
                "cs" => earliest(&mut times.client_send, time),
                "cr" => times.client_receive = times.client_receive.max(Some(time)),
                _ => {}
            }
        }
        times
    }
}

fn earliest(known: &mut Option<i64>, time: i64) {
    *known = Some(known.map_or(time, |known| known.min(time)));
}

fn is_core(annotation: &Annotation) -> bool {
    let is_event = annotation.time_ns().is_some();
    is_event && matches!(&*annotation.labels.key, "cs" | "cr" | "sr" | "ss" | "ms" | "mr")
}

fn timing(start_ns: i64, end_ns: Option<i64>) -> Timing {
    let start_us = start_ns.div_euclid(1000);
    // Zipkin takes a duration of 0 for none.
    let duration_us = end_ns.map(|end| end.div_euclid(1000).saturating_sub(start_us).max(1));
    Timing { timestamp_us: Some(start_us), duration_us }
}
