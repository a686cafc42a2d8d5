use std::collections::BTreeSet;

use blkin_record::{Draft, Payload, Source, Stamp};
use proptest::prelude::*;

use super::*;
use crate::layout::{self, SLOT_HEADER_WORDS, header};

const COOKIE: u32 = 77;

/// Grains of records with spans `from..to`, each `grains` long, as they lie in a ring from `position` on.
fn run(position: u64, spans: std::ops::Range<u64>, first_ordinal: u64) -> Run {
    let mut raw = Vec::new();
    let mut at = position;
    for (index, span) in spans.enumerate() {
        let value = format!("value of {span}").repeat(1 + (span % 3) as usize * 4);
        let payload = if span % 2 == 0 { Payload::Event } else { Payload::Str(value.as_bytes()) };
        let draft = Draft {
            trace_id: 1,
            span_id: span,
            parent_span_id: 0,
            name: Source::known(1),
            endpoint: Source::known(1),
            key: Source::known(1),
            payload,
            level: 4,
            truncated: false,
        };
        let mut words = vec![0u64; draft.grains() * 8];
        let ordinal = first_ordinal + index as u64;
        let stamp = draft.write(at, ordinal, COOKIE, 1000 * span, |index, word| words[index] = word);
        words[0] = stamp.0;
        at += draft.grains() as u64;
        raw.extend(words.into_iter().flat_map(u64::to_le_bytes));
    }
    Run { position, raw }
}

fn saved() -> Saved {
    let run = run(1 << 30, 10..3000, 500);
    let end = run.end();
    let head = |position: u64, records: u64| records << 36 | position;
    let mut header_words = vec![0; HEADER_WORDS];
    header_words[header::COOKIE] = u64::from(COOKIE);
    Saved {
        identity: Identity {
            pid: 4711,
            uid: 1000,
            ended: true,
            taken_ns: 1_700_000_000_000_000_000,
            since_ns: 0,
            label: "ceph-osd".into(),
            host: "node1".into(),
            boot: "b0071d".into(),
        },
        clock: Some(ClockKind::Tsc),
        anchors: vec![(0, 1_000_000), (2_000_000, 2_000_000)],
        header: header_words,
        names: vec![3, 4, u64::from_le_bytes(*b"name\0\0\0\0")],
        slots: vec![SavedSlot {
            number: 3,
            header: vec![0; SLOT_HEADER_WORDS],
            range: Some((head(1 << 30, 500), head(end, 500 + 2990))),
            runs: vec![run],
        }],
    }
}

fn spans(saved: &Saved) -> (Vec<u64>, Count) {
    let mut spans = Vec::new();
    let count = saved.records(|record| spans.push(record.record.span_id));
    (spans, count)
}

fn file() -> Vec<u8> {
    let mut file = Vec::new();
    write(&saved(), &mut file);
    write(&saved(), &mut file);
    file
}

#[test]
fn absurd_section_counts_do_not_prevent_reading() {
    let mut file = file();
    for _ in 0..2 {
        section::append(&mut file, section::kind::END, &u64::MAX.to_le_bytes());
    }
    let reading = read(&file);
    assert_eq!((reading.programs.len(), reading.missing_sections), (4, u64::MAX));
}

/// A file of one program, whose first section has another word at `index`.
fn file_with(index: usize, value: u64) -> Vec<u8> {
    let mut file = Vec::new();
    write(&saved(), &mut file);
    let (first, bytes) = section::first(&file).unwrap();
    let mut content = first.content.to_vec();
    content[index * 8..][..8].copy_from_slice(&value.to_le_bytes());
    let mut other = Vec::new();
    section::append(&mut other, first.kind, &content);
    other.extend_from_slice(&file[bytes..]);
    other
}

#[test]
fn rings_of_another_version_are_counted_and_not_read() {
    let (format, record) = (file_with(0, VERSION + 1), file_with(1, u64::from(blkin_record::VERSION) + 1));
    for other in [format, record] {
        let nothing = Reading { of_other_versions: 1, ..Reading::default() };
        assert_eq!(read(&other), nothing);
        assert_eq!(
            read(&[file(), other.clone()].concat()),
            Reading { of_other_versions: 1, ..read(&file()) }
        );
        assert_eq!(read(&[&other[..], &file()].concat()), Reading { of_other_versions: 1, ..read(&file()) });
        let cut = read(&other[..other.len() / 2]);
        assert!(cut.is_cut && cut.programs.is_empty() && cut.of_other_versions == 1);
    }
}

#[test]
fn saved_programs_read_back_as_written() {
    let reading = read(&file());
    assert_eq!(reading, Reading { programs: vec![saved(), saved()], ..Reading::default() });
    let (spans, count) = spans(&reading.programs[1]);
    assert_eq!(spans, (10..3000).collect::<Vec<_>>());
    assert_eq!(count, Count { read: 2990, ..Count::default() });
    assert_eq!(saved().text(1).as_deref(), Some(&b"name"[..]));
}

#[test]
fn event_times_are_interpolated_and_value_times_are_near() {
    let mut times = Vec::new();
    saved().records(|record| times.push(record.time));
    // Half a nanosecond per tick, from 1 ms on.
    assert_eq!(times[..3], [SavedTime::At(1_005_000), SavedTime::Near(1_005_000), SavedTime::At(1_006_000)]);
}

#[test]
fn keep_since_drops_older_records() {
    let mut last = saved();
    last.keep_since(1_000_000 + 500 * 2000);
    let (spans, count) = spans(&last);
    assert_eq!(spans, (2000..3000).collect::<Vec<_>>());
    assert_eq!(count.missing, 0);
    last.keep_since(i64::MAX);
    assert_eq!(self::spans(&last), (Vec::new(), Count::default()));
}

#[test]
fn a_lost_section_is_counted_and_the_others_are_read() {
    let mut file = file();
    let grains = file.windows(8).enumerate().filter(|(_, window)| *window == *b"BLKSAVED");
    // The first grains of the first program.
    let at = grains.map(|(at, _)| at).nth(5).unwrap();
    file[at + 100] ^= 1;
    let reading = read(&file);
    assert_eq!((reading.missing_sections, reading.unfinished), (1, 0));
    assert!(reading.damaged_bytes > 60_000, "{}", reading.damaged_bytes);
    let (found, count) = spans(&reading.programs[0]);
    assert_eq!(found.len() as u64 + count.missing + count.invalid, 2990);
    assert!(count.missing > 100 && found.len() > 100, "{count:?}");
    assert_eq!(spans(&reading.programs[1]).1.read, 2990);
}

#[test]
fn a_truncated_file_is_distinguished_from_a_damaged_one() {
    let file = file();
    let half = file.len() / 2;
    let programs = |reading: &Reading| reading.programs.len();
    // In the middle of a section's header, of its content, before the last program's end section, and in that.
    for end in [half + 5, half + 8, half + 40, file.len() - END_BYTES, file.len() - 1] {
        let reading = read(&file[..end]);
        assert!(reading.is_cut && reading.cut_bytes < 128 << 10, "{end}");
        assert_eq!((reading.damaged_bytes, reading.unfinished), (0, 0), "{end}");
        assert_eq!(programs(&reading), 1 + usize::from(end > half + 40), "{end}");
    }
    assert_eq!(read(&file[..file.len() - 1]).cut_bytes, END_BYTES as u64 - 1);
    // The ends of the first program and of the last, and what follows them.
    for at in [half - 1, file.len() - 1] {
        let mut damaged = file.clone();
        damaged[at] ^= 1;
        let reading = read(&damaged);
        assert_eq!((reading.is_cut, reading.unfinished, programs(&reading)), (false, 1, 2), "{at}");
        assert_eq!(reading.damaged_bytes, END_BYTES as u64, "{at}");
    }
    let reading = read(&[&file[..], b"something else"].concat());
    assert_eq!((reading.is_cut, reading.unfinished, reading.damaged_bytes), (false, 0, 14));
}

/// A segment of two rings of 4096 bytes, as a program has it in its memory.
fn memory(head: u64, oldest: u64, mode: u64, run: &Run) -> Vec<u8> {
    let mut bytes = vec![0; layout::segment_bytes(2, 4096)];
    let mut put = |index: usize, word: u64| bytes[index * 8..][..8].copy_from_slice(&word.to_le_bytes());
    put(header::MAGIC, layout::SEGMENT_MAGIC);
    put(header::RING_BYTES, 4096);
    put(header::SLOTS, 2);
    put(header::COOKIE, u64::from(COOKIE));
    put(header::MODE, mode);
    put(layout::slot_header(1), head);
    put(layout::slot_header(1) + layout::slot::OLDEST, oldest);
    let ring = layout::ring_words(1, 4096).start * 8;
    for (index, grain) in run.raw.chunks(64).enumerate() {
        let place = (run.position as usize + index) % 64;
        bytes[ring + place * 64..][..64].copy_from_slice(grain);
    }
    bytes
}

#[test]
fn a_memory_copy_is_read_even_if_cut_or_with_damaged_heads() {
    let run = run(1000, 10..30, 5);
    let (from, to) = (5 << 36 | 1000, 25 << 36 | run.end());
    let whole = read(&memory(to, from, 1, &run));
    assert!(whole.is_raw && !whole.is_cut);
    assert_eq!(spans(&whole.programs[0]), ((10..30).collect(), Count { read: 20, ..Count::default() }));
    for (head, oldest, mode) in [(to, from, 0), (u64::MAX, 3, 1), (0, 0, 1)] {
        let reading = read(&memory(head, oldest, mode, &run));
        let (found, _) = spans(&reading.programs[0]);
        assert!(found.ends_with(&(20..30).collect::<Vec<_>>()), "{head:x} {found:?}");
    }
    let mut cut = memory(to, from, 1, &run);
    cut.truncate(cut.len() - 1024);
    let (found, count) = spans(&read(&cut).programs[0]);
    assert_eq!(found.len() as u64 + count.missing + count.invalid, 20);
    assert!(count.read > 0);
    for left in [8, 40, layout::RINGS_OFFSET_BYTES, cut.len()] {
        assert!(read(&cut[..left]).is_cut, "{left}");
    }
}

#[test]
fn a_memory_copy_has_the_name_that_the_program_recorded() {
    let run = run(1000, 10..12, 5);
    let label = |name: &[u8], end: usize| {
        let mut memory = memory(7 << 36 | run.end(), 5 << 36 | 1000, 1, &run);
        memory[header::NAME * 8..][..name.len()].copy_from_slice(name);
        memory.truncate(end);
        read(&memory).programs.remove(0).identity.label
    };
    let whole = usize::MAX;
    assert_eq!(label(b"ceph-osd", whole), "ceph-osd");
    assert_eq!(label(b"name-of-a-progra", whole), "name-of-a-progra");
    assert_eq!(label(b"", whole), "");
    assert_eq!(label(b"ceph-osd", header::NAME * 8 + 4), "ceph");
    assert_eq!(label(b"ceph-osd", header::NAME * 8), "");
}

/// Whether a copy of a program's memory has times: by the kind of its clock, and what the program read from it at its start.
fn has_times(kind: u64, anchor: (u64, i64)) -> bool {
    let run = run(1000, 10..12, 5);
    let mut memory = memory(7 << 36 | run.end(), 5 << 36 | 1000, 1, &run);
    let words = [(header::CLOCK_KIND, kind), (header::ANCHOR_RAW, anchor.0)];
    for (place, word) in words.into_iter().chain([(header::ANCHOR_REALTIME, anchor.1.cast_unsigned())]) {
        memory[place * 8..][..8].copy_from_slice(&word.to_le_bytes());
    }
    let mut program = read(&memory).programs.remove(0);
    let has_times = program.adopt_clock_of_this_boot();
    let mut times = Vec::new();
    program.records(|saved| times.push(saved.time.nanoseconds().is_some()));
    assert_eq!(times, [has_times; 2]);
    has_times
}

#[test]
fn a_memory_copy_has_times_only_if_its_clock_is_known() {
    assert!(has_times(2, (0, 0)));
    assert!(!has_times(0, (0, 0)));
}

#[cfg(all(target_arch = "x86_64", not(blkin_portable)))]
#[test]
fn a_memory_copy_of_another_machines_counter_has_no_times() {
    if ClockKind::detect() != ClockKind::Tsc {
        println!("not shown: this machine has no time stamp counter that can be trusted");
        return;
    }
    let crate::clock::Anchor { raw, realtime_ns, .. } = crate::clock::Anchor::now(ClockKind::Tsc);
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(has_times(1, (raw, realtime_ns)));
    assert!(
        !has_times(1, (raw.wrapping_sub(1 << 36), realtime_ns)),
        "its counter is ahead of this one by half a minute"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn damage_causes_no_panic_and_no_invented_records(
            flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
            cut in any::<prop::sample::Index>(), from in any::<prop::sample::Index>()) {
        let mut file = file();
        for (at, value) in flips {
            let at = at.index(file.len());
            file[at] ^= value;
        }
        let from = from.index(file.len() / 4);
        let end = from + cut.index(file.len() - from);
        let reading = read(&file[from..end]);
        let written: BTreeSet<u64> = (10..3000).collect();
        for program in &reading.programs {
            let (found, _) = spans(program);
            prop_assert!(found.iter().all(|span| written.contains(span)));
        }
    }

    #[test]
    fn a_damaged_memory_copy_causes_no_panic(
            words in proptest::collection::vec((any::<prop::sample::Index>(), any::<u64>()), 0..40), stamp in 1usize..12,
            cut in any::<prop::sample::Index>()) {
        let run = run(1 << 35, 10..30, 5);
        let mut bytes = memory(25 << 36 | run.end(), 5 << 36 | 1 << 35, 1, &run);
        let count = bytes.len() / 8;
        for (at, value) in words {
            let at = at.index(count);
            bytes[at * 8..][..8].copy_from_slice(&value.to_le_bytes());
            let grain = layout::ring_words(1, 4096).start + at % 64 * 8;
            bytes[grain * 8..][..8].copy_from_slice(&Stamp::head(value, stamp, COOKIE).0.to_le_bytes());
        }
        bytes.truncate(cut.index(bytes.len()) + 1);
        let reading = read(&bytes);
        for mut program in reading.programs {
            let count = program.records(|_| {});
            prop_assert!(count.read <= 128);
            program.keep_since(5);
            program.records(|_| {});
        }
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let mut file = b"BLKSAVED".to_vec();
        file.extend(bytes);
        prop_assert!(read(&file).programs.iter().all(|program| program.slots.is_empty()));
    }
}
