//! Searches traces by time, latest first. The sources are the heads and the segments, and each yields its own traces in that
//! order. If several sources know a trace, only the newest one yields it, because that one knows its time. The terms of a trace
//! may be spread over several sources. So each source yields those of its traces that have all wanted terms, and those that go
//! on with older sources; terms that these lack are then looked for in the older sources.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use super::StoreError;
use super::engine::Snapshot;
use super::head::Candidate;
use super::index::View;
use super::segment::{Record, Segment};
use super::terms::{Wanted, Window};
use super::visited::Visited;
use crate::model::TraceId;

/// Visits the traces that may be wanted; at the end those without a time that may belong to a trace in the window.
pub(super) fn traces_by_time(
    rows: &dyn Snapshot,
    view: &View,
    wanted: &Wanted,
    window: &Window,
    visit: &mut dyn FnMut(&Visited<'_>) -> Result<ControlFlow<()>, StoreError>,
) -> Result<(), StoreError> {
    let mut search = Search::begun(rows, view, wanted, window);
    let mut visited = HashSet::new();
    while let Some(found) = search.pop()? {
        let is_first = !search.new.contains(&found.id) || visited.insert(found.id);
        if is_first && visit(&found)?.is_break() {
            return Ok(());
        }
    }
    if wanted.may_be_timeless {
        let mut search = Search::begun(rows, view, wanted, &(0..=0));
        while let Some(found) = search.pop()? {
            let same_low = view.find_low(rows, found.id.low())?;
            let is_in_window = same_low.iter().any(|(_, version)| window.contains(&version.time_us));
            if is_in_window && visit(&found)?.is_break() {
                return Ok(());
            }
        }
    }
    Ok(())
}

struct Search<'s> {
    rows: &'s dyn Snapshot,
    view: &'s View,
    wanted: &'s Wanted,
    window: &'s Window,
    next: BinaryHeap<Next<'s>>,
    /// For each segment and term, the places that were read last.
    having: HashMap<(usize, u64), Having>,
    /// Traces that came to a head after the view was taken: an older source may yield the same trace again.
    new: HashSet<TraceId>,
}

/// The next trace of one source; of a segment that is not open yet, only the latest time that it may have.
struct Next<'s> {
    time_us: u64,
    /// The age of the source; the newest is 0.
    age: usize,
    source: Source<'s>,
}

enum Source<'s> {
    Head(Candidate, std::vec::IntoIter<Candidate>),
    Unopened(&'s Arc<Segment>),
    Segment(Match, Matches<'s>),
}

impl<'s> Search<'s> {
    fn begun(rows: &'s dyn Snapshot, view: &'s View, wanted: &'s Wanted, window: &'s Window) -> Self {
        let (next, having, new) = (BinaryHeap::new(), HashMap::new(), HashSet::new());
        let mut search = Search { rows, view, wanted, window, next, having, new };
        search.begin();
        search
    }

    fn begin(&mut self) {
        let candidates = self.view.head_candidates(self.wanted, self.window);
        for (age, found) in candidates.into_iter().enumerate() {
            self.new.extend(found.iter().filter(|candidate| candidate.is_new).map(|candidate| candidate.id));
            self.push_head(age, found.into_iter());
        }
        let heads = self.view.heads();
        for (at, segment) in self.view.segments.iter().rev().enumerate() {
            let (latest_us, earliest_us) = (segment.entry.latest_us, segment.entry.earliest_us);
            if latest_us >= *self.window.start() && earliest_us <= *self.window.end() {
                let time_us = latest_us.min(*self.window.end());
                self.next.push(Next { time_us, age: heads + at, source: Source::Unopened(segment) });
            }
        }
    }

    fn push_head(&mut self, age: usize, mut rest: std::vec::IntoIter<Candidate>) {
        if let Some(found) = rest.next() {
            self.next.push(Next { time_us: found.time_us, age, source: Source::Head(found, rest) });
        }
    }

    fn push_segment(&mut self, age: usize, mut matches: Matches<'s>) -> Result<(), StoreError> {
        if let Some(found) = matches.next(self.rows)? {
            let time_us = found.record.version.time_us;
            self.next.push(Next { time_us, age, source: Source::Segment(found, matches) });
        }
        Ok(())
    }

    /// The next trace, which is the latest of those that are left.
    fn pop(&mut self) -> Result<Option<Visited<'s>>, StoreError> {
        while let Some(Next { age, source, .. }) = self.next.pop().filter(|_| !self.wanted.is_late()) {
            let (id, extent, missing) = match source {
                Source::Unopened(segment) => {
                    let matches = Matches::new(self.rows, segment, self.wanted, self.window)?;
                    self.push_segment(age, matches)?;
                    continue;
                }
                Source::Head(found, rest) => {
                    self.push_head(age, rest);
                    (found.id, found.extent, found.missing)
                }
                Source::Segment(Match { record, has_all }, matches) => {
                    self.push_segment(age, matches)?;
                    let missing = if has_all { Vec::new() } else { self.wanted.terms.clone() };
                    (record.id, record.version.extent(), missing)
                }
            };
            if extent.last_block >= self.view.passed
                && !self.view.is_newer_than(self.rows, age, id)?
                && self.has_terms(age, id, missing)?
            {
                let Search { rows, view, .. } = *self;
                return Ok(Some(Visited { id, extent, age, rows, view }));
            }
        }
        Ok(None)
    }

    /// Whether a trace has these terms in the source of this age or in older ones. Terms of an expired trace with the same id
    /// count too: a term too many costs no answer.
    fn has_terms(&mut self, age: usize, id: TraceId, mut missing: Vec<u64>) -> Result<bool, StoreError> {
        if missing.is_empty() {
            return Ok(true);
        }
        self.view.strike_in_heads(age, id, &mut missing);
        let newer = age.saturating_sub(self.view.heads());
        for at in (0..self.view.segments.len() - newer).rev() {
            if missing.is_empty() {
                break;
            }
            self.strike(at, id, &mut missing)?;
        }
        Ok(missing.is_empty())
    }

    /// Removes from `missing` the terms that a trace has in a segment.
    fn strike(&mut self, at: usize, id: TraceId, missing: &mut Vec<u64>) -> Result<(), StoreError> {
        let (view, rows) = (self.view, self.rows);
        let segment = &view.segments[at];
        if !segment.filter.may_hold(id.low()) {
            return Ok(());
        }
        let mut place = None;
        for number in (0..missing.len()).rev() {
            let term = missing[number];
            let having = self.having.entry((at, term)).or_default();
            if !having.any(rows, segment, term)? {
                continue;
            }
            let place = match place {
                Some(place) => place,
                None => *place.insert(segment.place(rows, id)?),
            };
            let Some(place) = place else { break };
            if having.has(rows, segment, term, place)? {
                missing.swap_remove(number);
            }
        }
        Ok(())
    }
}

/// Some of the places of a term in a segment: those of one chunk.
#[derive(Default)]
struct Having {
    chunk: Option<usize>,
    places: Vec<u64>,
}

impl Having {
    /// Whether any trace of the segment may have the term.
    fn any(&mut self, rows: &dyn Snapshot, segment: &Segment, term: u64) -> Result<bool, StoreError> {
        let (first, last) = (segment.chunk_with(term, 0), segment.chunk_with(term, u64::MAX));
        if first != last {
            return Ok(true);
        }
        self.read(rows, segment, term, first)?;
        Ok(!self.places.is_empty())
    }

    /// Whether the trace at a place has the term.
    fn has(
        &mut self,
        rows: &dyn Snapshot,
        segment: &Segment,
        term: u64,
        place: u64,
    ) -> Result<bool, StoreError> {
        self.read(rows, segment, term, segment.chunk_with(term, place))?;
        Ok(self.places.binary_search(&place).is_ok())
    }

    fn read(
        &mut self,
        rows: &dyn Snapshot,
        segment: &Segment,
        term: u64,
        chunk: usize,
    ) -> Result<(), StoreError> {
        if self.chunk != Some(chunk) && chunk < segment.fences.terms.len() {
            self.places = segment.places_with(rows, term, chunk)?;
            self.chunk = Some(chunk);
        }
        Ok(())
    }
}

impl Next<'_> {
    /// The order: the latest time first; at the same time, segments that are not open yet, then the newest source.
    fn key(&self) -> (u64, bool, std::cmp::Reverse<usize>) {
        (self.time_us, matches!(self.source, Source::Unopened(_)), std::cmp::Reverse(self.age))
    }
}

impl Ord for Next<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for Next<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Next<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Next<'_> {}

/// A trace of a segment that may be wanted.
struct Match {
    record: Record,
    /// Whether it has all wanted terms here. If not, it goes on with an older segment.
    has_all: bool,
}

/// The traces of a segment that are in the window and have all wanted terms or go on with an older segment, latest first.
struct Matches<'s> {
    segment: &'s Segment,
    wanted: &'s Wanted,
    window: &'s Window,
    places: Vec<Places>,
    place: u64,
    /// The records of the chunk that was read last, and the place of its first record.
    chunk: (u64, Vec<Record>),
}

impl<'s> Matches<'s> {
    fn new(
        rows: &dyn Snapshot,
        segment: &'s Segment,
        wanted: &'s Wanted,
        window: &'s Window,
    ) -> Result<Self, StoreError> {
        let place = segment.first_not_after(rows, *window.end())?;
        let places = wanted.terms.iter().map(|&term| Places { term, chunk: None, run: Vec::new() }).collect();
        Ok(Matches { segment, wanted, window, places, place, chunk: (0, Vec::new()) })
    }

    /// The next match; must not be called again after it has returned none.
    fn next(&mut self, rows: &dyn Snapshot) -> Result<Option<Match>, StoreError> {
        loop {
            let (agreed, goes_on) = (self.agreed(rows)?, self.segment.next_that_goes_on(self.place));
            let Some(place) = [agreed, goes_on].into_iter().flatten().min() else { return Ok(None) };
            let Some(record) = self.record(rows, place)? else { return Ok(None) };
            if record.version.time_us < *self.window.start() {
                return Ok(None);
            }
            self.place = place + 1;
            if record.version.longest_us >= self.wanted.least_duration_us {
                return Ok(Some(Match { record, has_all: agreed == Some(place) }));
            }
        }
    }

    /// The first place, from `place` on, that every term has (Hwang, Lin 1972: each in turn leaps to the place of another).
    fn agreed(&mut self, rows: &dyn Snapshot) -> Result<Option<u64>, StoreError> {
        let mut place = self.place;
        let mut agree = 0;
        while agree < self.places.len() {
            let at = agree % self.places.len();
            match self.places[at].from(rows, self.segment, place)? {
                None => return Ok(None),
                Some(next) if next == place => agree += 1,
                Some(next) => {
                    place = next;
                    agree = 0;
                }
            }
        }
        Ok((place < self.segment.entry.traces).then_some(place))
    }

    /// The record at a place; later calls must not ask for earlier places.
    fn record(&mut self, rows: &dyn Snapshot, place: u64) -> Result<Option<Record>, StoreError> {
        let (first, records) = &self.chunk;
        if place >= first + records.len() as u64 {
            let fences = &self.segment.fences.traces;
            let Some(at) = fences.partition_point(|&(first, _)| first <= place).checked_sub(1) else {
                return Ok(None);
            };
            if self.wanted.is_late() {
                return Ok(None);
            }
            self.chunk = (fences[at].0, self.segment.records(rows, at)?);
        }
        let (first, records) = &self.chunk;
        Ok(records.get((place - first) as usize).cloned())
    }
}

/// The places of one term.
struct Places {
    term: u64,
    chunk: Option<usize>,
    run: Vec<u64>,
}

impl Places {
    /// The first place at or after `place`; later calls must not ask for earlier places.
    fn from(
        &mut self,
        rows: &dyn Snapshot,
        segment: &Segment,
        place: u64,
    ) -> Result<Option<u64>, StoreError> {
        loop {
            let at = self.run.partition_point(|&of| of < place);
            if let Some(&found) = self.run.get(at) {
                return Ok(Some(found));
            }
            let nearest = segment.chunk_with(self.term, place);
            let chunk = self.chunk.map_or(nearest, |last| nearest.max(last + 1));
            match segment.fences.terms.get(chunk) {
                Some(&(first, _)) if first <= self.term => {}
                _ => return Ok(None),
            }
            self.run = segment.places_with(rows, self.term, chunk)?;
            self.chunk = Some(chunk);
        }
    }
}

#[cfg(test)]
mod tests {
    use blkin_thrift::{Annotation, Endpoint, Span};

    use super::super::engine::Engine;
    use super::super::memory::Memory;
    use super::super::{Batch, Retention, Store, TO_THE_END, TraceStore, terms};
    use super::*;
    use crate::merge::Piece;

    fn at(trace_id: i64, id: i64, timestamp: i64) -> Span {
        Span { trace_id, id, timestamp: Some(timestamp), ..Span::default() }
    }

    fn event(service: &str) -> Annotation {
        let host = Some(Endpoint { service_name: service.to_owned(), ..Endpoint::default() });
        Annotation { timestamp: 1, value: "x".to_owned(), host, ..Annotation::default() }
    }

    fn keep(store: &TraceStore<Memory>, spans: impl IntoIterator<Item = Span>) {
        let mut batch = Batch::default();
        spans.into_iter().for_each(|span| batch.push(&Piece::V1(span)));
        store.commit(&[batch], 1).unwrap();
    }

    fn make_segment(store: &TraceStore<Memory>) {
        let before = store.index.view().segments.len();
        store.freeze();
        store.keep_up(TO_THE_END).unwrap();
        assert_eq!(store.index.view().segments.len(), before + 1);
    }

    /// The traces that a search looks at, latest first.
    fn visited(store: &TraceStore<Memory>, view: &View, wanted: &Wanted, window: Window) -> Vec<u64> {
        let mut visited = Vec::new();
        let rows = store.engine.read().unwrap();
        traces_by_time(&*rows, view, wanted, &window, &mut |trace| {
            visited.push(trace.id.low());
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
        visited
    }

    fn visited_now(store: &TraceStore<Memory>, wanted: &Wanted) -> Vec<u64> {
        visited(store, &store.index.view(), wanted, 0..=u64::MAX)
    }

    #[test]
    fn a_trace_extended_after_the_view_was_taken_is_visited_once() {
        let store = TraceStore::new(Memory::default()).unwrap();
        keep(&store, [at(1, 1, 1000)]);
        make_segment(&store);
        let view = store.index.view();
        keep(&store, [at(1, 2, 2000)]);
        assert_eq!(visited(&store, &view, &Wanted::default(), 0..=9999), [1]);
    }

    #[test]
    fn a_window_includes_both_of_its_ends_in_segments() {
        let store = TraceStore::new(Memory::default()).unwrap();
        keep(&store, [1, 2, 3].map(|trace| at(trace, 1, trace * 1000)));
        make_segment(&store);
        let view = store.index.view();
        for (window, traces) in [
            (1000..=3000, &[3, 2, 1][..]),
            (1001..=2999, &[2]),
            (3000..=9999, &[3]),
            (0..=1000, &[1]),
            (3001..=9999, &[]),
            (0..=999, &[]),
        ] {
            assert_eq!(visited(&store, &view, &Wanted::default(), window.clone()), traces, "{window:?}");
        }
    }

    /// There are more terms, and more traces with one term, than a chunk of a segment holds.
    #[test]
    fn ongoing_traces_are_visited_for_terms_of_older_parts() {
        const TRACES: i64 = 1000;
        let store = TraceStore::new(Memory::default()).unwrap();
        let own = |trace: i64| format!("service {trace}");
        let older =
            |trace| Span { annotations: vec![event("all"), event(&own(trace))], ..at(trace, 1, trace) };
        keep(&store, (1..=TRACES).map(older));
        make_segment(&store);
        let fences = store.index.view().segments[0].fences.terms.clone();
        let begins_a_chunk = |trace: &i64| fences.iter().any(|fence| fence.0 == terms::service(&own(*trace)));
        let at_begins: Vec<i64> = (1..=TRACES).filter(begins_a_chunk).collect();
        assert!(!at_begins.is_empty());
        let newer = |trace| Span { annotations: vec![event("later")], ..at(trace, 2, trace) };
        keep(&store, (1..=TRACES).map(newer));
        let all: Vec<u64> = (1..=TRACES as u64).rev().collect();
        for place in ["a head", "a segment"] {
            for service in ["all", "later"] {
                let visited = visited_now(&store, &Wanted::of_service(Some(service)));
                assert_eq!(visited, all, "{service} in {place}");
            }
            assert!(visited_now(&store, &Wanted::of_service(Some("other"))).is_empty(), "{place}");
            for trace in (1..=TRACES).step_by(100).chain(at_begins.iter().copied()) {
                let visited = visited_now(&store, &Wanted::of_service(Some(&own(trace))));
                assert_eq!(visited, [trace as u64], "{place}");
            }
            if place == "a head" {
                make_segment(&store);
            }
        }
    }

    #[test]
    fn only_traces_with_all_wanted_terms_are_visited() {
        let store = TraceStore::new(Memory::default()).unwrap();
        let services = [&["a"][..], &["b"], &["c"], &["a", "b"], &["b", "c"], &["a", "b", "c"], &["a", "c"]];
        keep(
            &store,
            services.iter().zip(1..).map(|(services, trace)| {
                let annotations = services.iter().map(|service| event(service)).collect();
                Span { annotations, ..at(trace, 1, trace) }
            }),
        );
        let wanted = |services: &[&str]| {
            let mut wanted = Wanted::of_service(None);
            wanted.terms = services.iter().map(|service| terms::service(service)).collect();
            wanted
        };
        for _ in ["a head", "a segment"] {
            assert_eq!(visited_now(&store, &wanted(&["a", "b"])), [6, 4]);
            assert_eq!(visited_now(&store, &wanted(&["c", "b"])), [6, 5]);
            assert_eq!(visited_now(&store, &wanted(&["a", "b", "c"])), [6]);
            store.freeze();
            store.keep_up(TO_THE_END).unwrap();
        }
    }

    #[test]
    fn a_segment_without_terms_can_be_searched() {
        let store = TraceStore::new(Memory::default()).unwrap();
        keep(&store, [at(1, 1, 1000)]);
        make_segment(&store);
        keep(&store, [at(1, 2, 2000)]);
        assert!(visited_now(&store, &Wanted::of_service(Some("a"))).is_empty());
    }

    #[test]
    fn a_trace_that_is_too_short_is_not_visited() {
        let store = TraceStore::new(Memory::default()).unwrap();
        keep(&store, [1, 2, 3].map(|trace| Span { duration: Some(trace * 10), ..at(trace, 1, trace) }));
        let mut wanted = Wanted::of_service(None);
        wanted.least_duration_us = 20;
        assert_eq!(visited_now(&store, &wanted), [3, 2]);
        make_segment(&store);
        assert_eq!(visited_now(&store, &wanted), [3, 2]);
    }

    #[test]
    fn an_expired_trace_is_not_visited() {
        let store = TraceStore::new(Memory::default()).unwrap();
        keep(&store, [at(1, 1, 1000)]);
        make_segment(&store);
        assert!(store.expire(&Retention { max_age_ms: 1, max_bytes: 0 }, 10).unwrap());
        let view = store.index.view();
        assert_eq!(view.segments.len(), 1, "upkeep has not removed the segment yet");
        assert!(visited(&store, &view, &Wanted::default(), 0..=9999).is_empty());
    }
}
