//! Reading traces from the store: one, several, by search, and the links between services.

use std::collections::HashSet;
use std::ops::{ControlFlow, RangeInclusive};

use super::matching::matches;
use super::request::SearchRequest;
use crate::merge::assemble;
use crate::model::{Span, TraceId};
use crate::store::{Store, StoreError};
use crate::trace::{DependencyLink, Linker};

/// One trace; empty if it is not known.
///
/// # Errors
/// When the store fails.
pub fn trace(store: &dyn Store, id: TraceId, strict: bool) -> Result<Vec<Span>, StoreError> {
    Ok(assemble(store.trace(id, strict)?))
}

/// The traces of these ids that are known.
///
/// # Errors
/// When the store fails.
pub fn traces(store: &dyn Store, ids: &[TraceId], strict: bool) -> Result<Vec<Vec<Span>>, StoreError> {
    let mut found = Vec::new();
    for &id in ids {
        let spans = trace(store, id, strict)?;
        if !spans.is_empty() {
            found.push(spans);
        }
    }
    Ok(found)
}

/// The traces that match, latest first.
///
/// # Errors
/// When the store fails.
pub fn search(
    store: &dyn Store,
    request: &SearchRequest,
    strict: bool,
) -> Result<Vec<Vec<Span>>, StoreError> {
    let mut found = Vec::new();
    each_trace(store, request.service.as_deref(), &request.window_us, strict, &mut |spans| {
        if matches(request, &spans) {
            found.push(spans);
        }
        if found.len() < request.limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    Ok(found)
}

/// The links between services in a window of time. Traces that share their low 64 bits count as one.
///
/// # Errors
/// When the store fails.
pub fn dependencies(
    store: &dyn Store,
    window_us: &RangeInclusive<u64>,
) -> Result<Vec<DependencyLink>, StoreError> {
    let mut linker = Linker::default();
    each_trace(store, None, window_us, false, &mut |spans| {
        linker.add_trace(spans);
        ControlFlow::Continue(())
    })?;
    Ok(linker.links())
}

fn each_trace(
    store: &dyn Store,
    service: Option<&str>,
    window_us: &RangeInclusive<u64>,
    strict: bool,
    visit: &mut dyn FnMut(Vec<Span>) -> ControlFlow<()>,
) -> Result<(), StoreError> {
    let mut seen = HashSet::new();
    store.traces_by_time(service, window_us.clone(), &mut |id| {
        if !strict && !seen.insert(id.low()) {
            return Ok(ControlFlow::Continue(()));
        }
        Ok(visit(trace(store, id, strict)?))
    })
}
