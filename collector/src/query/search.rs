//! Reads traces from the store: one, several, or those that a search finds.

use std::collections::HashSet;
use std::ops::{ControlFlow, RangeInclusive};
use std::time::{Duration, Instant};

use blkin_zipkin::query::{SearchRequest, matches};

use crate::convert::Texts;
use crate::merge::assemble_stored;
use crate::model::{Span, TraceId};
use crate::recurring::Recurring;
use crate::store::{Pieces, Room, Store, StoreError, Wanted};

/// How traces are read.
#[derive(Debug, Clone, Copy)]
pub struct Reading {
    /// Whether all 128 bits of trace ids are compared.
    pub strict: bool,
    /// Most bytes, as stored, of all traces of an answer. Spans beyond that are left out; the answer and the log say so.
    pub max_bytes: usize,
    /// After this time a search answers with what it has found so far; the answer and the log say so.
    pub patience: Duration,
}

/// What was found, and whether that is all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer<T> {
    /// What was found.
    pub found: T,
    /// What was left out, if anything was.
    pub cut: Option<Cut>,
}

impl<T> Answer<T> {
    /// The same answer with what was found in another form.
    pub fn map<U>(self, form: impl FnOnce(T) -> U) -> Answer<U> {
        Answer { found: form(self.found), cut: self.cut }
    }
}

/// Anybody who can query can ask for large answers again and again.
static OUT_OF_BYTES: Recurring = Recurring::new();
static OUT_OF_TIME: Recurring = Recurring::new();
static LARGER_THAN_ALL: Recurring = Recurring::new();
static LARGER_THAN_REST: Recurring = Recurring::new();

/// What was left out of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Spans or traces that exceeded the most bytes of an answer.
    Bytes,
    /// Traces that were not reached in time.
    Time,
}

impl Cut {
    /// The configuration key that sets the bound.
    pub fn key(self) -> &'static str {
        match self {
            Cut::Bytes => "query_max_mib",
            Cut::Time => "query_seconds",
        }
    }

    /// What was left out of an answer, by whether its traces had room and whether it was in time. Also logs it, with a limit on the
    /// rate.
    pub(super) fn noted(had_room: bool, in_time: bool) -> Option<Cut> {
        let cut = if had_room { (!in_time).then_some(Cut::Time) } else { Some(Cut::Bytes) };
        match cut {
            None => {}
            Some(Cut::Bytes) => {
                if let Some(held_back) = OUT_OF_BYTES.admit() {
                    tracing::warn!(
                        held_back,
                        "left traces out of an answer: together they have more than query_max_mib"
                    );
                }
            }
            Some(Cut::Time) => {
                if let Some(held_back) = OUT_OF_TIME.admit() {
                    tracing::warn!(
                        held_back,
                        "left earlier traces out of an answer: they were not reached within query_seconds"
                    );
                }
            }
        }
        cut
    }
}

/// One trace; empty if it is not known.
///
/// # Errors
/// When the store fails.
pub fn trace(store: &dyn Store, id: TraceId, reading: Reading) -> Result<Answer<Vec<Span>>, StoreError> {
    trace_with(store, id, reading, Texts::All)
}

/// The same for a caller that needs only these texts; the answer may hold others too.
pub(super) fn trace_with(
    store: &dyn Store,
    id: TraceId,
    reading: Reading,
    texts: Texts<'_>,
) -> Result<Answer<Vec<Span>>, StoreError> {
    let mut room = Room::of(reading.max_bytes);
    let found = spans(store, id, reading.strict, &mut room, texts)?;
    if room.exhausted
        && let Some(held_back) = LARGER_THAN_ALL.admit()
    {
        tracing::warn!(trace = %id, held_back, "left spans out of an answer: the trace has more than query_max_mib");
    }
    Ok(Answer { found, cut: room.exhausted.then_some(Cut::Bytes) })
}

/// The spans of one trace for which there is room.
fn spans(
    store: &dyn Store,
    id: TraceId,
    strict: bool,
    room: &mut Room,
    texts: Texts<'_>,
) -> Result<Vec<Span>, StoreError> {
    let mut pieces = Pieces::default();
    store.read_trace(id, strict, room, &mut pieces)?;
    Ok(assemble_stored(&pieces, texts))
}

/// The traces of these ids that are known. If ids are not strict, those that share their low 64 bits are one trace.
///
/// # Errors
/// When the store fails.
pub fn traces(
    store: &dyn Store,
    ids: &[TraceId],
    reading: Reading,
) -> Result<Answer<Vec<Vec<Span>>>, StoreError> {
    let mut room = Room::of(reading.max_bytes);
    let (mut found, mut seen) = (Vec::new(), HashSet::new());
    for &id in ids.iter().filter(|id| reading.strict || seen.insert(id.low())) {
        let spans = spans(store, id, reading.strict, &mut room, Texts::All)?;
        // The first trace is answered as far as it fits, so that a huge trace does not look like a missing one.
        if !spans.is_empty() && (!room.exhausted || found.is_empty()) {
            found.push(spans);
        }
        if room.exhausted {
            break;
        }
    }
    Ok(Answer { found, cut: Cut::noted(!room.exhausted, true) })
}

/// The traces that match, latest first. A trace that is too large for an answer does not hide the others: it gets the room that
/// they leave. If several are too large, only the latest of them is in the answer.
///
/// # Errors
/// When the store fails.
pub fn search(
    store: &dyn Store,
    request: &SearchRequest,
    reading: Reading,
) -> Result<Answer<Vec<Vec<Span>>>, StoreError> {
    let mut room = Room::of(reading.max_bytes);
    // Whether every trace that was looked at had room: the part of a trace that had none might have made the trace match.
    let mut had_room = true;
    let mut found: Vec<Vec<Span>> = Vec::new();
    // The trace that is too large, with its place among those that are found.
    let mut too_large: Option<(usize, TraceId)> = None;
    let wanted = if reading.strict { Wanted::by(request) } else { Wanted::by_any_part(request) };
    let in_time = each_trace(store, &wanted, &request.window_us, reading, &mut |id| {
        let mut after = room;
        let spans = spans(store, id, reading.strict, &mut after, Texts::All)?;
        had_room &= !after.exhausted;
        // Ends the search if a trace does not fit and less than half of the room was left for it. A trace for which even half an
        // answer is too little does not end the search, so that it does not hide earlier traces.
        if after.exhausted && !room.is_for(reading.max_bytes / 2) {
            return Ok(ControlFlow::Break(()));
        }
        if matches(request, &spans) {
            if after.exhausted {
                too_large.get_or_insert((found.len(), id));
            } else {
                found.push(spans);
                room = after;
            }
        }
        let all = found.len() + usize::from(too_large.is_some());
        Ok(if all >= request.limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    if let Some((place, id)) = too_large {
        let spans = spans(store, id, reading.strict, &mut room, Texts::All)?;
        if matches(request, &spans) {
            found.insert(place, spans);
        }
        if let Some(held_back) = LARGER_THAN_REST.admit() {
            tracing::warn!(
                trace = %id,
                held_back,
                "left spans of a trace out of an answer: it is larger than the rest of query_max_mib"
            );
        }
    }
    Ok(Answer { found, cut: Cut::noted(had_room, in_time) })
}

/// Visits the traces of a window, latest first, until `visit` stops it or time runs out; returns whether there was time.
fn each_trace(
    store: &dyn Store,
    wanted: &Wanted,
    window_us: &RangeInclusive<u64>,
    reading: Reading,
    visit: &mut dyn FnMut(TraceId) -> Result<ControlFlow<()>, StoreError>,
) -> Result<bool, StoreError> {
    let until = Instant::now() + reading.patience;
    let mut seen = HashSet::new();
    store.traces_by_time(&wanted.until(until), window_us.clone(), &mut |found| {
        let is_new = reading.strict || seen.insert(found.id.low());
        if is_new { visit(found.id) } else { Ok(ControlFlow::Continue(())) }
    })?;
    Ok(Instant::now() < until)
}
