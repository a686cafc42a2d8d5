//! Layout of the two memfds. Version 2; any other is refused. All words are little-endian.
//!
//! ```text
//! segment (writable by the program alone)          control page (writable by consumerd)
//! 0        header                    4 KiB         0      header                          512 B
//! 4096     text of names             64 KiB        512    64 slot lines of 64 bytes       4 KiB
//! 69632    64 slot headers of 256 B  16 KiB        4608   reserved
//! 86016    rings, ring_bytes a slot                8192   area for later programs         64 KiB
//!                                                  73728  end
//! ```

/// Version of both layouts.
pub const LAYOUT_VERSION: u64 = 2;
/// The most slots that a segment may have.
pub const MAX_SLOTS: usize = 64;
/// Fewest slots of a program that does not ask for a ring size: CPUs may be added later.
const MIN_SLOTS: usize = 16;
/// Smallest ring.
pub const MIN_RING_BYTES: usize = 4096;
/// Largest ring.
pub const MAX_RING_BYTES: usize = 64 << 20;
/// Most ring memory of a program that does not ask for a ring size, whatever the number of CPUs.
pub const MAX_SEGMENT_RING_BYTES: usize = 16 << 20;
/// Most ring memory of a program that asks for a ring size: enough for a ring per CPU on most machines. Only rings that are
/// written take memory.
pub const MAX_ASKED_RING_BYTES: usize = 256 << 20;
/// Size of a ring unless BLKIN_RING_BYTES says otherwise.
pub const DEFAULT_RING_BYTES: usize = 1 << 20;

/// Name of the segment's memfd.
pub const SEGMENT_NAME: &str = "blkin-segment";
/// Name of the control page's memfd.
pub const CONTROL_NAME: &str = "blkin-control";

pub(crate) const PAGE_BYTES: usize = 4096;
pub(crate) const WORD_BYTES: usize = 8;

/// Words of the segment's header.
pub(crate) mod header {
    pub(crate) const MAGIC: usize = 0;
    pub(crate) const VERSION: usize = 1;
    pub(crate) const RECORD_VERSION: usize = 2;
    pub(crate) const RING_BYTES: usize = 3;
    pub(crate) const SLOTS: usize = 4;
    pub(crate) const PID: usize = 5;
    pub(crate) const COOKIE: usize = 6;
    pub(crate) const CLOCK_KIND: usize = 7;
    pub(crate) const ANCHOR_RAW: usize = 8;
    pub(crate) const ANCHOR_REALTIME: usize = 9;
    /// What a full ring does: see [`super::RingMode`].
    pub(crate) const MODE: usize = 10;
    /// Which producer writes: see [`super::ProducerKind`].
    pub(crate) const PRODUCER: usize = 11;
    pub(crate) const ANCHOR_MONOTONIC: usize = 12;
    /// Bit n: the ring of slot n has not been opened yet, so it is empty. A program that does not maintain this word
    /// has 0 there: any of its rings may hold records.
    pub(crate) const UNOPENED: usize = 13;
    /// Two words: the first bytes of the program's name, for a reader that comes when the process no longer exists. Zeros if the
    /// program does not say.
    pub(crate) const NAME: usize = 14;
    /// Counters of calls that reached no slot.
    pub(crate) const ATTEMPTED: usize = 16;
    pub(crate) const NO_SEGMENT: usize = 17;
    pub(crate) const STARTING: usize = 18;
}

/// "BLKINSEG"
pub(crate) const SEGMENT_MAGIC: u64 = u64::from_le_bytes(*b"BLKINSEG");
/// "BLKINCTL"
pub(crate) const CONTROL_MAGIC: u64 = u64::from_le_bytes(*b"BLKINCTL");

pub(crate) const NAMES_TEXT: usize = PAGE_BYTES / WORD_BYTES;
pub(crate) const NAMES_TEXT_WORDS: usize = 8192;

const SLOT_HEADERS: usize = NAMES_TEXT + NAMES_TEXT_WORDS;
pub(crate) const SLOT_HEADER_WORDS: usize = 32;
const RINGS: usize = SLOT_HEADERS + MAX_SLOTS * SLOT_HEADER_WORDS;
/// Bytes before the first ring.
pub const RINGS_OFFSET_BYTES: usize = RINGS * WORD_BYTES;

/// Words of a slot's header. Every record touches the first cache line. The restartable sequences store two adjacent words
/// of it with one instruction: head and attempted when a record is committed, attempted and full when one is refused.
pub(crate) mod slot {
    pub(crate) const HEAD: usize = 0;
    /// Attempts. In a ring that is written by compare-and-swap, only those that found no place: head counts the others.
    pub(crate) const ATTEMPTED: usize = 1;
    pub(crate) const FULL: usize = 2;
    /// Overwriting rings: where the oldest record that may still be read begins, as a head word.
    pub(crate) const OLDEST: usize = 4;
    /// Overwriting rings: number of records before OLDEST.
    pub(crate) const OVERWRITTEN: usize = 5;
    pub(crate) const STALLED: usize = 8;
    pub(crate) const TOO_LARGE: usize = 9;
    pub(crate) const TRUNCATED: usize = 10;
    /// Texts written into records because the table of names had no room for them.
    pub(crate) const NOT_INTERNED: usize = 11;
}

/// What a ring without room does with a new record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingMode {
    /// Refuses it, and counts it.
    Discard,
    /// Overwrites the oldest records with it: a flight recorder, which nobody drains and which is read when there is reason to.
    Overwrite,
}

impl RingMode {
    pub(crate) fn to_word(self) -> u64 {
        match self {
            RingMode::Discard => 0,
            RingMode::Overwrite => 1,
        }
    }

    pub(crate) fn from_word(word: u64) -> Option<RingMode> {
        match word {
            0 => Some(RingMode::Discard),
            1 => Some(RingMode::Overwrite),
            _ => None,
        }
    }
}

/// Which protocol a program writes its rings by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProducerKind {
    /// Compare-and-swap: everywhere.
    Portable,
    /// Restartable sequences: x86-64 Linux. The last slot is shared: threads without a slot of their own write it by
    /// compare-and-swap.
    Rseq,
}

impl ProducerKind {
    pub(crate) fn to_word(self) -> u64 {
        match self {
            ProducerKind::Portable => 0,
            ProducerKind::Rseq => 1,
        }
    }

    pub(crate) fn from_word(word: u64) -> Option<ProducerKind> {
        match word {
            0 => Some(ProducerKind::Portable),
            1 => Some(ProducerKind::Rseq),
            _ => None,
        }
    }
}

/// Words of the control page.
pub(crate) mod control {
    pub(crate) const MAGIC: usize = 0;
    pub(crate) const VERSION: usize = 1;
    /// 1 while a consumer is attached.
    pub(crate) const ATTACHED: usize = 2;
    /// Levels that are not recorded, bit n for level n: 0 records all, 0xff is off.
    pub(crate) const BLOCKED: usize = 3;
    /// N: one in N roots is traced; 0: as the program's environment says.
    pub(crate) const RATE: usize = 4;
    /// Not 0 while the consumer sleeps. It asks to be woken (FUTEX_WAKE on the low half, which is 1) when a head passes an
    /// eighth of its ring while three eighths or more of that ring are unread. The high half tells one sleep from the next.
    pub(crate) const SLEEPING: usize = 5;
    /// The low half of [`SLEEPING`] while the consumer sleeps.
    pub(crate) const ASLEEP: u32 = 1;
    /// 1 once an attached consumer has left: nobody reads the rings until another one attaches.
    pub(crate) const LEFT: usize = 6;
    /// Why the consumer that was last offered the program does not read it ([`UnreadReason`](crate::UnreadReason)); 0 if none has
    /// refused.
    pub(crate) const UNREAD: usize = 7;
    /// Incremented when a consumer attaches to the program, and repeatedly while it holds a flight recorder, which it does
    /// not drain.
    pub(crate) const BEAT: usize = 8;
    const SLOT_LINES: usize = 64;
    pub(crate) const SLOT_LINE_WORDS: usize = 8;
    /// In a slot's line: grains that the consumer has given back since the ring began.
    pub(crate) const TAIL: usize = 0;
    /// In a slot's line: 1 while the consumer waits at a hole.
    pub(crate) const WAITING_AT_HOLE: usize = 1;
    /// In a slot's line: records before the tail, for the next consumer.
    pub(crate) const TAIL_RECORDS: usize = 2;
    /// In a slot's line: how many of those the consumer has settled: acknowledged by their destination, or counted as lost.
    pub(crate) const SETTLED_RECORDS: usize = 3;

    pub(crate) fn slot_line(slot: usize) -> usize {
        SLOT_LINES + slot * SLOT_LINE_WORDS
    }

    const _: () = assert!(SLOT_LINES + super::MAX_SLOTS * SLOT_LINE_WORDS <= 8192 / super::WORD_BYTES);
}

/// Size of the control memfd.
pub const CONTROL_BYTES: usize = 8192 + (64 << 10);

const _: () = assert!(SLOT_HEADERS * WORD_BYTES == 69632);
const _: () = assert!(RINGS_OFFSET_BYTES == 86_016 && RINGS_OFFSET_BYTES.is_multiple_of(PAGE_BYTES));

/// Byte offset in the segment of word `index` of the texts of names.
pub(crate) fn text_at(index: usize) -> usize {
    (NAMES_TEXT + index) * WORD_BYTES
}

/// First word of a slot's header.
pub(crate) fn slot_header(slot: usize) -> usize {
    SLOT_HEADERS + slot * SLOT_HEADER_WORDS
}

/// A bit for each slot.
pub(crate) fn all_slots(slots: usize) -> u64 {
    u64::MAX >> (MAX_SLOTS - slots.clamp(1, MAX_SLOTS))
}

/// Size of a segment's memfd.
pub fn segment_bytes(slots: usize, ring_bytes: usize) -> usize {
    RINGS_OFFSET_BYTES + slots * ring_bytes
}

/// First word of a slot's ring.
pub(crate) fn ring_words(slot: usize, ring_bytes: usize) -> std::ops::Range<usize> {
    let start = RINGS + slot * ring_bytes / WORD_BYTES;
    start..start + ring_bytes / WORD_BYTES
}

/// Whether a ring may have this size: a power of two within the limits.
pub fn ring_bytes_are_valid(ring_bytes: usize) -> bool {
    ring_bytes.is_power_of_two() && (MIN_RING_BYTES..=MAX_RING_BYTES).contains(&ring_bytes)
}

/// Number of slots and ring size of a program whose threads may have `indexes` indexes at once and which asks for rings of
/// `asked` bytes. There is at least one slot more than indexes, for threads without one, as far as the limits allow: all
/// rings together have at most [`MAX_SEGMENT_RING_BYTES`], or, if a size was asked for, [`MAX_ASKED_RING_BYTES`].
pub(crate) fn shape_for(indexes: usize, asked: Option<usize>) -> (usize, usize) {
    let slots = (indexes + 1).next_power_of_two().clamp(MIN_SLOTS, MAX_SLOTS);
    match asked {
        Some(bytes) => ((MAX_ASKED_RING_BYTES / bytes).clamp(1, slots), bytes),
        None => (slots, DEFAULT_RING_BYTES.min(MAX_SEGMENT_RING_BYTES / slots)),
    }
}
