//! What a process knows about its tracing, and the words of its segment.

use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};

use blkin_record::{GRAIN_BYTES, Stamp};

use super::waking::Waking;
use crate::clock::ClockKind;
use crate::hot::{Hot, HotSlot};
use crate::layout::{self, RingMode, control};
use crate::names::{GIVEN_OUT, Hints, Names};
use crate::ring::{Ring, RingShape};

pub(super) const FRESH: u64 = 0;
pub(super) const STARTING: u64 = 1;
/// Annotations are recorded: by compare-and-swap, or by restartable sequences.
pub(super) const PORTABLE: u64 = 2;
pub(super) const RSEQ: u64 = 3;
pub(super) const OFF: u64 = 4;
pub(super) const FAILED: u64 = 5;

/// Everything a process knows about its tracing. Zero means FRESH, and the kernel zeroes it in a forked child
/// (invariant 7). The struct fills whole pages of its own, so that the advice touches nothing else; the largest pages of
/// kernels for aarch64 are 64 KiB.
#[cfg_attr(target_arch = "aarch64", repr(C, align(65536)))]
#[cfg_attr(not(target_arch = "aarch64"), repr(C, align(4096)))]
pub(crate) struct State {
    pub(crate) hot: Hot,
    /// Start of the segment's mapping; null until there is one.
    pub(super) words: AtomicPtr<AtomicU64>,
    pub(super) words_count: AtomicUsize,
    /// Where texts are copied to for the consumer; null until there is a segment.
    pub(super) shared_text: AtomicPtr<AtomicU64>,
    /// How many of those words have memory.
    pub(super) shared_words: AtomicUsize,
    pub(super) ring_bytes: AtomicUsize,
    /// How much of a ring that sequences write is given memory at a time.
    pub(super) part_bytes: AtomicUsize,
    pub(super) slots: AtomicUsize,
    pub(super) cookie: AtomicU64,
    pub(super) clock_is_tsc: AtomicBool,
    pub(super) overwrites: AtomicBool,
    /// A record of one grain gets a quick try first: rings are written by compare-and-swap and discard what they have no room
    /// for, and the clock is one instruction. Stored last, with release.
    pub(super) tries_first: AtomicBool,
    /// Strings may be read block by block: up to 15 bytes past their ends, though never in another page.
    pub(super) reads_blocks: AtomicBool,
    /// Records with texts are put together before they have a place, and then written by compare-and-swap. Stored last, with
    /// release.
    pub(super) pushes_images: AtomicBool,
    /// A thread without an area asks the processor where it runs, not the system.
    pub(super) asks_processor: AtomicBool,
    /// The program may wake consumerd.
    pub(super) may_wake: AtomicBool,
    pub(super) waking: Waking,
    /// Calls made before there was a segment to count them in.
    pub(super) attempted: AtomicU64,
    pub(super) starting: AtomicU64,
    pub(super) no_segment: AtomicU64,
    /// An offer was sent.
    pub(super) is_offered: AtomicBool,
    pub(super) next_offer_seconds: AtomicU64,
    /// When to look again whether anybody reads, and what had been read at the last look.
    pub(super) next_look_seconds: AtomicU64,
    pub(super) read_at_look: AtomicU64,
    pub(super) next_populate_seconds: AtomicU64,
    /// For threads without a slot of their own: the ring that all of them write by compare-and-swap while the others are
    /// written by restartable sequences, and their ids and roots.
    pub(super) shared_slot: HotSlot,
}

const _: () = assert!(size_of::<State>().is_multiple_of(4096));

pub(crate) static STATE: State = State {
    hot: Hot::new(),
    words: AtomicPtr::new(std::ptr::null_mut()),
    words_count: AtomicUsize::new(0),
    shared_text: AtomicPtr::new(std::ptr::null_mut()),
    shared_words: AtomicUsize::new(0),
    ring_bytes: AtomicUsize::new(0),
    part_bytes: AtomicUsize::new(0),
    slots: AtomicUsize::new(0),
    cookie: AtomicU64::new(0),
    clock_is_tsc: AtomicBool::new(false),
    overwrites: AtomicBool::new(false),
    tries_first: AtomicBool::new(false),
    reads_blocks: AtomicBool::new(false),
    pushes_images: AtomicBool::new(false),
    asks_processor: AtomicBool::new(false),
    may_wake: AtomicBool::new(false),
    waking: Waking::new(),
    attempted: AtomicU64::new(0),
    starting: AtomicU64::new(0),
    no_segment: AtomicU64::new(0),
    is_offered: AtomicBool::new(false),
    next_offer_seconds: AtomicU64::new(0),
    next_look_seconds: AtomicU64::new(0),
    read_at_look: AtomicU64::new(0),
    next_populate_seconds: AtomicU64::new(0),
    shared_slot: HotSlot::new(),
};

/// What every call asks before anything else: which levels are blocked. It has a page of its own, which fork wipes too,
/// because the header of the C interface knows it by name, and what other parts of a program may refer to by name is slower
/// to reach for our own code. Without that interface it has no name: with a name, the library in a plug-in and the one in its
/// host would share the gate, and nothing else.
#[cfg_attr(target_arch = "aarch64", repr(C, align(65536)))]
#[cfg_attr(not(target_arch = "aarch64"), repr(C, align(4096)))]
pub(super) struct Gate {
    /// Distance in bytes from `blocked` to the word that says which levels are blocked. 0 until there is a control
    /// page, and again in a forked child: then it is `blocked` itself.
    pub(super) offset: AtomicI64,
    /// Levels that are not recorded (bit n: level n) while there is no control page; 0xff after BLKIN_OFF.
    pub(super) blocked: AtomicU64,
}

const _: () = assert!(std::mem::offset_of!(Gate, offset) == 0 && std::mem::offset_of!(Gate, blocked) == 8);

#[cfg_attr(feature = "c", unsafe(export_name = "blkin_gate"))]
pub(super) static GATE: Gate = Gate { offset: AtomicI64::new(0), blocked: AtomicU64::new(0) };

impl Gate {
    /// Whether annotations of this level are recorded. Two loads and a branch.
    #[inline(always)]
    pub(super) fn is_open(&self, level: u8) -> bool {
        let own: *const AtomicU64 = &raw const self.blocked;
        let word = own.wrapping_byte_offset(self.offset.load(Relaxed) as isize);
        // SAFETY: either the own word, or, once the offset was set, the control page's, which stays mapped in this
        // process (invariant 2); a forked child finds the offset wiped (invariant 7).
        let blocked = unsafe { &*word }.load(Relaxed);
        blocked >> (level & 7) & 1 == 0
    }

    /// From now on `word` says which levels are blocked.
    pub(super) fn point_to(&self, word: &'static AtomicU64) {
        let distance = (&raw const *word).addr().wrapping_sub((&raw const self.blocked).addr());
        self.offset.store(distance as i64, Relaxed);
    }
}

/// The table of names, outside what fork wipes: ids that a program keeps stay true in its children.
pub(super) struct NameTable {
    index: [AtomicU64; NameTable::INDEX_WORDS],
    text: [AtomicU64; layout::NAMES_TEXT_WORDS],
    /// Which texts were last seen at which addresses.
    pub(super) hints: Hints,
}

impl NameTable {
    const INDEX_WORDS: usize = 8192;
    /// How much room texts that are only recognised may take; the rest is kept for names that the program declares.
    const RECOGNISED_WORDS: usize = layout::NAMES_TEXT_WORDS / 4 * 3;

    /// For texts that are met while recording.
    pub(super) fn recognised(&self) -> Names<'_, [AtomicU64]> {
        self.up_to(Self::RECOGNISED_WORDS)
    }

    /// For names that the program declares.
    pub(super) fn declared(&self) -> Names<'_, [AtomicU64]> {
        self.up_to(layout::NAMES_TEXT_WORDS)
    }

    fn up_to(&self, text_words: usize) -> Names<'_, [AtomicU64]> {
        Names { index: &self.index[..], index_words: Self::INDEX_WORDS, text: &self.text[..], text_words }
    }

    /// How many words of the texts are given out.
    pub(super) fn given_words(&self) -> usize {
        (self.text[GIVEN_OUT].load(Relaxed) as usize).min(layout::NAMES_TEXT_WORDS)
    }

    /// The words of the texts.
    pub(super) fn text(&self) -> &[AtomicU64; layout::NAMES_TEXT_WORDS] {
        &self.text
    }
}

pub(super) static NAMES: NameTable = NameTable {
    index: [const { AtomicU64::new(0) }; NameTable::INDEX_WORDS],
    text: [const { AtomicU64::new(0) }; layout::NAMES_TEXT_WORDS],
    hints: Hints::new(),
};

/// The segment; empty without one.
pub(super) fn words() -> &'static [AtomicU64] {
    let start = STATE.words.load(Relaxed);
    if start.is_null() {
        return &[];
    }
    // SAFETY: set once, before the phase that says so, from a mapping of that length that lives on (invariants 2, 3).
    unsafe { std::slice::from_raw_parts(start, STATE.words_count.load(Relaxed)) }
}

/// Adds to a word of the segment. A child that was forked since the caller looked has no segment, and nobody to tell.
pub(super) fn add_to_word(index: usize, number: u64) {
    if let Some(word) = words().get(index) {
        word.fetch_add(number, Relaxed);
    }
}

/// The control page; empty without one.
pub(super) fn control_words() -> &'static [AtomicU64] {
    let start = STATE.hot.control.load(Relaxed);
    if start.is_null() {
        return &[];
    }
    // SAFETY: as in `words`; the control page has a fixed size (invariant 1).
    unsafe { std::slice::from_raw_parts(start, layout::CONTROL_BYTES / 8) }
}

/// Size and cookie of this process's rings.
#[inline(always)]
pub(super) fn shape() -> RingShape {
    let one_more = |word: &AtomicU32| u64::from(word.load(Relaxed)) + 1;
    RingShape {
        grains: one_more(&STATE.hot.mask),
        eighth: one_more(&STATE.hot.eighth),
        cookie: STATE.cookie.load(Relaxed) as u32,
        stamp: Stamp(STATE.hot.stamp.load(Relaxed)),
    }
}

/// What the process's full rings do.
pub(super) fn mode() -> RingMode {
    if STATE.overwrites.load(Relaxed) { RingMode::Overwrite } else { RingMode::Discard }
}

/// The clock of the process's events.
#[inline(always)]
pub(super) fn clock() -> ClockKind {
    if STATE.clock_is_tsc.load(Relaxed) { ClockKind::Tsc } else { ClockKind::Monotonic }
}

/// Whether a phase is one in which annotations are recorded.
#[inline(always)]
pub(super) fn is_ready(phase: u64) -> bool {
    phase == PORTABLE || phase == RSEQ
}

/// A slot's ring for the portable protocol; `None` until it may be written (invariant 8).
#[inline(always)]
pub(super) fn ring_of(slot: &HotSlot) -> Option<Ring<'static, [AtomicU64]>> {
    ring_of_mode(slot, mode())
}

/// As [`ring_of`], where the mode of the process's rings is known.
#[inline(always)]
pub(super) fn ring_of_mode(slot: &HotSlot, mode: RingMode) -> Option<Ring<'static, [AtomicU64]>> {
    let header = slot.header.load(Acquire);
    if header.is_null() {
        return None;
    }
    let shape = shape();
    let ring_words = shape.grains() as usize * GRAIN_BYTES / 8;
    // SAFETY: set with the header, from mappings that live on: a slot's header in the segment (invariants 1 to 3).
    let header = unsafe { std::slice::from_raw_parts(header, layout::SLOT_HEADER_WORDS) };
    // SAFETY: as above: its ring, of the size that all of them have (invariant 1).
    let grains = unsafe { std::slice::from_raw_parts(slot.ring.load(Relaxed), ring_words) };
    // SAFETY: as above: its line in the control page (invariant 1).
    let control = unsafe { std::slice::from_raw_parts(slot.control.load(Relaxed), control::SLOT_LINE_WORDS) };
    Some(Ring { header, grains, control, shape, mode })
}
