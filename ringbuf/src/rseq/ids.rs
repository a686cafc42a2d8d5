//! Numbers that no other thread draws.

use std::mem::offset_of;

use super::{ABORTED, TRIES};
use crate::hot::{Hot, HotSlot};

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
    ids = offset_of!(HotSlot, ids)
);

unsafe extern "C" {
    fn blkin_rseq_id(hot: &Hot, step: u64) -> u64;
}

/// The slot's next number, `step` after its last one; `None` if the slot's generator is not seeded, or the thread
/// was interrupted too often.
///
/// # Safety
/// `hot` has the offset of the rseq areas.
#[inline(always)]
pub(crate) unsafe fn next_number(hot: &Hot, step: u64) -> Option<u64> {
    for _ in 0..TRIES {
        // SAFETY: passed on from the caller. A number as small as a code is taken for one, and drawn again.
        match unsafe { blkin_rseq_id(hot, step) } {
            number if number > u64::from(ABORTED) => return Some(number),
            number if number == u64::from(ABORTED) => {}
            _ => return None,
        }
    }
    None
}
