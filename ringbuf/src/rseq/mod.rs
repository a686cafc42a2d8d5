//! The producer by restartable sequence: x86-64 Linux, where libc has registered the thread's rseq area.
//!
//! A restartable sequence is a stretch of code that the kernel aborts (by jumping to its abort handler) when the thread is
//! preempted, migrated or gets a signal inside it. While a thread is inside, nobody else runs on its CPU, nor under its
//! concurrency id; so a ring that belongs to such an id has one writer at a time, and plain stores suffice.
//! Reserve, clock, copy and commit are one sequence whose last instruction is the commit, one store of 16 bytes (head
//! and the count of attempts): a record is wholly there or not at all, whatever comes between.
//!
//! `rseq(2)`; Desnoyers, "Restartable sequences system call" (Linux 4.18); mm_cid: Linux 6.3. The area's pointer to the
//! sequence is cleared after each commit: otherwise the kernel would have to fix it up at the next context switch.
//!
//! | file | its sequences |
//! |---|---|
//! | `short` | a record of one grain |
//! | `long` | a record of several grains |
//! | `cells` | a record in cells, from the texts themselves |
//! | `room` | set a ring's limit; count a loss; move OLDEST |
//! | `ids` | the next number of a slot |
//!
//! All but the last are built from the pieces in `frame`, and have the symbols `blkin_rseq_NAME_start` and `_end`, for tools
//! that count their instructions (in the first slot).
//!
//! What makes them fast: on many processors reading the clock waits for the loads before it, and the loads after it wait
//! for the reading, so that a record costs the clock and its longest chain of loads
//! (docs/adr/0007-reading-the-clock.md). In the sequences of short records this chain has two loads: the address of the
//! first slot's header, and head there.

#[macro_use]
mod frame;
mod area;
mod cells;
mod ids;
mod long;
mod room;
mod short;

use crate::layout::{SLOT_HEADER_WORDS, slot};

pub(crate) use area::{Area, add, area, index};
pub(crate) use cells::push_cells;
pub(crate) use ids::next_number;
pub(crate) use long::{push_long, push_texts};
pub(crate) use room::{evict, find_room, refuse};
pub(crate) use short::{push_event, push_value};

/// Done.
const DONE: u32 = 0;
/// Done, and head has passed an eighth of its ring.
const PASSED: u32 = 1;
/// The thread has no rseq area, or the slot has no ring.
pub(crate) const NO_SLOT: u32 = 2;
/// No room, or a word was not what was expected.
const REFUSED: u32 = 3;
/// Interrupted before the commit: nothing has happened.
const ABORTED: u32 = 4;

/// How far ahead of a record's place its memory is prefetched. A store that misses the cache delays the next reading of the
/// clock; past a ring's end the prefetch is in vain, but neither faults nor does harm.
const AHEAD_BYTES: usize = 2048;

/// How a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Done.
    Done,
    /// Done, and head has passed an eighth of its ring.
    Passed,
    /// The thread has no rseq area, or its slot has no ring yet.
    NoSlot,
    /// No room, or (evict) the slot or OLDEST was not the expected one.
    Refused,
    /// Interrupted before the commit: nothing has happened.
    Aborted,
}

impl Outcome {
    pub(crate) fn from_code(code: u32) -> Outcome {
        match code {
            DONE => Outcome::Done,
            PASSED => Outcome::Passed,
            NO_SLOT => Outcome::NoSlot,
            REFUSED => Outcome::Refused,
            _ => Outcome::Aborted,
        }
    }
}

/// How often a thread tries before it takes another path: a debugger that steps through a sequence interrupts every try.
pub(crate) const TRIES: usize = 8;

// Words that the sequences store side by side, and how they get from a slot to its header.
const _: () = assert!(slot::HEAD == 0 && slot::ATTEMPTED == 1 && slot::FULL == 2);
const _: () = assert!(slot::OLDEST == 4 && slot::OVERWRITTEN == 5);
const _: () = assert!(SLOT_HEADER_WORDS * size_of::<u64>() == 4 * size_of::<crate::hot::HotSlot>());
