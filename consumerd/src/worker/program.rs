//! One traced program as the worker sees it.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use blkin_record::GRAIN_BYTES;
use blkin_ringbuf::layout::{CONTROL_BYTES, segment_bytes};
use blkin_ringbuf::saved::Identity;
use blkin_ringbuf::{AttachError, Attachment, Position, ProgramCounters, RingMode, RingTime};

use super::askers::Askers;
use super::earlier_drains::EarlierDrains;
use super::ledger::DrainFigures;
use super::resolve::Texts;
use super::spare::Spare;
use super::sweep::Sweeps;
use super::totals::Totals;
use crate::link;
use crate::staging::log::Place;
use crate::staging::{Frame, ProgramState, SlotState};

/// First pause between two questions to the kernel whether anybody can still write a segment. It is short, because a program that
/// lives only for a moment is held, and counts in the quotas, until the answer.
const ASK_FIRST: Duration = Duration::from_millis(4);
/// Longest such pause; the pauses double up to it.
const ASK_EVERY: Duration = Duration::from_millis(450);

/// If this many looks in a row see contradicting figures, the cause is not a program that records meanwhile.
const DOUBTS: usize = 4;

/// An attached program.
pub(super) struct Program {
    pub(super) identity: link::Program,
    pub(super) label: String,
    pub(super) attachment: Attachment,
    pub(super) texts: Texts,
    pub(super) sweeps: Sweeps,
    /// The last time of each ring, so that its times stay in order.
    pub(super) times: Vec<RingTime>,
    /// Hash of the segment's identity.
    pub(super) source: i64,
    /// The figures as they are now, including frames that are not retired.
    pub(super) figures: DrainFigures,
    earlier_drains: EarlierDrains,
    /// Bytes of its frames that are not retired.
    pub(super) staged_bytes: u64,
    /// Its rings are not drained for now: see `engine::room`.
    pub(super) is_held_back: bool,
    /// How many of its frames are not retired.
    pub(super) open_frames: u64,
    /// Number of its newest frame.
    pub(super) last_frame: u64,
    /// It has ended and everything is drained.
    pub(super) ended: bool,
    /// When the worker last checked whether it had ended; once it has, the time when that was seen.
    pub(super) ended_since: Duration,
    retired: DrainFigures,
    retired_places: BTreeMap<u32, Place>,
    next_slot: usize,
    /// The slots, a bit each, from whose rings the next round copies.
    opened: u64,
    /// For each slot, up to where the next round copies: where the ring's head stood at the last look. `None` for a ring that
    /// contradicts itself.
    ends: Vec<Option<u64>>,
    /// When the kernel was last asked about its writers.
    last_asked: Option<Duration>,
    /// How long after that the kernel is asked again.
    ask_pause: Duration,
    /// The kernel has not answered the last question yet.
    is_asked: bool,
    was_insane: bool,
    /// Its own counters were found to contradict each other: they are not believed any more.
    is_unsound: bool,
    /// Nobody can write its rings any more.
    writers_gone: bool,
    /// The last round came after its writers were gone, and found nothing.
    is_drained: bool,
    /// For a flight recorder: since when nobody can write it any more.
    ended_at: Option<Duration>,
    /// For a flight recorder that has ended and is no longer kept: how many annotations it held.
    given_up: Option<u64>,
}

/// The outcome of a round over a program's rings.
#[derive(Default)]
pub(super) struct Round {
    /// Drained ranges, not staged yet.
    pub(super) frames: Vec<Frame>,
    /// There was more than the budget allowed.
    pub(super) has_more: bool,
    /// The largest part of a ring that was copied, in 1024ths of the ring.
    pub(super) fill: u64,
    /// The slot of a ring that contradicts itself, the first time that one is found.
    pub(super) insane: Option<usize>,
}

/// Uses the name that the program gives itself if the kernel did not know its name any more: a process may end before the holder
/// looks at its offer.
fn named(identity: link::Program, own: &[u8]) -> link::Program {
    let comm = if identity.comm == link::NAMELESS { link::shown_name(own) } else { identity.comm };
    link::Program { comm, ..identity }
}

impl Program {
    /// Maps the memory of a program, and continues from the places in `saved`.
    pub(super) fn attach(
        identity: link::Program,
        segment: Arc<OwnedFd>,
        control: &OwnedFd,
        boot: &str,
        saved: Option<&ProgramState>,
    ) -> Result<Self, AttachError> {
        let mut attachment = Attachment::open(segment, control)?;
        let slots = attachment.slots();
        let read = |slot| attachment.published(slot).map_or(0, |read| read.records);
        let page = (0..slots).map(|slot| (read(slot), attachment.settled(slot)));
        let earlier_drains = saved.map_or_else(|| EarlierDrains::of_page(page), EarlierDrains::of_checkpoint);
        let retired = saved.map_or_else(DrainFigures::default, ProgramState::figures);
        let retired_places = saved.map_or_else(BTreeMap::new, |saved| resume(&mut attachment, saved));
        let info = attachment.info();
        let identity = named(identity, &info.name);
        let source = source(boot, info.device, info.inode);
        Ok(Self {
            label: format!("{}:{}", identity.comm, identity.pid),
            identity,
            texts: Texts::default(),
            sweeps: Sweeps::new(slots),
            times: vec![RingTime::default(); slots],
            source,
            figures: retired,
            earlier_drains,
            staged_bytes: 0,
            is_held_back: false,
            open_frames: 0,
            last_frame: 0,
            ended: false,
            ended_since: Duration::ZERO,
            retired,
            retired_places,
            next_slot: 0,
            opened: 0,
            ends: vec![None; slots],
            last_asked: None,
            ask_pause: ASK_FIRST,
            is_asked: false,
            was_insane: false,
            is_unsound: false,
            writers_gone: false,
            is_drained: false,
            ended_at: None,
            given_up: None,
            attachment,
        })
    }

    /// Continues after a frame of an earlier worker, whose range is drained already.
    pub(super) fn resume_after(&mut self, frame: &Frame) {
        let slot = frame.slot as usize;
        if slot < self.attachment.slots() {
            self.attachment.resume(slot, position(frame.to));
            self.earlier_drains.begins_at(slot, frame.from.records);
        }
    }

    /// Ranges that its rings show as drained and that are not staged: all that is known of them is how many records they had.
    pub(super) fn gaps(&self) -> impl Iterator<Item = Frame> {
        (0..self.attachment.slots()).filter_map(|slot| {
            let (from, to) = (self.attachment.position(slot), self.attachment.published(slot)?);
            let records = to.records.saturating_sub(from.records);
            (to.grain > from.grain).then(|| Frame {
                program: self.identity.number,
                slot: slot as u32,
                records: u32::try_from(records).unwrap_or(u32::MAX),
                from: place(from),
                to: place(to),
                ..Frame::default()
            })
        })
    }

    /// Notes where the heads of its rings stand, before any other look of a round.
    pub(super) fn look_ahead(&mut self) {
        let attachment = &self.attachment;
        let opened = if self.is_recorder() { 0 } else { attachment.opened() };
        let heads = numbers(opened).filter_map(|slot| Some((slot, attachment.reserved(slot)?)));
        self.sweeps.look_ahead(heads);
    }

    /// Notes up to where its rings are to be copied, after [`look_ahead`](Self::look_ahead) of all programs.
    pub(super) fn look(&mut self) {
        self.opened = if self.is_recorder() { 0 } else { self.attachment.opened() };
        numbers(self.opened).for_each(|slot| self.ends[slot] = self.attachment.reserved(slot));
    }

    /// Copies committed records out of the rings, up to where their heads stood at the last look, beginning with the ring at
    /// which the last round stopped. Copies at most `ring_budget` bytes of a ring, and four times as many of the program.
    pub(super) fn round(&mut self, ring_budget: usize, spare: &mut Spare, now: Duration) -> Round {
        let mut round = Round::default();
        if self.is_recorder() {
            return round;
        }
        let opened = self.opened;
        self.sweeps.note_unopened(!opened & self.attachment.all_slots());
        let before = (1 << self.next_slot) - 1;
        let mut budget = 4 * ring_budget;
        for slot in numbers(opened & !before).chain(numbers(opened & before)) {
            if budget == 0 {
                self.next_slot = slot;
                round.has_more = true;
                return round;
            }
            let (at, end) = (self.attachment.position(slot).grain, self.ends[slot]);
            // Nothing new. A ring without writers is drained all the same, so that nothing is left at its end.
            if end == Some(at) && !self.writers_gone {
                self.sweeps.note(slot, at, at, false, now);
                continue;
            }
            let end = end.unwrap_or(at);
            let waiting = usize::try_from(end - at).map_or(usize::MAX, |grains| grains * GRAIN_BYTES);
            let mut raw = spare.take();
            let drained = self.attachment.drain(slot, ring_budget.min(budget).min(waiting), &mut raw);
            if drained.insane && !std::mem::replace(&mut self.was_insane, true) {
                round.insane = Some(slot);
            }
            self.sweeps.note(slot, drained.to.grain, end, drained.blocked_on_hole, now);
            round.has_more |= drained.more && drained.to.grain < end;
            budget = budget.saturating_sub(raw.len());
            round.fill = round.fill.max((raw.len() * 1024 / self.attachment.info().ring_bytes) as u64);
            if drained.from != drained.to {
                round.frames.push(Frame {
                    number: 0,
                    program: self.identity.number,
                    slot: slot as u32,
                    records: u32::try_from(drained.records).unwrap_or(u32::MAX),
                    from: place(drained.from),
                    to: place(drained.to),
                    torn: drained.torn,
                    raw,
                });
            } else {
                spare.put(raw);
            }
        }
        self.is_drained = self.writers_gone && round.frames.is_empty() && !round.has_more;
        round
    }

    /// Puts back a range that could not be staged, so that the next round copies it again.
    pub(super) fn put_back(&mut self, frame: &Frame) {
        self.attachment.resume(frame.slot as usize, position(frame.from));
    }

    /// Shows a flight recorder that it is held, so that it does not offer itself to another daemon.
    pub(super) fn beat(&self) {
        self.attachment.control().beat();
    }

    /// Whether it is a flight recorder, which overwrites its oldest records. It is not drained, but read when somebody asks.
    pub(super) fn is_recorder(&self) -> bool {
        self.attachment.info().mode == RingMode::Overwrite
    }

    /// Bytes that it takes of its user's quota of shared memory.
    pub(super) fn shared_bytes(&self) -> u64 {
        let info = self.attachment.info();
        (segment_bytes(info.slots, info.ring_bytes) + CONTROL_BYTES) as u64
    }

    /// When it ended, if it is a flight recorder that is kept since.
    pub(super) fn ended_at(&self) -> Option<Duration> {
        self.ended_at.filter(|_| self.given_up.is_none())
    }

    /// The memory that it uses, if it is a flight recorder that has ended and is kept.
    pub(super) fn kept_bytes(&self) -> Option<u64> {
        self.ended_at()?;
        let slots = self.attachment.slots();
        let used = (0..slots).filter(|slot| self.attachment.slot_header_words(*slot)[0] != 0).count();
        Some((used * self.attachment.info().ring_bytes) as u64)
    }

    /// Gives up a flight recorder that has ended. Returns how many annotations were in it, which count as released from
    /// now on; records that its writers reserved and never committed count as torn.
    pub(super) fn give_up(&mut self) -> u64 {
        let pending = self.attachment.pending();
        let held = self.attachment.save(Identity::default()).records(|_| {});
        let annotations = (held.read + held.invalid).min(pending);
        self.figures.torn += pending - annotations;
        self.given_up = Some(annotations);
        annotations
    }

    /// Asks the kernel about its writers, unless that was done a moment ago.
    pub(super) fn ask_at(&mut self, now: Duration, askers: &mut Askers) {
        if self.last_asked.is_none_or(|last| now.saturating_sub(last) >= self.ask_pause) {
            if self.last_asked.replace(now).is_some() {
                self.ask_pause = (self.ask_pause * 2).min(ASK_EVERY);
            }
            self.ask(askers);
        }
    }

    /// Asks the kernel about its writers, unless an answer is outstanding, or the writers are known to be gone.
    pub(super) fn ask(&mut self, askers: &mut Askers) {
        if !self.is_asked && !self.writers_gone {
            self.is_asked = askers.ask(self.identity.uid, (self.identity.number, self.attachment.writers()));
        }
    }

    /// Takes the kernel's answer.
    pub(super) fn hear(&mut self, are_gone: bool, now: Duration) {
        self.is_asked = false;
        if are_gone {
            self.writers_gone = true;
            self.attachment.set_no_writer_left();
            self.ended_at = self.is_recorder().then_some(now);
        }
    }

    /// Whether nobody can write its rings any more.
    pub(super) fn has_no_writer(&self) -> bool {
        self.writers_gone
    }

    /// Whether an answer of the kernel is outstanding.
    pub(super) fn is_asked(&self) -> bool {
        self.is_asked
    }

    /// Whether it has ended just now: its last writer has gone and a round after that found nothing more, or it is a flight
    /// recorder that was given up.
    pub(super) fn has_ended(&mut self, now: Duration) -> bool {
        if self.ended {
            return false;
        }
        self.ended = self.is_drained || self.given_up.is_some();
        self.ended_since = now;
        self.ended
    }

    /// Counts a retired frame.
    pub(super) fn retire(&mut self, figures: DrainFigures, slot: u32, to: Place, bytes: u64) {
        self.retired.add(figures);
        self.retired_places.insert(slot, to);
        self.staged_bytes -= bytes.min(self.staged_bytes);
        self.open_frames -= 1;
    }

    /// Publishes in the control page how much is retired, once a checkpoint says so, too.
    pub(super) fn publish_settled(&self) {
        self.retired_places
            .iter()
            .for_each(|(slot, place)| self.attachment.publish_settled(*slot as usize, place.records));
    }

    /// Its state for a checkpoint.
    pub(super) fn state(&self, folded: bool) -> ProgramState {
        let slot = |(slot, place): (&u32, &Place)| SlotState {
            slot: *slot,
            grain: place.grain,
            records: place.records,
        };
        ProgramState {
            program: self.identity.number,
            folded,
            drained_before: self.earlier_drains.settled,
            unsettled: self.earlier_drains.unsettled,
            drained: self.retired.drained,
            valid: self.retired.valid,
            invalid: self.retired.invalid,
            torn: self.retired.torn,
            slots: self.retired_places.iter().map(slot).collect(),
        }
    }

    /// Its figures as they are now, without its own counters once these were found to contradict each other.
    pub(super) fn totals(&self) -> Totals {
        let (counters, pending) = self.attachment.counters_and_pending();
        let totals = Totals {
            counters,
            drained_before: self.earlier_drains.settled,
            unsettled: self.earlier_drains.unsettled,
            pending: if self.given_up.is_some() { 0 } else { pending },
            released: self.given_up.unwrap_or(0),
            drain: self.figures,
        };
        if self.is_unsound { totals.without_its_word() } else { totals }
    }

    /// Its own counters, if they are found now to contradict each other by more than recording meanwhile can explain.
    pub(super) fn check_unsound(&mut self) -> Option<ProgramCounters> {
        if (0..DOUBTS).any(|_| self.totals().is_nearly_sound()) {
            return None;
        }
        let counters = self.totals().counters;
        self.is_unsound = true;
        Some(counters)
    }
}

/// Resumes each ring at its place in the checkpoint, and returns the places.
fn resume(attachment: &mut Attachment, saved: &ProgramState) -> BTreeMap<u32, Place> {
    let (mut places, slots) = (BTreeMap::new(), attachment.slots());
    for slot in saved.slots.iter().filter(|slot| (slot.slot as usize) < slots) {
        let place = Place { grain: slot.grain, records: slot.records };
        attachment.resume(slot.slot as usize, position(place));
        places.insert(slot.slot, place);
    }
    places
}

fn position(place: Place) -> Position {
    Position { grain: place.grain, records: place.records }
}

fn place(position: Position) -> Place {
    Place { grain: position.grain, records: position.records }
}

/// The numbers of the slots in a set of bits.
fn numbers(mut slots: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let first = slots.trailing_zeros();
        slots &= slots.wrapping_sub(1);
        (first < u64::BITS).then_some(first as usize)
    })
}

/// A number that tells segments apart, across machines and boots: an FNV-1a hash with its halves mixed.
fn source(boot: &str, device: u64, inode: u64) -> i64 {
    let bytes = boot.bytes().chain(device.to_le_bytes()).chain(inode.to_le_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    (hash ^ (hash >> 32)).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_mask_yields_its_slot_numbers() {
        assert_eq!(numbers(0).count(), 0);
        assert!(numbers(1 << 63 | 0b1001).eq([0, 3, 63]));
        assert!(numbers(u64::MAX).eq(0..64));
    }

    #[test]
    fn sources_differ_by_boot_device_and_inode() {
        let all = [source("a", 1, 2), source("b", 1, 2), source("a", 2, 2), source("a", 1, 3)];
        for (index, one) in all.iter().enumerate() {
            assert!(!all[index + 1..].contains(one));
        }
    }
}
