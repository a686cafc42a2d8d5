//! The spool: a log of entries on disk, and for each upstream how far it is.
//!
//! Constraints: `OK` is only answered for what is durable; memory does not grow with what is spooled; the disk holds no
//! more than the bound; a dead upstream holds up nobody else; damage costs what it hit and nothing more; every loss is
//! counted, for each upstream it is one to.
//!
//! One thread ([`writer`]) appends, each group of calls with one `fdatasync`. Upstreams read the files and move their
//! positions when they have an answer. A thread of housekeeping writes the positions down, then removes what everybody
//! has passed. Nothing is rewritten but the positions.
//!
//! - Invariant 1: a position never passes a record that was neither acknowledged by its upstream nor counted as lost to it.
//! - Invariant 2: a segment is removed only after positions behind it were written down, so that a restart knows why it
//!   is gone. (Should that write fail, the restart counts the gap as `damaged`: known, though not by its cause.)
//! - Invariant 3: `offered = acked + in_flight + lost` for each upstream, at every moment the lock is free.
//!
//! A reader that holds nobody up, such as a live view, would be a position that starts at the end, is not written down,
//! and is not asked before a segment is removed.

mod aside;
pub mod checkpoint;
mod delivery;
mod draft;
mod files;
mod home;
pub mod layout;
mod leaving;
mod recover;
pub mod segment;
#[cfg(test)]
mod tests;
mod trial;
pub mod writer;

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use blkin_daemon::Notices;
use blkin_scribe::Doorbell;
use serde::{Deserialize, Serialize};

use crate::ledger::{Arrived, Count, Delivered, Loss};
use aside::Aside;
use checkpoint::{Checkpoint, Position, Positions, UpstreamState};
pub use delivery::Batch;
pub use draft::Draft;
use draft::encode;
use files::make_durable;
use home::Home;
use layout::{SEGMENT_HEADER_BYTES, record_bytes};
use segment::Segment;

/// What happens to new calls when the spool has reached its bound.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum WhenFull {
    /// New calls are accepted, and the oldest segment is dropped, counted as `spool_evicted`.
    #[default]
    DropOldest,
    /// New calls are answered with `TRY_LATER` until there is room: the slowest upstream sets the pace.
    Refuse,
}

/// How large the spool may grow.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Most bytes of all segments.
    pub bytes: u64,
    /// A segment of this size takes no further records.
    pub segment_bytes: u64,
    /// What happens then.
    pub when_full: WhenFull,
}

impl Limits {
    /// Segments that are small beside the bound, for what leaves at a time is a whole one.
    pub fn new(bytes: u64, when_full: WhenFull) -> Self {
        Limits { bytes, segment_bytes: (bytes / 16).clamp(64 << 10, 64 << 20), when_full }
    }

    /// Files that a full spool has open: each of its segments, which are as large as they may be, and a few more.
    pub fn files(&self) -> u64 {
        self.bytes / self.segment_bytes + 8
    }
}

/// Why nothing was appended.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// The bound is reached, and the oldest is to be kept.
    #[error("the spool is full")]
    Full,
    /// The disk refuses, being full or read-only perhaps; nobody reads what it may have taken, and the next attempt may succeed.
    #[error("failed to write the spool: {0}")]
    Disk(io::Error),
}

/// One upstream's place and figures.
#[derive(Debug)]
struct Upstream {
    name: String,
    position: Position,
    delivered: Delivered,
    /// Of entries that it does not get because of damage,
    damage: Notices,
    /// and how many of them were told of.
    damaged_said: u64,
}

impl Upstream {
    /// How many entries damage has cost it of which nothing was said, once a line may be written of that.
    fn unsaid_damage(&mut self, now: Instant) -> Option<u64> {
        let damaged = self.delivered.lost[Loss::Damaged as usize].entries;
        if damaged == self.damaged_said || self.damage.admit(now).is_none() {
            return None;
        }
        Some(damaged - std::mem::replace(&mut self.damaged_said, damaged))
    }
}

/// A segment that has left the spool.
#[derive(Debug, Clone, Copy)]
struct Left {
    number: u64,
    length: u64,
    /// It is kept for a look, and else removed.
    is_kept: bool,
}

#[derive(Debug)]
struct State {
    /// Oldest first; the last takes records.
    segments: VecDeque<Segment>,
    /// What lies there still although it has left, for the file system refuses to remove it, or to move it.
    left: Vec<Left>,
    /// Of all segments, also of these.
    bytes: u64,
    arrived: Arrived,
    upstreams: Vec<Upstream>,
    commits: u64,
    damaged_regions: u64,
    /// Where those begin that lie in segments which are there.
    damaged: BTreeSet<recover::Place>,
    /// What upstreams did not get that were taken away before this start.
    forgotten: Count,
    /// Something is not in the file of positions yet.
    dirty: bool,
    /// Of segments that leave before every upstream has them,
    evictions: Notices,
    /// and what they held of which nothing was said.
    evicted_unsaid: u64,
}

impl State {
    /// Says how much left since that was last said.
    fn tell_evicted(&mut self) {
        let entries = std::mem::take(&mut self.evicted_unsaid);
        tracing::warn!(entries, "the spool is full: dropping its oldest segments, which upstreams lose");
    }

    /// Says what upstreams do not get that cannot be read any more.
    fn tell_damaged(&mut self, now: Instant) {
        for upstream in &mut self.upstreams {
            if let Some(entries) = upstream.unsaid_damage(now) {
                tracing::warn!(
                    upstream = upstream.name,
                    entries,
                    "an upstream does not get what was damaged in the spool, or removed from it"
                );
            }
        }
    }

    /// Takes the oldest segment out, whose file is to be removed.
    fn take_oldest(&mut self) -> Option<Left> {
        let oldest = self.segments.pop_front()?;
        self.bytes -= oldest.length;
        Some(Left { number: oldest.number, length: oldest.length, is_kept: false })
    }

    fn last(&self) -> &Segment {
        self.segments.back().expect("a spool has a segment")
    }

    fn end(&self) -> Position {
        let last = self.last();
        Position { segment: last.number, offset: last.length, before: self.arrived.accepted }
    }

    fn checkpoint(&self) -> Checkpoint {
        let upstream = |upstream: &Upstream| UpstreamState {
            name: upstream.name.clone(),
            position: upstream.position,
            offered: upstream.delivered.offered,
            acked: upstream.delivered.acked,
            lost: upstream.delivered.lost,
        };
        Checkpoint {
            durable: self.end(),
            received: self.arrived.received,
            malformed: self.arrived.malformed,
            upstreams: self.upstreams.iter().map(upstream).collect(),
        }
    }
}

/// What the metrics show of the spool.
#[derive(Debug, Clone)]
pub struct Figures {
    /// All that arrived.
    pub arrived: Arrived,
    /// Name and figures of each upstream.
    pub upstreams: Vec<(String, Delivered)>,
    /// Bytes of all segments.
    pub bytes: u64,
    /// Their number.
    pub segments: usize,
    /// Groups of calls made durable.
    pub commits: u64,
    /// Regions that could not be read.
    pub damaged_regions: u64,
    /// What upstreams did not get that are not configured any more, since this start.
    pub forgotten: Count,
}

/// The spool.
#[derive(Debug)]
pub struct Spool {
    folder: PathBuf,
    limits: Limits,
    state: Mutex<State>,
    /// One for each upstream, rung when something was appended.
    bells: Vec<Doorbell>,
    /// Taken before the state.
    positions: Mutex<Positions>,
    /// Keeps other relays out as long as the spool is open.
    home: Mutex<Home>,
    /// What cannot be read.
    aside: Mutex<Aside>,
}

impl Spool {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn aside(&self) -> MutexGuard<'_, Aside> {
        self.aside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends calls and makes them durable; all of them or, by an error, none. Only one thread may append. It gives a sign of
    /// life before each thing that a slow disk takes its time for.
    ///
    /// # Errors
    /// When there is no room or the disk refuses.
    pub fn append(&self, drafts: &[Draft], sign_of_life: &dyn Fn()) -> Result<(), AppendError> {
        self.with_remedies(|| self.append_as_it_is(drafts, sign_of_life))
    }

    /// Does what writes once more where it fails for something that can be helped.
    fn with_remedies(&self, write: impl Fn() -> Result<(), AppendError>) -> Result<(), AppendError> {
        match write() {
            Err(AppendError::Disk(error)) if error.kind() == io::ErrorKind::NotFound => {
                self.go_on_in_new_files().map_err(AppendError::Disk)?;
                write()
            }
            // The disk may be full of what nobody needs any more.
            Err(AppendError::Disk(_)) if self.empty_passed().map_err(AppendError::Disk)? => write(),
            done => done,
        }
    }

    fn append_as_it_is(&self, drafts: &[Draft], sign_of_life: &dyn Fn()) -> Result<(), AppendError> {
        let size = size_of(drafts);
        sign_of_life();
        self.cut_unfinished().map_err(AppendError::Disk)?;
        // It may need a new segment, whose header takes room as well.
        self.make_room((SEGMENT_HEADER_BYTES + size) as u64, sign_of_life)?;
        let (segment, before) = self.active(size as u64).map_err(AppendError::Disk)?;
        let (bytes, accepted) = encode(drafts, segment.number, before, size);
        sign_of_life();
        write_durably(&segment, &bytes, &segment::path(&self.folder, segment.number))
            .map_err(AppendError::Disk)?;
        let mut state = self.lock();
        state.bytes += bytes.len() as u64;
        if let Some(active) = state.segments.back_mut() {
            active.length += bytes.len() as u64;
        }
        state.arrived.accepted += accepted;
        state.arrived.received += drafts.iter().fold(Count::default(), |sum, draft| sum + draft.count);
        for upstream in &mut state.upstreams {
            upstream.delivered.offered += accepted;
            upstream.delivered.in_flight += accepted;
        }
        state.commits += 1;
        state.dirty = true;
        drop(state);
        self.bells.iter().for_each(Doorbell::ring);
        Ok(())
    }

    /// Has every attempt to read what the newest segment holds fail, or work again; it can be written all the same.
    #[cfg(test)]
    pub(crate) fn set_readable(&self, is_readable: bool) {
        self.open_newest_anew(std::fs::File::options().read(is_readable).write(true));
    }

    /// Has every attempt to write the newest segment fail, or work again; it can be read all the same.
    #[cfg(test)]
    pub(crate) fn set_writable(&self, is_writable: bool) {
        self.open_newest_anew(std::fs::File::options().read(true).write(is_writable));
    }

    #[cfg(test)]
    fn open_newest_anew(&self, how: &std::fs::OpenOptions) {
        let mut state = self.lock();
        let newest = state.segments.back_mut().unwrap();
        newest.file = how.open(segment::path(&self.folder, newest.number)).unwrap().into();
    }

    /// Has the disk not give back a place of the oldest segment.
    #[cfg(test)]
    pub(crate) fn set_bad_place(&self, range: std::ops::Range<u64>) {
        *self.lock().segments[0].bad.lock().unwrap() = range;
    }

    /// Counts a call that could not be read.
    pub fn count_malformed(&self) {
        let mut state = self.lock();
        state.arrived.received += Count::entry(1);
        state.arrived.malformed += Count::entry(1);
        state.dirty = true;
    }

    /// Most bytes of all segments.
    pub fn limit_bytes(&self) -> u64 {
        self.limits.bytes
    }

    /// What the metrics show.
    pub fn figures(&self) -> Figures {
        let state = self.lock();
        Figures {
            arrived: state.arrived,
            upstreams: state.upstreams.iter().map(|one| (one.name.clone(), one.delivered)).collect(),
            bytes: state.bytes,
            segments: state.segments.len(),
            commits: state.commits,
            damaged_regions: state.damaged_regions,
            forgotten: state.forgotten,
        }
    }

    /// Cuts off what a write left that failed, should the disk have refused that then: another segment may follow only behind
    /// the end of this one.
    fn cut_unfinished(&self) -> io::Result<()> {
        let last = self.lock().last().clone();
        last.cut_to_length()
    }

    fn make_room(&self, size: u64, sign_of_life: &dyn Fn()) -> Result<(), AppendError> {
        let bound = self.bound();
        loop {
            sign_of_life();
            let (over, stuck, single, used, passed) = {
                let state = self.lock();
                let end = state.end();
                let passed = state.upstreams.iter().all(|upstream| !upstream.position.is_before(&end));
                let used = end.offset > SEGMENT_HEADER_BYTES as u64;
                let over = state.bytes + size > bound;
                (over, !state.left.is_empty(), state.segments.len() == 1, used, passed)
            };
            if !over || (single && !used && !stuck) {
                return Ok(());
            }
            if stuck {
                return Err(is_stuck());
            }
            // A segment that takes records cannot leave.
            if single || (passed && used && self.limits.when_full == WhenFull::Refuse) {
                self.roll().map_err(AppendError::Disk)?;
                sign_of_life();
            }
            match self.limits.when_full {
                WhenFull::DropOldest => self.evict_oldest(bound.saturating_sub(size)),
                // Housekeeping may be about to remove it: whoever writes the positions as well comes behind that.
                WhenFull::Refuse if passed => self.write_positions().map_err(AppendError::Disk)?,
                WhenFull::Refuse => return Err(AppendError::Full),
            }
        }
    }

    /// How large the spool may be by the next append. One that is over its bound, for a restart has made that smaller, must
    /// not grow; to take all that is too much at once would keep senders waiting.
    fn bound(&self) -> u64 {
        match self.limits.when_full {
            WhenFull::DropOldest => self.limits.bytes.max(self.lock().bytes),
            WhenFull::Refuse => self.limits.bytes,
        }
    }

    /// The segment for so many bytes more, and what all records before them hold.
    fn active(&self, size: u64) -> io::Result<(Segment, Count)> {
        let full = {
            let state = self.lock();
            let length = state.last().length;
            length > SEGMENT_HEADER_BYTES as u64 && length + size > self.limits.segment_bytes
        };
        if full || self.lock().last().is_emptied() {
            self.roll()?;
        }
        let state = self.lock();
        Ok((state.last().clone(), state.arrived.accepted))
    }

    fn roll(&self) -> io::Result<()> {
        let (number, before) = {
            let state = self.lock();
            (state.last().number + 1, state.arrived.accepted)
        };
        let segment = Segment::create(&self.folder, number, before)?;
        let mut state = self.lock();
        state.bytes += segment.length;
        state.segments.push_back(segment);
        state.dirty = true;
        Ok(())
    }
}

/// What calls take in the spool.
fn size_of(drafts: &[Draft]) -> usize {
    drafts.iter().flat_map(Draft::payloads).map(|(payload, _)| record_bytes(payload.len())).sum()
}

/// What leaves next might stay as well: it would be lost, and there would be no more room.
fn is_stuck() -> AppendError {
    AppendError::Disk(io::Error::other("segments that have left it cannot be removed, and take up its room"))
}

/// Writes behind the segment's end. What an error leaves there is no part of it.
fn write_durably(segment: &Segment, bytes: &[u8], path: &Path) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    let written = segment.file.write_all_at(bytes, segment.length).and_then(|()| make_durable(&segment.file));
    // What the next start does not find is not durable.
    written.and_then(|()| home::must_lie_at(&segment.file, path)).inspect_err(|_| {
        // A disk that refuses this too is asked again before the next write.
        let _uncut = segment.cut_to_length();
    })
}
