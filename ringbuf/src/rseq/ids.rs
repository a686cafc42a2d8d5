//! Numbers that no other thread draws.
//!
//! The only sequence that is inlined where it is used: code that makes spans is called so seldom that it is cold in the
//! caches, and then pays for each call and each cache line of code (docs/adr/0007-reading-the-clock.md).

use std::arch::asm;
use std::mem::offset_of;

use super::area::CPU_AT;
use super::{ABORTED, NO_SLOT, Outcome, REFUSED};
use crate::hot::{Hot, HotSlot};
use crate::layout::MAX_SLOTS;
use crate::process::roots::STEP;

/// The slot's next number, [`STEP`] after its last one; or the reason why there is none: the slot's generator is not seeded,
/// the thread has no slot, or it was interrupted.
///
/// # Safety
/// `area` is the offset of the rseq areas, which is not 0.
#[inline(always)]
pub(crate) unsafe fn next_number(hot: &Hot, area: i32) -> Result<u64, Outcome> {
    let number: u64;
    // SAFETY: passed on from the caller: this is the thread's own area, in which the sequence writes the word that arms it. A
    // slot's word that is not 0 has one writer, as its ring has (invariant 4).
    unsafe {
        asm!(
            // A thread that is not registered has a negative CPU.
            "cmp dword ptr fs:[{area} + {cpu_at}], 0",
            "jl 5f",
            "lea {number}, [rip + 9f]",
            "mov qword ptr fs:[{area} + 8], {number}",
            "2:",
            // In a child that was forked since the caller looked this is 0, and so are the words of all slots: a refusal.
            "movsxd {slot}, dword ptr [{hot} + {index_offset}]",
            "mov {slot:e}, dword ptr fs:[{slot}]",
            "cmp {slot:e}, {max_slots}",
            "jae 6f",
            "shl {slot:e}, 6",
            "mov {number}, qword ptr [{hot} + {slot} + {ids}]",
            "test {number}, {number}",
            "je 7f",
            "add {number}, {step}",
            "mov qword ptr [{hot} + {slot} + {ids}], {number}",
            "3:",
            "mov qword ptr fs:[{area} + 8], 0",
            "4:",
            // The rare paths, out of the way. A debugger or profiler cannot unwind from here to the caller: no unwind
            // information can describe code that belongs to many functions.
            ".pushsection .text.blkin_rseq_ids, \"ax\", @progbits",
            // The signature that libc registered, as an instruction that is never run.
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "8: mov {number:e}, {aborted}",
            "jmp 4b",
            "5: mov {number:e}, {no_slot}",
            "jmp 4b",
            "6: mov {number:e}, {no_slot}",
            "jmp 3b",
            "7: mov {number:e}, {refused}",
            "jmp 3b",
            ".popsection",
            ".pushsection __rseq_cs, \"aw\", @progbits",
            ".p2align 5",
            "9: .long 0, 0",
            ".quad 2b, 3b - 2b, 8b",
            ".popsection",
            area = in(reg) i64::from(area),
            hot = in(reg) hot,
            slot = out(reg) _,
            number = out(reg) number,
            step = const STEP,
            cpu_at = const CPU_AT,
            index_offset = const offset_of!(Hot, index_offset),
            max_slots = const MAX_SLOTS,
            ids = const offset_of!(Hot, slots) + offset_of!(HotSlot, ids),
            aborted = const ABORTED,
            no_slot = const NO_SLOT,
            refused = const REFUSED,
            options(nostack)
        );
    }
    // A number as small as a code is taken for a code, and another one is drawn.
    if number > u64::from(ABORTED) { Ok(number) } else { Err(Outcome::from_code(number as u32)) }
}
