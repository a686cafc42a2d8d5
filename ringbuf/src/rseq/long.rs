//! Records of several grains: nearly all by the first sequence, which knows where `Hot` is; what it refuses by the second one.

use std::arch::global_asm;
use std::mem::{MaybeUninit, offset_of};

use blkin_record::GRAIN_BYTES;

use super::area::CPU_AT;
use super::{ABORTED, AHEAD_BYTES, NO_SLOT, Outcome, REFUSED};
use crate::hot::{Hot, HotSlot};
use crate::image::{Counts, Image};
use crate::layout::{MAX_SLOTS, slot};
use crate::process::state::STATE;

/// Where an image has its value, from its tail, which lies a grain behind its beginning.
const VALUE_AT: isize = size_of::<u64>() as isize - GRAIN_BYTES as isize;

// rdi: ids; rsi: word 5; rcx: the tail of an image, with a value before it; r8: word 6; r9: see `Counts`. Inside: r10 the rseq
// area, then the ring, a grain, and the area again; r11 the slot, then head, which comes to be the next one; rdx the slot's
// header. A record over the end of its ring is not for this sequence, nor is one over that of all positions, where head
// wraps: limit stops a grain before that.
global_asm!(
    begin!(
        "blkin_rseq_push_texts",
        concat!(
            "movsxd r10, dword ptr [rip + {hot} + {push_offset}]\n",
            // Not set up, or no more in a child that was forked since somebody looked.
            "test r10, r10\n",
            "jz .Lblkin_rseq_push_texts_off\n",
        ),
        concat!(
            ".Lblkin_rseq_push_texts_later:\n",
            predicted_slot!("blkin_rseq_push_texts_other"),
            "lea rdx, [rdx + r11 * 4]\n",
            "lea rax, [rip + {hot} + {slots}]\n",
            "add r11, rax\n",
            "jmp .Lblkin_rseq_push_texts_slot\n",
            ".Lblkin_rseq_push_texts_other_no_slot:\n",
            "jmp .Lblkin_rseq_push_texts_no_slot\n",
        )
    ),
    "movq xmm0, qword ptr [rcx + {value}]\n",
    // An integer or a string has one bit more in its kind.
    "bt r8, 33\n",
    "jc 2f\n",
    "rdtsc\nshl rdx, 32\nor rax, rdx\nmovq xmm0, rax\n",
    "2:\n",
    "movsxd r11, dword ptr [rip + {hot} + {index_offset}]\n",
    "mov r11d, dword ptr fs:[r11]\n",
    "mov rdx, qword ptr [rip + {hot} + {headers}]\n",
    "test r11d, r11d\n",
    "jnz .Lblkin_rseq_push_texts_later\n",
    "lea r11, [rip + {hot} + {slots}]\n",
    ".Lblkin_rseq_push_texts_slot:\n",
    "mov r10, qword ptr [r11 + {ring}]\n",
    "test r10, r10\n",
    "jz .Lblkin_rseq_push_texts_no_slot\n",
    // The last grain.
    "mov eax, r9d\n",
    "add rax, qword ptr [rdx]\n",
    "sub rax, qword ptr [r11 + {limit}]\n",
    "shl rax, 28\n",
    "jns .Lblkin_rseq_push_texts_refuse\n",
    "mov r11, qword ptr [rdx]\n",
    // It lies behind the first one, unless the ring ends in between.
    "lea eax, [r11 + r9]\nand eax, dword ptr [rip + {hot} + {mask}]\ncmp eax, r9d\n",
    "jb .Lblkin_rseq_push_texts_refuse\n",
    "mov eax, r11d\nand eax, dword ptr [rip + {hot} + {mask}]\nshl rax, 6\nadd r10, rax\n",
    "prefetchw byte ptr [r10 + {ahead}]\n",
    "movq qword ptr [r10 + 8], xmm0\n",
    // One by one: ids that were stored so a moment ago could not be loaded as a pair before those stores are done.
    "mov rax, qword ptr [rdi]\nmov qword ptr [r10 + 16], rax\n",
    "mov rax, qword ptr [rdi + 8]\nmov qword ptr [r10 + 24], rax\n",
    "mov rax, qword ptr [rdi + 16]\nmov qword ptr [r10 + 32], rax\n",
    "mov qword ptr [r10 + 40], rsi\n",
    "mov qword ptr [r10 + 48], r8\n",
    "mov rax, r11\nshr rax, 36\nmov dword ptr [r10 + 56], eax\n",
    "mov rax, r9\nshr rax, 32\nmovzx eax, ax\nmov dword ptr [r10 + 60], eax\n",
    // The head's stamp, and from it that of the first of the others.
    "mov rdi, r11\nshl rdi, 28\nshr rdi, 28\nadd rdi, qword ptr [rip + {hot} + {stamp}]\n",
    "mov esi, r9d\nmov rax, rsi\nshl rax, 36\nadd rax, rdi\nmov qword ptr [r10], rax\n",
    "btr rdi, 45\ninc rdi\n",
    // From one stamp to the next, and from head to the next one but for the other grains.
    "movabs r8, (1 << 36) + 1\n",
    "add r11, r8\nadd r11, rsi\n",
    "3:\n",
    "prefetchw byte ptr [r10 + {ahead} + 64]\n",
    "mov qword ptr [r10 + 64], rdi\n",
    "movups xmm0, xmmword ptr [rcx]\nmovups xmmword ptr [r10 + 72], xmm0\n",
    "movups xmm0, xmmword ptr [rcx + 16]\nmovups xmmword ptr [r10 + 88], xmm0\n",
    "movups xmm0, xmmword ptr [rcx + 32]\nmovups xmmword ptr [r10 + 104], xmm0\n",
    "mov rax, qword ptr [rcx + 48]\nmov qword ptr [r10 + 120], rax\n",
    "dec esi\n",
    "jz 4f\n",
    "add r10, 64\nadd rcx, 56\nadd rdi, r8\n",
    "jmp 3b\n",
    "4:\n",
    "mov rcx, qword ptr [rdx]\nmov rax, qword ptr [rdx + 8]\ninc rax\n",
    "xor ecx, r11d\n",
    "movsxd r10, dword ptr [rip + {hot} + {push_offset}]\n",
    "movq xmm0, r11\nmovq xmm1, rax\npunpcklqdq xmm0, xmm1\n",
    "movaps xmmword ptr [rdx], xmm0\n",
    end!(
        "blkin_rseq_push_texts",
        "movsxd r10, dword ptr [rip + {hot} + {push_offset}]\n",
        concat!(
            // Nothing stores to this word in a sequence; see `add`.
            "shr r9, 48\n",
            "jz 5f\n",
            "add qword ptr [rdx + {not_interned}], r9\n",
            "5:\n",
            "mov eax, dword ptr [rip + {hot} + {eighth}]\nnot eax\n",
            "test ecx, eax\n",
            passed!("blkin_rseq_push_texts", "jnz", "ret\n"),
            ".Lblkin_rseq_push_texts_off:\nmov eax, {no_slot}\nret\n",
        ),
        "ret\n"
    ),
    hot = sym STATE,
    push_offset = const offset_of!(Hot, push_offset),
    index_offset = const offset_of!(Hot, index_offset),
    cpu_at = const CPU_AT,
    max_slots = const MAX_SLOTS,
    headers = const offset_of!(Hot, headers),
    slots = const offset_of!(Hot, slots),
    ring = const offset_of!(HotSlot, ring),
    limit = const offset_of!(HotSlot, limit),
    mask = const offset_of!(Hot, mask),
    stamp = const offset_of!(Hot, stamp),
    eighth = const offset_of!(Hot, eighth),
    not_interned = const slot::NOT_INTERNED * size_of::<u64>(),
    ahead = const AHEAD_BYTES,
    value = const VALUE_AT,
    no_slot = const NO_SLOT,
    refused = const REFUSED,
    aborted = const ABORTED,
);

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

/// An argument that takes a register which the clock has other use for.
type Nothing = MaybeUninit<u64>;

unsafe extern "C" {
    fn blkin_rseq_push_texts(
        ids: *const u64,
        names: u64,
        _: Nothing,
        tail: *const u8,
        traits: u64,
        counts: u64,
    ) -> u32;
    fn blkin_rseq_push_long(hot: &Hot, image: *mut u64, _: u64, grains: u64, _: u64, is_event: u64) -> u32;
}

/// Puts a record with a tail into the ring of the calling thread's slot, and counts its texts that are not interned, if that
/// can be done at once. Nothing is stored to the image.
///
/// # Safety
/// `ids` points to three readable words; the image holds as much as `counts` says, and its value.
#[inline(always)]
pub(crate) unsafe fn push_texts(
    ids: *const u64,
    names: u64,
    traits: u64,
    image: &Image,
    counts: Counts,
) -> Outcome {
    let tail = (&raw const *image).cast::<u8>().wrapping_add(GRAIN_BYTES);
    // SAFETY: passed on from the caller.
    let code = unsafe { blkin_rseq_push_texts(ids, names, MaybeUninit::uninit(), tail, traits, counts.0) };
    Outcome::from_code(code)
}

/// Puts a record of `grains`, which must be from 1 to what the image has room for, into the ring of the calling thread's
/// slot.
///
/// # Safety
/// As [`refresh_limit`](super::refresh_limit); the image has a head, and a tail that fills its grains.
pub(crate) unsafe fn push_long(hot: &Hot, image: &mut Image, grains: usize, is_event: bool) -> Outcome {
    debug_assert!((1..=Image::MOST_GRAINS).contains(&grains));
    let image = (&raw mut *image).cast();
    // SAFETY: passed on from the caller; the image holds that many grains.
    Outcome::from_code(unsafe { blkin_rseq_push_long(hot, image, 0, grains as u64, 0, u64::from(is_event)) })
}
