//! Where a ring's room ends, and what is counted or given up when there is none.

use std::mem::offset_of;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use blkin_record::POSITION_MASK;

use super::{Outcome, index};
use crate::hot::{Hot, HotSlot};
use crate::layout::MAX_SLOTS;

// Sets the limit of the slot whose header is rsi to rcx. One that was worked out long ago is too low at worst, and then
// stops a record, which has it worked out anew.
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

// A record that found no room: one attempt and one loss more, in one store.
sequence!(
    concat!(
        begin!("blkin_rseq_refuse"),
        slot_and_header!("blkin_rseq_refuse"),
        // Less -1 each.
        "movups xmm0, xmmword ptr [rdx + 8]\npcmpeqd xmm1, xmm1\npsubq xmm0, xmm1\n",
        "movups xmmword ptr [rdx + 8], xmm0\n",
        end!("blkin_rseq_refuse", "xor eax, eax\nret\n"),
    ),
    max_slots = MAX_SLOTS,
    header = offset_of!(HotSlot, header)
);

// Moves oldest from r9 to rcx, and the count of overwritten records to r8, if this is the slot whose header is rsi.
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

/// Looks how far the consumer is with the ring of the calling thread's slot. False if fewer grains than `wanted`, one at least,
/// are free; true if as many are, or nothing is known.
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
    // Head was read first: if others went on meanwhile, and the consumer behind them, it lies before tail, and nothing is known.
    let Some(free) = grains.checked_sub(head.wrapping_sub(tail) & POSITION_MASK) else { return true };
    if free < wanted {
        return false;
    }
    // Where positions wrap is not for sequences of short records.
    let limit = (head + free).min(POSITION_MASK).min(slot.open.load(Relaxed));
    // SAFETY: passed on from the caller. It does nothing where the thread is elsewhere by now (invariant 13).
    unsafe { blkin_rseq_set_limit(hot, header, 0, limit) };
    true
}

/// Counts one attempt and its loss to a full ring, in whatever slot the calling thread is now.
///
/// # Safety
/// As [`find_room`].
pub(crate) unsafe fn refuse(hot: &Hot) -> Outcome {
    // SAFETY: passed on from the caller (invariant 13).
    Outcome::from_code(unsafe { blkin_rseq_refuse(hot) })
}

/// Moves a slot's oldest position and its count of overwritten records together, if the calling thread still is in that
/// slot and nobody else has moved them.
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

    /// The word behind the thread's pointer to itself, where its area would be if it lay there: libc's own.
    fn word_of_libc() -> usize {
        let word;
        // SAFETY: the first words of a thread's block are libc's, and there to be read.
        unsafe { std::arch::asm!("mov {}, fs:[8]", out(reg) word, options(readonly, nostack)) };
        word
    }

    #[test]
    fn a_forked_child_s_wiped_state_stops_what_its_parent_had_begun() {
        let (hot, before) = (Hot::new(), word_of_libc());
        let mut image = Image::new();
        // SAFETY: nothing is set up, so that nothing is reached.
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
