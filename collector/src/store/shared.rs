//! Which low halves of ids several traces of a segment share: hardly any, unless programs of old and of new ids trace together.

use std::sync::OnceLock;

use super::StoreError;
use super::engine::Snapshot;
use super::segment::Segment;

/// Beyond so many, all are taken for shared.
const MOST: usize = 4096;

/// What was found when it was first asked for: the segment never changes.
#[derive(Debug, Default)]
pub(super) struct SharedLows(OnceLock<Option<Vec<u64>>>);

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
        Ok(shared.as_ref().is_none_or(|lows| lows.binary_search(&low).is_ok()))
    }
}

/// Those that are shared, in order, if they are not too many.
fn find(rows: &dyn Snapshot, segment: &Segment) -> Result<Option<Vec<u64>>, StoreError> {
    let (mut shared, mut before) = (Vec::new(), None);
    segment.each_low(rows, &mut |low| {
        if before.replace(low) == Some(low) && shared.last() != Some(&low) && shared.len() <= MOST {
            shared.push(low);
        }
    })?;
    Ok((shared.len() <= MOST).then_some(shared))
}

#[cfg(test)]
mod tests {
    use super::super::engine::Engine;
    use super::super::memory::Memory;
    use super::super::{Batch, Store, TO_THE_END, TraceStore};
    use super::*;
    use crate::merge::Piece;
    use crate::model::{Span, SpanId, TraceId};

    /// A segment of traces 1 to `traces`, of which each of the first `shared` shares its low half with another two.
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
    fn shared_low_halves_are_told_from_others_unless_they_are_many() {
        let (few, many) = (segment(5000, MOST as u64), segment(5000, MOST as u64 + 1));
        let shared = [1, MOST as u64];
        let alone = [MOST as u64 + 2, 5000];
        assert!(shared.iter().all(|&low| may_hold(&few, low)));
        assert!(!alone.iter().any(|&low| may_hold(&few, low)));
        assert!(alone.iter().all(|&low| may_hold(&many, low)));
    }
}
