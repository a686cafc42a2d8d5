//! Reading traces from the store: one, several, by search, and the links between services.

use std::collections::HashSet;
use std::ops::{ControlFlow, RangeInclusive};

use blkin_zipkin::query::{SearchRequest, matches};

use crate::merge::assemble;
use crate::model::{Span, TraceId};
use crate::store::{Room, Store, StoreError};
use crate::trace::{DependencyLink, Linker};

/// How traces are read.
#[derive(Debug, Clone, Copy)]
pub struct Reading {
    /// Whether trace ids are compared in all their 128 bits.
    pub strict: bool,
    /// Most bytes, as stored, of all traces of an answer; what is beyond is left out, and the log tells.
    pub max_bytes: usize,
}

/// One trace; empty if it is not known.
///
/// # Errors
/// When the store fails.
pub fn trace(store: &dyn Store, id: TraceId, reading: Reading) -> Result<Vec<Span>, StoreError> {
    let mut room = Room::of(reading.max_bytes);
    let pieces = store.trace(id, reading.strict, &mut room)?;
    if room.exhausted {
        tracing::warn!(trace = %id, "left spans out of an answer: the trace has more than query_max_mib");
    }
    Ok(assemble(pieces))
}

/// The traces of these ids that are known.
///
/// # Errors
/// When the store fails.
pub fn traces(store: &dyn Store, ids: &[TraceId], reading: Reading) -> Result<Vec<Vec<Span>>, StoreError> {
    let mut room = Room::of(reading.max_bytes);
    let mut found = Vec::new();
    for &id in ids {
        let spans = assemble(store.trace(id, reading.strict, &mut room)?);
        if !spans.is_empty() && !room.exhausted {
            found.push(spans);
        }
    }
    tell_if_exhausted(&room);
    Ok(found)
}

/// The traces that match, latest first.
///
/// # Errors
/// When the store fails.
pub fn search(
    store: &dyn Store,
    request: &SearchRequest,
    reading: Reading,
) -> Result<Vec<Vec<Span>>, StoreError> {
    let mut room = Room::of(reading.max_bytes);
    let mut found: Vec<Vec<Span>> = Vec::new();
    each_trace(store, request.service.as_deref(), &request.window_us, reading.strict, &mut |id| {
        let mut after = room;
        let spans = assemble(store.trace(id, reading.strict, &mut after)?);
        // The first trace is answered as far as it fits, so that a huge one does not look like none.
        if after.exhausted && !found.is_empty() {
            room = after;
            return Ok(ControlFlow::Break(()));
        }
        if matches(request, &spans) {
            found.push(spans);
            room = after;
        }
        let done = room.exhausted || found.len() >= request.limit;
        Ok(if done { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    tell_if_exhausted(&room);
    Ok(found)
}

/// The links between services in a window of time. Traces that share their low 64 bits count as one.
///
/// # Errors
/// When the store fails.
pub fn dependencies(
    store: &dyn Store,
    window_us: &RangeInclusive<u64>,
    reading: Reading,
) -> Result<Vec<DependencyLink>, StoreError> {
    let mut linker = Linker::default();
    each_trace(store, None, window_us, false, &mut |id| {
        linker.add_trace(trace(store, id, Reading { strict: false, ..reading })?);
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(linker.links())
}

fn tell_if_exhausted(room: &Room) {
    if room.exhausted {
        tracing::warn!("left traces out of an answer: together they have more than query_max_mib");
    }
}

fn each_trace(
    store: &dyn Store,
    service: Option<&str>,
    window_us: &RangeInclusive<u64>,
    strict: bool,
    visit: &mut dyn FnMut(TraceId) -> Result<ControlFlow<()>, StoreError>,
) -> Result<(), StoreError> {
    let mut seen = HashSet::new();
    store.traces_by_time(service, window_us.clone(), &mut |id| {
        if !strict && !seen.insert(id.low()) {
            return Ok(ControlFlow::Continue(()));
        }
        visit(id)
    })
}
