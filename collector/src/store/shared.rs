//! Which low 64 bits of ids several traces of a segment share. There are hardly any, unless programs with 64-bit ids and programs
//! with 128-bit ids trace together.

use std::sync::OnceLock;

use super::StoreError;
use super::engine::Snapshot;
use super::filter::Filter;
use super::segment::Segment;

/// The shared low bits, found at the first use; they stay valid because a segment never changes. They are kept as a filter,
/// because there may be half as many as there are traces; so it takes at most half as much as the filter of all traces.
#[derive(Debug, Default)]
pub(super) struct SharedLows(OnceLock<Filter>);

impl SharedLows {
    /// Whether several traces of the segment may have these low 64 bits.
    pub(super) fn may_hold(
        &self,
        rows: &dyn Snapshot,
        segment: &Segment,
        low: u64,
    ) -> Result<bool, StoreError> {
        let shared = match self.0.get() {
            Some(shared) => shared,
            None => {
                let found = find(rows, segment)?;
                self.0.get_or_init(|| found)
            }
        };
        Ok(shared.may_hold(low))
    }
}

/// Reads all ids twice, because many may be shared and a filter needs their number in advance.
fn find(rows: &dyn Snapshot, segment: &Segment) -> Result<Filter, StoreError> {
    let mut count = 0;
    each_shared(rows, segment, &mut |_| count += 1)?;
    let mut shared = Filter::for_traces(count);
    if count > 0 {
        each_shared(rows, segment, &mut |low| shared.insert(low))?;
    }
    Ok(shared)
}

/// Visits each of the low 64 bits that several traces share, once.
fn each_shared(rows: &dyn Snapshot, segment: &Segment, visit: &mut dyn FnMut(u64)) -> Result<(), StoreError> {
    let (mut before, mut last_shared) = (None, None);
    segment.each_low(rows, &mut |low| {
        if before.replace(low) == Some(low) && last_shared.replace(low) != Some(low) {
            visit(low);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::engine::Engine;
    use super::super::memory::Memory;
    use super::super::{Batch, Store, TO_THE_END, TraceStore};
    use crate::merge::Piece;
    use crate::model::{Span, SpanId, TraceId};

    /// A segment of traces 1 to `traces`; each of the first `shared` of them shares its low half with two others.
    fn segment(traces: u64, shared: u64) -> TraceStore<Memory> {
        let store = TraceStore::new(Memory::default()).unwrap();
        let mut batch = Batch::default();
        let ids = (1..=traces).flat_map(|low| {
            let highs = if low <= shared { 0..=2 } else { 0..=0 };
            highs.map(move |high| TraceId::new(high, low).unwrap())
        });
        ids.for_each(|id| batch.push(&Piece::V2(Span::new(id, SpanId::new(1).unwrap()))));
        store.commit(&[batch], 1).unwrap();
        store.freeze();
        store.upkeep(TO_THE_END).unwrap();
        store
    }

    fn may_hold(store: &TraceStore<Memory>, low: u64) -> bool {
        let rows = store.engine.read().unwrap();
        let segment = &store.index.view().segments[0];
        segment.shared.may_hold(&*rows, segment, low).unwrap()
    }

    #[test]
    fn shared_low_halves_are_recognised_with_few_false_hits() {
        for shared in [0, 1, 4000, 9000] {
            let store = segment(10_000, shared);
            assert!((1..=shared).all(|low| may_hold(&store, low)));
            let others = shared + 1..=10_000;
            let taken = others.clone().filter(|&low| may_hold(&store, low)).count();
            assert!(20 * taken < others.count(), "{taken} of {shared}");
        }
    }
}
