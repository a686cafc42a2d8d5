//! The first use: the segment is made; each slot's ring is made when it is first used.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use blkin_record::GRAIN_BYTES;
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};
use rustix::process::Pid;
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::thread::{CpuSet, sched_getaffinity};

use super::offered::offer_if_due;
use super::state::{
    FAILED, FRESH, GATE, Gate, NAMES, OFF, PORTABLE, RSEQ, STARTING, STATE, State, clock, control_words,
    is_ready, mode, shape, words,
};
use crate::clock::{ClockKind, coarse_seconds};
use crate::hot::{ALL_OPEN, HotSlot};
use crate::kept::{CONTROL, KeptErrno, SEGMENT};
use crate::layout::{self, ProducerKind, RingMode, control, header, slot};
use crate::names::LEAST_WORDS;
use crate::ring::{Head, RingShape};
use crate::say::{OnceLine, Reason};
use crate::{cpu, cstring, rseq, segment, settings};

/// The phase, after somebody has begun the process's first use.
#[inline]
pub(super) fn ready_or_start() -> u64 {
    match STATE.hot.phase.load(Acquire) {
        FRESH => start(FRESH),
        phase => phase,
    }
}

/// As [`ready_or_start`], also after a first use that failed: only the program knows when trying again can do no harm, for
/// example before it filters its system calls, and when its environment may be read.
pub(super) fn ready_or_start_again() -> u64 {
    match STATE.hot.phase.load(Acquire) {
        phase @ (FRESH | FAILED) => {
            settings::read();
            start(phase)
        }
        phase => phase,
    }
}

/// Counts a call that found no segment.
#[cold]
pub(super) fn count_without_segment(phase: u64) {
    let counter = if phase == STARTING { &STATE.starting } else { &STATE.no_segment };
    STATE.attempted.fetch_add(1, Relaxed);
    counter.fetch_add(1, SeqCst);
    // Either this load sees that the segment is ready, or the starter, which looks after it has stored that, sees the count.
    if is_ready(STATE.hot.phase.load(SeqCst)) {
        report_early_counts();
    }
}

/// Moves what was counted before there was a segment into the segment; each count is moved once, whoever comes first.
#[cold]
fn report_early_counts() {
    let words = words();
    let early = [
        (&STATE.starting, header::STARTING),
        (&STATE.no_segment, header::NO_SEGMENT),
        (&STATE.attempted, header::ATTEMPTED),
    ];
    for (counter, index) in early {
        words[index].fetch_add(counter.swap(0, SeqCst), Relaxed);
    }
}

/// Makes the segment, from FRESH or FAILED. Exactly one caller in a process does it; all others meanwhile see STARTING.
#[cold]
fn start(from: u64) -> u64 {
    static FAILURE: OnceLine = OnceLine::new();
    let _kept = KeptErrno::new();
    settings::read_if_unread();
    // Before anybody can see STARTING: a root that another thread starts meanwhile is sampled like any other.
    STATE.hot.rate.store(settings::rate(), Relaxed);
    // Before STARTING too: a child that another thread forks meanwhile must not inherit STARTING for ever.
    let wiped = wipe_on_fork();
    if let Err(phase) = STATE.hot.phase.compare_exchange(from, STARTING, AcqRel, Acquire) {
        return phase;
    }
    if settings::is_off() {
        GATE.blocked.store(0xff, Relaxed);
        STATE.hot.phase.store(OFF, Release);
        return OFF;
    }
    let phase = match wiped.and_then(|()| make_segment()) {
        Ok(ProducerKind::Rseq) => RSEQ,
        Ok(ProducerKind::Portable) => PORTABLE,
        Err(error) => {
            FAILURE.say(format_args!(
                "cannot create shared memory ({}); this program runs untraced unless it calls blkin_init() again",
                Reason(error)
            ));
            FAILED
        }
    };
    STATE.hot.phase.store(phase, SeqCst);
    let is_tried = phase == PORTABLE && clock() == ClockKind::Tsc && mode() == RingMode::Discard;
    STATE.tries_first.store(is_tried, Release);
    STATE.pushes_images.store(phase == PORTABLE && STATE.reads_blocks.load(Relaxed), Release);
    if is_ready(phase) {
        report_early_counts();
        offer_if_due();
    }
    phase
}

fn wipe_on_fork() -> Result<(), Errno> {
    let gate = (&raw const GATE).cast_mut().cast();
    // SAFETY: the range is GATE alone, which fills whole pages; the advice changes nothing in this process, and a
    // child may find zeros there (invariant 7).
    unsafe { madvise(gate, size_of::<Gate>(), Advice::LinuxWipeOnFork)? };
    let state = (&raw const STATE).cast_mut().cast();
    // SAFETY: as above, for STATE (invariant 7).
    unsafe { madvise(state, size_of::<State>(), Advice::LinuxWipeOnFork) }
}

fn make_segment() -> Result<ProducerKind, Errno> {
    // A child keeps its parent's settings until a consumer has answered it: many a child has ended by then.
    let inherited = CONTROL.still_open().and_then(|page| segment::InheritedSettings::of(page).ok());
    let is_child = SEGMENT.close_inherited();
    CONTROL.close_inherited();
    let area = rseq::area();
    let is_by_cpu = area.is_some_and(rseq::Area::is_by_cpu);
    let indexes = indexes(is_by_cpu);
    let (slots, ring_bytes) = layout::shape_for(indexes, settings::ring_bytes());
    let mode = settings::mode();
    let clock = ClockKind::detect();
    let reads_blocks = settings::reads_blocks(cstring::may_read_blocks());
    // The sequences copy records that were put together in blocks.
    let can = area.is_some() && clock == ClockKind::Tsc && slots > 1 && reads_blocks;
    let can = can && has_rings_enough(is_by_cpu, indexes, slots);
    let producer = settings::producer(can);
    // And room for texts that other threads may add while this goes on.
    let text_words = NAMES.given_words() + 4 * LEAST_WORDS as usize;
    let text_words = text_words.next_multiple_of(TEXT_PART_WORDS).min(layout::NAMES_TEXT_WORDS);
    let created = segment::create((ring_bytes, slots), text_words * 8, mode, producer, clock, random())?;
    if let Some(settings) = inherited {
        settings.write_to(&created.control)?;
    }
    SEGMENT.keep(created.segment, created.segment_identity);
    CONTROL.keep(created.control, created.control_identity);
    STATE.words.store(created.words.as_ptr().cast_mut(), Relaxed);
    STATE.words_count.store(created.words.len(), Relaxed);
    STATE.hot.control.store(created.control_words.as_ptr().cast_mut(), Relaxed);
    STATE.ring_bytes.store(ring_bytes, Relaxed);
    STATE.part_bytes.store(if is_child { CHILD_PART_BYTES.min(ring_bytes) } else { ring_bytes }, Relaxed);
    STATE.slots.store(slots, Relaxed);
    STATE.cookie.store(u64::from(created.cookie), Relaxed);
    STATE.clock_is_tsc.store(clock == ClockKind::Tsc, Relaxed);
    STATE.overwrites.store(mode == RingMode::Overwrite, Relaxed);
    STATE.reads_blocks.store(reads_blocks, Relaxed);
    STATE.asks_processor.store(area.is_none() && cpu::has_instruction(), Relaxed);
    STATE.may_wake.store(settings::may_wake(), Relaxed);
    set_up_hot(area, producer, created.cookie);
    GATE.point_to(&created.control_words[control::BLOCKED]);
    STATE.shared_words.store(text_words, Release);
    share_names();
    Ok(producer)
}

fn set_up_hot(area: Option<rseq::Area>, producer: ProducerKind, cookie: u32) {
    let hot = &STATE.hot;
    hot.headers.store((&raw const words()[layout::slot_header(0)]).cast_mut(), Relaxed);
    if let Some(area) = area {
        hot.rseq_offset.store(area.offset, Relaxed);
        hot.index_offset.store(area.index_offset, Relaxed);
        if producer == ProducerKind::Rseq {
            hot.push_offset.store(area.offset, Relaxed);
        }
    }
    let shape = RingShape::new(STATE.ring_bytes.load(Relaxed), cookie);
    hot.mask.store(shape.grains as u32 - 1, Relaxed);
    hot.own_slots.store(STATE.slots.load(Relaxed) as u32 - 1, Relaxed);
    hot.eighth.store(shape.eighth as u32 - 1, Relaxed);
    hot.stamp.store(shape.stamp.0, Relaxed);
    hot.step[0].store(Head(0).after(1).0, Relaxed);
    hot.step[1].store(1, Relaxed);
}

/// Copies the texts that are already known into the segment. A thread that adds a text later sees where to copy it, or the
/// copy is made here: both store first, fence, then look.
fn share_names() {
    let shared = &words()[layout::NAMES_TEXT..][..layout::NAMES_TEXT_WORDS];
    STATE.shared_text.store(shared.as_ptr().cast_mut(), Relaxed);
    fence(SeqCst);
    for (to, from) in shared.iter().zip(NAMES.text()).take(NAMES.given_words()).skip(1) {
        let word = from.load(Relaxed);
        // A 0 is a word still to be written; the thread that writes it, perhaps meanwhile, copies it here too.
        if word != 0 {
            to.store(word, Relaxed);
        }
    }
}

/// How many different indexes threads can have at a time. The thread that comes first may be confined to one CPU: the first
/// thread of the process, from which others inherit their CPUs, is asked too.
fn indexes(is_by_cpu: bool) -> usize {
    // A filter of system calls may answer with an error, which is not a process id.
    let first = i32::try_from(std::process::id()).ok().and_then(Pid::from_raw);
    let threads = [None, first];
    let masks = threads.map(|thread| sched_getaffinity(thread).unwrap_or_default());
    indexes_on(is_by_cpu, |cpu| masks.iter().any(|mask| mask.is_set(cpu)))
}

/// As [`indexes`], on these CPUs: the number of CPUs, or, where CPUs are the indexes, one more than the last of them.
fn indexes_on(is_by_cpu: bool, may_run_on: impl Fn(usize) -> bool) -> usize {
    let cpus = (0..CpuSet::MAX_CPU).filter(|cpu| may_run_on(*cpu));
    let indexes = if is_by_cpu { cpus.last().map_or(0, |last| last + 1) } else { cpus.count() };
    indexes.max(1)
}

/// Whether sequences have a ring for each index, besides the one that threads without a ring share. Without a ring a record costs
/// ten times as much. Concurrency ids are dense, so that at any moment few threads lack a ring; but all threads on CPUs beyond the
/// number of rings lack one, for as long as they stay there. By compare-and-swap a few CPUs share each ring instead.
fn has_rings_enough(is_by_cpu: bool, indexes: usize, slots: usize) -> bool {
    !is_by_cpu || indexes < slots
}

/// Sets a word that is still 0; if several callers do so at once, the first one's value stays.
#[cold]
pub(super) fn seed(word: &std::sync::atomic::AtomicU64, value: u64) {
    let _ = word.compare_exchange(0, value.max(1), Relaxed, Relaxed);
}

/// 64 random bits that no other process has; from the clock if the kernel's generator fails (never seen).
pub(super) fn random() -> u64 {
    let mut bytes = [0u8; 8];
    match getrandom(&mut bytes, GetRandomFlags::NONBLOCK) {
        Ok(filled) if filled == bytes.len() => u64::from_le_bytes(bytes),
        _ => ClockKind::Monotonic.read().wrapping_mul(0x9e37_79b9_7f4a_7c15),
    }
}

/// How much of a forked child's ring is given memory at a time. Many a child is one of many that each record little, and would
/// wait in vain for memory for most of a whole ring (docs/adr/0015-rings-of-children.md).
const CHILD_PART_BYTES: usize = 64 << 10;

/// Makes the ring with this number writable and `slot` point to it. The whole ring gets memory, or, if sequences write it, the
/// part that this process takes at a time. False if there is no memory; the caller counts the loss.
#[cold]
pub(super) fn open_slot(slot: &HotSlot, number: usize, written: ProducerKind) -> bool {
    if !slot.header.load(Acquire).is_null() {
        return true;
    }
    // There are no slots in a child that was forked since the caller looked.
    if number >= STATE.slots.load(Relaxed) {
        return false;
    }
    let (words, ring_bytes) = (words(), STATE.ring_bytes.load(Relaxed));
    let bytes = match written {
        ProducerKind::Rseq => STATE.part_bytes.load(Relaxed),
        ProducerKind::Portable => ring_bytes,
    };
    let is_opened = has_memory(|| {
        segment::open_ring(words, number, ring_bytes)?;
        segment::populate_ring(words, number, ring_bytes, 0..bytes)
    });
    if !is_opened {
        return false;
    }
    let header = &words[layout::slot_header(number)..][..layout::SLOT_HEADER_WORDS];
    let line = &control_words()[control::slot_line(number)..][..control::SLOT_LINE_WORDS];
    let tail = match mode() {
        RingMode::Discard => &line[control::TAIL],
        RingMode::Overwrite => &header[slot::OLDEST],
    };
    let ring = &words[layout::ring_words(number, ring_bytes)];
    // Before anybody can write there: whoever sees a record there, or anything recorded after it, sees this too.
    words[header::UNOPENED].fetch_and(!(1 << number), Relaxed);
    slot.tail.store((&raw const *tail).cast_mut(), Relaxed);
    slot.control.store(line.as_ptr().cast_mut(), Relaxed);
    let open = open_up_to(bytes);
    slot.open.store(open, Relaxed);
    slot.ring.store(ring.as_ptr().cast_mut(), Release);
    slot.limit.store((Head(tail.load(Relaxed)).position() + shape().grains()).min(open), Release);
    slot.header.store(header.as_ptr().cast_mut(), Release);
    offer_if_due();
    true
}

/// What became of a ring that may be too small only because not all of it has memory yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Growth {
    /// It has more memory than before.
    Grown,
    /// There is no more memory.
    NoMemory,
    /// It has memory everywhere.
    Whole,
}

/// Gives a ring that is in its first lap memory for its next part. Any thread may do so, also several at once.
#[cold]
pub(super) fn grow_slot(slot: &HotSlot, number: usize) -> Growth {
    if slot.header.load(Acquire).is_null() {
        // The thread has moved to another slot meanwhile.
        return Growth::Grown;
    }
    let open = slot.open.load(Relaxed);
    if open == ALL_OPEN {
        return Growth::Whole;
    }
    let ring_bytes = STATE.ring_bytes.load(Relaxed);
    let from = open as usize * GRAIN_BYTES;
    let to = (from + STATE.part_bytes.load(Relaxed)).min(ring_bytes);
    if !has_memory(|| segment::populate_ring(words(), number, ring_bytes, from..to)) {
        return Growth::NoMemory;
    }
    // A maximum, so that a thread that was stopped above does not undo the progress of another.
    slot.open.fetch_max(open_up_to(to), Relaxed);
    Growth::Grown
}

/// How much memory the texts of names are given at a time: a page.
const TEXT_PART_WORDS: usize = layout::PAGE_BYTES / layout::WORD_BYTES;

/// How many words of the texts of names, `most` at most, may be given out so that each new text has memory in the segment.
/// Asks for more memory where the longest text might have none. Any thread may do so, also several at once.
pub(super) fn text_words_with_memory(most: usize) -> usize {
    let shared = STATE.shared_words.load(Acquire);
    // Without a segment all may be given out: the start will ask for the memory.
    if shared == 0 {
        return most;
    }
    if NAMES.given_words() + LEAST_WORDS as usize <= shared || shared >= most {
        return most.min(shared);
    }
    let more = (shared + TEXT_PART_WORDS).min(layout::NAMES_TEXT_WORDS);
    if !has_memory(|| segment::populate(words(), layout::text_at(shared)..layout::text_at(more))) {
        return shared;
    }
    STATE.shared_words.fetch_max(more, Relaxed);
    most.min(more)
}

/// See [`HotSlot::open`].
fn open_up_to(bytes: usize) -> u64 {
    if bytes < STATE.ring_bytes.load(Relaxed) { (bytes / GRAIN_BYTES) as u64 } else { ALL_OPEN }
}

/// Whether memory could be had. A program that is short of memory does not ask for it with each record.
fn has_memory(ask: impl FnOnce() -> Result<(), Errno>) -> bool {
    static REFUSED: OnceLine = OnceLine::new();
    let now = coarse_seconds().max(1);
    if now < STATE.next_populate_seconds.load(Relaxed) {
        return false;
    }
    let Err(error) = ask() else { return true };
    STATE.next_populate_seconds.store(now + 1, Relaxed);
    if error != Errno::FAULT {
        REFUSED.say(format_args!(
            "no memory for a ring or for names ({}); annotations that find no ring are lost and counted",
            Reason(error)
        ));
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_by_cpu_reach_the_last_cpu_and_others_count_cpus() {
        let of = |is_by_cpu| indexes_on(is_by_cpu, |cpu| (20..24).contains(&cpu));
        assert_eq!((of(false), of(true)), (4, 24));
        assert_eq!((indexes_on(false, |_| false), indexes_on(true, |_| false)), (1, 1));
    }

    #[test]
    fn more_cpus_than_rings_rule_out_sequences_indexed_by_cpu() {
        let has = |is_by_cpu, cpus| {
            let (slots, _) = layout::shape_for(cpus, None);
            has_rings_enough(is_by_cpu, cpus, slots)
        };
        let most = layout::MAX_SLOTS - 1;
        assert_eq!(
            [1, 15, 16, most, most + 1, 128].map(|cpus| has(true, cpus)),
            [true, true, true, true, false, false]
        );
        assert_eq!([1, most, 128].map(|cpus| has(false, cpus)), [true; 3]);
    }

    #[test]
    fn a_thread_pinned_to_one_cpu_counts_the_first_threads_cpus() {
        let before = indexes(false);
        let mut one = CpuSet::new();
        let own = sched_getaffinity(None).expect("the allowed CPUs can be read");
        one.set((0..CpuSet::MAX_CPU).find(|cpu| own.is_set(*cpu)).expect("a CPU"));
        let on_one = std::thread::spawn(move || {
            rustix::thread::sched_setaffinity(None, &one).expect("one of the allowed CPUs can be chosen");
            indexes(false)
        });
        assert_eq!(on_one.join().expect("the thread does not panic"), before);
    }
}
