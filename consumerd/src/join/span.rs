//! A span, or a piece of one, as it leaves.

use std::sync::Arc;

use blkin_record::Endpoint;

use super::part::Part;
use super::share::Share;
use super::spare::Spare;
use crate::annotation::{Annotation, Labels};

/// The services of a span are looked for in so many of its first messages and of its last: one with a great many services,
/// which a program can write, is not gone through for each annotation. A service that is not found begins another message.
const MOST_SEARCHED: usize = 64;

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
    /// What each service tells, in the order in which they began.
    pub shares: Vec<Share>,
    /// Why it left.
    pub reason: Reason,
    /// Another piece of this span left before.
    pub late: bool,
    name: Option<Arc<str>>,
    /// Time of the event that gave the name.
    named_at: Option<i64>,
    has_core: bool,
    first_frame: u64,
    /// Memory of its parts, on its way back to the join.
    pub(super) parts: Vec<Part>,
}

impl SpanPiece {
    /// A piece without annotations yet, to be kept in the given memory.
    pub(super) fn new(trace_id: u64, span_id: u64, shares: Vec<Share>) -> Self {
        Self {
            trace_id,
            span_id,
            parent_span_id: 0,
            shares,
            reason: Reason::Complete,
            late: false,
            name: None,
            named_at: None,
            has_core: false,
            first_frame: u64::MAX,
            parts: Vec::new(),
        }
    }

    /// Trace and span.
    pub(super) fn key(&self) -> (u64, u64) {
        (self.trace_id, self.span_id)
    }

    /// Adds an annotation and says how many bytes that takes; the first parent that is given stays.
    #[inline]
    pub(super) fn add(&mut self, annotation: &Annotation<'_>, spare: &mut Spare) -> usize {
        if self.parent_span_id == 0 {
            self.parent_span_id = annotation.parent_span_id;
        }
        self.first_frame = self.first_frame.min(annotation.origin.frame);
        let (labels, time) = (annotation.labels, annotation.time_ns());
        self.note_name(labels, time);
        let mut bytes = 0;
        let known = self.shares.iter().take(MOST_SEARCHED).position(|share| share.is_of(&labels.endpoint));
        let known = known.or_else(|| self.last_share_of(&labels.endpoint));
        let first = known.unwrap_or_else(|| {
            bytes += size_of::<Share>();
            self.shares.push(spare.share(annotation));
            self.shares.len() - 1
        });
        if let Some(time) = time {
            self.has_core |= labels.role.is_core();
            self.shares[first].times.note(time, labels.role);
        }
        let now = if self.shares[first].is_full() { self.further(annotation, spare) } else { first };
        bytes + self.shares[now].add(annotation)
    }

    /// The message that follows those of this service which are full.
    #[cold]
    fn further(&mut self, annotation: &Annotation<'_>, spare: &mut Spare) -> usize {
        let last = self.last_share_of(&annotation.labels.endpoint);
        last.filter(|last| !self.shares[*last].is_full()).unwrap_or_else(|| {
            let mut share = spare.share(annotation);
            share.is_further = true;
            self.shares.push(share);
            self.shares.len() - 1
        })
    }

    fn last_share_of(&self, endpoint: &Arc<Endpoint>) -> Option<usize> {
        let first = self.shares.len().saturating_sub(MOST_SEARCHED);
        let last = self.shares[first..].iter().rposition(|share| share.is_of(endpoint));
        last.map(|last| first + last)
    }

    #[inline]
    fn note_name(&mut self, labels: &Labels, time: Option<i64>) {
        let is_better = match (time, self.named_at) {
            (Some(time), Some(named_at)) => time < named_at,
            (Some(_), None) => true,
            (None, _) => self.name.is_none(),
        };
        if is_better {
            self.named_at = time;
            if self.name.as_ref().is_none_or(|name| !Arc::ptr_eq(name, &labels.name)) {
                self.name = Some(labels.name.clone());
            }
        }
    }

    /// Oldest staged frame with an annotation of it.
    pub fn first_frame(&self) -> u64 {
        self.first_frame
    }

    /// The name that the earliest event gives; without events, the first annotation's.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Start and duration of what a service tells, if it starts the span: it holds "cs", or it is local. A server that
    /// only takes part in somebody else's span, and what comes late, say nothing about it.
    pub fn timing_of(&self, share: &Share) -> Timing {
        let times = share.times;
        if let Some(start) = times.client_send {
            return timing(start, times.client_receive);
        }
        if self.late || self.has_core {
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

fn timing(start_ns: i64, end_ns: Option<i64>) -> Timing {
    let start_us = start_ns.div_euclid(1000);
    // Zipkin takes a duration of 0 for none.
    let duration_us = end_ns.map(|end| end.div_euclid(1000).saturating_sub(start_us).max(1));
    Timing { timestamp_us: Some(start_us), duration_us }
}
