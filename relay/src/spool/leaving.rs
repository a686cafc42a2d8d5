//! What leaves the spool: segments that every upstream has passed, and the oldest segment when there is no room.

use std::fs;
use std::io;
use std::sync::PoisonError;
use std::time::Instant;

use super::checkpoint::Checkpoint;
use super::files::{make_durable, naming};
use super::layout::SEGMENT_HEADER_BYTES;
use super::{DepartedSegment, Spool, WhenFull, segment};
use crate::ledger::{Count, Loss};

impl Spool {
    /// Writes the positions if they have moved, and removes the segments that every upstream has passed; logs what was lost.
    ///
    /// # Errors
    /// When the positions cannot be written; nothing is removed then.
    pub fn sweep(&self) -> io::Result<()> {
        let (mut state, now) = (self.lock(), Instant::now());
        if state.evictions.rest(now).is_some() {
            state.log_evicted();
        }
        state.log_damaged(now);
        let is_dirty = state.dirty;
        drop(state);
        // The lock is held while a large region is copied; the rest can be logged later.
        if let Ok(mut damaged_folder) = self.damaged_folder.try_lock() {
            damaged_folder.log_rest();
        }
        if !is_dirty {
            return Ok(());
        }
        self.write_positions()
    }

    /// Empties the newest segment if every upstream has everything, so that the disk has room for the next one; returns whether
    /// it did. Positions behind its end are written first (invariant 2), and a start after a crash removes the empty file.
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
        // Even if the disk fails to free the room, nothing more is written to this file.
        make_durable(&passed.file)?;
        Ok(true)
    }

    /// Writes the positions, and removes the segments that every upstream has passed: nothing else would remove them before a
    /// position moves again.
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
        removed.into_iter().for_each(|departed| self.remove(departed));
    }

    /// Removes a segment that has left. If it cannot be removed, it still counts as room in use.
    fn remove(&self, departed: DepartedSegment) {
        if self.remove_file(departed).is_err() {
            let mut state = self.lock();
            state.bytes += departed.length;
            state.departed.push(departed);
        }
    }

    fn remove_file(&self, departed: DepartedSegment) -> io::Result<()> {
        let path = segment::path(&self.folder, departed.number);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(naming(&path)(error)),
            _ => Ok(()),
        }
    }

    /// Tries again to remove, or to set aside, the segments that have left. Only housekeeping calls this.
    ///
    /// # Errors
    /// When the file system still refuses for one of them.
    pub fn remove_departed(&self) -> io::Result<()> {
        let departed = self.lock().departed.clone();
        let mut removed = Ok(());
        for one in departed {
            let done = if one.is_kept {
                self.damaged_folder().take(&self.folder, one)
            } else {
                self.remove_file(one)
            };
            if let Err(error) = done {
                removed = Err(error);
                continue;
            }
            let mut state = self.lock();
            state.bytes -= one.length;
            state.departed.retain(|other| other.number != one.number);
        }
        removed
    }

    /// Drops the oldest segment, if the spool is over its limit and `when_full` is `drop_oldest`.
    pub fn shrink(&self) {
        if self.limits.when_full == WhenFull::DropOldest && self.lock().departed.is_empty() {
            self.evict_oldest(self.limits.bytes);
        }
    }

    /// Drops the oldest segment, if all segments together have more than `most_bytes`. Every upstream that has not passed it loses
    /// the rest of it.
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
        state.evicted_unreported += lost.entries;
        if lost.entries > 0 && state.evictions.admit(Instant::now()).is_some() {
            state.log_evicted();
        }
        drop(state);
        // If this fails, housekeeping tries again, and logs it.
        let _written_later = self.write_positions();
        self.remove(oldest);
    }
}
