//! Writing: one program after another.

use super::section::{append, kind};
use super::{Saved, SavedSlot, VERSION};

/// Grains go in portions of this size, so that damage spoils no more than one of them.
const PORTION_BYTES: usize = 64 << 10;

/// Appends one program's rings to a file.
pub fn write(saved: &Saved, out: &mut Vec<u8>) {
    let mut sections = 1;
    let mut put = |kind: u32, content: &[u8]| {
        append(out, kind, content);
        sections += 1;
    };
    put(kind::PROGRAM, &program(saved));
    let clock = saved.clock.map_or(0, |clock| clock.to_word());
    let anchors = saved.anchors.iter().flat_map(|(raw, realtime)| [*raw, realtime.cast_unsigned()]);
    put(kind::CLOCK, &bytes([clock].into_iter().chain(anchors)));
    put(kind::HEADER, &bytes(saved.header.iter().copied()));
    put(kind::NAMES, &bytes(saved.names.iter().copied()));
    for slot in &saved.slots {
        put(kind::SLOT, &slot_words(slot));
        for run in &slot.runs {
            for (index, portion) in run.raw.chunks(PORTION_BYTES).enumerate() {
                let grains = (index * PORTION_BYTES / blkin_record::GRAIN_BYTES) as u64;
                let mut content = bytes([u64::from(slot.number), run.position + grains]);
                content.extend_from_slice(portion);
                put(kind::GRAINS, &content);
            }
        }
    }
    append(out, kind::END, &bytes([sections]));
}

fn program(saved: &Saved) -> Vec<u8> {
    let of = &saved.identity;
    let mut out = bytes([
        VERSION,
        u64::from(blkin_record::VERSION),
        u64::from(of.pid),
        u64::from(of.uid),
        u64::from(of.ended),
        of.taken_ns,
        of.since_ns,
    ]);
    for text in [&of.label, &of.host, &of.boot] {
        out.extend_from_slice(&(text.len() as u64).to_le_bytes());
        out.extend_from_slice(text.as_bytes());
    }
    out
}

fn slot_words(slot: &SavedSlot) -> Vec<u8> {
    let (from, to) = slot.range.unwrap_or_default();
    bytes([u64::from(slot.number)].into_iter().chain(slot.header.iter().copied()).chain([from, to]))
}

fn bytes(words: impl IntoIterator<Item = u64>) -> Vec<u8> {
    words.into_iter().flat_map(u64::to_le_bytes).collect()
}
