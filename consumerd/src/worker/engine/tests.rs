use std::os::fd::{AsFd, OwnedFd};

use blkin_record::{Stamp, VERSION};
use blkin_ringbuf::Attachment;
use blkin_ringbuf::layout::{CONTROL_BYTES, LAYOUT_VERSION, MAX_SLOTS, RINGS_OFFSET_BYTES, segment_bytes};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::pwrite;

use super::*;
use crate::link;
use crate::staging::layout::MAX_RING_BUDGET_BYTES;

mod damaged;
mod ended;
mod held_back;
mod unread;

const RING_BYTES: usize = 4096;
/// First word of the first slot's header: the headers, of 256 bytes for each slot, lie before the rings.
const HEAD: usize = (RINGS_OFFSET_BYTES - MAX_SLOTS * 256) / 8;
/// Word of the program's name in a segment's header.
const NAME: usize = 14;

/// The seals of a segment.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE);

fn memfd(words: &[u64], seals: SealFlags) -> OwnedFd {
    let fd = memfd_create("x", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(pwrite(&fd, &bytes, 0).unwrap(), bytes.len());
    fcntl_add_seals(&fd, seals).unwrap();
    fd
}

/// The words of a segment with one empty ring.
fn segment_header(ring_bytes: usize) -> Vec<u64> {
    let mut words = vec![0; segment_bytes(1, ring_bytes) / 8];
    let magic = u64::from_le_bytes(*b"BLKINSEG");
    words[..8].copy_from_slice(&[magic, LAYOUT_VERSION, u64::from(VERSION), ring_bytes as u64, 1, 1, 7, 2]);
    words[NAME..NAME + 2].copy_from_slice(&[u64::from_le_bytes(*b"own name"), 0]);
    words
}

/// A segment of one ring with `records` records of one grain each.
fn segment(records: u64) -> OwnedFd {
    segment_of(RING_BYTES, records, 1)
}

/// Like [`segment`], but not sealed yet, so that it can be changed.
fn unsealed(records: u64) -> OwnedFd {
    memfd(&segment_words(RING_BYTES, records, 1), SealFlags::empty())
}

/// A segment of one ring with `records` records of so many grains each.
fn segment_of(ring_bytes: usize, records: u64, grains: u64) -> OwnedFd {
    memfd(&segment_words(ring_bytes, records, grains), SEALS)
}

fn segment_words(ring_bytes: usize, records: u64, grains: u64) -> Vec<u64> {
    let mut words = segment_header(ring_bytes);
    words[HEAD] = records << 36 | (records * grains);
    for record in 0..records {
        let at = record * grains;
        let word = |grain: u64| RINGS_OFFSET_BYTES / 8 + grain as usize * 8;
        words[word(at)] = Stamp::head(at, grains as usize, 7).0;
        words[word(at) + 7] = record;
        for grain in 1..grains {
            words[word(at + grain)] = Stamp::continuation(at + grain, grain as usize, 7).0;
        }
    }
    words
}

fn control(seals: SealFlags) -> OwnedFd {
    memfd(&vec![0; CONTROL_BYTES / 8], seals)
}

fn engine(staging: &Memfd) -> (Engine, u64) {
    let staging = Memfd::from_fd(staging.as_fd().try_clone_to_owned().unwrap());
    Engine::new(Config::default(), staging, Vec::new(), Settings::default()).unwrap()
}

fn staging() -> Memfd {
    let geometry = Config::default().geometry();
    let mut staging = Memfd::create(geometry.total_bytes()).unwrap();
    Staging::format(&mut staging, geometry).unwrap();
    staging
}

fn identity(number: u64) -> link::Program {
    link::Program { number, uid: 1, pid: 1, comm: "x".into() }
}

#[test]
fn a_program_gone_before_lookup_is_shown_by_its_own_name() {
    let (mut engine, tail) = engine(&staging());
    engine.rebuild(tail).unwrap();
    let gone = link::Program { comm: link::NAMELESS.into(), ..identity(1) };
    for identity in [gone, identity(2)] {
        engine.attach(identity, segment(5), control(SealFlags::SHRINK | SealFlags::GROW)).unwrap();
    }
    let labels: Vec<&str> = engine.programs.values().map(|program| &*program.label).collect();
    assert_eq!(labels, ["own name:1", "x:1"], "the name from the kernel takes precedence");
    let told = engine.settings.figures().programs;
    assert_eq!(told.keys().collect::<Vec<_>>(), ["own name:1", "x:1"], "rules find it under that name");
}

/// The last record of a round may exceed the budget of its ring.
#[test]
fn a_round_drains_only_the_ring_budget_and_the_rest_later() {
    let (mut engine, tail) = engine(&staging());
    engine.config.ring_budget_bytes = MAX_RING_BUDGET_BYTES;
    engine.config.check().unwrap();
    engine.rebuild(tail).unwrap();
    let control = control(SealFlags::SHRINK | SealFlags::GROW);
    engine.attach(identity(1), segment_of(8 << 20, 30_000, 3), control).unwrap();
    let drained = |engine: &Engine| engine.programs[&1].figures.drained;
    let progress = engine.drain_all(Duration::ZERO).unwrap();
    assert!(progress.drained && progress.has_more);
    assert_eq!(drained(&engine), (MAX_RING_BUDGET_BYTES / 64).div_ceil(3) as u64);
    assert!(!engine.drain_all(Duration::ZERO).unwrap().has_more);
    assert_eq!(drained(&engine), 30_000);
}

#[test]
fn records_seen_before_a_round_copies_need_no_other_round() {
    let (mut engine, tail) = engine(&staging());
    engine.rebuild(tail).unwrap();
    for number in [1, 2] {
        let control = control(SealFlags::SHRINK | SealFlags::GROW);
        engine.attach(identity(number), segment(5), control).unwrap();
    }
    assert!(engine.drain_all(Duration::ZERO).unwrap().drained);
    for program in engine.programs.values() {
        let awaited = program.sweeps.awaited(0);
        assert!(program.sweeps.is_past(awaited.of(4)), "all programs were copied from since");
        assert!(!program.sweeps.is_past(awaited.of(5)), "the other program was copied from before");
    }
}

#[test]
fn frames_of_an_unattachable_program_count_as_invalid() {
    let staging = staging();
    let identity = identity(1);

    let (mut first, tail) = engine(&staging);
    first.rebuild(tail).unwrap();
    first.attach(identity.clone(), segment(5), control(SealFlags::SHRINK | SealFlags::GROW)).unwrap();
    first.drain_all(Duration::ZERO).unwrap();
    drop(first);

    let (mut second, tail) = engine(&staging);
    second.attach(identity, segment(5), control(SealFlags::empty())).unwrap();
    second.rebuild(tail).unwrap();
    second.round().unwrap();
    let departed = second.snapshot().departed;
    assert_eq!((departed.drain.drained, departed.drain.invalid), (5, 5));
    assert!(departed.balances(), "{departed:?}");
    second.release(|number| number == 1);
    assert!(second.to_release.is_empty());
}

#[test]
fn an_ended_programs_settled_records_are_noted_in_its_page() {
    let (mut engine, tail) = engine(&staging());
    engine.rebuild(tail).unwrap();
    let (segment, control) = (segment(5), control(SealFlags::SHRINK | SealFlags::GROW));
    let next_reader = (segment.try_clone().unwrap(), control.try_clone().unwrap());
    engine.attach(identity(1), segment, control).unwrap();
    // No checkpoint is due before the program is released.
    engine.last_checkpoint = Duration::MAX;
    while engine.programs.contains_key(&1) {
        engine.round().unwrap();
    }
    assert_eq!(Attachment::open(next_reader.0, &next_reader.1).unwrap().settled(0), 5);
}

/// One flipped bit in a program's memory is enough.
#[test]
fn wrong_counters_of_a_program_are_left_out_of_the_sums() {
    [false, true].into_iter().for_each(assert_that_wrong_figures_count_nowhere);
}

fn assert_that_wrong_figures_count_nowhere(is_seen_alive: bool) {
    let (mut engine, tail) = engine(&staging());
    engine.rebuild(tail).unwrap();
    let claims = |word: usize, claimed: u64| {
        let segment = unsealed(5);
        assert_eq!(pwrite(&segment, &claimed.to_le_bytes(), (HEAD + word) as u64 * 8).unwrap(), 8);
        fcntl_add_seals(&segment, SEALS).unwrap();
        segment
    };
    // More attempts than records and losses, a loss that nobody attempted, more records than a ring holds.
    let spoilt = [claims(1, 1 << 55), claims(2, 1 << 63), claims(0, 1 << 62 | 5)];
    for (number, segment) in (1..).zip(spoilt.into_iter().chain([segment(5)])) {
        engine.attach(identity(number), segment, control(SealFlags::SHRINK | SealFlags::GROW)).unwrap();
    }
    engine.drain_all(Duration::ZERO).unwrap();
    if is_seen_alive {
        for _ in 0..2 {
            let snapshot = engine.snapshot();
            assert_eq!(snapshot.unsound_programs, 3, "each unsound program counts once");
            for (label, totals) in snapshot.programs {
                assert!(totals.is_sound() && totals.counters.attempted == 5, "{label}: {totals:?}");
            }
        }
    }
    while !engine.programs.is_empty() {
        engine.round().unwrap();
    }
    let snapshot = engine.snapshot();
    assert_eq!((snapshot.departed_programs, snapshot.unsound_programs), (4, 3));
    assert!(snapshot.departed.is_sound(), "{:?}", snapshot.departed);
    assert_eq!((snapshot.departed.counters.attempted, snapshot.departed.drain.drained), (20, 20));
}

/// A program can write its control page itself, so figures there that contradict the ring are not believed.
#[test]
fn a_read_position_that_contradicts_the_ring_is_ignored() {
    // A place beyond all that was ever written, and more records than fit before the place.
    for said in [[1 << 40 | 6, 1 << 40], [2, 3]] {
        let (mut engine, tail) = engine(&staging());
        engine.rebuild(tail).unwrap();
        let control = control(SealFlags::SHRINK | SealFlags::GROW);
        say_read(&control, said);
        engine.attach(identity(1), segment(5), control).unwrap();
        let totals = engine.programs[&1].totals();
        assert_eq!((totals.drained_before, totals.unsettled), (0, 0), "{said:?}");
    }
}

#[test]
fn a_spoilt_page_makes_the_next_worker_miss_nothing() {
    let (staging, control) = (staging(), control(SealFlags::SHRINK | SealFlags::GROW));
    let segment = segment(5);
    let worker = |is_first: bool| {
        let (mut engine, tail) = engine(&staging);
        let [segment, control] = [&segment, &control].map(|fd| fd.try_clone().unwrap());
        engine.attach(identity(1), segment, control).unwrap();
        engine.rebuild(tail).unwrap();
        assert_eq!(engine.drain_all(Duration::ZERO).unwrap().drained, is_first);
        engine.programs[&1].totals().drain
    };
    let drained = worker(true);
    say_read(&control, [1 << 40 | 70, 1 << 39]);
    assert_eq!(worker(false), drained, "the figures do not change");
}

/// Writes into a control page how far the first ring was read: grain, and records before it.
fn say_read(control: &OwnedFd, said: [u64; 2]) {
    // The word between them says whether a reader waits.
    for (at, word) in [512, 528].into_iter().zip(said) {
        assert_eq!(pwrite(control, &word.to_le_bytes(), at).unwrap(), 8);
    }
}
