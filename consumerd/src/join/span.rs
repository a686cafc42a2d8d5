//! A span, or a piece of one, as it leaves.

use std::sync::Arc;

use blkin_record::Endpoint;

use super::part::Part;
use super::share::Share;
use super::spare::Spare;
use crate::annotation::{Annotation, Labels};

/// A service is searched for in this many of the span's first messages and this many of its last, because a program can write spans
/// with very many services. A service that is not found there begins another message.
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

/// Start and duration in microseconds, for spans that this node starts.
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
    /// The messages of the services, in the order in which they began.
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
    /// Its parts, whose memory goes back to the join.
    pub(super) parts: Vec<Part>,
}

impl SpanPiece {
    /// A piece without annotations yet; `shares` is an empty list to be used.
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

    /// Adds an annotation, and returns how many bytes it takes. The first parent that is given stays.
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

    /// The message for this annotation, after the full messages of its service.
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

    /// The oldest staged frame that holds an annotation of the piece.
    pub fn first_frame(&self) -> u64 {
        self.first_frame
    }

    /// The name that the earliest event gives; without events, the first annotation's.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Start and duration of a service's message, if the service starts the span: it has "cs", or the span is local. None for
    /// a server that only takes part in another service's span, and none for a late piece without "cs".
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
