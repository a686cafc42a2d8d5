//! What leaves the spool: what every upstream has passed, and the oldest where there is no room.

use std::fs;
use std::io;
use std::sync::PoisonError;
use std::time::Instant;

use super::checkpoint::Checkpoint;
use super::files::{make_durable, naming};
use super::layout::SEGMENT_HEADER_BYTES;
use super::{Left, Spool, WhenFull, segment};
use crate::ledger::{Count, Loss};

impl Spool {
    /// Writes the positions down if they have moved, and removes what every upstream has passed; tells what was lost.
    ///
    /// # Errors
    /// When the positions cannot be written; nothing is removed then.
    pub fn sweep(&self) -> io::Result<()> {
        let (mut state, now) = (self.lock(), Instant::now());
        if state.evictions.rest(now).is_some() {
            state.tell_evicted();
        }
        state.tell_damaged(now);
        let is_dirty = state.dirty;
        drop(state);
        // While somebody copies a large region there is something to be told of later.
        if let Ok(mut aside) = self.aside.try_lock() {
            aside.tell_rest();
        }
        if !is_dirty {
            return Ok(());
        }
        self.write_positions()
    }

    /// Empties the segment that takes records if every upstream has passed all there is, so that the disk has room for the
    /// next one; returns whether it did. Positions behind its end are written down before (invariant 2), and the start after
    /// a crash removes an empty file.
    pub(super) fn empty_passed(&self) -> io::Result<bool> {
        let passed = {
            let state = self.lock();
            let end = state.end();
            let all_have = state.upstreams.iter().all(|upstream| !upstream.position.is_before(&end));
            state
                .segments
                .back()
                .filter(|last| all_have && last.length > SEGMENT_HEADER_BYTES as u64)
                .cloned()
        };
        let Some(passed) = passed else { return Ok(false) };
        self.write_positions()?;
        passed.file.set_len(0)?;
        let mut state = self.lock();
        state.bytes -= passed.length;
        if let Some(last) = state.segments.back_mut() {
            last.length = 0;
        }
        drop(state);
        // The disk may fail to give the room back; nothing is written behind what is gone from the file all the same.
        make_durable(&passed.file)?;
        Ok(true)
    }

    /// Writes the positions down, and removes what every upstream has passed: nobody looks for that again before something
    /// moves.
    pub(super) fn write_positions(&self) -> io::Result<()> {
        let mut positions = self.positions.lock().unwrap_or_else(PoisonError::into_inner);
        let checkpoint = {
            let mut state = self.lock();
            state.step_over_ends();
            state.dirty = false;
            state.checkpoint()
        };
        if let Err(error) = self.write_at_home(&mut positions, &checkpoint) {
            self.lock().dirty = true;
            return Err(error);
        }
        drop(positions);
        self.remove_passed(&checkpoint);
        Ok(())
    }

    fn remove_passed(&self, written: &Checkpoint) {
        let passed = written.upstreams.iter().map(|upstream| upstream.position.segment).min();
        let passed = passed.unwrap_or(written.durable.segment);
        let mut removed = Vec::new();
        let mut state = self.lock();
        while state.segments.len() > 1 && state.segments[0].number < passed {
            removed.extend(state.take_oldest());
        }
        drop(state);
        removed.into_iter().for_each(|left| self.remove(left));
    }

    /// Removes what has left; what cannot be removed takes its room further on.
    fn remove(&self, left: Left) {
        if self.remove_file(left).is_err() {
            let mut state = self.lock();
            state.bytes += left.length;
            state.left.push(left);
        }
    }

    fn remove_file(&self, left: Left) -> io::Result<()> {
        let path = segment::path(&self.folder, left.number);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(naming(&path)(error)),
            _ => Ok(()),
        }
    }

    /// Tries again to remove, or to set aside, what has left. Only housekeeping does so.
    ///
    /// # Errors
    /// When the file system still refuses that for one of them.
    pub fn remove_left(&self) -> io::Result<()> {
        let left = self.lock().left.clone();
        let mut removed = Ok(());
        for one in left {
            let done = if one.is_kept { self.aside().take(&self.folder, one) } else { self.remove_file(one) };
            if let Err(error) = done {
                removed = Err(error);
                continue;
            }
            let mut state = self.lock();
            state.bytes -= one.length;
            state.left.retain(|other| other.number != one.number);
        }
        removed
    }

    /// Takes a segment away, if the spool is over its bound and drops the oldest.
    pub fn shrink(&self) {
        if self.limits.when_full == WhenFull::DropOldest && self.lock().left.is_empty() {
            self.evict_oldest(self.limits.bytes);
        }
    }

    /// Takes the oldest segment from every upstream that has not passed it, if all have more than so many bytes.
    pub(super) fn evict_oldest(&self, most_bytes: u64) {
        let mut state = self.lock();
        if state.segments.len() < 2 || state.bytes <= most_bytes {
            return;
        }
        let Some(oldest) = state.take_oldest() else { return };
        let next = state.start_of(0);
        let mut lost = Count::default();
        for upstream in &mut state.upstreams {
            if upstream.position.segment <= oldest.number {
                lost += upstream.lose_until(next, Loss::SpoolEvicted);
            }
        }
        state.dirty = true;
        state.evicted_unsaid += lost.entries;
        if lost.entries > 0 && state.evictions.admit(Instant::now()).is_some() {
            state.tell_evicted();
        }
        drop(state);
        // Should that fail, housekeeping tries again, and tells of it.
        let _written_later = self.write_positions();
        self.remove(oldest);
    }
}
