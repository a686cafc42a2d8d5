//! The program's side: one state a process, made by its first record, made anew in a forked child.
//!
//! ```text
//!            first use                 segment made
//!  FRESH ───────────────▶ STARTING ───────────────▶ READY
//!    ▲                       │ BLKIN_OFF ──▶ OFF
//!    │ fork (pages wiped)    │ no memory, no descriptors … ──▶ FAILED (said once)
//! ```
//!
//! What survives a fork is in `kept`. Nothing here blocks, takes a lock, allocates or touches errno, and everything may
//! run in a signal handler: a call that meets STARTING is counted as lost (cause `starting`) and returns.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize};

use blkin_record::{Draft, EndpointParts, MAX_IP_BYTES, MAX_TEXT_BYTES, Payload, Source, cut};
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::clock::{ClockKind, coarse_seconds};
use crate::kept::{CONTROL, KeptErrno, SEGMENT, SOCKET_PATH};
use crate::layout::{self, MAX_SLOTS, RingMode, control, header, slot};
use crate::names::{Hints, Names};
use crate::ring::{Head, Ring, RingShape};
use crate::say::Once;
use crate::{offer, segment, settings};

/// One annotation as the caller has it. Longer texts than [`MAX_TEXT_BYTES`] are cut.
#[derive(Clone, Copy, Debug)]
pub struct Annotation<'a> {
    /// Trace id; 0 is never recorded.
    pub trace_id: u64,
    /// Span id.
    pub span_id: u64,
    /// Parent span id, 0 for none.
    pub parent_span_id: u64,
    /// Name of the span.
    pub name: &'a [u8],
    /// Who annotates.
    pub endpoint: EndpointParts<'a>,
    /// Key, or the event's text.
    pub key: &'a [u8],
    /// Event or value.
    pub payload: Payload<'a>,
    /// Severity, 0 (emergency) to 7 (debug).
    pub level: u8,
}

const FRESH: usize = 0;
const STARTING: usize = 1;
const READY: usize = 2;
const OFF: usize = 3;
const FAILED: usize = 4;

/// What a slot keeps for the process alone.
#[repr(C, align(64))]
pub struct SlotLocal {
    /// State of the generator of ids.
    pub ids: AtomicU64,
    /// Roots asked for, from a random phase.
    pub roots: AtomicU64,
}

/// Everything a process knows of its tracing. Zero means FRESH, and the kernel zeroes it in a forked child
/// (invariant 7). The struct fills whole pages of its own, so that the advice touches nothing else.
#[repr(C, align(4096))]
struct State {
    phase: AtomicUsize,
    /// Start of the segment's mapping; null until READY.
    words: AtomicPtr<AtomicU64>,
    words_count: AtomicUsize,
    control: AtomicPtr<AtomicU64>,
    ring_bytes: AtomicUsize,
    slots: AtomicUsize,
    cookie: AtomicU64,
    clock_is_tsc: AtomicBool,
    overwrites: AtomicBool,
    /// Slots whose rings may be written (invariant 8).
    populated: AtomicU64,
    rate: AtomicU64,
    /// Calls before there was a segment to count them in.
    attempted: AtomicU64,
    starting: AtomicU64,
    no_segment: AtomicU64,
    offered: AtomicBool,
    next_offer_seconds: AtomicU64,
    next_populate_seconds: AtomicU64,
    hints: Hints,
    locals: [SlotLocal; MAX_SLOTS],
}

const _: () = assert!(size_of::<State>().is_multiple_of(4096));

static STATE: State = State {
    phase: AtomicUsize::new(FRESH),
    words: AtomicPtr::new(std::ptr::null_mut()),
    words_count: AtomicUsize::new(0),
    control: AtomicPtr::new(std::ptr::null_mut()),
    ring_bytes: AtomicUsize::new(0),
    slots: AtomicUsize::new(0),
    cookie: AtomicU64::new(0),
    clock_is_tsc: AtomicBool::new(false),
    overwrites: AtomicBool::new(false),
    populated: AtomicU64::new(0),
    rate: AtomicU64::new(0),
    attempted: AtomicU64::new(0),
    starting: AtomicU64::new(0),
    no_segment: AtomicU64::new(0),
    offered: AtomicBool::new(false),
    next_offer_seconds: AtomicU64::new(0),
    next_populate_seconds: AtomicU64::new(0),
    hints: Hints::new(),
    locals: [const { SlotLocal { ids: AtomicU64::new(0), roots: AtomicU64::new(0) } }; MAX_SLOTS],
};

/// What this library does for the process now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Annotations are recorded.
    Tracing,
    /// BLKIN_OFF is set.
    Off,
    /// There is no segment, or not yet: annotations are counted as lost.
    Without,
}

/// Creates the segment and offers it to consumerd, unless that was done. Never fails its caller: without a segment
/// the program goes on untraced, and says so once.
pub fn init() -> Status {
    let status = status_now();
    if status == Status::Tracing {
        offer_if_due();
    }
    status
}

fn status_now() -> Status {
    match ready_or_start() {
        READY => Status::Tracing,
        OFF => Status::Off,
        _ => Status::Without,
    }
}

#[inline]
fn ready_or_start() -> usize {
    match STATE.phase.load(Acquire) {
        FRESH => start(),
        phase => phase,
    }
}

/// Records one annotation, or counts why not. No system call, lock or allocation once the process and the slot are
/// in use; async-signal-safe; keeps errno.
pub fn record(annotation: &Annotation<'_>) {
    if annotation.trace_id == 0 {
        return;
    }
    match ready_or_start() {
        READY => record_in_slot(annotation, current_slot()),
        OFF => {}
        phase => count_without_segment(phase),
    }
}

#[cold]
fn count_without_segment(phase: usize) {
    let counter = if phase == STARTING { &STATE.starting } else { &STATE.no_segment };
    STATE.attempted.fetch_add(1, Relaxed);
    counter.fetch_add(1, SeqCst);
    // Either this load sees READY, or the starter, which looks after it stored READY, sees the count.
    if STATE.phase.load(SeqCst) == READY {
        report_early_counts();
    }
}

/// Moves what was counted before there was a segment into it; each count is moved once, whoever comes first.
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

/// One of how many roots is to be sampled; 0 when tracing is off.
pub fn sampling_rate() -> u64 {
    match ready_or_start() {
        OFF => 0,
        _ => STATE.rate.load(Relaxed).max(1),
    }
}

/// What the caller's slot keeps for the process: generator of ids and counter of roots, both seeded.
pub fn slot_local() -> &'static SlotLocal {
    ready_or_start();
    let local = &STATE.locals[current_slot()];
    for word in [&local.roots, &local.ids] {
        if word.load(Relaxed) == 0 {
            seed(word);
        }
    }
    local
}

/// The CPU the caller runs on, folded into the slots. Only a hint: any slot may be used from anywhere.
#[inline]
fn current_slot() -> usize {
    // SAFETY: sched_getcpu has no preconditions; glibc serves it from the rseq area or the vDSO.
    let cpu = unsafe { libc::sched_getcpu() };
    let slots = STATE.slots.load(Relaxed).max(1);
    cpu.max(0) as usize % slots
}

fn words() -> &'static [AtomicU64] {
    let start = STATE.words.load(Relaxed);
    if start.is_null() {
        return &[];
    }
    // SAFETY: set once, before READY, from a mapping of that length that lives on (invariants 2 and 3).
    unsafe { std::slice::from_raw_parts(start, STATE.words_count.load(Relaxed)) }
}

fn control_words() -> &'static [AtomicU64] {
    let start = STATE.control.load(Relaxed);
    if start.is_null() {
        return &[];
    }
    // SAFETY: as in `words`; the control page has a fixed size.
    unsafe { std::slice::from_raw_parts(start, layout::CONTROL_BYTES / 8) }
}

fn record_in_slot(annotation: &Annotation<'_>, slot: usize) {
    let words = words();
    if STATE.populated.load(Acquire) & 1 << slot == 0 && !first_use(words, slot) {
        words[header::ATTEMPTED].fetch_add(1, Relaxed);
        words[header::NO_SEGMENT].fetch_add(1, Relaxed);
        return;
    }
    let ring_bytes = STATE.ring_bytes.load(Relaxed);
    let header = &words[layout::slot_header(slot)..][..layout::SLOT_HEADER_WORDS];
    let line = control::slot_line(slot);
    let ring = Ring {
        header,
        grains: &words[layout::ring_words(slot, ring_bytes)],
        control: &control_words()[line..line + control::SLOT_LINE_WORDS],
        shape: RingShape::new(ring_bytes, STATE.cookie.load(Relaxed) as u32),
        mode: if STATE.overwrites.load(Relaxed) { RingMode::Overwrite } else { RingMode::Discard },
    };
    let clock = if STATE.clock_is_tsc.load(Relaxed) { ClockKind::Tsc } else { ClockKind::Monotonic };
    let draft = draft(annotation, words, header);
    let is_event = matches!(annotation.payload, Payload::Event);
    if ring.push(&draft, || if is_event { clock.read() } else { 0 }).is_err() {
        offer_if_due();
    }
}

/// Cuts what is too long and replaces by their ids the texts that the table of names holds.
fn draft<'a>(annotation: &Annotation<'a>, words: &[AtomicU64], header: &[AtomicU64]) -> Draft<'a> {
    let names = names(words);
    let intern =
        |from: &[u8], pieces: &[&[u8]]| names.intern_from(&STATE.hints, from.as_ptr() as usize, pieces);
    let (name, name_cut) = cut(annotation.name, MAX_TEXT_BYTES);
    let (key, key_cut) = cut(annotation.key, MAX_TEXT_BYTES);
    let (ip, ip_cut) = cut(annotation.endpoint.ip, MAX_IP_BYTES);
    let (service, service_cut) = cut(annotation.endpoint.name, MAX_TEXT_BYTES);
    let endpoint = EndpointParts { ip, port: annotation.endpoint.port, name: service };
    let (payload, value_cut) = match annotation.payload {
        Payload::Str(value) => {
            let (value, value_cut) = cut(value, MAX_TEXT_BYTES);
            (Payload::Str(value), value_cut)
        }
        other => (other, false),
    };
    Draft {
        trace_id: annotation.trace_id,
        span_id: annotation.span_id,
        parent_span_id: annotation.parent_span_id,
        name: id_or_inline(intern(name, &[name]), name, header),
        endpoint: id_or_inline(intern(service, &[&endpoint.fixed(), ip, service]), endpoint, header),
        key: id_or_inline(intern(key, &[key]), key, header),
        payload,
        level: annotation.level & 7,
        truncated: name_cut || key_cut || ip_cut || service_cut || value_cut,
    }
}

fn id_or_inline<T>(id: Option<u32>, text: T, header: &[AtomicU64]) -> Source<T> {
    id.map(Source::Id).unwrap_or_else(|| {
        header[slot::NOT_INTERNED].fetch_add(1, Relaxed);
        Source::Inline(text)
    })
}

fn names(words: &[AtomicU64]) -> Names<'_, [AtomicU64]> {
    Names {
        index: &words[layout::NAMES_INDEX..][..layout::NAMES_INDEX_WORDS],
        index_words: layout::NAMES_INDEX_WORDS,
        text: &words[layout::NAMES_TEXT..][..layout::NAMES_TEXT_WORDS],
        text_words: layout::NAMES_TEXT_WORDS,
    }
}

#[cold]
fn first_use(words: &[AtomicU64], slot: usize) -> bool {
    static REFUSED: Once = Once::new();
    let now = coarse_seconds().max(1);
    if now < STATE.next_populate_seconds.load(Relaxed) {
        return false;
    }
    match segment::populate(words, slot, STATE.ring_bytes.load(Relaxed)) {
        Ok(()) => {
            STATE.populated.fetch_or(1 << slot, Release);
            offer_if_due();
            true
        }
        Err(error) => {
            // A program that is short of memory is not asked again with each record.
            STATE.next_populate_seconds.store(now + 1, Relaxed);
            REFUSED
                .say(format_args!("no memory for a ring ({error}); annotations there are lost and counted"));
            false
        }
    }
}

/// Makes the segment. Exactly one caller in a process does it; all others meanwhile see STARTING.
#[cold]
fn start() -> usize {
    static FAILURE: Once = Once::new();
    let _kept = KeptErrno::new();
    // Before anybody can meet STARTING: a root that another thread starts meanwhile is sampled like any other.
    STATE.rate.store(settings::rate(), Relaxed);
    // Before STARTING too: a child that another thread forks meanwhile must not inherit it for ever.
    let wiped = wipe_on_fork();
    if let Err(phase) = STATE.phase.compare_exchange(FRESH, STARTING, AcqRel, Acquire) {
        return phase;
    }
    if settings::is_off() {
        STATE.phase.store(OFF, Release);
        return OFF;
    }
    let phase = match wiped.and_then(|()| make_segment()) {
        Ok(()) => READY,
        Err(error) => {
            FAILURE.say(format_args!("cannot create shared memory ({error}); this program runs untraced"));
            FAILED
        }
    };
    STATE.phase.store(phase, SeqCst);
    if phase == READY {
        report_early_counts();
        offer_if_due();
    }
    phase
}

fn wipe_on_fork() -> Result<(), Errno> {
    let start = (&raw const STATE).cast_mut().cast();
    // SAFETY: the range is STATE alone, which fills whole pages; the advice changes nothing in this process, and a
    // child may find zeros there (invariant 7).
    unsafe { madvise(start, size_of::<State>(), Advice::LinuxWipeOnFork) }
}

fn make_segment() -> Result<(), Errno> {
    SEGMENT.close_inherited();
    CONTROL.close_inherited();
    SOCKET_PATH.keep(settings::socket());
    let ring_bytes = settings::ring_bytes();
    let slots = layout::slots_for(ring_bytes);
    let mode = settings::mode();
    let created = segment::create(ring_bytes, slots, mode, random())?;
    SEGMENT.keep(created.segment, created.segment_identity);
    CONTROL.keep(created.control, created.control_identity);
    STATE.words.store(created.words.as_ptr().cast_mut(), Relaxed);
    STATE.words_count.store(created.words.len(), Relaxed);
    STATE.control.store(created.control_words.as_ptr().cast_mut(), Relaxed);
    STATE.ring_bytes.store(ring_bytes, Relaxed);
    STATE.slots.store(slots, Relaxed);
    STATE.cookie.store(u64::from(created.cookie), Relaxed);
    STATE.clock_is_tsc.store(created.clock == ClockKind::Tsc, Relaxed);
    STATE.overwrites.store(mode == RingMode::Overwrite, Relaxed);
    Ok(())
}

/// Sets a word that is still 0; of several callers at once the first one's value stays.
#[cold]
fn seed(word: &AtomicU64) {
    let _ = word.compare_exchange(0, random().max(1), Relaxed, Relaxed);
}

/// 64 random bits that no other process has; without the kernel's generator (never seen) from the clock.
fn random() -> u64 {
    let mut bytes = [0u8; 8];
    match getrandom(&mut bytes, GetRandomFlags::NONBLOCK) {
        Ok(filled) if filled == bytes.len() => u64::from_le_bytes(bytes),
        _ => ClockKind::detect().read().wrapping_mul(0x9e37_79b9_7f4a_7c15),
    }
}

/// Offers the segment while nobody is attached, at most once a second.
#[cold]
fn offer_if_due() {
    if is_attached() {
        return;
    }
    let now = coarse_seconds().max(1);
    let due = STATE.next_offer_seconds.load(Relaxed);
    if now < due || STATE.next_offer_seconds.compare_exchange(due, now + 1, Relaxed, Relaxed).is_err() {
        return;
    }
    if offer_now().is_ok() {
        STATE.offered.store(true, Relaxed);
    }
}

fn offer_now() -> Result<(), Errno> {
    let segment = SEGMENT.still_open().ok_or(Errno::BADF)?;
    let control = CONTROL.still_open().ok_or(Errno::BADF)?;
    SOCKET_PATH.with(|path| offer::send(path, segment, control))
}

fn is_attached() -> bool {
    control_words().get(control::ATTACHED).is_some_and(|word| word.load(Relaxed) != 0)
}

/// Run by the dynamic linker (or libc's exit in a static program) at exit: annotations that nobody will ever read
/// are named.
extern "C" fn tell_at_exit() {
    static NEVER_HELD: Once = Once::new();
    if STATE.phase.load(Acquire) != READY || STATE.offered.load(Relaxed) || is_attached() {
        return;
    }
    if offer_now().is_ok() {
        return;
    }
    let words = words();
    let slots = STATE.slots.load(Relaxed);
    let records: u64 = (0..slots)
        .map(|slot| Head(words[layout::slot_header(slot) + slot::HEAD].load(Relaxed)).records())
        .sum();
    if records > 0 {
        SOCKET_PATH.with(|path| {
            NEVER_HELD.say(format_args!(
                "{records} annotations of this program were not collected: no consumerd answers at {} \
                 (run `blkin doctor`)",
                std::str::from_utf8(path).unwrap_or("BLKIN_SOCKET"),
            ));
        });
    }
}

#[used]
// SAFETY: the section holds pointers to functions without arguments that the linker calls once, at exit.
#[unsafe(link_section = ".fini_array")]
static TELL_AT_EXIT: extern "C" fn() = tell_at_exit;
