//! Maintains the index: heads become segments, several segments of one level become one of the next, and segments that are
//! needed no more are removed. Each step is durable before the next begins; if it was not, the next start repeats it.

use std::ops::Range;
use std::sync::{Arc, PoisonError};

use super::engine::Engine;
use super::index::View;
use super::manifest::{Entry, Manifest};
use super::segment::Segment;
use super::{Beat, StoreError, TraceStore, build, check_beat, keys};

/// How many segments of one level become one of the next.
const MERGED: usize = 8;
/// Segments of this level are not merged any more.
const TOP_LEVEL: u64 = 2;

impl<E: Engine> TraceStore<E> {
    /// Does all the work that there is at the moment.
    pub(super) fn keep_up(&self, beat: Beat<'_>) -> Result<(), StoreError> {
        let _alone = self.index.upkeep.take(beat)?;
        while self.flush(beat)? || self.drop_passed(beat)? || self.merge(beat)? {
            check_beat(beat)?;
        }
        self.remove_retired()
    }

    /// Makes a segment of the oldest head, if that head waits to become one.
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

    /// Removes the oldest segment that retention has passed. If traces in it go on, a small segment with only these takes its
    /// place, until retention has passed the blocks that are indexed now.
    fn drop_passed(&self, beat: Beat<'_>) -> Result<bool, StoreError> {
        let view = self.index.view();
        let is_passed = |segment: &Arc<Segment>| segment.entry.last_block < view.forgotten;
        let Some(at) = view.segments.iter().position(is_passed) else { return Ok(false) };
        let needed = build::is_needed(
            &*self.engine.read()?,
            &view.segments[at],
            &view.segments[at + 1..],
            view.forgotten,
            beat,
        )?;
        if needed {
            let last_block = self.index.manifest().indexed.saturating_sub(1);
            self.put_in_place_of(&view, at..at + 1, 0, last_block, beat)?;
        } else {
            let mut segments = view.segments.to_vec();
            let gone = vec![segments.remove(at)];
            self.replace(self.index.manifest(), segments, false)?;
            self.retire(gone);
        }
        Ok(true)
    }

    /// Makes one segment of the oldest run of segments that can be merged.
    fn merge(&self, beat: Beat<'_>) -> Result<bool, StoreError> {
        let view = self.index.view();
        let Some(at) = first_to_merge(&view.segments) else { return Ok(false) };
        let merged = &view.segments[at..at + MERGED];
        let level = merged.iter().map(|segment| segment.entry.level).max().unwrap_or(0) + 1;
        let last_block = merged.iter().map(|segment| segment.entry.last_block).max().unwrap_or(0);
        self.put_in_place_of(&view, at..at + MERGED, level, last_block, beat)?;
        Ok(true)
    }

    /// Replaces adjacent segments by one.
    fn put_in_place_of(
        &self,
        view: &View,
        these: Range<usize>,
        level: u64,
        last_block: u64,
        beat: Beat<'_>,
    ) -> Result<(), StoreError> {
        let mut manifest = self.index.manifest();
        let id = self.free_segment(&manifest)?;
        let rows = self.engine.read()?;
        let merged: Vec<&Segment> = view.segments[these.clone()].iter().map(AsRef::as_ref).collect();
        let (newer, forgotten) = (&view.segments[these.end..], view.forgotten);
        let merging = build::Merging { merged: &merged, newer, forgotten, level, last_block };
        let segment = build::of_segments(&self.engine, &*rows, id, &merging, beat)?;
        drop(rows);
        let mut segments = view.segments.to_vec();
        let gone = segments.splice(these, [Arc::new(segment)]).collect();
        manifest.next_segment = id + 1;
        self.replace(manifest, segments, false)?;
        self.retire(gone);
        Ok(())
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

    /// The id of the next segment; removes what a failed attempt may have left under it.
    fn free_segment(&self, manifest: &Manifest) -> Result<u64, StoreError> {
        self.settle_manifest(manifest)?;
        build::remove(&self.engine, manifest.next_segment)?;
        Ok(manifest.next_segment)
    }

    /// Makes the stored manifest name only segments in use. A manifest whose transaction failed may be durable all the same: a
    /// start would trust it, and mistake rows written later under the id of its segment for that segment.
    fn settle_manifest(&self, manifest: &Manifest) -> Result<(), StoreError> {
        let row = self.engine.read()?.get(keys::MANIFEST)?;
        let used = manifest.encode();
        if row.map_or(*manifest == Manifest::default(), |row| row == used) {
            return Ok(());
        }
        self.engine.write(&mut |rows| rows.put(keys::MANIFEST, &used))
    }

    fn retire(&self, gone: Vec<Arc<Segment>>) {
        self.index.retired.lock().unwrap_or_else(PoisonError::into_inner).extend(gone);
    }

    /// Removes the rows of retired segments that no query reads any more.
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
