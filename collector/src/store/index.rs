//! The index: the growing head, a head that waits to become a segment, and the segments.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use super::engine::Snapshot;
use super::fair_lock::FairLock;
use super::head::{Candidate, Chain, Head, Learned, Version};
use super::manifest::Manifest;
use super::segment::Segment;
use super::terms::{Wanted, Window};
use super::{IndexSize, StoreError};
use crate::model::TraceId;

/// A head that may grow while it is read.
type SharedHead = Arc<RwLock<Head>>;

/// A head, and what it covers.
#[derive(Debug, Clone, Default)]
struct Growing {
    head: SharedHead,
    /// The first block that it does not index.
    end: u64,
    /// Retention had passed the blocks before this when the head began, so no trace in the head goes on with one that ended
    /// there.
    passed: u64,
}

/// The parts of the index, each shared with the queries that still read it.
#[derive(Debug, Default)]
pub(super) struct Index {
    parts: RwLock<Parts>,
    /// The turn of the thread that writes segments.
    pub(super) upkeep: FairLock,
    /// Segments that new queries do not use any more, but older ones may still read.
    pub(super) retired: Mutex<Vec<Arc<Segment>>>,
    wants_upkeep: AtomicBool,
}

#[derive(Debug, Clone, Default)]
struct Parts {
    /// Oldest first; the last one grows.
    heads: Vec<Growing>,
    /// Oldest first.
    segments: Arc<Vec<Arc<Segment>>>,
    manifest: Manifest,
    /// Retention has passed the blocks before this.
    passed: u64,
    /// Pieces after which a head becomes a segment.
    full: u64,
}

/// The index at a moment. The rows of its segments stay as long as a view is held, even if the segments are replaced.
pub(super) struct View {
    /// Newest first, each with the number of its traces at that moment.
    heads: Vec<(SharedHead, u32)>,
    /// Oldest first.
    pub(super) segments: Arc<Vec<Arc<Segment>>>,
    /// Retention has passed the blocks before this.
    pub(super) passed: u64,
    /// Traces that end before this block are forgotten for good: no head goes on with them, not even one that a start rebuilds.
    pub(super) forgotten: u64,
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

impl Index {
    /// An index of these segments and an empty head, which is full after so many pieces. It still includes what retention has
    /// passed, because blocks that are not indexed yet may go on with it.
    pub(super) fn new(manifest: Manifest, segments: Vec<Arc<Segment>>, full: u64) -> Index {
        let heads = vec![Growing { end: manifest.indexed, ..Growing::default() }];
        let parts = Parts { heads, segments: Arc::new(segments), manifest, passed: 0, full };
        Index { parts: RwLock::new(parts), ..Index::default() }
    }

    /// The index now. A snapshot of the store that is taken later has every row to which the view refers.
    pub(super) fn view(&self) -> View {
        let parts = read(&self.parts);
        let heads = parts.heads.iter().rev();
        let heads = heads.map(|growing| (growing.head.clone(), read(&growing.head).traces().len() as u32));
        View {
            heads: heads.collect(),
            segments: parts.segments.clone(),
            passed: parts.passed,
            forgotten: parts.heads.first().map_or(0, |growing| growing.passed),
        }
    }

    /// Adds what a commit wrote.
    pub(super) fn grow(&self, learned: Learned) {
        let next_block = learned.next_block;
        let mut parts = self.parts.write().unwrap_or_else(PoisonError::into_inner);
        let most = parts.full;
        let Some(growing) = parts.heads.last_mut() else { return };
        growing.end = next_block;
        let mut head = growing.head.write().unwrap_or_else(PoisonError::into_inner);
        head.grow(learned);
        let full = head.pieces() >= most;
        drop(head);
        if full && parts.begin_head() {
            self.wants_upkeep.store(true, Ordering::Release);
        }
    }

    /// Begins a new head, so that the current one can become a segment, however small it is.
    pub(super) fn freeze(&self) {
        let mut parts = self.parts.write().unwrap_or_else(PoisonError::into_inner);
        if parts.heads.last().is_some_and(|growing| !read(&growing.head).traces().is_empty()) {
            let _one_waits = parts.begin_head();
        }
    }

    /// Whether the head has grown so far beyond its full size that commits must wait.
    pub(super) fn is_overfull(&self) -> bool {
        const MOST_HEADS: u64 = 3;
        let parts = read(&self.parts);
        parts.heads.last().is_some_and(|growing| read(&growing.head).pieces() >= MOST_HEADS * parts.full)
    }

    /// How large the index is.
    pub(super) fn size(&self) -> IndexSize {
        let View { heads, segments, .. } = self.view();
        IndexSize {
            segments: segments.len() as u64,
            bytes: segments.iter().fold(0, |all, segment| all.saturating_add(segment.entry.bytes)),
            traces_in_memory: heads.iter().map(|(_, traces)| u64::from(*traces)).sum(),
            is_overfull: self.is_overfull(),
        }
    }

    /// Whether work has come up since this was last asked.
    pub(super) fn wanted_upkeep(&self) -> bool {
        self.wants_upkeep.swap(false, Ordering::AcqRel)
    }

    /// The oldest head, if it waits to become a segment, and the first block that it does not index.
    pub(super) fn frozen(&self) -> Option<(SharedHead, u64)> {
        let parts = read(&self.parts);
        let oldest = parts.heads.first().filter(|_| parts.heads.len() > 1)?;
        Some((oldest.head.clone(), oldest.end))
    }

    /// The first block that is not indexed.
    pub(super) fn end(&self) -> u64 {
        read(&self.parts).heads.last().map_or(0, |growing| growing.end)
    }

    pub(super) fn manifest(&self) -> Manifest {
        read(&self.parts).manifest.clone()
    }

    /// Replaces the segments and the manifest; `without_head` if the oldest head has become one of the segments.
    pub(super) fn replace(&self, manifest: Manifest, segments: Vec<Arc<Segment>>, without_head: bool) {
        let mut parts = self.parts.write().unwrap_or_else(PoisonError::into_inner);
        parts.manifest = manifest;
        parts.segments = Arc::new(segments);
        if without_head {
            parts.heads.remove(0);
        }
    }

    pub(super) fn set_passed(&self, block: u64) {
        self.parts.write().unwrap_or_else(PoisonError::into_inner).passed = block;
    }

    /// Whether the growing head knows a trace.
    pub(super) fn grows(&self, id: TraceId) -> bool {
        read(&self.parts).heads.last().is_some_and(|growing| read(&growing.head).number(id).is_some())
    }
}

impl Parts {
    /// Begins a new head, unless a head already waits to become a segment.
    fn begin_head(&mut self) -> bool {
        let [only] = self.heads.as_slice() else { return false };
        let begun = Growing { end: only.end, passed: self.passed, ..Growing::default() };
        self.heads.push(begun);
        true
    }
}

impl View {
    /// How many heads there are.
    pub(super) fn heads(&self) -> usize {
        self.heads.len()
    }

    /// For each head, newest first, the traces that may be wanted, latest first.
    pub(super) fn head_candidates(&self, wanted: &Wanted, window: &Window) -> Vec<Vec<Candidate>> {
        let heads = self.heads.iter();
        heads.map(|(head, known)| read(head).candidates(wanted, window, *known, self.passed)).collect()
    }

    /// Removes from `missing` the terms that a trace has in heads older than the source of this age.
    pub(super) fn strike_in_heads(&self, age: usize, id: TraceId, missing: &mut Vec<u64>) {
        self.heads.iter().skip(age + 1).for_each(|(head, _)| read(head).strike(id, missing));
    }

    /// Whether a part of the index newer than the source of this age knows a trace. Traces that a head learned after this view
    /// was taken do not count: the search would not find them there.
    pub(super) fn is_newer_than(
        &self,
        rows: &dyn Snapshot,
        age: usize,
        id: TraceId,
    ) -> Result<bool, StoreError> {
        let knows = |(head, traces): &(SharedHead, u32)| read(head).number(id).is_some_and(|n| n < *traces);
        if self.heads.iter().take(age).any(knows) {
            return Ok(true);
        }
        let newer = age.saturating_sub(self.heads.len());
        for segment in self.segments.iter().rev().take(newer) {
            if segment.place(rows, id)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the source of this age surely knows only one trace with these low 64 bits, and no other part of the index any.
    pub(super) fn has_only(&self, rows: &dyn Snapshot, age: usize, low: u64) -> Result<bool, StoreError> {
        for (of, (head, _)) in self.heads.iter().enumerate() {
            if read(head).with_low(low).nth(usize::from(of == age)).is_some() {
                return Ok(false);
            }
        }
        for (segment, of) in self.segments.iter().rev().zip(self.heads.len()..) {
            let may_hold_another = if of == age {
                segment.shared.may_hold(rows, segment, low)?
            } else {
                segment.filter.may_hold(low)
            };
            if may_hold_another {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Everything that is known of a trace; none if it has expired.
    pub(super) fn find(&self, rows: &dyn Snapshot, id: TraceId) -> Result<Option<Version>, StoreError> {
        Ok(self.find_any(rows, id)?.filter(|version| version.last_block() >= self.passed))
    }

    /// The block of the last piece of a trace, if the trace is known.
    pub(super) fn last_block(&self, rows: &dyn Snapshot, id: TraceId) -> Result<Option<u64>, StoreError> {
        let mut in_heads = self.heads.iter().filter_map(|(head, _)| read(head).last_block(id));
        if let Some(last) = in_heads.next() {
            return Ok(Some(last));
        }
        for segment in self.segments.iter().rev() {
            if let Some(version) = segment.find(rows, id)? {
                return Ok(Some(version.last_block()));
            }
        }
        Ok(None)
    }

    /// Everything that is known of a trace, even if it has expired.
    pub(super) fn find_any(&self, rows: &dyn Snapshot, id: TraceId) -> Result<Option<Version>, StoreError> {
        let mut chain = Chain::default();
        for (head, _) in &self.heads {
            let head = read(head);
            let version = head.number(id).and_then(|number| head.version(number));
            version.into_iter().for_each(|(_, version)| chain.add(version));
            if chain.is_whole() {
                return Ok(chain.joined());
            }
        }
        for segment in self.segments.iter().rev() {
            segment.find(rows, id)?.into_iter().for_each(|version| chain.add(version));
            if chain.is_whole() {
                break;
            }
        }
        Ok(chain.joined())
    }

    /// Everything that is known of the traces with these low 64 bits, in order of their ids.
    pub(super) fn find_low(
        &self,
        rows: &dyn Snapshot,
        low: u64,
    ) -> Result<Vec<(TraceId, Version)>, StoreError> {
        let mut known: Vec<(TraceId, Version)> = Vec::new();
        for (head, _) in &self.heads {
            let head = read(head);
            known.extend(head.with_low(low).filter_map(|number| head.version(number)));
        }
        for segment in self.segments.iter().rev() {
            let records = segment.with_low(rows, low)?;
            known.extend(records.into_iter().map(|record| (record.id, record.version)));
        }
        // The sort is stable, so the newest version of each trace stays first.
        known.sort_by_key(|(id, _)| id.high());
        let mut found: Vec<(TraceId, Chain)> = Vec::new();
        for (id, version) in known {
            if found.last().is_none_or(|(last, _)| *last != id) {
                found.push((id, Chain::default()));
            }
            if let Some((_, chain)) = found.last_mut().filter(|(_, chain)| !chain.is_whole()) {
                chain.add(version);
            }
        }
        let whole = found.into_iter().filter_map(|(id, chain)| Some((id, chain.joined()?)));
        Ok(whole.filter(|(_, version)| version.last_block() >= self.passed).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::filter::Filter;
    use super::super::manifest::Entry;
    use super::super::segment::Fences;
    use super::super::shared::SharedLows;
    use super::*;

    #[test]
    fn the_index_size_saturates_instead_of_overflowing() {
        let entry = Entry {
            id: 0,
            level: 0,
            traces: 0,
            last_block: 0,
            latest_us: 0,
            earliest_us: 0,
            bytes: u64::MAX,
        };
        let (fences, filter, shared) = (Fences::default(), Filter::for_traces(0), SharedLows::default());
        let segment = Arc::new(Segment { entry, fences, filter, shared });
        let index = Index::new(Manifest::default(), vec![segment.clone(), segment], 1);
        assert_eq!(index.size().bytes, u64::MAX);
    }
}
