//! Opens a spool: reads everything that an earlier run left, once. A tail that was never acknowledged is cut off. Damage before
//! it is logged and set aside, and counted as lost when an upstream comes to it.

use std::collections::{BTreeSet, VecDeque};
use std::fmt::Display;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Mutex;

use anyhow::{Context, Result};
use blkin_daemon::{Notices, page_cache};
use blkin_scribe::Doorbell;

use super::checkpoint::{self, Checkpoint, Position, Positions};
use super::damaged_folder::{DAMAGED, DamagedFolder};
use super::home::{Home, positions_path};
use super::layout::SEGMENT_HEADER_BYTES;
use super::segment::{self, BadPlace, Chunk, Found, Segment, is_of_bad_place};
use super::{DepartedSegment, Limits, Spool, State, Upstream, WhenFull};
use crate::ledger::{Arrived, Count, Delivered, Loss};

/// How much is read at a time.
const READ_BYTES: usize = 4 << 20;
/// How much is read at a time behind damage: there may be more damage, and what was read beyond that is read again.
const READ_BYTES_AMID_DAMAGE: usize = 64 << 10;

/// A segment, and an offset in it.
pub(super) type Place = (u64, u64);

/// The result of reading all segments.
#[derive(Debug)]
struct Scan<'a> {
    folder: &'a Path,
    /// Everything up to here was durable, according to the positions.
    durable: Position,
    damaged_folder: &'a mut DamagedFolder,
    /// Bytes in the oldest segments beyond the spool's limit; these segments will be dropped soon.
    excess: u64,
    segments: Vec<Segment>,
    /// Segments that should be moved or removed, and could not be.
    departed: Vec<DepartedSegment>,
    /// The highest number of a segment that was found.
    last: u64,
    /// The count of all records up to the last one that can be read.
    end: Count,
    damaged_regions: u64,
    /// Where the damaged regions begin.
    damaged: BTreeSet<Place>,
    /// Whether nothing more may be written to the last segment.
    sealed: bool,
}

impl Spool {
    /// Opens or creates the spool in `folder` for these upstreams. A new upstream takes the place of one that is no longer
    /// configured ([`rename_replaced_upstreams`]), or gets what arrives from now on. An upstream without a successor is
    /// forgotten; the log says how much it did not get.
    ///
    /// # Errors
    /// When the folder cannot be used, or another relay uses it.
    pub fn open(folder: &Path, limits: Limits, upstreams: &[String]) -> Result<Spool> {
        let shown = folder.display();
        let home =
            Home::take(folder).with_context(|| format!("failed to take the spool's folder {shown}"))?;
        let (positions, checkpoint) =
            open_positions(folder).context("failed to read the spool's positions")?;
        let durable = checkpoint.as_ref().map(|checkpoint| checkpoint.durable).unwrap_or_default();
        let mut damaged_folder = DamagedFolder::of(folder);
        let scan = scan(folder, durable, &limits, &mut damaged_folder);
        let scan = scan.with_context(|| format!("failed to read the spool {shown}"))?;
        if checkpoint.is_none() && scan.segments.iter().any(Segment::holds_more_than_its_header) {
            tracing::warn!("without its positions, every upstream is sent again what the spool holds");
        }
        let state = state(folder, scan, checkpoint, upstreams)
            .with_context(|| format!("failed to create a segment in {shown}"))?;
        let bells = upstreams.iter().map(|_| Doorbell::new()).collect::<io::Result<_>>();
        let bells = bells.context("failed to create the eventfds that wake the upstreams' threads")?;
        let spool = Spool {
            folder: folder.to_owned(),
            limits,
            state: Mutex::new(state),
            bells,
            positions: Mutex::new(positions),
            home: Mutex::new(home),
            damaged_folder: Mutex::new(damaged_folder),
        };
        let figures = spool.figures();
        tracing::info!(bytes = figures.bytes, segments = figures.segments, "opened the spool");
        Ok(spool)
    }

    /// Keeps a copy of what cannot be read, and counts the region. A region counts once, however often upstreams come to it, even
    /// if the disk accepts no copy.
    pub(super) fn set_aside(&self, segment: &Segment, damage: Range<u64>) {
        let is_known = {
            let mut state = self.lock();
            let first = state.segments[0].number;
            state.damaged = state.damaged.split_off(&(first, 0));
            !state.damaged.insert((segment.number, damage.start))
        };
        if !is_known && self.damaged_folder().copy(segment, damage) {
            self.lock().damaged_regions += 1;
        }
    }
}

fn open_positions(folder: &Path) -> io::Result<(Positions, Option<Checkpoint>)> {
    let path = positions_path(folder);
    page_cache::forget(&path);
    let (positions, found) = Positions::open(&path)?;
    if positions.has_bad_place() {
        tracing::warn!("a part of the spool's positions cannot be read from the disk");
    }
    let content = match found {
        checkpoint::Found::Checkpoint(checkpoint) => return Ok((positions, Some(checkpoint))),
        checkpoint::Found::Nothing => return Ok((positions, None)),
        checkpoint::Found::Unreadable(content) => content,
    };
    let copy = folder.join(DAMAGED).join("positions");
    match fs::write(&copy, content) {
        Ok(()) => {
            tracing::warn!("the spool's positions cannot be read: a copy is kept in {}", copy.display());
        }
        // The disk may be full; upstreams should get what the spool holds all the same.
        Err(error) => {
            tracing::warn!(
                "the spool's positions cannot be read; failed to keep {}: {error}",
                copy.display()
            );
        }
    }
    Ok((positions, None))
}

fn scan<'a>(
    folder: &'a Path,
    durable: Position,
    limits: &Limits,
    damaged_folder: &'a mut DamagedFolder,
) -> io::Result<Scan<'a>> {
    let numbers = segment::numbers(folder)?;
    if !numbers.is_empty() {
        tracing::info!(bytes = bytes(folder, &numbers), segments = numbers.len(), "reading the spool");
    }
    let mut scan = Scan {
        folder,
        durable,
        damaged_folder,
        excess: excess(folder, &numbers, limits),
        segments: Vec::new(),
        departed: Vec::new(),
        last: numbers.last().copied().unwrap_or(0),
        end: durable.before,
        damaged_regions: 0,
        damaged: BTreeSet::new(),
        sealed: false,
    };
    for number in numbers {
        // The segments before `durable.segment` are known to be on the disk.
        if number >= durable.segment {
            page_cache::forget(&segment::path(folder, number));
        }
        let is_last = number == scan.last;
        match Segment::open(folder, number)? {
            Found::Segment(segment) if scan.is_leaving(&segment, is_last) => scan.segments.push(segment),
            Found::Segment(segment) => scan.add(segment, is_last)?,
            Found::WithoutHeader(segment) => {
                scan.set_aside(&segment, 0..SEGMENT_HEADER_BYTES as u64);
                scan.add(segment, is_last)?;
                // Nothing more is written to a segment that has lost its header.
                scan.sealed = true;
            }
            Found::Empty => scan.remove_empty(number),
            Found::Damaged(segment) => {
                let why = "nothing in a segment of the spool can be read";
                scan.leave_out(number, Some(segment.length), is_last, why);
            }
            Found::Closed(length, error) => {
                let why = format!("a segment of the spool cannot be opened: {error}");
                scan.leave_out(number, length, is_last, why);
            }
        }
    }
    scan.log_read_only();
    Ok(scan)
}

/// How many bytes a spool that drops its oldest segments has beyond its limit.
fn excess(folder: &Path, numbers: &[u64], limits: &Limits) -> u64 {
    match limits.when_full {
        WhenFull::DropOldest => bytes(folder, numbers).saturating_sub(limits.bytes),
        WhenFull::Refuse => 0,
    }
}

/// The bytes of these segments.
fn bytes(folder: &Path, numbers: &[u64]) -> u64 {
    let length = |number: &u64| fs::metadata(segment::path(folder, *number)).map_or(0, |file| file.len());
    numbers.iter().map(length).sum()
}

impl Scan<'_> {
    /// Whether a segment will be dropped soon and need not be read: if a restart has lowered the limit of a large spool, reading
    /// them all would take minutes. The segments behind it, and the positions, tell how much it holds.
    fn is_leaving(&mut self, segment: &Segment, is_last: bool) -> bool {
        let is_leaving = segment.length <= self.excess && !is_last && segment.number < self.durable.segment;
        self.excess = if is_leaving { self.excess - segment.length } else { 0 };
        is_leaving
    }

    fn add(&mut self, mut segment: Segment, is_last: bool) -> io::Result<()> {
        let (mut at, mut end) = (SEGMENT_HEADER_BYTES as u64, segment.before);
        let (mut has_bad_place, mut is_end_known) = (false, true);
        let mut most = READ_BYTES;
        while at < segment.length {
            let (chunk, is_bad_place) = read_over_bad_place(&segment, at, most)?;
            most = if chunk.damage.is_some() { READ_BYTES_AMID_DAMAGE } else { READ_BYTES.min(2 * most) };
            let is_tail = is_last && chunk.damage.is_some() && chunk.end == segment.length;
            if is_tail && !is_bad_place && !self.was_durable(segment.number, at + 1) {
                let bytes = segment.length - at;
                tracing::info!(bytes, "cut a torn tail from the spool: it was never acknowledged");
                segment.cut(at)?;
                break;
            }
            has_bad_place |= is_bad_place;
            end = chunk.after().unwrap_or(end);
            is_end_known = !is_tail || chunk.after().is_some() || self.was_durable(segment.number, chunk.end);
            if let Some(damage) = chunk.damage {
                self.set_aside(&segment, damage);
            }
            if !is_end_known && is_bad_place {
                // The next start must not find entries there that this one counts as lost.
                segment.cut(at)?;
            }
            at = chunk.end;
        }
        // Records that are missing, in a gap or at the end, keep their numbers: they are lost, and new records get new numbers.
        self.sealed = segment.is_read_only || has_bad_place || end != self.end.max(end);
        self.end = self.end.max(end);
        if !is_end_known {
            self.lose_unknown();
        }
        self.segments.push(segment);
        Ok(())
    }

    /// Moves a segment, of which nothing can be read, out of the spool.
    fn leave_out(&mut self, number: u64, length: Option<u64>, is_last: bool, why: impl Display) {
        let departed = DepartedSegment { number, length: length.unwrap_or(0), is_kept: true };
        match self.damaged_folder.take(self.folder, departed) {
            Ok(()) => {
                let kept = self.damaged_folder.place_of(number);
                tracing::warn!(kept = %kept.display(), "{why}; the whole segment is set aside");
            }
            // Upstreams should get what the other segments hold all the same.
            Err(error) => {
                tracing::warn!("{why}; {error}");
                self.stays(departed);
            }
        }
        self.damaged_regions += 1;
        let holds_records = length.is_none_or(|length| length > SEGMENT_HEADER_BYTES as u64);
        if is_last && holds_records && !self.was_durable(number, length.unwrap_or(u64::MAX)) {
            self.lose_unknown();
        }
    }

    fn remove_empty(&mut self, number: u64) {
        if let Err(error) = fs::remove_file(segment::path(self.folder, number)) {
            tracing::warn!(number, "failed to remove an empty segment of the spool: {error}");
            self.stays(DepartedSegment { number, length: 0, is_kept: false });
        }
    }

    /// Notes a segment that could not be moved or removed; housekeeping tries again. New entries go to a segment with a higher
    /// number, since none can be created in its place.
    fn stays(&mut self, departed: DepartedSegment) {
        self.departed.push(departed);
        self.sealed = true;
    }

    fn log_read_only(&self) {
        let mut read_only = self.segments.iter().filter(|segment| segment.is_read_only);
        if let Some(first) = read_only.next() {
            tracing::warn!(
                segments = 1 + read_only.count(),
                first = %segment::path(self.folder, first.number).display(),
                "segments of the spool are read-only: upstreams get what they hold, and nothing more is written to them"
            );
        }
    }

    /// Whether everything before this place was durable, according to the positions.
    fn was_durable(&self, number: u64, offset: u64) -> bool {
        (number, offset) <= (self.durable.segment, self.durable.offset)
    }

    fn set_aside(&mut self, segment: &Segment, damage: Range<u64>) {
        self.damaged.insert((segment.number, damage.start));
        self.damaged_regions += u64::from(self.damaged_folder.copy(segment, damage));
    }

    /// Accounts for accepted entries at the end of the spool whose number is unknown: they count as one entry with one
    /// annotation, which each upstream loses on its way to what is appended from now on.
    fn lose_unknown(&mut self) {
        self.end += Count::entry(1);
        self.sealed = true;
    }
}

/// Reads on, even over a place that cannot be read from the disk; whether anything is lost there shows when an upstream comes to
/// it. Returns whether there was such a place.
fn read_over_bad_place(segment: &Segment, at: u64, most: usize) -> io::Result<(Chunk, bool)> {
    match segment.read(at, most, u64::MAX, BadPlace::Fails) {
        Err(error) if is_of_bad_place(&error) => {
            Ok((segment.read(at, most, u64::MAX, BadPlace::IsZeros)?, true))
        }
        done => Ok((done?, false)),
    }
}

impl Count {
    fn max(self, other: Count) -> Count {
        if other.entries >= self.entries { other } else { self }
    }
}

fn state(
    folder: &Path,
    scan: Scan<'_>,
    checkpoint: Option<Checkpoint>,
    names: &[String],
) -> io::Result<State> {
    let mut segments = scan.segments;
    // New segments follow the newest one that the positions know, even if that is missing: upstreams may be at its end.
    let is_newest_there = segments.last().is_some_and(|last| last.number >= scan.durable.segment);
    if !is_newest_there || scan.sealed {
        let number = scan.last.max(scan.durable.segment) + 1;
        segments.push(begin(folder, number, scan.end)?);
    }
    let first = &segments[0];
    let first = Position { segment: first.number, offset: SEGMENT_HEADER_BYTES as u64, before: first.before };
    let arrived = arrived(checkpoint.as_ref(), scan.end);
    let mut state = State {
        bytes: segments.iter().map(|one| one.length).chain(scan.departed.iter().map(|one| one.length)).sum(),
        segments: segments.into(),
        departed: scan.departed,
        arrived,
        upstreams: Vec::new(),
        commits: 0,
        damaged_regions: scan.damaged_regions,
        damaged: scan.damaged,
        forgotten: Count::default(),
        dirty: true,
        evictions: Notices::default(),
        evicted_unreported: 0,
    };
    let end = state.end();
    let begin = if checkpoint.is_some() { end } else { first };
    let mut known = checkpoint.unwrap_or_default();
    state.forgotten = rename_replaced_upstreams(&mut known, names, end.before);
    state.upstreams = names.iter().map(|name| upstream(name, &known, begin, end)).collect();
    Ok(state)
}

/// Creates a segment for new entries. If the disk has no room for it, it stays empty, and another one follows once there is room.
/// Until then upstreams get what can be read, and that makes room.
fn begin(folder: &Path, number: u64, before: Count) -> io::Result<Segment> {
    Segment::create(folder, number, before).or_else(|error| {
        tracing::warn!("failed to create a segment of the spool: {error}; it is created once that works");
        Segment::create_emptied(folder, number, before)
    })
}

/// The figures of what arrived, including what was appended after the last checkpoint.
fn arrived(checkpoint: Option<&Checkpoint>, end: Count) -> Arrived {
    match checkpoint {
        Some(known) => Arrived {
            received: known.received + (end - known.durable.before),
            accepted: end,
            malformed: known.malformed,
        },
        None => Arrived { received: end, accepted: end, malformed: Count::default() },
    }
}

/// Gives the names of new upstreams to those that are no longer configured, the one that is most behind first: an address was
/// corrected, or a server has moved, and the new name should get what was kept for the old one. Returns the count of what was
/// kept for upstreams that are forgotten. If any has a successor, that is 0: the successor gets what the others lack too.
fn rename_replaced_upstreams(known: &mut Checkpoint, names: &[String], end: Count) -> Count {
    let is_known = |name: &String| known.upstreams.iter().any(|upstream| upstream.name == *name);
    let mut new: VecDeque<&String> = names.iter().filter(|name| !is_known(name)).collect();
    let mut gone: Vec<_> =
        known.upstreams.iter_mut().filter(|upstream| !names.contains(&upstream.name)).collect();
    gone.sort_by_key(|upstream| (upstream.position.segment, upstream.position.offset));
    let is_followed = !new.is_empty();
    let mut forgotten = Count::default();
    for upstream in gone {
        let missing = end - upstream.position.before;
        if let Some(follower) = new.pop_front() {
            tracing::warn!(
                from = upstream.name,
                to = follower,
                entries = missing.entries,
                "an upstream has a new address: what was kept for it is sent there"
            );
            upstream.name.clone_from(follower);
        } else if !is_followed {
            tracing::warn!(
                upstream = upstream.name,
                entries = missing.entries,
                "forgetting an upstream that is no longer configured, and what it did not get"
            );
            forgotten += missing;
        }
    }
    forgotten
}

fn upstream(name: &str, known: &Checkpoint, begin: Position, end: Position) -> Upstream {
    let name = name.to_owned();
    let Some(state) = known.upstreams.iter().find(|upstream| upstream.name == name) else {
        let held = end.before - begin.before;
        let delivered = Delivered { offered: held, in_flight: held, ..Delivered::default() };
        return at_place(name, begin, delivered);
    };
    let delivered = Delivered {
        offered: state.offered + (end.before - known.durable.before),
        acked: state.acked,
        in_flight: end.before - state.position.before,
        lost: state.lost,
    };
    at_place(name, state.position, delivered)
}

/// An upstream at a position. Losses by damage so far were logged when they were counted.
fn at_place(name: String, position: Position, delivered: Delivered) -> Upstream {
    let damaged_reported = delivered.lost[Loss::Damaged as usize].entries;
    Upstream { name, position, delivered, damage: Notices::default(), damaged_reported }
}
