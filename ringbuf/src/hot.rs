//! What every record of a process reads, laid out for the restartable sequences, which address it by these offsets.
//!
//! [`Hot`] is the start of the state that the kernel wipes in a forked child (invariant 7), so all zeros must mean
//! "nothing is set up": no phase, no slot with a header.

use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64};

use crate::layout::MAX_SLOTS;

/// First cache line: constants of the process that records read; second: those that roots read. Then one line for each slot.
#[repr(C, align(64))]
pub(crate) struct Hot {
    /// See [`crate::process`].
    pub(crate) phase: AtomicU64,
    /// Header of the first slot in the segment; the others follow it.
    pub(crate) headers: AtomicPtr<AtomicU64>,
    /// Offset of the thread's rseq area from the thread pointer; 0 where there is none.
    pub(crate) rseq_offset: AtomicI32,
    /// The same, if rings are written by restartable sequences; else 0.
    pub(crate) push_offset: AtomicI32,
    /// Offset from the thread pointer of the index in that area that chooses the slot (concurrency id, or CPU).
    pub(crate) index_offset: AtomicI32,
    /// Grains of a ring, less one.
    pub(crate) mask: AtomicU32,
    /// What a record of one grain adds to the pair of head and attempts.
    pub(crate) step: [AtomicU64; 2],
    /// Stamp of a record of one grain, without its position.
    pub(crate) stamp: AtomicU64,
    /// Grains of an eighth of a ring, less one.
    pub(crate) eighth: AtomicU32,
    /// Slots that sequences write: all but the shared one.
    pub(crate) own_slots: AtomicU32,
    /// The control page; null until there is one.
    pub(crate) control: AtomicPtr<AtomicU64>,
    /// One in this many roots is sampled, unless the control page says otherwise.
    pub(crate) rate: AtomicU64,
    /// The slots.
    pub(crate) slots: [HotSlot; MAX_SLOTS],
}

/// A slot as the process uses it. Pointers are null until its ring may be written (invariant 8).
#[repr(C, align(64))]
pub(crate) struct HotSlot {
    /// Its header in the segment; stored last, with release.
    pub(crate) header: AtomicPtr<AtomicU64>,
    /// The word that says up to where the ring is free: tail in the control page, or, in overwriting rings, oldest in
    /// the header.
    pub(crate) tail: AtomicPtr<AtomicU64>,
    /// While head is before this position, a record needs no further look at `tail`. The tail last seen plus the ring's grains,
    /// or less where `open` or the wrap-around of positions comes first. Modulo 2^36; the bits above mean nothing.
    pub(crate) limit: AtomicU64,
    /// Its ring. Stored before `limit`, which is 0 until then, as is head: so a sequence that finds room also finds a ring. This
    /// holds only for [`Hot::own_slots`]: the head of the shared slot moves.
    pub(crate) ring: AtomicPtr<AtomicU64>,
    /// State of the generator of ids; 0 until it is seeded.
    pub(crate) ids: AtomicU64,
    /// How many roots are still to be left out before the next one is sampled, plus 1; 0 until it is seeded. Unchanged
    /// while every root is sampled.
    pub(crate) roots: AtomicU64,
    /// The slot's line in the control page.
    pub(crate) control: AtomicPtr<AtomicU64>,
    /// Sequences write nothing at or beyond this position: in a ring's first lap the end of what has memory, later
    /// [`ALL_OPEN`].
    pub(crate) open: AtomicU64,
}

/// Value of [`HotSlot::open`] for a ring that has memory everywhere.
pub(crate) const ALL_OPEN: u64 = u64::MAX;

impl HotSlot {
    /// Nothing set up.
    pub(crate) const fn new() -> HotSlot {
        HotSlot {
            header: AtomicPtr::new(std::ptr::null_mut()),
            tail: AtomicPtr::new(std::ptr::null_mut()),
            limit: AtomicU64::new(0),
            ring: AtomicPtr::new(std::ptr::null_mut()),
            ids: AtomicU64::new(0),
            roots: AtomicU64::new(0),
            control: AtomicPtr::new(std::ptr::null_mut()),
            open: AtomicU64::new(0),
        }
    }
}

impl Hot {
    /// Nothing set up.
    pub(crate) const fn new() -> Hot {
        Hot {
            phase: AtomicU64::new(0),
            headers: AtomicPtr::new(std::ptr::null_mut()),
            rseq_offset: AtomicI32::new(0),
            push_offset: AtomicI32::new(0),
            index_offset: AtomicI32::new(0),
            mask: AtomicU32::new(0),
            step: [AtomicU64::new(0), AtomicU64::new(0)],
            stamp: AtomicU64::new(0),
            eighth: AtomicU32::new(0),
            own_slots: AtomicU32::new(0),
            control: AtomicPtr::new(std::ptr::null_mut()),
            rate: AtomicU64::new(0),
            slots: [const { HotSlot::new() }; MAX_SLOTS],
        }
    }
}

// The sequences add it with one instruction that requires an aligned operand.
const _: () = assert!(std::mem::offset_of!(Hot, step).is_multiple_of(16));
const _: () = assert!(
    std::mem::offset_of!(Hot, control) == 64
        && std::mem::offset_of!(Hot, slots) == 128
        && size_of::<HotSlot>() == 64
);
