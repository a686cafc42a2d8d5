//! A span, or a piece of one, as it leaves.

use std::sync::Arc;

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
}

impl SpanPiece {
    /// An empty piece.
    pub fn new(trace_id: u64, span_id: u64, late: bool) -> Self {
        Self {
            trace_id,
            span_id,
            parent_span_id: 0,
            annotations: Vec::new(),
            reason: Reason::Complete,
            late,
            first_frame: u64::MAX,
        }
    }

    /// Adds an annotation; the first parent that is given stays.
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
    pub fn name(&self) -> Option<Arc<str>> {
        let events = self.annotations.iter().filter(|a| a.time_ns().is_some());
        let first = events.min_by_key(|a| a.time_ns()).or_else(|| self.annotations.first());
        first.map(|a| a.name.clone())
    }

    /// Start and duration, if this piece starts the span: it holds "cs", or it is local. A server that only takes
    /// part in somebody else's span, and what comes late, say nothing about it.
    pub fn timing(&self) -> Timing {
        self.timing_of(&self.annotations)
    }

    /// The same for some of its annotations: those of one of its services.
    pub fn timing_of(&self, part: &[Annotation]) -> Timing {
        let times_of = |event: &'static str| {
            part.iter().filter(move |a| &*a.key == event).filter_map(Annotation::time_ns)
        };
        if let Some(start) = times_of("cs").min() {
            return timing(start, times_of("cr").max());
        }
        let is_core = |a: &Annotation| {
            matches!(&*a.key, "cs" | "cr" | "sr" | "ss" | "ms" | "mr") && a.time_ns().is_some()
        };
        if self.late || self.annotations.iter().any(is_core) {
            return Timing::default();
        }
        let times = || part.iter().filter_map(Annotation::time_ns);
        match (times().min(), times().max()) {
            (Some(first), Some(last)) if times().count() > 1 && self.reason != Reason::Split => {
                timing(first, Some(last))
            }
            (Some(first), _) => timing(first, None),
            _ => Timing::default(),
        }
    }
}

fn timing(start_ns: i64, end_ns: Option<i64>) -> Timing {
    let start_us = start_ns.div_euclid(1000);
    // Zipkin takes a duration of 0 for none.
    let duration_us = end_ns.map(|end| end.div_euclid(1000).saturating_sub(start_us).max(1));
    Timing { timestamp_us: Some(start_us), duration_us }
}
