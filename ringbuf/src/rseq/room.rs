//! Where a ring's room ends, and what is counted or given up when there is no room.

use std::mem::offset_of;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use blkin_record::POSITION_MASK;

use super::{Outcome, index};
use crate::hot::{Hot, HotSlot};
use crate::layout::MAX_SLOTS;

// Sets the limit of the slot whose header is at rsi to rcx. A limit that was computed long ago is too low at worst: it then
// stops a record, which has it computed again.
sequence!(
    concat!(
        begin!("blkin_rseq_set_limit"),
        slot_and_header!("blkin_rseq_set_limit"),
        "cmp rdx, rsi\n",
        "jne .Lblkin_rseq_set_limit_refuse\n",
        "mov qword ptr [r11 + {limit}], rcx\n",
        end!("blkin_rseq_set_limit", "xor eax, eax\nret\n"),
    ),
    max_slots = MAX_SLOTS,
    header = offset_of!(HotSlot, header),
    limit = offset_of!(HotSlot, limit)
);

// A record that found no room: adds one attempt and one loss, in one store.
sequence!(
    concat!(
        begin!("blkin_rseq_refuse"),
        slot_and_header!("blkin_rseq_refuse"),
        // Subtracts -1 from each.
        "movups xmm0, xmmword ptr [rdx + 8]\npcmpeqd xmm1, xmm1\npsubq xmm0, xmm1\n",
        "movups xmmword ptr [rdx + 8], xmm0\n",
        end!("blkin_rseq_refuse", "xor eax, eax\nret\n"),
    ),
    max_slots = MAX_SLOTS,
    header = offset_of!(HotSlot, header)
);

// Moves OLDEST from r9 to rcx, and the count of overwritten records to r8, if this is the slot whose header is at rsi.
sequence!(
    concat!(
        begin!("blkin_rseq_evict"),
        slot_and_header!("blkin_rseq_evict"),
        "cmp rdx, rsi\n",
        "jne .Lblkin_rseq_evict_refuse\n",
        "cmp r9, qword ptr [rdx + 32]\n",
        "jne .Lblkin_rseq_evict_refuse\n",
        "movq xmm0, rcx\nmovq xmm1, r8\npunpcklqdq xmm0, xmm1\n",
        "movaps xmmword ptr [rdx + 32], xmm0\n",
        end!("blkin_rseq_evict", "xor eax, eax\nret\n"),
    ),
    max_slots = MAX_SLOTS,
    header = offset_of!(HotSlot, header)
);

unsafe extern "C" {
    fn blkin_rseq_set_limit(hot: &Hot, header: *const AtomicU64, _: u64, limit: u64) -> u32;
    fn blkin_rseq_refuse(hot: &Hot) -> u32;
    fn blkin_rseq_evict(
        hot: &Hot,
        header: *const AtomicU64,
        _: u64,
        new_oldest: u64,
        overwritten: u64,
        oldest: u64,
    ) -> u32;
}

/// Looks how far the consumer has read the ring of the calling thread's slot. False if fewer grains than `wanted`, which is at
/// least one, are free; true if as many are, or nothing is known.
///
/// # Safety
/// `hot` was set up for restartable sequences by this process: its slots are null or lie in its segment (invariants 1, 2
/// and 8), and no other protocol writes their rings (invariant 4).
pub(crate) unsafe fn find_room(hot: &Hot, wanted: u64) -> bool {
    let slot = index(hot).and_then(|index| hot.slots.get(index));
    let Some(slot) = slot.filter(|slot| !slot.header.load(Acquire).is_null()) else { return true };
    let header = slot.header.load(Relaxed);
    // SAFETY: not null, so that it points into the segment (see above) (invariant 1).
    let head = unsafe { &*header }.load(Relaxed) & POSITION_MASK;
    // SAFETY: set before the header (invariant 1).
    let tail = unsafe { &*slot.tail.load(Relaxed) }.load(Acquire) & POSITION_MASK;
    let grains = u64::from(hot.mask.load(Relaxed)) + 1;
    // Head was read first: if others wrote meanwhile, and the consumer followed, this head lies before tail, and nothing is known.
    let Some(free) = grains.checked_sub(head.wrapping_sub(tail) & POSITION_MASK) else { return true };
    if free < wanted {
        return false;
    }
    // The sequences of short records do not handle the wrap-around of positions.
    let limit = (head + free).min(POSITION_MASK).min(slot.open.load(Relaxed));
    // SAFETY: passed on from the caller. It does nothing if the thread is in another slot by now (invariant 13).
    unsafe { blkin_rseq_set_limit(hot, header, 0, limit) };
    true
}

/// Counts one attempt and its loss to a full ring, in whatever slot the calling thread has now.
///
/// # Safety
/// As [`find_room`].
pub(crate) unsafe fn refuse(hot: &Hot) -> Outcome {
    // SAFETY: passed on from the caller (invariant 13).
    Outcome::from_code(unsafe { blkin_rseq_refuse(hot) })
}

/// Moves a slot's OLDEST and its count of overwritten records together, if the calling thread is still in that slot and
/// nobody else has moved them.
///
/// # Safety
/// As [`find_room`].
pub(crate) unsafe fn evict(
    hot: &Hot,
    header: *const AtomicU64,
    from: u64,
    to: u64,
    overwritten: u64,
) -> Outcome {
    // SAFETY: passed on from the caller (invariant 13).
    Outcome::from_code(unsafe { blkin_rseq_evict(hot, header, 0, to, overwritten, from) })
}

#[cfg(test)]
mod tests {
    use super::super::push_long;
    use super::*;
    use crate::image::Image;

    /// The word after the thread's pointer to itself: the one that would be armed if an area lay at offset 0. It is libc's own.
    fn word_of_libc() -> usize {
        let word;
        // SAFETY: the first words of a thread's block are libc's, and may be read.
        unsafe { std::arch::asm!("mov {}, fs:[8]", out(reg) word, options(readonly, nostack)) };
        word
    }

    #[test]
    fn sequences_do_nothing_with_a_forked_childs_wiped_state() {
        let (hot, before) = (Hot::new(), word_of_libc());
        let mut image = Image::new();
        // SAFETY: nothing is set up, so nothing is reached.
        let refused = unsafe { refuse(&hot) };
        // SAFETY: as above.
        let evicted = unsafe { evict(&hot, std::ptr::null(), 0, 0, 0) };
        // SAFETY: as above.
        let pushed = unsafe { push_long(&hot, &mut image, 1, true) };
        let after = word_of_libc();
        assert_eq!(after, before);
        assert_eq!([refused, evicted, pushed], [Outcome::NoSlot; 3]);
    }
}
