//! What every record of a process reads, laid out for the restartable sequences, which address it by these offsets.
//!
//! It stands at the start of the state that the kernel wipes in a forked child (invariant 7), so all zeros must mean
//! "nothing is set up": no gate but the own word, no phase, no slot with a header.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicPtr, AtomicU32, AtomicU64};

use crate::layout::MAX_SLOTS;

/// First line: constants of the process. Then a line for each slot.
#[repr(C, align(64))]
pub(crate) struct Hot {
    /// Distance in bytes from `blocked` to the word that says which levels are blocked. 0 until there is a control
    /// page, and again in a forked child: then it is `blocked` itself.
    pub(crate) gate_offset: AtomicI64,
    /// Levels that are not recorded (bit n: level n) while there is no control page; 0xff after BLKIN_OFF.
    pub(crate) blocked: AtomicU64,
    /// See [`crate::process`].
    pub(crate) phase: AtomicU64,
    /// From the thread pointer to the thread's rseq area.
    pub(crate) rseq_offset: AtomicI32,
    /// From the thread pointer to the index in that area that chooses the slot (concurrency id, or CPU).
    pub(crate) index_offset: AtomicI32,
    /// Grains of a ring, less one.
    pub(crate) mask: AtomicU32,
    /// Grains of an eighth of a ring, less one.
    pub(crate) eighth: AtomicU32,
    /// Stamp of a record of one grain, but for its position.
    pub(crate) stamp: AtomicU64,
    /// What a record of one grain adds to the pair of head and attempts.
    pub(crate) step: [AtomicU64; 2],
    /// The slots.
    pub(crate) slots: [HotSlot; MAX_SLOTS],
}

/// A slot as the process uses it. Pointers are null until its ring may be written (invariant 8).
#[repr(C, align(64))]
pub(crate) struct HotSlot {
    /// Its header in the segment; stored last, with release.
    pub(crate) header: AtomicPtr<AtomicU64>,
    /// The word up to which the ring is free: tail in the control page, or, in overwriting rings, oldest in the
    /// header.
    pub(crate) tail: AtomicPtr<AtomicU64>,
    /// Head may go to one grain behind this position without another look at `tail`: what tail was when it was looked
    /// at last, plus the ring's grains, less one. Modulo 2^36, the bits above mean nothing.
    pub(crate) limit: AtomicU64,
    /// Its ring.
    pub(crate) ring: AtomicPtr<AtomicU64>,
    /// State of the generator of ids; 0 until it is seeded.
    pub(crate) ids: AtomicU64,
    /// Roots that are still to be left out before the next one is sampled, plus 1; 0 until it is seeded.
    pub(crate) roots: AtomicU64,
    /// The control page's line of the slot.
    pub(crate) control: AtomicPtr<AtomicU64>,
}

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
        }
    }
}

impl Hot {
    /// Nothing set up.
    pub(crate) const fn new() -> Hot {
        Hot {
            gate_offset: AtomicI64::new(0),
            blocked: AtomicU64::new(0),
            phase: AtomicU64::new(0),
            rseq_offset: AtomicI32::new(0),
            index_offset: AtomicI32::new(0),
            mask: AtomicU32::new(0),
            eighth: AtomicU32::new(0),
            stamp: AtomicU64::new(0),
            step: [AtomicU64::new(0), AtomicU64::new(0)],
            slots: [const { HotSlot::new() }; MAX_SLOTS],
        }
    }

    /// Whether annotations of this level are recorded. Two loads and a branch.
    #[inline(always)]
    pub(crate) fn is_on(&self, level: u8) -> bool {
        let own: *const AtomicU64 = &raw const self.blocked;
        let gate = own.wrapping_byte_offset(self.gate_offset.load(Relaxed) as isize);
        // SAFETY: either the own word, or, once the offset was set, the control page's, which stays mapped in this
        // process (invariant 2); a forked child finds the offset wiped (invariant 7).
        let blocked = unsafe { &*gate }.load(Relaxed);
        blocked >> (level & 7) & 1 == 0
    }
}

// The header of the C interface looks at the first two words.
const _: () = assert!(std::mem::offset_of!(Hot, gate_offset) == 0 && std::mem::offset_of!(Hot, blocked) == 8);
const _: () = assert!(std::mem::offset_of!(Hot, step) == 48);
const _: () = assert!(std::mem::offset_of!(Hot, slots) == 64 && size_of::<HotSlot>() == 64);
