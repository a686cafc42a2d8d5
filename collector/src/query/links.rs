//! The links between services in a window of time. All its traces are come to by the index each time, which is cheap; to read
//! them is not, so that what was read is remembered, by groups of traces that are found one after the other.
//!
//! Where a group ends is decided by the ids alone (content-defined chunking, as of Muthitacharoen et al., SOSP 2001, but of
//! ids instead of bytes): so two windows that overlap have the same groups but for those at their ends, and a trace that comes
//! changes one group and shifts none.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hasher};
use std::ops::{ControlFlow, RangeInclusive};
use std::sync::Arc;
use std::time::Instant;

use super::remembered::{Key, Moment, RememberedLinks};
use super::search::{Answer, Cut, Reading, trace_with};
use crate::model::TraceId;
use crate::store::{Store, StoreError, Visited, Wanted};
use crate::trace::{DependencyLink, Linker};

/// A group has so many traces in the mean.
const MEAN: u64 = 2048;
/// And never more than these.
const MOST: usize = 16 * MEAN as usize;
/// Or, as they are stored, so many bytes and what its last trace has: else a group of large traces could not be read in the time that
/// a query has, and would be begun anew by each.
const MOST_BYTES: u64 = 8 << 20;

/// The links between services in a window of time. Traces that share their low 64 bits count as one, at the time of the
/// latest.
///
/// # Errors
/// When the store fails.
pub fn dependencies(
    store: &dyn Store,
    window_us: &RangeInclusive<u64>,
    reading: Reading,
    remembered: &RememberedLinks,
) -> Result<Answer<Vec<DependencyLink>>, StoreError> {
    let until = Instant::now() + reading.patience;
    let mut sum = Sum {
        store,
        reading: Reading { strict: false, ..reading },
        until,
        remembered,
        moment: remembered.moment(),
        linker: Linker::default(),
        group: Group::begun(remembered),
        seen: HashSet::new(),
        cut: None,
    };
    store.traces_by_time(&Wanted::default().until(until), window_us.clone(), &mut |found| sum.take(found))?;
    sum.end_group()?;
    let in_time = Instant::now() < until;
    Ok(Answer { found: sum.linker.links(), cut: sum.cut.or(Cut::noted(true, in_time)) })
}

/// Traces that were found one after the other.
struct Group {
    ids: Vec<TraceId>,
    bytes: u64,
    /// All on which depends what is read of them.
    state: DefaultHasher,
}

impl Group {
    fn begun(remembered: &RememberedLinks) -> Group {
        Group { ids: Vec::new(), bytes: 0, state: remembered.hasher() }
    }

    fn is_full(&self) -> bool {
        self.ids.len() >= MOST || self.bytes >= MOST_BYTES
    }
}

/// The links of the traces so far.
struct Sum<'q> {
    store: &'q dyn Store,
    reading: Reading,
    until: Instant,
    remembered: &'q RememberedLinks,
    moment: Moment,
    linker: Linker,
    group: Group,
    /// Low 64 bits that several traces share.
    seen: HashSet<u64>,
    cut: Option<Cut>,
}

impl Sum<'_> {
    fn take(&mut self, found: &Visited<'_>) -> Result<ControlFlow<()>, StoreError> {
        let low = found.id.low();
        if self.seen.contains(&low) {
            return Ok(ControlFlow::Continue(()));
        }
        if !found.tell(&mut self.group.state)? {
            self.seen.insert(low);
        }
        self.group.ids.push(found.id);
        self.group.bytes += found.bytes();
        if self.group.is_full() || self.remembered.number_of(low).is_multiple_of(MEAN) {
            self.end_group()?;
        }
        Ok(ControlFlow::Continue(()))
    }

    fn end_group(&mut self) -> Result<(), StoreError> {
        let begun = Group::begun(self.remembered);
        let Group { ids, state, .. } = std::mem::replace(&mut self.group, begun);
        if ids.is_empty() {
            return Ok(());
        }
        let key = Key { traces: ids.len(), state: state.finish() };
        if let Some(links) = self.remembered.get(key, self.moment) {
            self.linker.add_links(&links);
            return Ok(());
        }
        let mut of_group = Linker::default();
        let is_whole = self.read(&ids, &mut of_group)?;
        let links = Arc::new(of_group.into_sum());
        self.linker.add_links(&links);
        if is_whole {
            self.remembered.keep(key, links, self.moment);
        }
        Ok(())
    }

    /// Reads traces while there is time. Returns whether all of all of them was read.
    fn read(&mut self, ids: &[TraceId], linker: &mut Linker) -> Result<bool, StoreError> {
        let mut is_whole = true;
        for &id in ids {
            if Instant::now() >= self.until {
                return Ok(false);
            }
            let Answer { found, cut } = trace_with(self.store, id, self.reading, Linker::TEXTS)?;
            linker.add_trace(found);
            is_whole &= cut.is_none();
            self.cut = self.cut.or(cut);
        }
        Ok(is_whole)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::merge::Piece;
    use crate::model::{Endpoint, Span, SpanId};
    use crate::store::memory::Memory;
    use crate::store::{Batch, TO_THE_END, TraceStore};

    const READING: Reading = Reading { strict: true, max_bytes: 1 << 20, patience: Duration::from_secs(600) };
    const ALL: RangeInclusive<u64> = 0..=u64::MAX;

    /// A call from one service to another in a trace of its own, whose id no other has and no order tells.
    fn call(at_us: u64) -> Piece {
        let id = at_us.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Piece::V2(Span {
            timestamp: Some(at_us as i64),
            local_endpoint: Some(Endpoint::service("a")),
            remote_endpoint: Some(Endpoint::service("b")),
            ..Span::new(TraceId::new(0, id).unwrap(), SpanId::new(1).unwrap())
        })
    }

    fn keep(store: &TraceStore<Memory>, times_us: impl Iterator<Item = u64>) {
        let mut batch = Batch::default();
        times_us.for_each(|at_us| batch.push(&call(at_us)));
        store.commit(&[batch], 1).unwrap();
    }

    fn calls(
        store: &TraceStore<Memory>,
        window_us: &RangeInclusive<u64>,
        remembered: &RememberedLinks,
    ) -> u64 {
        let links = dependencies(store, window_us, READING, remembered).unwrap();
        assert_eq!(links.cut, None);
        links.found.iter().map(|link| link.call_count).sum()
    }

    #[test]
    fn what_has_changed_is_read_and_nothing_else() {
        const TRACES: u64 = 10 * MEAN;
        let store = TraceStore::new(Memory::default()).unwrap();
        keep(&store, (2..=2 * TRACES).step_by(2));
        let remembered = RememberedLinks::default();
        assert_eq!(calls(&store, &ALL, &remembered), TRACES);
        let groups = remembered.number_of_groups();
        assert!(groups > 1);
        assert_eq!(calls(&store, &ALL, &remembered), TRACES);
        store.freeze();
        store.upkeep(TO_THE_END).unwrap();
        assert_eq!(calls(&store, &ALL, &remembered), TRACES);
        assert_eq!(remembered.number_of_groups(), groups, "a segment has what its head had");
        keep(&store, [TRACES + 1].into_iter());
        assert_eq!(calls(&store, &ALL, &remembered), TRACES + 1);
        // That trace may be the last of a group.
        assert!((groups + 1..=groups + 2).contains(&remembered.number_of_groups()));
        let groups = remembered.number_of_groups();
        assert_eq!(calls(&store, &(101..=2 * TRACES - 100), &remembered), TRACES + 1 - 100);
        assert!(remembered.number_of_groups() <= groups + 2, "a window has ends of its own");
    }

    #[test]
    fn large_traces_are_a_group_though_they_are_few() {
        const EACH: usize = 1 << 20;
        const GROUPS: u64 = 4;
        let store = TraceStore::new(Memory::default()).unwrap();
        for at_us in 1..=GROUPS * (MOST_BYTES / EACH as u64) {
            let Piece::V2(mut span) = call(at_us) else { unreachable!() };
            span.tags.insert("k".to_owned(), "x".repeat(EACH));
            let mut batch = Batch::default();
            batch.push(&Piece::V2(span));
            store.commit(&[batch], 1).unwrap();
        }
        for _ in ["a head", "a segment"] {
            let remembered = RememberedLinks::default();
            dependencies(&store, &ALL, Reading { max_bytes: 1 << 30, ..READING }, &remembered).unwrap();
            assert!(remembered.number_of_groups() as u64 >= GROUPS);
            store.freeze();
            store.upkeep(TO_THE_END).unwrap();
        }
    }

    #[test]
    fn what_was_not_read_to_its_end_is_not_remembered() {
        let store = TraceStore::new(Memory::default()).unwrap();
        keep(&store, 1..=10);
        let remembered = RememberedLinks::default();
        for (reading, key) in [
            (Reading { patience: Duration::ZERO, ..READING }, "query_seconds"),
            (Reading { max_bytes: 1, ..READING }, "query_max_mib"),
        ] {
            let links = dependencies(&store, &ALL, reading, &remembered).unwrap();
            assert_eq!(links.cut.map(Cut::key), Some(key));
            assert_eq!(remembered.number_of_groups(), 0);
        }
        assert_eq!(calls(&store, &ALL, &remembered), 10);
    }

    #[test]
    fn traces_of_one_low_half_are_one_however_often_they_are_asked_for() {
        let store = TraceStore::new(Memory::default()).unwrap();
        let remembered = RememberedLinks::default();
        keep(&store, [1].into_iter());
        assert_eq!(calls(&store, &ALL, &remembered), 1);
        let Piece::V2(first) = call(1) else { unreachable!() };
        let mut batch = Batch::default();
        let trace_id = TraceId::new(7, first.trace_id.low()).unwrap();
        let id = SpanId::new(2).unwrap();
        batch.push(&Piece::V2(Span { trace_id, id, timestamp: None, ..first }));
        store.commit(&[batch], 1).unwrap();
        for _ in ["a head", "a segment"] {
            // The other has no time of its own.
            assert_eq!(calls(&store, &(1..=1), &remembered), 2);
            assert_eq!(calls(&store, &ALL, &remembered), 2);
            store.freeze();
            store.upkeep(TO_THE_END).unwrap();
        }
    }
}
