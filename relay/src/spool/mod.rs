//! The spool: a log of entries on disk, and the position of each upstream in it.
//!
//! Constraints: `OK` is answered only for what is durable; memory does not grow with what is spooled; the disk holds no
//! more than the limit; a dead upstream does not hold up the others; damage costs only the entries that it hit; every loss is
//! counted for each upstream that it affects.
//!
//! One thread ([`writer`]) appends, with one `fdatasync` for each group of calls. Upstreams read the files and move their
//! positions when they have an answer. A housekeeping thread writes the positions, then removes the segments that all upstreams
//! have passed. Only the positions are ever rewritten.
//!
//! - Invariant 1: a position never passes a record that was neither acknowledged by its upstream nor counted as lost to it.
//! - Invariant 2: a segment is removed only after positions behind it were written, so that a restart knows why it is gone.
//!   (An evicted segment is removed even if that write fails; a restart then counts the gap as `damaged`: the loss is known,
//!   but not its cause.)
//! - Invariant 3: `offered = acked + in_flight + lost` for each upstream, whenever the lock is free.
//!
//! A reader that holds up nothing, such as a live view, would be a position that starts at the end, is not written, and does
//! not keep segments from being removed.

pub mod checkpoint;
mod damaged_folder;
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
use checkpoint::{Checkpoint, Position, Positions, UpstreamState};
use damaged_folder::DamagedFolder;
pub use delivery::Batch;
pub use draft::Draft;
use draft::encode;
use files::make_durable;
use home::Home;
use layout::{SEGMENT_HEADER_BYTES, record_bytes};
use segment::Segment;

/// What to do with new calls when the spool is full.
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
    /// A segment of this size gets no further records.
    pub segment_bytes: u64,
    /// What to do when the spool is full.
    pub when_full: WhenFull,
}

impl Limits {
    /// Chooses segments that are small compared with the limit, since the spool drops whole segments.
    pub fn new(bytes: u64, when_full: WhenFull) -> Self {
        Limits { bytes, segment_bytes: (bytes / 16).clamp(64 << 10, 64 << 20), when_full }
    }

    /// Files that a full spool has open: all its segments, at full size, and a few more.
    pub fn files(&self) -> u64 {
        self.bytes / self.segment_bytes + 8
    }
}

/// Why nothing was appended.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// The limit is reached, and the oldest entries must be kept.
    #[error("the spool is full")]
    Full,
    /// The disk refuses: it may be full or read-only. What it may have written is never read, and the next attempt may succeed.
    #[error("failed to write the spool: {0}")]
    Disk(io::Error),
}

/// One upstream's position and figures.
#[derive(Debug)]
struct Upstream {
    name: String,
    position: Position,
    delivered: Delivered,
    /// Limits the log lines about entries that it lost because of damage.
    damage: Notices,
    /// How many of these entries the log has reported.
    damaged_reported: u64,
}

impl Upstream {
    /// How many entries that it lost because of damage have not been logged yet, once a log line is allowed.
    fn take_unreported_damage(&mut self, now: Instant) -> Option<u64> {
        let damaged = self.delivered.lost[Loss::Damaged as usize].entries;
        if damaged == self.damaged_reported || self.damage.admit(now).is_none() {
            return None;
        }
        Some(damaged - std::mem::replace(&mut self.damaged_reported, damaged))
    }
}

/// A segment that has left the spool.
#[derive(Debug, Clone, Copy)]
struct DepartedSegment {
    number: u64,
    length: u64,
    /// Whether to move it to `damaged/` rather than remove it.
    is_kept: bool,
}

#[derive(Debug)]
struct State {
    /// Oldest first; new records go to the last.
    segments: VecDeque<Segment>,
    /// Segments that have left the spool and still take up room, since the file system refuses to remove or move them.
    departed: Vec<DepartedSegment>,
    /// Bytes of all segments, including those in `departed`.
    bytes: u64,
    arrived: Arrived,
    upstreams: Vec<Upstream>,
    commits: u64,
    damaged_regions: u64,
    /// The beginnings of the damaged regions in segments that still exist.
    damaged: BTreeSet<recover::Place>,
    /// What upstreams did not get that were removed from the configuration before this start.
    forgotten: Count,
    /// Whether something is not in the file of positions yet.
    dirty: bool,
    /// Limits the log lines about segments that are dropped before every upstream has them.
    evictions: Notices,
    /// Entries lost by such drops that the log has not reported yet.
    evicted_unreported: u64,
}

impl State {
    /// Logs how many entries were lost by dropped segments since the last such line.
    fn log_evicted(&mut self) {
        let entries = std::mem::take(&mut self.evicted_unreported);
        tracing::warn!(
            entries,
            "the spool is full: dropping its oldest segments, with what upstreams did not get"
        );
    }

    /// Logs what upstreams do not get because it can no longer be read.
    fn log_damaged(&mut self, now: Instant) {
        for upstream in &mut self.upstreams {
            if let Some(entries) = upstream.take_unreported_damage(now) {
                tracing::warn!(
                    upstream = upstream.name,
                    entries,
                    "an upstream does not get what was damaged in the spool, or removed from it"
                );
            }
        }
    }

    /// Takes the oldest segment out of the spool; the caller has to remove its file.
    fn take_oldest(&mut self) -> Option<DepartedSegment> {
        let oldest = self.segments.pop_front()?;
        self.bytes -= oldest.length;
        Some(DepartedSegment { number: oldest.number, length: oldest.length, is_kept: false })
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
    /// Everything that arrived.
    pub arrived: Arrived,
    /// Name and figures of each upstream.
    pub upstreams: Vec<(String, Delivered)>,
    /// Bytes of all segments.
    pub bytes: u64,
    /// Number of segments.
    pub segments: usize,
    /// Groups of calls made durable.
    pub commits: u64,
    /// Regions that could not be read.
    pub damaged_regions: u64,
    /// What upstreams did not get that were removed from the configuration before this start.
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
    /// The file of positions. Lock order: before `state`.
    positions: Mutex<Positions>,
    /// Keeps other relays out as long as the spool is open.
    home: Mutex<Home>,
    /// Copies of what cannot be read.
    damaged_folder: Mutex<DamagedFolder>,
}

impl Spool {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn damaged_folder(&self) -> MutexGuard<'_, DamagedFolder> {
        self.damaged_folder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends calls and makes them durable: all of them or, on an error, none. Only one thread may append. It calls
    /// `sign_of_life` before each step that a slow disk may delay.
    ///
    /// # Errors
    /// When there is no room or the disk refuses.
    pub fn append(&self, drafts: &[Draft], sign_of_life: &dyn Fn()) -> Result<(), AppendError> {
        self.with_remedies(|| self.append_as_it_is(drafts, sign_of_life))
    }

    /// Calls `write` a second time if it fails for a reason that can be remedied: removed files, or a disk that is full of what
    /// all upstreams have.
    fn with_remedies(&self, write: impl Fn() -> Result<(), AppendError>) -> Result<(), AppendError> {
        match write() {
            Err(AppendError::Disk(error)) if error.kind() == io::ErrorKind::NotFound => {
                self.go_on_in_new_files().map_err(AppendError::Disk)?;
                write()
            }
            // The disk may be full of entries that all upstreams have.
            Err(AppendError::Disk(_)) if self.empty_passed().map_err(AppendError::Disk)? => write(),
            done => done,
        }
    }

    fn append_as_it_is(&self, drafts: &[Draft], sign_of_life: &dyn Fn()) -> Result<(), AppendError> {
        let size = size_of(drafts);
        sign_of_life();
        self.cut_unfinished().map_err(AppendError::Disk)?;
        // The append may need a new segment, whose header needs room too.
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

    /// Makes every read of the newest segment fail, or work again; writing works in both cases.
    #[cfg(test)]
    pub(crate) fn set_readable(&self, is_readable: bool) {
        self.open_newest_anew(std::fs::File::options().read(is_readable).write(true));
    }

    /// Makes every write to the newest segment fail, or work again; reading works in both cases.
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

    /// Makes a range of the oldest segment unreadable.
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

    /// The figures for the metrics.
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

    /// Cuts off what a failed write left behind, if the disk refused that at the time: nothing may lie behind the end of this
    /// segment before another one follows.
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
                (over, !state.departed.is_empty(), state.segments.len() == 1, used, passed)
            };
            if !over || (single && !used && !stuck) {
                return Ok(());
            }
            if stuck {
                return Err(is_stuck());
            }
            // The newest segment cannot leave the spool: another one has to follow it first.
            if single || (passed && used && self.limits.when_full == WhenFull::Refuse) {
                self.roll().map_err(AppendError::Disk)?;
                sign_of_life();
            }
            match self.limits.when_full {
                WhenFull::DropOldest => self.evict_oldest(bound.saturating_sub(size)),
                // Housekeeping may be writing the positions at this moment: this waits for it, then removes what it has not yet.
                WhenFull::Refuse if passed => self.write_positions().map_err(AppendError::Disk)?,
                WhenFull::Refuse => return Err(AppendError::Full),
            }
        }
    }

    /// How large the spool may be after the next append. A spool that is over its limit, because a restart has lowered that,
    /// must not grow; dropping all the excess at once would keep senders waiting.
    fn bound(&self) -> u64 {
        match self.limits.when_full {
            WhenFull::DropOldest => self.limits.bytes.max(self.lock().bytes),
            WhenFull::Refuse => self.limits.bytes,
        }
    }

    /// The segment to which `size` more bytes go, and the count of all records before them.
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

/// The bytes that calls take in the spool.
fn size_of(drafts: &[Draft]) -> usize {
    drafts.iter().flat_map(Draft::payloads).map(|(payload, _)| record_bytes(payload.len())).sum()
}

/// The error while segments that have left cannot be removed: the next one to leave might stay too, so that its entries would be
/// lost without any gain of room.
fn is_stuck() -> AppendError {
    AppendError::Disk(io::Error::other("segments that have left it cannot be removed, and take up its room"))
}

/// Writes behind the segment's end. After an error, what was written there is not part of the segment.
fn write_durably(segment: &Segment, bytes: &[u8], path: &Path) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    let written = segment.file.write_all_at(bytes, segment.length).and_then(|()| make_durable(&segment.file));
    // A segment that the next start would not find is not durable.
    written.and_then(|()| home::must_lie_at(&segment.file, path)).inspect_err(|_| {
        // If the disk refuses this too, it is tried again before the next write.
        let _uncut = segment.cut_to_length();
    })
}
