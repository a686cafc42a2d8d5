//! The links between services in a window of time.

use std::ops::RangeInclusive;

use super::groups::{Question, Sum};
use super::remembered::{Remembered, Weighed};
use super::search::{Answer, Reading};
use crate::store::{Store, StoreError, Wanted};
use crate::trace::{DependencyLink, Linker, Links};

/// The remembered links of groups of traces.
pub type RememberedLinks = Remembered<Links>;

impl Weighed for Links {
    fn bytes(&self) -> usize {
        self.bytes()
    }
}

impl Sum for Linker {
    type Kept = Links;

    fn add(&mut self, kept: &Links) {
        self.add_links(kept);
    }

    fn keep(self) -> Links {
        self.into_sum()
    }
}

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
    let question = Question {
        store,
        reading: Reading { strict: false, ..reading },
        wanted: Wanted::default(),
        window_us,
        texts: Linker::TEXTS,
        remembered,
        hash_question: &|_| {},
        add: &Linker::add_trace,
    };
    Ok(question.answer()?.map(Linker::links))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::groups::{MEAN, MOST_BYTES};
    use super::super::search::Cut;
    use super::*;
    use crate::merge::Piece;
    use crate::model::{Endpoint, Span, SpanId, TraceId};
    use crate::store::memory::Memory;
    use crate::store::{Batch, TO_THE_END, TraceStore};

    const READING: Reading = Reading { strict: true, max_bytes: 1 << 20, patience: Duration::from_secs(600) };
    const ALL: RangeInclusive<u64> = 0..=u64::MAX;

    /// A call from one service to another, in a trace of its own with a unique id; the ids do not rise with the time.
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
    fn only_changed_groups_of_traces_are_read_again() {
        // More traces than one group ever has.
        const TRACES: u64 = 17 * MEAN;
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
        assert_eq!(remembered.number_of_groups(), groups, "a segment keeps the groups of its head");
        keep(&store, [TRACES + 1].into_iter());
        assert_eq!(calls(&store, &ALL, &remembered), TRACES + 1);
        // That trace may be the last of a group.
        assert!((groups + 1..=groups + 2).contains(&remembered.number_of_groups()));
        let groups = remembered.number_of_groups();
        assert_eq!(calls(&store, &(101..=2 * TRACES - 100), &remembered), TRACES + 1 - 100);
        assert!(remembered.number_of_groups() <= groups + 2, "a window adds groups only at its ends");
    }

    #[test]
    fn large_traces_fill_a_group_by_their_bytes() {
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
    fn incompletely_read_groups_are_not_remembered() {
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
    fn links_include_all_traces_sharing_a_low_half() {
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
            // The other trace has no time of its own.
            assert_eq!(calls(&store, &(1..=1), &remembered), 2);
            assert_eq!(calls(&store, &ALL, &remembered), 2);
            store.freeze();
            store.upkeep(TO_THE_END).unwrap();
        }
    }
}
