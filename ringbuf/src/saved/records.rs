//! The records of saved rings, and their times.

use blkin_record::{GRAIN_BYTES, Kind, ORDINAL_MASK, POSITION_MASK, Record, Stamp, records};

use super::section::word;
use super::{Run, Saved, SavedSlot};
use crate::clock::{Anchor, ClockKind};
use crate::layout::header;
use crate::names::MAX_INTERNED_BYTES;
use crate::ring::Head;

/// When a record was written, in nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SavedTime {
    /// By its own clock reading.
    At(i64),
    /// It has none: in its ring it comes after an event of this time (or before one, if it is the first).
    Near(i64),
    /// The file does not say how its clock runs, or no event stands in the ring.
    Unknown,
}

impl SavedTime {
    /// Nanoseconds since 1970, as far as they are known.
    pub fn nanoseconds(self) -> Option<i64> {
        match self {
            SavedTime::At(time) | SavedTime::Near(time) => Some(time),
            SavedTime::Unknown => None,
        }
    }
}

/// One record of a saved ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedRecord<'a> {
    /// Number of its ring.
    pub slot: u32,
    /// When it was written.
    pub time: SavedTime,
    /// The record itself.
    pub record: Record<'a>,
}

/// What saved rings hold, in annotations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Annotations that were read.
    pub read: u64,
    /// Committed, but damaged.
    pub invalid: u64,
    /// Reserved and not committed when the ring was copied, or in a part of the file that is lost.
    pub missing: u64,
}

impl Saved {
    /// Every record, ring by ring, each in the order of its ring.
    pub fn records(&self, mut each: impl FnMut(SavedRecord<'_>)) -> Count {
        let mut sum = Count::default();
        for slot in &self.slots {
            let count = slot.records(self, &mut each);
            sum.read += count.read;
            sum.invalid += count.invalid;
            sum.missing += count.missing;
        }
        sum
    }

    /// A text of the table of names.
    pub fn text(&self, id: u32) -> Option<Vec<u8>> {
        let at = usize::try_from(id).ok().filter(|at| *at > 0)?;
        let bytes =
            usize::try_from(*self.names.get(at)?).ok().filter(|bytes| *bytes <= MAX_INTERNED_BYTES)?;
        let words = self.names.get(at + 1..at + 1 + bytes.div_ceil(8))?;
        let mut text: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        text.truncate(bytes);
        Some(text)
    }

    /// Drops what is older than `since_ns`, as far as the events in each ring tell; rings without any stay whole.
    pub fn keep_since(&mut self, since_ns: i64) {
        self.identity.since_ns = since_ns.max(0).cast_unsigned();
        let mut slots = std::mem::take(&mut self.slots);
        for slot in &mut slots {
            let (mut first, mut last) = (None, None);
            slot.records(self, &mut |saved| {
                let place = (saved.record.position, saved.record.ordinal);
                match saved.time {
                    SavedTime::At(time) if time >= since_ns => first = first.or(Some(place)),
                    _ => {}
                }
                last = Some((place, saved.time));
            });
            match (first, last) {
                (Some((position, ordinal)), _) => slot.cut_before(position, ordinal),
                (None, Some((_, SavedTime::Unknown)) | None) => {}
                (None, Some(_)) => slot.cut_all(),
            }
        }
        self.slots = slots;
    }

    /// Returns whether rings with only one anchor of their clock have times. `CLOCK_MONOTONIC` runs at one rate everywhere;
    /// for a time stamp counter the machine that this runs on gives another anchor, unless the rate shows that its counter is
    /// not that of the rings.
    pub fn adopt_clock_of_this_boot(&mut self) -> bool {
        if self.clock == Some(ClockKind::Monotonic) {
            return true;
        }
        let (Some(ClockKind::Tsc), [anchor]) = (self.clock, self.anchors.as_slice()) else { return false };
        let first = Anchor::now(ClockKind::Tsc);
        let ticks_per_second = local_rate(first);
        let ticks = first.raw.wrapping_sub(anchor.0) as f64;
        let seconds = first.realtime_ns.saturating_sub(anchor.1) as f64 / 1e9;
        let is_same = (ticks / seconds / ticks_per_second - 1.0).abs() < 1e-3;
        if is_same {
            self.anchors.push((first.raw, first.realtime_ns));
        }
        is_same
    }

    fn time_of(&self, raw: u64) -> Option<i64> {
        let (first, last) = (self.anchors.first()?, self.anchors.last()?);
        let (ticks, nanoseconds) = match self.clock? {
            ClockKind::Monotonic => (1, 1),
            ClockKind::Tsc => {
                let ticks = last.0.checked_sub(first.0).filter(|ticks| *ticks > 0)?;
                (ticks, last.1.checked_sub(first.1)?)
            }
        };
        let since = i128::from(raw) - i128::from(last.0);
        let elapsed = since.checked_mul(i128::from(nanoseconds))? / i128::from(ticks);
        i64::try_from(i128::from(last.1) + elapsed).ok()
    }
}

/// Ticks of the time stamp counter per second, measured for 20 ms.
fn local_rate(first: Anchor) -> f64 {
    std::thread::sleep(std::time::Duration::from_millis(20));
    let second = Anchor::now(ClockKind::Tsc);
    let nanoseconds = second.realtime_ns.saturating_sub(first.realtime_ns) as f64;
    second.raw.wrapping_sub(first.raw) as f64 * 1e9 / nanoseconds
}

impl SavedSlot {
    fn records(&self, saved: &Saved, each: &mut impl FnMut(SavedRecord<'_>)) -> Count {
        let cookie = saved.header.get(header::COOKIE).map_or(0, |cookie| *cookie as u32);
        let mut walk =
            Walk { saved, slot: self.number, cookie, near: None, ordinals: None, count: Count::default() };
        walk.near = self.runs.iter().find_map(|run| walk.first_event(run));
        for run in &self.runs {
            walk.run(run, each);
        }
        let reserved = match (self.range, walk.ordinals) {
            (Some((from, to)), _) => Head(to).records_since(Head(from)),
            (None, Some((first, last))) => (last.wrapping_sub(first) & ORDINAL_MASK) + 1,
            (None, None) => 0,
        };
        // No ring of any size holds more; a spoilt header may say anything.
        let most = (crate::layout::MAX_RING_BYTES / GRAIN_BYTES) as u64;
        let found = walk.count.read + walk.count.invalid;
        walk.count.missing = if reserved > most { 0 } else { reserved.saturating_sub(found) };
        walk.count
    }

    fn cut_before(&mut self, position: u64, ordinal: u64) {
        if let Some((from, _)) = &mut self.range {
            *from = Head::of(position, ordinal).0;
        }
        let Some(index) = self.runs.iter().position(|run| run.offset_of(position).is_some()) else { return };
        self.runs.drain(..index);
        if let Some(offset) = self.runs[0].offset_of(position) {
            self.runs[0] = Run { position, raw: self.runs[0].raw.split_off(offset) };
        }
    }

    fn cut_all(&mut self) {
        self.range = self.range.map(|(_, to)| (to, to));
        self.runs.clear();
    }
}

impl Run {
    fn offset_of(&self, position: u64) -> Option<usize> {
        let offset = (position.wrapping_sub(self.position) & POSITION_MASK) as usize;
        offset.checked_mul(GRAIN_BYTES).filter(|offset| *offset < self.raw.len())
    }
}

struct Walk<'a> {
    saved: &'a Saved,
    slot: u32,
    cookie: u32,
    near: Option<i64>,
    ordinals: Option<(u64, u64)>,
    count: Count,
}

impl Walk<'_> {
    /// Walks over a run: grain by grain in a hole, record by record elsewhere.
    fn run(&mut self, run: &Run, each: &mut impl FnMut(SavedRecord<'_>)) {
        let mut at = 0;
        while let Some(grains) = self.next_head(run, &mut at) {
            let raw = &run.raw[at..];
            let bytes = grains * GRAIN_BYTES;
            match raw.get(..bytes).and_then(|own| records(own, self.cookie).next()) {
                Some(Ok(record)) => {
                    self.found(record, each);
                    at += bytes;
                }
                // The length of a bad record is not believed: it could swallow its neighbours.
                _ => {
                    self.count.invalid += 1;
                    at += GRAIN_BYTES;
                }
            }
        }
    }

    /// Moves `at` to the next grain with the true stamp of a record's head, and returns how long that record is.
    fn next_head(&self, run: &Run, at: &mut usize) -> Option<usize> {
        loop {
            let stamp = Stamp(word(run.raw.get(*at..)?, 0)?);
            let position = (run.position + (*at / GRAIN_BYTES) as u64) & POSITION_MASK;
            if let Some(grains) = stamp.head_length_at(position, self.cookie) {
                return Some(grains);
            }
            *at += GRAIN_BYTES;
        }
    }

    fn found(&mut self, record: Record<'_>, each: &mut impl FnMut(SavedRecord<'_>)) {
        self.count.read += 1;
        let first = self.ordinals.map_or(record.ordinal, |(first, _)| first);
        self.ordinals = Some((first, record.ordinal));
        let own = (record.kind == Kind::Event).then(|| self.saved.time_of(record.time)).flatten();
        self.near = own.or(self.near);
        let time = match (own, self.near) {
            (Some(time), _) => SavedTime::At(time),
            (None, Some(near)) => SavedTime::Near(near),
            (None, None) => SavedTime::Unknown,
        };
        each(SavedRecord { slot: self.slot, time, record });
    }

    fn first_event(&self, run: &Run) -> Option<i64> {
        let mut at = 0;
        while let Some(grains) = self.next_head(run, &mut at) {
            let own = run.raw.get(at..at + grains * GRAIN_BYTES);
            if let Some(Ok(record)) = own.and_then(|own| records(own, self.cookie).next())
                && record.kind == Kind::Event
            {
                return self.saved.time_of(record.time);
            }
            at += GRAIN_BYTES;
        }
        None
    }
}
