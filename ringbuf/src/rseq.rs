//! The producer by restartable sequence: x86-64 Linux, where libc has registered the thread's rseq area.
//!
//! A restartable sequence is a stretch of code that the kernel starts anew (by jumping to its abort handler) when the
//! thread is preempted, migrated or gets a signal inside it. While a thread is inside, nobody else runs on its CPU, nor
//! under its concurrency id; so a ring that belongs to such an id has one writer at a time, and plain stores do.
//! Reserve, clock, copy and commit are one sequence whose last instruction is the commit, one store of 16 bytes (head
//! and the count of attempts): a record is wholly there or not at all, whatever comes between.
//!
//! `rseq(2)`; Desnoyers, "Restartable sequences system call" (Linux 4.18); mm_cid: Linux 6.3. The area is cleared
//! after each commit: else the kernel has something to fix up at each context switch until the next record.
//!
//! Each sequence has the symbols `blkin_rseq_NAME_start` and `_end`, for those who count its instructions.
//!
//! What makes them fast: on many processors a reading of the clock waits for the loads before it, and the loads behind it
//! wait for the reading, so that a record costs the clock and its longest chain of loads (docs/adr/0007-reading-the-clock.md). The
//! sequences of short records have two in a row: the first slot's header, and head there.
//!
//! Registers by the C convention. Short records: rdi ids, rsi word 5, rdx (then r8) word 6, rcx (then r9) a value. Others:
//! rdi the process's [`Hot`]; rsi, rcx, r8, r9 arguments. Inside: r10 the rseq area, r11 the slot, then head.

use std::arch::global_asm;
use std::mem::offset_of;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use blkin_record::POSITION_MASK;

use crate::hot::{Hot, HotSlot};
use crate::image::Image;
use crate::layout::{MAX_SLOTS, SLOT_HEADER_WORDS, slot};
use crate::process::state::STATE;
use crate::process::{push_again, push_otherwise};

/// Done.
const DONE: u32 = 0;
/// Done, and head has passed an eighth of its ring.
const PASSED: u32 = 1;
/// The thread has no rseq area, or the slot no ring.
pub(crate) const NO_SLOT: u32 = 2;
/// No room, or not what was expected.
const REFUSED: u32 = 3;
/// Interrupted before the commit: nothing has happened.
const ABORTED: u32 = 4;

/// How far before a record's place its memory is asked for. A store that misses the cache holds up the next reading of the
/// clock; behind a ring's end it is asked for in vain, which neither faults nor hurts.
const AHEAD_BYTES: usize = 1024;

/// Begins a function: its names, the registration check and the entry into the sequence.
/// `$area`: what brings the area's offset into r10.
macro_rules! begin {
    ($name:literal, $area:expr) => {
        concat!(
            ".pushsection .text.",
            $name,
            ",\"ax\",@progbits\n",
            ".p2align 6\n",
            ".globl ",
            $name,
            "\n.hidden ",
            $name,
            "\n.type ",
            $name,
            ",@function\n",
            $name,
            ":\n.cfi_startproc\n",
            $area,
            // A thread that is not registered has a negative CPU.
            "cmp dword ptr fs:[r10 + {cpu_at}], 0\n",
            "jl .L",
            $name,
            "_no_slot\n",
            "lea rax, [rip + .L",
            $name,
            "_cs]\n",
            "mov qword ptr fs:[r10 + 8], rax\n",
            ".globl ",
            $name,
            "_start\n.hidden ",
            $name,
            "_start\n",
            $name,
            "_start:\n",
        )
    };
    ($name:literal) => {
        begin!($name, "movsxd r10, dword ptr [rdi + {rseq_offset}]\n")
    };
}

/// The slot in r11.
macro_rules! slot {
    ($name:literal) => {
        concat!(
            "movsxd r11, dword ptr [rdi + {index_offset}]\n",
            "mov r11d, dword ptr fs:[r11]\n",
            "cmp r11d, {max_slots}\n",
            "jae .L",
            $name,
            "_no_slot\n",
            "shl r11d, 6\n",
            "lea r11, [rdi + r11 + {slots}]\n",
        )
    };
}

/// As above, and its header in rdx.
macro_rules! slot_and_header {
    ($name:literal) => {
        concat!(
            slot!($name),
            "mov rdx, qword ptr [r11 + {header}]\n",
            "test rdx, rdx\n",
            "jz .L",
            $name,
            "_no_slot\n",
        )
    };
}

/// Behind the commit: the way out of the sequence, its other exits (`$exit`, with the result in eax), and its descriptor.
/// `$area`: what brings the area's offset into r10 again, where a sequence uses that for more.
macro_rules! end {
    ($name:literal, $area:literal, $result:expr, $exit:literal) => {
        concat!(
            ".globl ",
            $name,
            "_end\n.hidden ",
            $name,
            "_end\n",
            $name,
            "_end:\n",
            "mov qword ptr fs:[r10 + 8], 0\n",
            $result,
            ".L",
            $name,
            "_refuse:\n",
            "mov eax, {refused}\n",
            "jmp .L",
            $name,
            "_leave\n",
            ".L",
            $name,
            "_no_slot:\n",
            "mov eax, {no_slot}\n",
            ".L",
            $name,
            "_leave:\n",
            $area,
            "mov qword ptr fs:[r10 + 8], 0\n",
            $exit,
            // The signature that libc registered, as an instruction that is never run.
            ".byte 0x0f, 0xb9, 0x3d\n.long 0x53053053\n",
            ".L",
            $name,
            "_abort:\n",
            "mov eax, {aborted}\n",
            $exit,
            ".cfi_endproc\n.size ",
            $name,
            ", .-",
            $name,
            "\n.popsection\n",
            ".pushsection __rseq_cs, \"aw\", @progbits\n.p2align 5\n",
            ".L",
            $name,
            "_cs:\n.long 0, 0\n",
            ".quad ",
            $name,
            "_start, ",
            $name,
            "_end - ",
            $name,
            "_start, .L",
            $name,
            "_abort\n",
            ".popsection\n",
        )
    };
    ($name:literal, $result:expr) => {
        end!($name, "movsxd r10, dword ptr [rdi + {rseq_offset}]\n", $result, "ret\n")
    };
}

/// Result of a push: 1, by way of `$exit`, if head has passed an eighth of the ring, which `$jump` tells.
macro_rules! passed {
    ($name:literal, $jump:literal, $exit:literal) => {
        concat!(
            $jump,
            " .L",
            $name,
            "_passed\n",
            "xor eax, eax\n",
            "ret\n",
            ".L",
            $name,
            "_passed:\n",
            "mov eax, 1\n",
            $exit,
        )
    };
}

/// From a slot's number in r11 to its distance from the first, in bytes of [`HotSlot`]. The first slots, which are nearly
/// all that are ever used, by branches: the processor guesses them, and need not wait for the number to go on.
macro_rules! predicted_slot {
    ($name:literal) => {
        concat!(
            predicted_slot!(@pair $name, "1", "64", "0"),
            predicted_slot!(@pair $name, "3", "192", "128"),
            "cmp r11d, {max_slots}\n",
            "jae .L",
            $name,
            "_no_slot\n",
            "shl r11d, 6\n",
            ".L",
            $name,
            "_slot:\n",
        )
    };
    // The slot `$odd`, and the one before it.
    (@pair $name:literal, $odd:literal, $odd_bytes:literal, $even_bytes:literal) => {
        concat!(
            "cmp r11d, ",
            $odd,
            "\nja 3f\nje 2f\nmov r11d, ",
            $even_bytes,
            "\njmp .L",
            $name,
            "_slot\n2: mov r11d, ",
            $odd_bytes,
            "\njmp .L",
            $name,
            "_slot\n3:\n",
        )
    };
}

/// A record of one grain, see [`push_event`] and [`push_value`]. `$word1` puts word 1 into r9. Where its position wraps
/// head's count needs more than an addition: `limit` stops one grain before that. All that is not done ends in
/// [`crate::process::push_again`], with the same arguments and the result.
macro_rules! push_short {
    ($name:literal, $word1:literal) => {
        concat!(
            begin!(
                $name,
                concat!(
                    "mov r8, rdx\nmov r9, rcx\n",
                    "movsxd r10, dword ptr [rip + {hot} + {push_offset}]\n",
                    // Not set up, or no more in a child that was forked since somebody looked.
                    "test r10, r10\n",
                    "jz .L",
                    $name,
                    "_off\n"
                )
            ),
            $word1,
            "movsxd r11, dword ptr [rip + {hot} + {index_offset}]\n",
            "mov r11d, dword ptr fs:[r11]\n",
            predicted_slot!($name),
            // Headers are four times as far apart as the slots of `Hot`.
            "mov rdx, qword ptr [rip + {hot} + {headers}]\n",
            "lea rdx, [rdx + r11 * 4]\n",
            "lea rax, [rip + {hot} + {slots}]\n",
            "add r11, rax\n",
            "mov rcx, qword ptr [r11 + {ring}]\n",
            "test rcx, rcx\n",
            "jz .L",
            $name,
            "_no_slot\n",
            "mov rax, qword ptr [rdx]\n",
            "sub rax, qword ptr [r11 + {limit}]\n",
            "shl rax, 28\n",
            "jns .L",
            $name,
            "_refuse\n",
            "mov r11, qword ptr [rdx]\n",
            "mov eax, r11d\n",
            "and eax, dword ptr [rip + {hot} + {mask}]\n",
            "shl rax, 6\n",
            "add rcx, rax\n",
            "prefetchw byte ptr [rcx + {ahead}]\n",
            "mov qword ptr [rcx + 8], r9\n",
            "movups xmm0, xmmword ptr [rdi]\n",
            "movaps xmmword ptr [rcx + 16], xmm0\n",
            "mov rax, qword ptr [rdi + 16]\n",
            "mov qword ptr [rcx + 32], rax\n",
            "mov qword ptr [rcx + 40], rsi\n",
            "mov qword ptr [rcx + 48], r8\n",
            "mov rax, r11\n",
            "shr rax, 36\n",
            "mov qword ptr [rcx + 56], rax\n",
            "mov rax, r11\n",
            "shl rax, 28\n",
            "shr rax, 28\n",
            "or rax, qword ptr [rip + {hot} + {stamp}]\n",
            "mov qword ptr [rcx], rax\n",
            "inc r11d\n",
            "movaps xmm0, xmmword ptr [rdx]\n",
            "paddq xmm0, xmmword ptr [rip + {hot} + {step}]\n",
            "movaps xmmword ptr [rdx], xmm0\n",
            end!(
                $name,
                "",
                concat!(
                    "test r11d, dword ptr [rip + {hot} + {eighth}]\n",
                    passed!($name, "jz", "mov rdx, r8\nmov rcx, r9\nmov r8d, eax\njmp {again}\n"),
                    ".L",
                    $name,
                    "_off:\nmov rdx, r8\nmov rcx, r9\njmp {otherwise}\n"
                ),
                "mov rdx, r8\nmov rcx, r9\nmov r8d, eax\njmp {again}\n"
            ),
        )
    };
}

/// Constants that every sequence names.
macro_rules! sequence {
    ($code:expr $(, $name:ident = $value:expr)*) => {
        global_asm!(
            $code,
            rseq_offset = const offset_of!(Hot, rseq_offset),
            index_offset = const offset_of!(Hot, index_offset),
            cpu_at = const CPU_AT,
            slots = const offset_of!(Hot, slots),
            max_slots = const MAX_SLOTS,
            no_slot = const NO_SLOT,
            refused = const REFUSED,
            aborted = const ABORTED,
            $($name = const $value,)*
        );
    };
}

// Whatever library or program this is linked into, these are its own and lie within reach of its code.
global_asm!(
    ".hidden {hot}", ".hidden {again}", ".hidden {otherwise}",
    hot = sym STATE, again = sym push_again, otherwise = sym push_otherwise
);

/// Both kinds of short records.
macro_rules! sequence_of_short {
    ($name:literal, $word1:literal) => {
        global_asm!(
            push_short!($name, $word1),
            hot = sym STATE,
            again = sym push_again,
            otherwise = sym push_otherwise,
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
            step = const offset_of!(Hot, step),
            eighth = const offset_of!(Hot, eighth),
            ahead = const AHEAD_BYTES,
            no_slot = const NO_SLOT,
            refused = const REFUSED,
            aborted = const ABORTED,
        );
    };
}

sequence_of_short!("blkin_rseq_push_event", "rdtsc\nshl rdx, 32\nlea r9, [rax + rdx]\n");
sequence_of_short!("blkin_rseq_push_value", "");

const _: () = assert!(SLOT_HEADER_WORDS * size_of::<u64>() == 4 * size_of::<HotSlot>());

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
    header = offset_of!(HotSlot, header),
    limit = offset_of!(HotSlot, limit)
);

// A record that found no room: one attempt and one loss more, in one store.
sequence!(
    concat!(
        begin!("blkin_rseq_refuse"),
        slot_and_header!("blkin_rseq_refuse"),
        "mov rax, qword ptr [rdx + 8]\ninc rax\n",
        "mov rcx, qword ptr [rdx + 16]\ninc rcx\n",
        "movq xmm0, rax\nmovq xmm1, rcx\npunpcklqdq xmm0, xmm1\n",
        "movups xmmword ptr [rdx + 8], xmm0\n",
        end!("blkin_rseq_refuse", "xor eax, eax\nret\n"),
    ),
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
    header = offset_of!(HotSlot, header)
);

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

// The address of each, or 0 where libc does not have it (before 2.35, or another libc).
global_asm!(".weak __rseq_offset", ".weak __rseq_size");

unsafe extern "C" {
    fn blkin_rseq_push_event(ids: *const u64, names: u64, traits: u64) -> i32;
    fn blkin_rseq_push_value(ids: *const u64, names: u64, traits: u64, value: u64) -> i32;
    fn blkin_rseq_push_long(hot: &Hot, image: *mut u64, _: u64, grains: u64, _: u64, is_event: u64) -> u32;
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
    fn blkin_rseq_id(hot: &Hot, step: u64) -> u64;
}

/// What became of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Done.
    Done,
    /// Done, and head has passed an eighth of its ring.
    Passed,
    /// The thread has no rseq area, or its slot no ring yet.
    NoSlot,
    /// No room, or (evict) not what was expected.
    Refused,
    /// Interrupted before the commit: nothing has happened.
    Aborted,
}

impl Outcome {
    pub(crate) fn from_code(code: u32) -> Outcome {
        match code {
            DONE => Outcome::Done,
            PASSED => Outcome::Passed,
            NO_SLOT => Outcome::NoSlot,
            REFUSED => Outcome::Refused,
            _ => Outcome::Aborted,
        }
    }
}

/// Where a thread finds its rseq area, and in it the index of its slot: distances from the thread pointer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Area {
    pub(crate) offset: i32,
    pub(crate) index_offset: i32,
}

const AT_RSEQ_FEATURE_SIZE: libc::c_ulong = 27;
const CPU_AT: i32 = 4;
const MM_CID_AT: i32 = 24;
const WITH_MM_CID: libc::c_ulong = 28;

/// The area that libc has registered; `None` without one. May change errno.
pub(crate) fn area() -> Option<Area> {
    let (offset, size): (*const isize, *const u32);
    // SAFETY: loads two addresses from the global offset table, which has an entry for each symbol named here.
    unsafe {
        std::arch::asm!(
            "mov {offset}, qword ptr [rip + __rseq_offset@GOTPCREL]",
            "mov {size}, qword ptr [rip + __rseq_size@GOTPCREL]",
            offset = out(reg) offset, size = out(reg) size, options(pure, readonly, nostack, preserves_flags)
        );
    }
    if offset.is_null() || size.is_null() {
        return None;
    }
    // SAFETY: a constant of libc, set before any code of the program runs.
    let size = unsafe { size.read() };
    if size == 0 {
        return None;
    }
    // SAFETY: as above.
    let offset = unsafe { offset.read() };
    // SAFETY: no preconditions.
    let features = unsafe { libc::getauxval(AT_RSEQ_FEATURE_SIZE) };
    let index_at = if features >= WITH_MM_CID { MM_CID_AT } else { CPU_AT };
    let offset = i32::try_from(offset).ok()?;
    Some(Area { offset, index_offset: offset.checked_add(index_at)? })
}

/// The index of the calling thread's slot at this moment; `None` if the thread is not registered.
#[inline(always)]
pub(crate) fn index(hot: &Hot) -> Option<usize> {
    let offset = hot.rseq_offset.load(Relaxed) as isize;
    let index_offset = hot.index_offset.load(Relaxed) as isize;
    let (cpu, index): (i32, u32);
    // SAFETY: the area lies at that offset from the thread pointer in every thread (see `area`), and is only read.
    unsafe {
        std::arch::asm!(
            "mov {cpu:e}, dword ptr fs:[{offset} + {cpu_at}]",
            "mov {index:e}, dword ptr fs:[{index_offset}]",
            offset = in(reg) offset, index_offset = in(reg) index_offset, cpu_at = const CPU_AT,
            cpu = lateout(reg) cpu, index = out(reg) index,
            options(readonly, nostack, preserves_flags)
        );
    }
    (cpu >= 0).then_some(index as usize)
}

/// Puts a record of one grain into the ring of the calling thread's slot, with the time; should that not be done at once,
/// or not this way in this process, [`push_again`] goes on. Always 0.
///
/// # Safety
/// `ids` points to three readable words.
#[inline(always)]
pub(crate) unsafe fn push_event(ids: *const u64, names: u64, traits: u64) -> i32 {
    // SAFETY: passed on from the caller.
    unsafe { blkin_rseq_push_event(ids, names, traits) }
}

/// As [`push_event`], with a value in the place of the time.
///
/// # Safety
/// As [`push_event`].
#[inline(always)]
pub(crate) unsafe fn push_value(ids: *const u64, names: u64, traits: u64, value: u64) -> i32 {
    // SAFETY: passed on from the caller.
    unsafe { blkin_rseq_push_value(ids, names, traits, value) }
}

/// Looks how far the consumer is with the ring of the calling thread's slot.
///
/// # Safety
/// `hot` was set up for restartable sequences by this process: its slots are null or lie in its segment (invariants 1, 2
/// and 8), and no other protocol writes their rings (invariant 4).
pub(crate) unsafe fn refresh_limit(hot: &Hot) {
    let slot = index(hot).and_then(|index| hot.slots.get(index));
    let Some(slot) = slot.filter(|slot| !slot.header.load(Acquire).is_null()) else { return };
    let header = slot.header.load(Relaxed);
    // SAFETY: not null, so that it points into the segment (see above).
    let head = unsafe { &*header }.load(Relaxed) & POSITION_MASK;
    // SAFETY: set before the header.
    let tail = unsafe { &*slot.tail.load(Relaxed) }.load(Acquire) & POSITION_MASK;
    let last = tail + u64::from(hot.mask.load(Relaxed));
    let before_wrap = POSITION_MASK - 1;
    let room = last.wrapping_sub(head) & POSITION_MASK;
    let is_full = room > u64::from(hot.mask.load(Relaxed));
    let would_wrap = !is_full && room > before_wrap.wrapping_sub(head) & POSITION_MASK;
    let last = if would_wrap || head > before_wrap { before_wrap } else { last };
    // SAFETY: passed on from the caller. It does nothing where the thread is elsewhere by now.
    unsafe { blkin_rseq_set_limit(hot, header, 0, last + 1) };
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

/// Counts one attempt and its loss to a full ring, in whatever slot the calling thread is now.
///
/// # Safety
/// As [`refresh_limit`].
pub(crate) unsafe fn refuse(hot: &Hot) -> Outcome {
    // SAFETY: passed on from the caller.
    Outcome::from_code(unsafe { blkin_rseq_refuse(hot) })
}

/// Moves a slot's oldest position and its count of overwritten records together, if the calling thread still is in that
/// slot and nobody else has moved them.
///
/// # Safety
/// As [`refresh_limit`].
pub(crate) unsafe fn evict(
    hot: &Hot,
    header: *const AtomicU64,
    from: u64,
    to: u64,
    overwritten: u64,
) -> Outcome {
    const _: () = assert!(slot::OLDEST == 4 && slot::OVERWRITTEN == 5);
    // SAFETY: passed on from the caller.
    Outcome::from_code(unsafe { blkin_rseq_evict(hot, header, 0, to, overwritten, from) })
}

/// Adds to a word of the calling thread's slot and gives what it was: one instruction, which nothing on this CPU can part.
/// A thread that has just been moved to another CPU may so undo what another one adds; it is no worse than that.
#[inline(always)]
pub(crate) fn add(word: &AtomicU64, number: u64) -> u64 {
    let mut was = number;
    // SAFETY: adds to an aligned word that is only ever seen as atomic.
    unsafe {
        std::arch::asm!(
            "xadd qword ptr [{word}], {was}",
            word = in(reg) word.as_ptr(), was = inout(reg) was, options(nostack)
        );
    }
    was
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

/// How often a thread tries before it takes another way: a debugger that steps through it interrupts every try.
pub(crate) const TRIES: usize = 8;

// What the sequences store side by side.
const _: () = assert!(slot::HEAD == 0 && slot::ATTEMPTED == 1 && slot::FULL == 2);
