//! Numbers that no other thread draws.

use std::mem::offset_of;

use super::{ABORTED, Outcome};
use crate::hot::{Hot, HotSlot};
use crate::layout::MAX_SLOTS;

// The slot's generator of ids goes on by rsi; its new state is in rax.
sequence!(
    concat!(
        begin!("blkin_rseq_id"),
        slot!("blkin_rseq_id"),
        "mov rax, qword ptr [r11 + {ids}]\n",
        "test rax, rax\n",
        "jz .Lblkin_rseq_id_refuse\n",
        "add rax, rsi\n",
        "mov qword ptr [r11 + {ids}], rax\n",
        end!("blkin_rseq_id", "ret\n"),
    ),
    max_slots = MAX_SLOTS,
    ids = offset_of!(HotSlot, ids)
);

unsafe extern "C" {
    fn blkin_rseq_id();
}

/// The slot's next number, `step` after its last one; or why there is none: the slot's generator is not seeded, the thread has no
/// slot, or it was interrupted.
///
/// # Safety
/// `hot` has the offset of the rseq areas.
#[inline(always)]
pub(crate) unsafe fn next_number(hot: &Hot, step: u64) -> Result<u64, Outcome> {
    let number: u64;
    // Called by hand: it changes nearly nothing, and a plain call would go through the global offset table.
    // SAFETY: passed on from the caller; the sequence changes these registers and no others.
    unsafe {
        std::arch::asm!(
            "call {id}",
            id = sym blkin_rseq_id, in("rdi") hot, in("rsi") step,
            out("rax") number, out("r10") _, out("r11") _
        );
    }
    // A number as small as a code is taken for one, and drawn again.
    if number > u64::from(ABORTED) { Ok(number) } else { Err(Outcome::from_code(number as u32)) }
}
