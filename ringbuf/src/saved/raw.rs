//! A copy of the memory of a segment, as `cp /proc/PID/fd/N` makes one; perhaps cut short, perhaps damaged.

use blkin_record::{GRAIN_BYTES, MAX_GRAINS, POSITION_MASK, Stamp};

use super::section::word;
use super::{HEADER_WORDS, Identity, Run, Saved, SavedSlot};
use crate::clock::ClockKind;
use crate::layout::{
    self, MAX_SLOTS, NAMES_TEXT, NAMES_TEXT_WORDS, RingMode, SEGMENT_MAGIC, SLOT_HEADER_WORDS, header, slot,
};
use crate::ring::Head;

/// Bytes of the program's name in its header.
const NAME_BYTES: usize = 16;

/// Bytes of a ring, as far as the file has them, and its size in grains.
struct Grains<'a> {
    bytes: &'a [u8],
    count: u64,
    cookie: u32,
}

/// The rings in the copy, and whether it is cut short; `None` when the file is not such a copy.
pub(super) fn read(file: &[u8]) -> Option<(Saved, bool)> {
    let at = |index: usize| word(file, index).unwrap_or(0);
    if at(header::MAGIC) != SEGMENT_MAGIC {
        return None;
    }
    let words =
        |start: usize, count: usize| (start..start + count).map_while(|index| word(file, index)).collect();
    let anchor = (at(header::ANCHOR_RAW), at(header::ANCHOR_REALTIME).cast_signed());
    let mut saved = Saved {
        identity: Identity { pid: at(header::PID) as u32, label: own_name(file), ..Identity::default() },
        clock: ClockKind::from_word(at(header::CLOCK_KIND)),
        anchors: vec![anchor],
        header: words(0, HEADER_WORDS),
        names: words(NAMES_TEXT, NAMES_TEXT_WORDS),
        slots: Vec::new(),
    };
    let ring_bytes =
        usize::try_from(at(header::RING_BYTES)).ok().filter(|size| layout::ring_bytes_are_valid(*size));
    let slots = usize::try_from(at(header::SLOTS)).ok().filter(|slots| *slots <= MAX_SLOTS);
    let whole = layout::segment_bytes(slots.unwrap_or(0), ring_bytes.unwrap_or(0));
    let is_cut = file.len() < whole;
    let Some(ring_bytes) = ring_bytes else { return Some((saved, is_cut)) };
    for number in 0..MAX_SLOTS {
        let start = layout::ring_words(number, ring_bytes).start * 8;
        let Some(bytes) = file.get(start..) else { break };
        let grains = Grains {
            bytes: &bytes[..bytes.len().min(ring_bytes) / GRAIN_BYTES * GRAIN_BYTES],
            count: (ring_bytes / GRAIN_BYTES) as u64,
            cookie: at(header::COOKIE) as u32,
        };
        let header: Vec<u64> = words(layout::slot_header(number), SLOT_HEADER_WORDS);
        let overwrites = RingMode::from_word(at(header::MODE)) == Some(RingMode::Overwrite);
        if let Some(slot) = ring(number as u32, header, &grains, overwrites) {
            saved.slots.push(slot);
        }
    }
    Some((saved, is_cut))
}

/// What the program calls itself; nothing if it does not say.
fn own_name(file: &[u8]) -> String {
    let bytes = file.get(header::NAME * 8..).map_or(&[][..], |rest| &rest[..rest.len().min(NAME_BYTES)]);
    let name = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}

fn ring(number: u32, header: Vec<u64>, grains: &Grains<'_>, overwrites: bool) -> Option<SavedSlot> {
    let (head, oldest) = (Head(*header.get(slot::HEAD)?), Head(*header.get(slot::OLDEST)?));
    let newest = grains.newest();
    if head.0 == 0 && newest.is_none() {
        return None;
    }
    let used = head.grains_since(oldest);
    // The record that is just being written may lie beyond head.
    let beyond = newest.map_or(0, |end| end.wrapping_sub(head.position()) & POSITION_MASK);
    let is_behind = (MAX_GRAINS as u64 + 1..=POSITION_MASK / 2).contains(&beyond);
    let is_sound = overwrites && used <= grains.count && !is_behind;
    // From a ring that is drained, and from one whose header is damaged: everything that its stamps vouch for.
    let end = newest.filter(|_| !is_sound).unwrap_or(head.position());
    let length = if is_sound { used } else { grains.count.min(end) };
    Some(SavedSlot {
        number,
        header,
        range: is_sound.then_some((oldest.0, head.0)),
        runs: grains.runs(end.wrapping_sub(length) & POSITION_MASK, length),
    })
}

impl Grains<'_> {
    /// End of the last record that begins in the ring.
    fn newest(&self) -> Option<u64> {
        let stamps = self.bytes.chunks(GRAIN_BYTES).enumerate().filter_map(|(index, grain)| {
            let stamp = Stamp(word(grain, 0)?);
            let length = stamp.head_length_at(stamp.position(), self.cookie)? as u64;
            (stamp.position() % self.count == index as u64).then_some(stamp.position() + length)
        });
        stamps.max()
    }

    /// The grains from `position` on, in their order, as far as the file has them.
    fn runs(&self, position: u64, length: u64) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for position in position..position + length {
            let start = (position % self.count) as usize * GRAIN_BYTES;
            let Some(grain) = self.bytes.get(start..start + GRAIN_BYTES) else { continue };
            let position = position & POSITION_MASK;
            match runs.last_mut() {
                Some(run) if run.end() == position => run.raw.extend_from_slice(grain),
                _ => runs.push(Run { position, raw: grain.to_vec() }),
            }
        }
        runs
    }
}
