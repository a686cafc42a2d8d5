//! Records of several grains.

use std::mem::offset_of;

use super::{AHEAD_BYTES, Outcome};
use crate::hot::{Hot, HotSlot};
use crate::image::Image;

// A record of several grains, which looks at tail itself when it has come to the limit, and moves that. rsi: its image, whose
// word 1 is filled in here (if r9 is not 0: the clock), which may be done again; rcx: its grains. Inside: r8 header (then
// kept in xmm2), r9 slot; from the copying on r8 position of a grain, r9 its stamp without that, r10 ring.
sequence!(
    concat!(
        begin!("blkin_rseq_push_long"),
        "test r9d, r9d\n",
        "jz 2f\n",
        "rdtsc\nshl rdx, 32\nor rax, rdx\n",
        "mov qword ptr [rsi + 8], rax\n",
        "2:\n",
        "movsxd r11, dword ptr [rdi + {index_offset}]\n",
        "mov r11d, dword ptr fs:[r11]\n",
        predicted_slot!("blkin_rseq_push_long"),
        "mov r8, qword ptr [rdi + {headers}]\n",
        "lea r8, [r8 + r11 * 4]\n",
        "lea r9, [rdi + r11 + {slots}]\n",
        "cmp qword ptr [r9 + {ring}], 0\n",
        "je .Lblkin_rseq_push_long_no_slot\n",
        "mov r11, qword ptr [r8]\n",
        "lea rax, [r11 + rcx - 1]\n",
        "mov rdx, rax\n",
        "sub rax, qword ptr [r9 + {limit}]\n",
        "shl rax, 28\n",
        "js 5f\n",
        "mov rax, qword ptr [r9 + {tail}]\n",
        "mov rax, qword ptr [rax]\nshl rax, 28\nshr rax, 28\n",
        "sub rdx, rax\nshl rdx, 28\nshr rdx, 28\n",
        "mov r10d, dword ptr [rdi + {mask}]\n",
        "cmp rdx, r10\n",
        "ja .Lblkin_rseq_push_long_refuse\n",
        // No limit lies behind a position that wraps.
        "lea rax, [rax + r10 + 1]\n",
        "mov rdx, rax\nshr rdx, 36\n",
        "jnz 5f\n",
        "mov qword ptr [r9 + {limit}], rax\n",
        "5:\n",
        "mov r10, qword ptr [r9 + {ring}]\n",
        "movq xmm2, r8\n",
        "mov r8, r11\n",
        // The head grain.
        "mov edx, r11d\nand edx, dword ptr [rdi + {mask}]\nshl rdx, 6\nadd rdx, r10\n",
        "prefetchw byte ptr [rdx + {ahead}]\n",
        "mov rax, r11\nshl rax, 28\nshr rax, 28\nor rax, qword ptr [rsi]\nmov qword ptr [rdx], rax\n",
        "mov rax, qword ptr [rsi + 8]\nmov qword ptr [rdx + 8], rax\n",
        "mov rax, qword ptr [rsi + 16]\nmov qword ptr [rdx + 16], rax\n",
        "mov rax, qword ptr [rsi + 24]\nmov qword ptr [rdx + 24], rax\n",
        "mov rax, qword ptr [rsi + 32]\nmov qword ptr [rdx + 32], rax\n",
        "mov rax, qword ptr [rsi + 40]\nmov qword ptr [rdx + 40], rax\n",
        "mov rax, qword ptr [rsi + 48]\nmov qword ptr [rdx + 48], rax\n",
        "mov rax, r11\nshr rax, 36\nor rax, qword ptr [rsi + 56]\nmov qword ptr [rdx + 56], rax\n",
        "add rsi, 64\n",
        "mov r9, qword ptr [rdi + {stamp}]\nshr r9, 46\nshl r9, 46\n",
        "jmp 4f\n",
        // A continuation grain: its stamp, then 56 bytes of the tail.
        "3:\n",
        "inc r8\n",
        "movabs rax, 1 << 36\nadd r9, rax\n",
        "mov edx, r8d\nand edx, dword ptr [rdi + {mask}]\nshl rdx, 6\nadd rdx, r10\n",
        "prefetchw byte ptr [rdx + {ahead}]\n",
        "mov rax, r8\nshl rax, 28\nshr rax, 28\nor rax, r9\nmov qword ptr [rdx], rax\n",
        "movups xmm0, xmmword ptr [rsi]\nmovups xmmword ptr [rdx + 8], xmm0\n",
        "movups xmm0, xmmword ptr [rsi + 16]\nmovups xmmword ptr [rdx + 24], xmm0\n",
        "movups xmm0, xmmword ptr [rsi + 32]\nmovups xmmword ptr [rdx + 40], xmm0\n",
        "mov rax, qword ptr [rsi + 48]\nmov qword ptr [rdx + 56], rax\n",
        "add rsi, 56\n",
        "4:\n",
        "dec ecx\n",
        "jnz 3b\n",
        // The new head: the position wraps within its bits, the count out of the word's top.
        "lea rax, [r8 + 1]\nshl rax, 28\nshr rax, 28\n",
        "mov rdx, r11\nshr rdx, 36\ninc rdx\nshl rdx, 36\nor rax, rdx\n",
        "xor r11d, eax\n",
        "mov edx, dword ptr [rdi + {eighth}]\nnot edx\n",
        "and r11d, edx\n",
        "movsxd r10, dword ptr [rdi + {rseq_offset}]\n",
        "movq r8, xmm2\n",
        "mov rdx, qword ptr [r8 + 8]\ninc rdx\n",
        "movq xmm0, rax\nmovq xmm1, rdx\npunpcklqdq xmm0, xmm1\n",
        "movaps xmmword ptr [r8], xmm0\n",
        end!(
            "blkin_rseq_push_long",
            concat!("test r11d, r11d\n", passed!("blkin_rseq_push_long", "jnz", "ret\n"))
        ),
    ),
    headers = offset_of!(Hot, headers),
    tail = offset_of!(HotSlot, tail),
    limit = offset_of!(HotSlot, limit),
    ring = offset_of!(HotSlot, ring),
    mask = offset_of!(Hot, mask),
    stamp = offset_of!(Hot, stamp),
    eighth = offset_of!(Hot, eighth),
    ahead = AHEAD_BYTES
);

unsafe extern "C" {
    fn blkin_rseq_push_long(hot: &Hot, image: *mut u64, _: u64, grains: u64, _: u64, is_event: u64) -> u32;
}

/// Puts a record of `grains`, which must be from 1 to what the image has room for, into the ring of the calling thread's
/// slot.
///
/// # Safety
/// As [`refresh_limit`].
#[inline(always)]
pub(crate) unsafe fn push_long<const TAIL_BYTES: usize>(
    hot: &Hot,
    image: &mut Image<TAIL_BYTES>,
    grains: usize,
    is_event: bool,
) -> Outcome {
    debug_assert!((1..=Image::<TAIL_BYTES>::GRAINS).contains(&grains));
    let image = (&raw mut *image).cast();
    // SAFETY: passed on from the caller; the image holds that many grains.
    Outcome::from_code(unsafe { blkin_rseq_push_long(hot, image, 0, grains as u64, 0, u64::from(is_event)) })
}
