//! The consumer's side of one program's segment. Nothing that the program wrote is trusted.

use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use rustix::fs::{SealFlags, fcntl_add_seals, fcntl_get_seals, fstat};
use rustix::io::Errno;
use rustix::mm::ProtFlags;

use blkin_record::{GRAIN_BYTES, ORDINAL_MASK};

use crate::clock::{Anchor, ClockKind};
use crate::control::ControlPage;
use crate::drain::{Drained, Position, RingReader};
use crate::layout::{
    self, CONTROL_BYTES, LAYOUT_VERSION, MAX_SLOTS, ProducerKind, RINGS_OFFSET_BYTES, RingMode,
    SEGMENT_MAGIC, control, header, slot,
};
use crate::mapping::Mapping;
use crate::names::Texts;
use crate::recorder::nearest_count;
use crate::ring::{Head, RingShape};

/// Why descriptors were not accepted as a segment.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// A system call failed.
    #[error("failed to {0}: {1}")]
    System(&'static str, Errno),
    /// A file without the seals that make it safe to map.
    #[error("the {0} is not a sealed memfd of BlkKin")]
    NotSealed(&'static str),
    /// A file of an impossible size.
    #[error("the {0} has an impossible size of {1} bytes")]
    Size(&'static str, i64),
    /// A segment of another version.
    #[error("the segment has layout version {layout} and record version {record}; this consumerd reads layout version {LAYOUT_VERSION} and record versions {oldest} to {own}", oldest = blkin_record::OLDEST_VERSION, own = blkin_record::VERSION)]
    Version {
        /// Version of the layout.
        layout: u64,
        /// Version of the record.
        record: u64,
    },
    /// A header that contradicts itself.
    #[error("the segment's header is invalid ({0})")]
    Header(&'static str),
}

/// What a program said about itself when it made its segment; a private copy.
#[derive(Clone, Copy, Debug)]
pub struct ProgramInfo {
    /// Identity of the segment on this machine until it reboots.
    pub inode: u64,
    /// Device of the memfd's file system.
    pub device: u64,
    /// As the program states it; the kernel's statement is the peer credential of its offer.
    pub pid: u32,
    /// The first bytes of its name, also as it states it; zeros if it does not say.
    pub name: [u8; 16],
    /// Cookie of its stamps.
    pub cookie: u32,
    /// Number of rings.
    pub slots: usize,
    /// Size of each ring.
    pub ring_bytes: usize,
    /// Clock of its raw times.
    pub clock: ClockKind,
    /// Anchor of that clock at creation.
    pub anchor: Anchor,
    /// What its full rings do.
    pub mode: RingMode,
    /// Which protocol it writes them by.
    pub producer: ProducerKind,
}

/// A program's own counters, summed over its slots at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramCounters {
    /// Calls of record on a sampled trace.
    pub attempted: u64,
    /// Records that got a place in a ring.
    pub committed: u64,
    /// Lost: ring full.
    pub full: u64,
    /// Lost: no segment, or no memory for a ring.
    pub no_segment: u64,
    /// Lost: longer than a ring.
    pub too_large: u64,
    /// Lost: the segment was just being made.
    pub starting: u64,
    /// Lost: ring full, and the consumer waits at a hole.
    pub stalled: u64,
    /// Calls with a text that was cut, whether or not their record found room.
    pub truncated: u64,
    /// Texts for which the table of names had no room.
    pub not_interned: u64,
    /// Lost: overwritten by later ones, in a flight recorder.
    pub overwritten: u64,
}

impl ProgramCounters {
    /// Attempts that became no record.
    pub fn lost(&self) -> u64 {
        let lost = [self.full, self.no_segment, self.too_large, self.starting, self.stalled];
        lost.into_iter().fold(0, u64::wrapping_add)
    }

    /// Whether each attempt has become a record or a loss.
    pub fn add_up(&self) -> bool {
        self.attempted == self.committed.wrapping_add(self.lost())
    }

    fn plus(&self, other: &Self) -> Self {
        let sum = |field: fn(&Self) -> u64| field(self).wrapping_add(field(other));
        Self {
            attempted: sum(|counters| counters.attempted),
            committed: sum(|counters| counters.committed),
            full: sum(|counters| counters.full),
            no_segment: sum(|counters| counters.no_segment),
            too_large: sum(|counters| counters.too_large),
            starting: sum(|counters| counters.starting),
            stalled: sum(|counters| counters.stalled),
            truncated: sum(|counters| counters.truncated),
            not_interned: sum(|counters| counters.not_interned),
            overwritten: sum(|counters| counters.overwritten),
        }
    }
}

// One bit per slot in `Attachment::at_hole`.
const _: () = assert!(MAX_SLOTS <= u64::BITS as usize);

/// One program's segment and control page, mapped.
pub struct Attachment {
    segment: Arc<OwnedFd>,
    words: Mapping,
    control: Arc<Mapping>,
    info: ProgramInfo,
    /// Anchor of the program's clock when this side mapped the segment.
    opened_at: Anchor,
    at: [Position; MAX_SLOTS],
    /// The slots (a bit each) for which the page says that this side waits at a hole.
    at_hole: u64,
    no_writer_left: bool,
}

impl Attachment {
    /// Checks and maps what a program offered. The segment is mapped read-only.
    pub fn open(segment: impl Into<Arc<OwnedFd>>, control: &OwnedFd) -> Result<Attachment, AttachError> {
        let segment = segment.into();
        let stat = fstat(&segment).map_err(|error| AttachError::System("stat the segment", error))?;
        check_seals(&segment, "segment", SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE)?;
        check_seals(control, "control page", SealFlags::SHRINK | SealFlags::GROW)?;
        let segment_bytes = size_within(&segment, "segment", RINGS_OFFSET_BYTES..=largest_segment())?;
        let control_bytes = size_within(control, "control page", CONTROL_BYTES..=CONTROL_BYTES)?;
        let words = Mapping::read_only(&segment, segment_bytes)?;
        let info = read_info(words.words(), segment_bytes, stat.st_ino, stat.st_dev)?;
        let control = Mapping::of(control, control_bytes, ProtFlags::READ | ProtFlags::WRITE)?;
        let at = std::array::from_fn(|slot| published(&control, slot));
        let waiting =
            |slot: usize| control.words()[control::slot_line(slot) + control::WAITING_AT_HOLE].load(Relaxed);
        let at_hole = (0..MAX_SLOTS).fold(0, |bits, slot| bits | u64::from(waiting(slot) != 0) << slot);
        let control = Arc::new(control);
        Ok(Attachment {
            segment,
            words,
            control,
            info,
            opened_at: Anchor::now(info.clock),
            at,
            at_hole,
            no_writer_left: false,
        })
    }

    /// What the program said of itself.
    pub fn info(&self) -> &ProgramInfo {
        &self.info
    }

    /// When this side began to look, as an anchor of the program's clock.
    pub(crate) fn opened_at(&self) -> Anchor {
        self.opened_at
    }

    /// Number of rings.
    pub fn slots(&self) -> usize {
        self.info.slots
    }

    /// A bit for each slot.
    pub fn all_slots(&self) -> u64 {
        layout::all_slots(self.info.slots)
    }

    /// The slots, a bit each, whose rings may hold something: those that the program has opened by now. Asked after a record
    /// was copied, it includes all in which others were committed before that record.
    #[inline]
    pub fn opened(&self) -> u64 {
        let all = self.all_slots();
        // Once nobody writes any more, every ring is looked at once more, whatever the word says.
        if self.no_writer_left { all } else { all & !self.words.words()[header::UNOPENED].load(Relaxed) }
    }

    /// Continues where another consumer stopped.
    pub fn resume(&mut self, slot: usize, at: Position) {
        self.at[slot] = at;
    }

    /// How far a ring has been read, as its last reader published it in the page. The program can write any numbers there:
    /// `None` for numbers that the ring contradicts, because what came after them would not fit into it.
    pub fn published(&self, slot: usize) -> Option<Position> {
        let said = published(&self.control, slot);
        let is_possible = said.records <= said.grain && self.reader(slot).reserved(said).is_some();
        is_possible.then_some(said)
    }

    /// How far a ring has been read.
    pub fn position(&self, slot: usize) -> Position {
        self.at[slot]
    }

    /// Appends whole records of one ring to `out`, about `max_bytes` of them, and moves the private position.
    pub fn drain(&mut self, slot: usize, max_bytes: usize, out: &mut Vec<u8>) -> Drained {
        let mut at = self.at[slot];
        let max_grains = (max_bytes / GRAIN_BYTES).max(1) as u64;
        let drained = self.reader(slot).drain(&mut at, max_grains, self.no_writer_left, out);
        self.at[slot] = at;
        self.publish_hole(slot, drained.blocked_on_hole);
        drained
    }

    /// Says in the page whether this side waits at a hole, if that has changed: most looks at rings find nothing, and a store
    /// for each would make the page's cache lines travel.
    #[inline]
    fn publish_hole(&mut self, slot: usize, waits: bool) {
        let bits = self.at_hole & !(1 << slot) | u64::from(waits) << slot;
        if std::mem::replace(&mut self.at_hole, bits) != bits {
            let line = control::slot_line(slot);
            self.control.words()[line + control::WAITING_AT_HOLE].store(u64::from(waits), Relaxed);
        }
    }

    /// Gives the space up to the private position back to the program.
    pub fn publish(&mut self, slot: usize) {
        let line = control::slot_line(slot);
        self.control.words()[line + control::TAIL_RECORDS].store(self.at[slot].records, Relaxed);
        let tail = line + control::TAIL;
        // SYNC POINT reuse: pairs with the acquire in ring (invariant 6).
        self.control.words()[tail].store(self.at[slot].grain, Release);
    }

    /// How many records of a ring an earlier consumer said it had settled. The page may hold any number.
    pub fn settled(&self, slot: usize) -> u64 {
        self.control.words()[control::slot_line(slot) + control::SETTLED_RECORDS].load(Relaxed)
    }

    /// Publishes how many records of a ring are settled, for the next consumer.
    pub fn publish_settled(&self, slot: usize, records: u64) {
        let settled = &self.control.words()[control::slot_line(slot) + control::SETTLED_RECORDS];
        // Changes seldom, and the program reads tail in the same cache line.
        if settled.load(Relaxed) != records {
            settled.store(records, Relaxed);
        }
    }

    /// The position just past the last grain that the program has reserved in a ring by now; `None` if the ring contradicts
    /// itself. Looks at other rings after that see whatever the thread that reserved the grain had committed there before.
    pub fn reserved(&self, slot: usize) -> Option<u64> {
        self.reader(slot).reserved(self.at[slot])
    }

    /// Records that the program has committed and this side has not read.
    pub fn pending(&self) -> u64 {
        (0..self.info.slots).map(|slot| self.reader(slot).pending(self.first_pending(slot))).sum()
    }

    /// An overwriting ring is not drained: everything that it holds is pending.
    fn first_pending(&self, slot: usize) -> Position {
        match self.info.mode {
            RingMode::Discard => self.at[slot],
            RingMode::Overwrite => {
                // SYNC POINT evict: head is loaded after OLDEST, and so is not older.
                let oldest = Head(self.slot_header(slot)[slot::OLDEST].load(Acquire));
                Position { grain: oldest.position(), records: oldest.records() }
            }
        }
    }

    /// The program's counters now.
    pub fn counters(&self) -> ProgramCounters {
        self.counters_and_pending().0
    }

    /// The program's counters, and from the same look the number of records that it has committed and this side has not read:
    /// the program goes on recording meanwhile, and figures read one after the other would not add up.
    pub fn counters_and_pending(&self) -> (ProgramCounters, u64) {
        let mut looks = LOOKS;
        let outside = look_until_it_adds_up(&mut looks, || self.look_outside());
        let slots = (0..self.info.slots).map(|slot| {
            let header = self.slot_header(slot);
            look_until_it_adds_up(&mut looks, || self.look_at(slot, |index| header[index].load(Acquire)))
        });
        slots
            .fold(outside, |(sum, pending), (slot, of_slot)| (sum.plus(&slot), pending.wrapping_add(of_slot)))
    }

    /// What was counted outside of rings.
    fn look_outside(&self) -> (ProgramCounters, u64) {
        let outside = |index: usize| self.words.words()[index].load(Acquire);
        let counters = ProgramCounters {
            attempted: outside(header::ATTEMPTED),
            no_segment: outside(header::NO_SEGMENT),
            starting: outside(header::STARTING),
            ..ProgramCounters::default()
        };
        (counters, 0)
    }

    fn look_at(&self, slot: usize, count: impl Fn(usize) -> u64) -> (ProgramCounters, u64) {
        let mut counters = ProgramCounters::default();
        let pending = match self.info.mode {
            RingMode::Overwrite => {
                (counters.overwritten, counters.committed) = recorded(&count);
                counters.committed.wrapping_sub(counters.overwritten)
            }
            RingMode::Discard => {
                // Head keeps 28 bits of the count; the number of records read supplies the rest.
                let read = self.at[slot].records;
                let unread = Head(count(slot::HEAD)).records().wrapping_sub(read) & ORDINAL_MASK;
                counters.committed = read.wrapping_add(unread);
                unread
            }
        };
        counters.attempted = count(slot::ATTEMPTED);
        if self.is_written_portably(slot) {
            // In such a ring only head counts the attempts that found a place.
            counters.attempted = counters.attempted.wrapping_add(counters.committed);
        }
        counters.full = count(slot::FULL);
        counters.stalled = count(slot::STALLED);
        counters.too_large = count(slot::TOO_LARGE);
        counters.truncated = count(slot::TRUNCATED);
        counters.not_interned = count(slot::NOT_INTERNED);
        (counters, pending.min(self.reader(slot).shape.grains()))
    }

    fn is_written_portably(&self, slot: usize) -> bool {
        self.info.producer == ProducerKind::Portable || slot + 1 == self.info.slots
    }

    /// A private copy of a text in the table of names.
    pub fn text(&self, id: u32) -> Option<Vec<u8>> {
        let words = self.words.words();
        let text = &words[layout::NAMES_TEXT..][..layout::NAMES_TEXT_WORDS];
        Texts { text, text_words: layout::NAMES_TEXT_WORDS }.text(id)
    }

    /// Asks whether [all writers are gone](Writers::are_gone), which may take long, and remembers it if so.
    pub fn no_writer_left(&mut self) -> bool {
        if !self.no_writer_left && self.writers().are_gone() {
            self.set_no_writer_left();
        }
        self.no_writer_left
    }

    /// Remembers that [all writers are gone](Writers::are_gone): from now on [`Attachment::drain`] passes holes and counts
    /// them as torn.
    pub fn set_no_writer_left(&mut self) {
        self.no_writer_left = true;
    }

    /// Asks about those who can write the segment.
    pub fn writers(&self) -> Writers {
        Writers(self.segment.clone())
    }

    /// Tells the program that somebody reads (it stops offering itself), or that nobody does any more.
    pub fn mark_attached(&self, is_attached: bool) {
        let words = self.control.words();
        // First, so that a program that sees that nobody is attached also sees why.
        words[control::LEFT].store(u64::from(!is_attached), Relaxed);
        if is_attached {
            words[control::UNREAD].store(0, Relaxed);
            // From here on a flight recorder expects further beats, even if this consumer is killed at once.
            self.control().beat();
        }
        words[control::ATTACHED].store(u64::from(is_attached), Release);
    }

    /// The page through which the program is told what to record and when to wake its consumer.
    pub fn control(&self) -> ControlPage {
        ControlPage::new(self.control.clone())
    }

    pub(crate) fn words(&self) -> &[AtomicU64] {
        self.words.words()
    }

    pub(crate) fn control_words(&self) -> &[AtomicU64] {
        self.control.words()
    }

    pub(crate) fn slot_header(&self, slot: usize) -> &[AtomicU64] {
        &self.words.words()[layout::slot_header(slot)..][..layout::SLOT_HEADER_WORDS]
    }

    pub(crate) fn reader(&self, slot: usize) -> RingReader<'_, [AtomicU64]> {
        let words = self.words.words();
        RingReader {
            header: self.slot_header(slot),
            grains: &words[layout::ring_words(slot, self.info.ring_bytes)],
            shape: RingShape::new(self.info.ring_bytes, self.info.cookie),
        }
    }
}

/// Those who can write a program's segment: a handle with which any thread may ask the kernel about them.
#[derive(Clone, Debug)]
pub struct Writers(Arc<OwnedFd>);

impl Writers {
    /// Whether the kernel says that no mapping is left through which anybody could write the segment: it then accepts the
    /// write seal.
    ///
    /// A program can delay the answer or, on older kernels, prevent it for ever: the kernel waits for pages that are in use
    /// elsewhere, and for whoever holds the lock of the file.
    pub fn are_gone(&self) -> bool {
        // A program may have forbidden all further seals after it was accepted. It can no longer be asked, and counts as gone.
        matches!(fcntl_add_seals(&self.0, SealFlags::WRITE), Ok(()) | Err(Errno::PERM))
    }
}

/// How often counters are read again until they add up, for all slots of a program together: meanwhile the caller keeps
/// this program's rings, and those of others, from being read. A writer that goes on between two loads, or was stopped between
/// counting an attempt and its loss, which are two steps of the portable producer, makes them differ for a moment; a lasting
/// difference is an error.
const LOOKS: usize = 1000;

fn look_until_it_adds_up(
    left: &mut usize,
    look: impl Fn() -> (ProgramCounters, u64),
) -> (ProgramCounters, u64) {
    loop {
        let seen = look();
        if *left == 0 || seen.0.add_up() {
            return seen;
        }
        *left -= 1;
    }
}

/// What an overwriting ring overwrote, and what it recorded. Both words keep 28 bits of their counts. The counter of
/// overwritten records supplies the rest, though a kill may leave it a little behind: a ring holds far fewer than 2^28 records.
fn recorded(count: impl Fn(usize) -> u64) -> (u64, u64) {
    let overwritten = nearest_count(Head(count(slot::OLDEST)).records(), count(slot::OVERWRITTEN));
    (overwritten, nearest_count(Head(count(slot::HEAD)).records(), overwritten))
}

/// Where an earlier consumer stopped; the start of the ring if there was none. Bounded, because the page is shared.
fn published(control: &Mapping, slot: usize) -> Position {
    let word =
        |index: usize| control.words()[control::slot_line(slot) + index].load(Relaxed) & (u64::MAX >> 2);
    Position { grain: word(control::TAIL), records: word(control::TAIL_RECORDS) }
}

fn largest_segment() -> usize {
    RINGS_OFFSET_BYTES + layout::MAX_ASKED_RING_BYTES
}

/// Checks that the required seals are set, and that one more can be added: that is how the end of a program is noticed.
fn check_seals(fd: &OwnedFd, what: &'static str, needed: SealFlags) -> Result<(), AttachError> {
    match fcntl_get_seals(fd) {
        Ok(seals) if seals.contains(needed) && !seals.contains(SealFlags::SEAL) => Ok(()),
        // Any file that is not a memfd answers EINVAL.
        Ok(_) | Err(Errno::INVAL) => Err(AttachError::NotSealed(what)),
        Err(error) => Err(AttachError::System("read seals", error)),
    }
}

fn size_within(fd: &OwnedFd, what: &'static str, sizes: RangeInclusive<usize>) -> Result<usize, AttachError> {
    let stat = fstat(fd).map_err(|error| AttachError::System("stat a descriptor", error))?;
    usize::try_from(stat.st_size)
        .ok()
        .filter(|size| sizes.contains(size))
        .ok_or(AttachError::Size(what, stat.st_size))
}

fn read_info(words: &[AtomicU64], bytes: usize, inode: u64, device: u64) -> Result<ProgramInfo, AttachError> {
    let word = |index: usize| words[index].load(Relaxed);
    if word(header::MAGIC) != SEGMENT_MAGIC {
        return Err(AttachError::Header("magic"));
    }
    let (layout, record) = (word(header::VERSION), word(header::RECORD_VERSION));
    if layout != LAYOUT_VERSION || !blkin_record::is_read(record) {
        return Err(AttachError::Version { layout, record });
    }
    let ring_bytes = usize::try_from(word(header::RING_BYTES))
        .ok()
        .filter(|bytes| layout::ring_bytes_are_valid(*bytes))
        .ok_or(AttachError::Header("ring size"))?;
    let slots = usize::try_from(word(header::SLOTS))
        .ok()
        .filter(|slots| (1..=MAX_SLOTS).contains(slots))
        .ok_or(AttachError::Header("slots"))?;
    if layout::segment_bytes(slots, ring_bytes) != bytes {
        return Err(AttachError::Header("size"));
    }
    let cookie = u32::try_from(word(header::COOKIE))
        .ok()
        .filter(|cookie| (1..1 << 18).contains(cookie))
        .ok_or(AttachError::Header("cookie"))?;
    let clock = ClockKind::from_word(word(header::CLOCK_KIND)).ok_or(AttachError::Header("clock"))?;
    let anchor = Anchor {
        raw: word(header::ANCHOR_RAW),
        monotonic_ns: word(header::ANCHOR_MONOTONIC) as i64,
        realtime_ns: word(header::ANCHOR_REALTIME) as i64,
    };
    let mode = RingMode::from_word(word(header::MODE)).ok_or(AttachError::Header("mode"))?;
    let producer = ProducerKind::from_word(word(header::PRODUCER)).ok_or(AttachError::Header("producer"))?;
    let pid = word(header::PID) as u32;
    let mut name = [0; 16];
    for (bytes, index) in name.as_chunks_mut().0.iter_mut().zip(header::NAME..) {
        *bytes = word(index).to_le_bytes();
    }
    Ok(ProgramInfo { inode, device, pid, name, cookie, slots, ring_bytes, clock, anchor, mode, producer })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn rereading_counters_that_never_add_up_is_bounded() {
        let looks = Cell::new(0);
        let look = |attempted: u64| {
            looks.set(looks.get() + 1);
            (ProgramCounters { attempted, ..ProgramCounters::default() }, 0)
        };
        let mut left = LOOKS;
        let (counters, _) = look_until_it_adds_up(&mut left, || look(u64::from(looks.get() < 2)));
        assert!(counters.add_up());
        assert_eq!(looks.replace(0), 3);
        for _ in 0..MAX_SLOTS {
            assert!(!look_until_it_adds_up(&mut left, || look(1)).0.add_up());
        }
        assert_eq!(looks.get(), LOOKS - 2 + MAX_SLOTS);
    }
}
