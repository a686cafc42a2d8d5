//! Keeping the index in order: heads become segments, segments of one size become one of the next, and what nobody finds
//! any more is removed. Each step is durable before the next begins, and repeated by the next start if it was not.

use std::sync::{Arc, PoisonError};

use super::engine::Engine;
use super::manifest::{Entry, Manifest};
use super::segment::Segment;
use super::{Beat, StoreError, TraceStore, build, go_on, keys};

/// So many segments of one level become one of the next.
const MERGED: usize = 8;
/// Segments of this level are merged no more.
const TOP_LEVEL: u64 = 2;

impl<E: Engine> TraceStore<E> {
    /// Does all there is to do at the moment.
    pub(super) fn keep_up(&self, beat: Beat<'_>) -> Result<(), StoreError> {
        let _alone = self.index.upkeep.take(beat)?;
        while self.flush(beat)? || self.drop_passed()? || self.merge(beat)? {
            go_on(beat)?;
        }
        self.remove_retired()
    }

    /// Makes a segment of the oldest head, if that waits for it.
    fn flush(&self, beat: Beat<'_>) -> Result<bool, StoreError> {
        let Some((head, indexed)) = self.index.frozen() else { return Ok(false) };
        let mut manifest = self.index.manifest();
        let id = self.free_segment(&manifest)?;
        let head = head.read().unwrap_or_else(PoisonError::into_inner);
        let segment = build::of_head(&self.engine, id, &head, beat)?;
        drop(head);
        let mut segments = self.index.view().segments.to_vec();
        segments.push(Arc::new(segment));
        (manifest.next_segment, manifest.indexed) = (id + 1, indexed);
        self.replace(manifest, segments, true)?;
        Ok(true)
    }

    /// Forgets segments of which every trace has left.
    fn drop_passed(&self) -> Result<bool, StoreError> {
        let view = self.index.view();
        let (left, gone): (Vec<_>, Vec<_>) =
            view.segments.iter().cloned().partition(|segment| segment.entry.last_block >= view.forgotten);
        if gone.is_empty() {
            return Ok(false);
        }
        self.replace(self.index.manifest(), left, false)?;
        self.retire(gone);
        Ok(true)
    }

    /// Makes one segment of the oldest that can be merged.
    fn merge(&self, beat: Beat<'_>) -> Result<bool, StoreError> {
        let view = self.index.view();
        let Some(at) = first_to_merge(&view.segments) else { return Ok(false) };
        let merged: Vec<&Segment> = view.segments[at..at + MERGED].iter().map(AsRef::as_ref).collect();
        let mut manifest = self.index.manifest();
        let id = self.free_segment(&manifest)?;
        let rows = self.engine.read()?;
        let segment = build::of_segments(&self.engine, &*rows, id, &merged, view.forgotten, beat)?;
        drop(rows);
        let mut segments = view.segments.to_vec();
        let gone = segments.splice(at..at + MERGED, [Arc::new(segment)]).collect();
        manifest.next_segment = id + 1;
        self.replace(manifest, segments, false)?;
        self.retire(gone);
        Ok(true)
    }

    fn replace(
        &self,
        manifest: Manifest,
        segments: Vec<Arc<Segment>>,
        without_head: bool,
    ) -> Result<(), StoreError> {
        let entries: Vec<Entry> = segments.iter().map(|segment| segment.entry).collect();
        let manifest = Manifest { segments: entries, ..manifest };
        let row = manifest.encode();
        self.engine.write(&mut |rows| rows.put(keys::MANIFEST, &row))?;
        self.index.replace(manifest, segments, without_head);
        Ok(())
    }

    /// The id of the next segment, of which a try that failed has left nothing.
    fn free_segment(&self, manifest: &Manifest) -> Result<u64, StoreError> {
        build::remove(&self.engine, manifest.next_segment)?;
        Ok(manifest.next_segment)
    }

    fn retire(&self, gone: Vec<Arc<Segment>>) {
        self.index.retired.lock().unwrap_or_else(PoisonError::into_inner).extend(gone);
    }

    /// Removes the rows of segments that nobody reads any more.
    fn remove_retired(&self) -> Result<(), StoreError> {
        let mut retired = self.index.retired.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(at) = retired.iter().position(|segment| Arc::strong_count(segment) == 1) {
            build::remove(&self.engine, retired[at].entry.id)?;
            retired.swap_remove(at);
        }
        Ok(())
    }
}

/// Where the first run of enough segments of one level begins.
fn first_to_merge(segments: &[Arc<Segment>]) -> Option<usize> {
    let level = |segment: &Arc<Segment>| segment.entry.level;
    segments.windows(MERGED).position(|window| {
        level(&window[0]) < TOP_LEVEL && window.iter().all(|segment| level(segment) == level(&window[0]))
    })
}
