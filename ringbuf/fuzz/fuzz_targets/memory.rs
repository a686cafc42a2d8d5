//! Copies of a segment's memory, with a valid header, and with arbitrary slots, names and grains. The first bytes of each grain
//! choose its stamp, because stamps are too hard to guess.
#![no_main]

use blkin_record::{GRAIN_BYTES, Stamp};
use blkin_ringbuf::layout::{RINGS_OFFSET_BYTES, segment_bytes};
use blkin_ringbuf::saved;
use libfuzzer_sys::fuzz_target;

const COOKIE: u32 = 0x1_5a5a;
const RING_BYTES: usize = 4096;
const SLOTS: usize = 2;
const SLOT_HEADERS_BYTES: usize = 69_632;
/// What the input says for the header of one slot, for the table of names, and about whether the rings overwrite.
const SLOT_BYTES: usize = 64;
const NAMES_BYTES: usize = 64;

fuzz_target!(|bytes: &[u8]| {
    let Some((mode, bytes)) = bytes.split_first() else { return };
    let Some((slots, bytes)) = bytes.split_at_checked(SLOTS * SLOT_BYTES) else { return };
    let Some((names, grains)) = bytes.split_at_checked(NAMES_BYTES) else { return };
    let mut memory = vec![0; segment_bytes(SLOTS, RING_BYTES)];
    memory[..8].copy_from_slice(b"BLKINSEG");
    for (word, value) in
        [(3, RING_BYTES as u64), (4, SLOTS as u64), (6, COOKIE.into()), (10, (mode & 1).into())]
    {
        memory[word * 8..][..8].copy_from_slice(&value.to_le_bytes());
    }
    memory[4096..][..NAMES_BYTES].copy_from_slice(names);
    for (number, slot) in slots.chunks(SLOT_BYTES).enumerate() {
        memory[SLOT_HEADERS_BYTES + number * 256..][..SLOT_BYTES].copy_from_slice(slot);
    }
    let rings = &mut memory[RINGS_OFFSET_BYTES..];
    for (place, grain) in grains.chunks_exact(GRAIN_BYTES).take(rings.len() / GRAIN_BYTES).enumerate() {
        let to = &mut rings[place * GRAIN_BYTES..][..GRAIN_BYTES];
        to.copy_from_slice(grain);
        if grain[0] % 4 != 3 {
            to[..8].copy_from_slice(&stamp(place, grain).to_le_bytes());
        }
    }
    // A copy that was cut short, too.
    memory.truncate(memory.len() - usize::from(mode >> 1) * 32);
    check(&memory);
});

/// A stamp that is valid for its place in some lap.
fn stamp(place: usize, grain: &[u8]) -> u64 {
    let grains = (RING_BYTES / GRAIN_BYTES) as u64;
    let lap = u64::from(grain[2]) | u64::from(grain[3]) << 24;
    let position = lap * grains + place as u64 % grains;
    let length = usize::from(grain[1] % 8) + 1;
    match grain[0] % 4 {
        0 => Stamp::head(position, length, COOKIE).0,
        1 => Stamp::continuation(position, length, COOKIE).0,
        _ => Stamp::head(position, 1, COOKIE).0,
    }
}

fn check(memory: &[u8]) {
    let reading = saved::read(memory);
    assert!(reading.is_raw && reading.programs.len() == 1);
    let program = &reading.programs[0];
    let mut records = 0;
    let count = program.records(|_| records += 1);
    assert_eq!(count.read, records);
    assert!(count.read + count.invalid <= (SLOTS * RING_BYTES / GRAIN_BYTES) as u64);
    for id in 0..64 {
        let _ = program.text(id);
    }
}
