//! Saved segments from anybody. A checksum is too hard to guess, so the input is a sequence of sections, each of which gets the
//! checksum that fits its content; the content is arbitrary.
#![no_main]

use blkin_record::GRAIN_BYTES;
use blkin_ringbuf::saved::{self, Saved, SavedRecord};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = saved::read(bytes);
    let file = sections(bytes);
    for mut program in saved::read(&file).programs {
        let held: usize = program.slots.iter().flat_map(|slot| &slot.runs).map(|run| run.raw.len()).sum();
        assert!(held <= file.len());
        let before = printed(&program);
        assert!(before.len() <= held / GRAIN_BYTES);
        for id in 0..=program.names.len() as u32 {
            assert!(program.text(id).is_none_or(|text| text.len() <= 8 * program.names.len()));
        }
        // What was read can be written again, and reads as the same.
        let mut again = Vec::new();
        saved::write(&program, &mut again);
        let reading = saved::read(&again);
        assert_eq!((reading.programs.len(), reading.damaged_bytes, reading.missing_sections), (1, 0, 0));
        assert_eq!(printed(&reading.programs[0]), before);
        program.keep_since(1);
        printed(&program);
    }
});

fn printed(program: &Saved) -> Vec<String> {
    let mut records = Vec::new();
    let count = program.records(|record: SavedRecord<'_>| records.push(format!("{record:?}")));
    assert_eq!(count.read, records.len() as u64);
    records
}

/// Two bytes give a section's kind, and its length in words.
fn sections(mut bytes: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    while let [kind, words, rest @ ..] = bytes {
        let (content, rest) = rest.split_at(rest.len().min(usize::from(*words) * 8));
        bytes = rest;
        let traits = u64::from(kind % 9) | (content.len() as u64) << 32;
        file.extend_from_slice(b"BLKSAVED");
        file.extend_from_slice(&traits.to_le_bytes());
        file.extend_from_slice(&checksum(&traits.to_le_bytes(), content).to_le_bytes());
        file.extend_from_slice(content);
        file.resize(file.len().next_multiple_of(8), 0);
    }
    file
}

/// 64-bit FNV-1a, as the format requires.
fn checksum(traits: &[u8], content: &[u8]) -> u64 {
    traits.iter().chain(content).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
