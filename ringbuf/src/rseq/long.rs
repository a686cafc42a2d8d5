//! Records of several grains: nearly all by the first sequence, which knows the address of `Hot`; what it refuses by the second.

use std::mem::offset_of;

use blkin_record::GRAIN_BYTES;

use super::{AHEAD_BYTES, Outcome};
use crate::hot::{Hot, HotSlot};
use crate::image::{Counts, Image};
use crate::layout::slot;

/// Offset of an image's value from its tail, which begins one grain after the beginning of the image.
const VALUE_AT: isize = size_of::<u64>() as isize - GRAIN_BYTES as isize;

/// Copies a continuation grain, all but its stamp, from rcx + `$from` to the grain at r10 + `$to`.
macro_rules! copy_grain {
    ($to:literal, $from:literal) => {
        concat!(
            "prefetchw byte ptr [r10 + {ahead} + ",
            $to,
            "]\n",
            "movups xmm0, xmmword ptr [rcx + ",
            $from,
            "]\nmovups xmmword ptr [r10 + ",
            $to,
            " + 8], xmm0\n",
            "movups xmm0, xmmword ptr [rcx + ",
            $from,
            " + 16]\nmovups xmmword ptr [r10 + ",
            $to,
            " + 24], xmm0\n",
            "movups xmm0, xmmword ptr [rcx + ",
            $from,
            " + 32]\nmovups xmmword ptr [r10 + ",
            $to,
            " + 40], xmm0\n",
            "mov rdx, qword ptr [rcx + ",
            $from,
            " + 48]\nmov qword ptr [r10 + ",
            $to,
            " + 56], rdx\n",
        )
    };
}

// rdi: ids; rsi: word 5; rdx: see `Counts`; rcx: the tail of an image, with a value before it; r8: word 6. Inside: r10 is the
// rseq area, then the ring, the head grain, and the area again; r11 the slot, then head; r9 the slot's header; later rdi holds
// the argument in rdx, esi the grains that are left, rax a stamp, r8 the step to the next one. This sequence refuses a record
// that crosses the end of its ring, and one that crosses the wrap-around of positions: limit stops a grain before that. A slot
// that sequences write, but that has no ring yet, has a limit of 0, and its head is 0.
push_sequence!(
    concat!(
        begin!(
            "blkin_rseq_push_texts",
            concat!(
                "movsxd r10, dword ptr [rip + {hot} + {push_offset}]\n",
                // Not set up; or no longer, in a child that was forked since the caller looked.
                "test r10, r10\n",
                "jz .Lblkin_rseq_push_texts_off\n",
            ),
            concat!(
                ".Lblkin_rseq_push_texts_later:\n",
                predicted_slot!("blkin_rseq_push_texts_other", "rip + {hot} + {own_slots}"),
                "lea r9, [r9 + r11 * 4]\n",
                "lea rax, [rip + {hot} + {slots}]\n",
                "add r11, rax\n",
                "jmp .Lblkin_rseq_push_texts_slot\n",
                ".Lblkin_rseq_push_texts_other_no_slot:\n",
                "jmp .Lblkin_rseq_push_texts_no_slot\n",
                ".Lblkin_rseq_push_texts_value:\n",
                "mov rax, qword ptr [rcx + {value}]\nmov qword ptr [r10 + 8], rax\n",
                "jmp .Lblkin_rseq_push_texts_head\n",
                // From the third continuation grain on.
                ".Lblkin_rseq_push_texts_more:\n",
                "add r10, 64\nadd rcx, 56\n",
                "add rax, r8\nmov qword ptr [r10 + 128], rax\n",
                copy_grain!("128", "56"),
                "dec esi\n",
                "jnz .Lblkin_rseq_push_texts_more\n",
                "jmp .Lblkin_rseq_push_texts_commit\n",
            )
        ),
        "movsxd r11, dword ptr [rip + {hot} + {index_offset}]\n",
        "mov r11d, dword ptr fs:[r11]\n",
        "mov r9, qword ptr [rip + {hot} + {headers}]\n",
        "test r11d, r11d\n",
        "jnz .Lblkin_rseq_push_texts_later\n",
        "lea r11, [rip + {hot} + {slots}]\n",
        ".Lblkin_rseq_push_texts_slot:\n",
        // The last grain. Comparing the low halves is enough: neither is ever more than a ring ahead of the other.
        "mov eax, dword ptr [r9]\nadd eax, edx\ncmp eax, dword ptr [r11 + {limit}]\n",
        "jns .Lblkin_rseq_push_texts_refuse\n",
        "mov r10, qword ptr [r11 + {ring}]\n",
        "mov r11, qword ptr [r9]\n",
        // The last grain lies after the first one, unless the ring ends in between.
        "and eax, dword ptr [rip + {hot} + {mask}]\nsub eax, edx\n",
        "jb .Lblkin_rseq_push_texts_refuse\n",
        "shl eax, 6\nadd r10, rax\n",
        "prefetchw byte ptr [r10 + {ahead}]\n",
        // One by one: ids that were stored one by one a moment ago could be loaded as a pair only after those stores are done.
        "mov rax, qword ptr [rdi]\nmov qword ptr [r10 + 16], rax\n",
        "mov rax, qword ptr [rdi + 8]\nmov qword ptr [r10 + 24], rax\n",
        "mov rax, qword ptr [rdi + 16]\nmov qword ptr [r10 + 32], rax\n",
        "mov qword ptr [r10 + 40], rsi\n",
        "mov qword ptr [r10 + 48], r8\n",
        "mov rdi, rdx\nmov esi, edx\n",
        "mov rax, r11\nshr rax, 36\nmov dword ptr [r10 + 56], eax\n",
        "shr rdx, 32\nmovzx edx, dx\nmov dword ptr [r10 + 60], edx\n",
        // An integer or a string has one more bit set in its kind.
        "bt r8, 33\n",
        "jc .Lblkin_rseq_push_texts_value\n",
        "rdtsc\nmov dword ptr [r10 + 8], eax\nmov dword ptr [r10 + 12], edx\n",
        ".Lblkin_rseq_push_texts_head:\n",
        // The head grain's stamp, and from it that of the first continuation grain.
        "mov rax, r11\nshl rax, 28\nshr rax, 28\nadd rax, qword ptr [rip + {hot} + {stamp}]\n",
        "mov rdx, rsi\nshl rdx, 36\nadd rdx, rax\nmov qword ptr [r10], rdx\n",
        "btr rax, 45\ninc rax\nmov qword ptr [r10 + 64], rax\n",
        "movd xmm1, esi\n",
        copy_grain!("64", "0"),
        "dec esi\n",
        "jz .Lblkin_rseq_push_texts_commit\n",
        "movabs r8, (1 << 36) + 1\nadd rax, r8\nmov qword ptr [r10 + 128], rax\n",
        copy_grain!("128", "56"),
        "dec esi\n",
        "jnz .Lblkin_rseq_push_texts_more\n",
        ".Lblkin_rseq_push_texts_commit:\n",
        "movsxd r10, dword ptr [rip + {hot} + {push_offset}]\n",
        "movaps xmm0, xmmword ptr [r9]\npaddq xmm0, xmmword ptr [rip + {hot} + {step}]\npaddq xmm0, xmm1\n",
        "movaps xmmword ptr [r9], xmm0\n",
        end!(
            "blkin_rseq_push_texts",
            "movsxd r10, dword ptr [rip + {hot} + {push_offset}]\n",
            concat!(
                "mov eax, dword ptr [rip + {hot} + {eighth}]\nand r11d, eax\nadd r11d, edi\n",
                // No sequence stores to this word; see `add`.
                "shr rdi, 48\n",
                "jz 5f\n",
                "add qword ptr [r9 + {not_interned}], rdi\n",
                "5:\n",
                "cmp r11d, eax\n",
                passed!("blkin_rseq_push_texts", "jae", "ret\n"),
                ".Lblkin_rseq_push_texts_off:\nmov eax, {no_slot}\nret\n",
            ),
            "ret\n"
        )
    ),
    own_slots = const offset_of!(Hot, own_slots),
    not_interned = const slot::NOT_INTERNED * size_of::<u64>(),
    value = const VALUE_AT,
);

// A record of several grains. At the limit this sequence looks at tail itself, and moves the limit. rsi: the record's image,
// whose word 1 is set here to the clock if r9 is not 0, which may be repeated; rcx: its grains. Inside: r8 is the
// header (then kept in xmm2), r9 the slot; from the copying on r8 is a grain's position, r9 its stamp without that, r10 the ring.
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
        predicted_slot!("blkin_rseq_push_long", "rdi + {own_slots}"),
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
        "mov rax, rdx\nshl rax, 28\nshr rax, 28\n",
        "cmp rax, qword ptr [r9 + {open}]\n",
        "jae .Lblkin_rseq_push_long_refuse\n",
        "mov rax, qword ptr [r9 + {tail}]\n",
        "mov rax, qword ptr [rax]\nshl rax, 28\nshr rax, 28\n",
        "sub rdx, rax\nshl rdx, 28\nshr rdx, 28\n",
        "mov r10d, dword ptr [rdi + {mask}]\n",
        "cmp rdx, r10\n",
        "ja .Lblkin_rseq_push_long_refuse\n",
        // No limit is set beyond the wrap-around of positions.
        "lea rax, [rax + r10 + 1]\n",
        "mov rdx, rax\nshr rdx, 36\n",
        "jnz 5f\n",
        "mov rdx, qword ptr [r9 + {open}]\ncmp rax, rdx\ncmova rax, rdx\n",
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
    own_slots = offset_of!(Hot, own_slots),
    tail = offset_of!(HotSlot, tail),
    limit = offset_of!(HotSlot, limit),
    open = offset_of!(HotSlot, open),
    ring = offset_of!(HotSlot, ring),
    mask = offset_of!(Hot, mask),
    stamp = offset_of!(Hot, stamp),
    eighth = offset_of!(Hot, eighth),
    ahead = AHEAD_BYTES
);

unsafe extern "C" {
    fn blkin_rseq_push_texts(ids: *const u64, names: u64, counts: u64, tail: *const u8, traits: u64) -> u32;
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
    // SAFETY: passed on from the caller (invariant 13).
    let code = unsafe { blkin_rseq_push_texts(ids, names, counts.0, tail, traits) };
    Outcome::from_code(code)
}

/// Puts a record of `grains`, which must be from 1 to what the image has room for, into the ring of the calling thread's
/// slot.
///
/// # Safety
/// As [`find_room`](super::find_room); the image has a head, and a tail that fills its grains.
pub(crate) unsafe fn push_long(hot: &Hot, image: &mut Image, grains: usize, is_event: bool) -> Outcome {
    debug_assert!((1..=Image::MOST_GRAINS).contains(&grains));
    let image = (&raw mut *image).cast();
    // SAFETY: passed on from the caller; the image holds that many grains (invariant 13).
    Outcome::from_code(unsafe { blkin_rseq_push_long(hot, image, 0, grains as u64, 0, u64::from(is_event)) })
}
