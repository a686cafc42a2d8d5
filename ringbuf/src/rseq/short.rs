//! Records of one grain.
//!
//! Registers: rdi ids, rsi word 5, r8 word 6, r9 a value. Inside: r10 the rseq area, r11 the slot, then head; r9 (for a value:
//! rdx) the slot's header; rcx the grain.

use std::arch::global_asm;
use std::mem::{MaybeUninit, offset_of};

use crate::hot::Hot;
use crate::process::record::{push_again, push_event_otherwise, push_value_otherwise};
use crate::process::state::STATE;

/// A record of one grain, see [`push_event`] and [`push_value`]. `$header`: the register that has the slot's header; `$word1`:
/// code that stores word 1. Where positions wrap, head's count needs more than an addition: `limit` stops one grain before that.
/// What is not done here ends in [`push_again`], with the same arguments and the result.
macro_rules! push_short {
    ($name:literal, $header:literal, $word1:literal) => {
        concat!(
            begin!(
                $name,
                concat!(
                    "movsxd r10, dword ptr [rip + {hot} + {push_offset}]\n",
                    // Not set up; or no longer, in a child that was forked since the caller looked.
                    "test r10, r10\n",
                    "jz .L",
                    $name,
                    "_off\n"
                ),
                concat!(
                    ".L",
                    $name,
                    "_other_slot:\n",
                    "cmp r11d, dword ptr [rip + {hot} + {own_slots}]\n",
                    "jae .L",
                    $name,
                    "_no_slot\n",
                    other_slot!(@predicted $name, $header, "1", "64", "256"),
                    other_slot!(@predicted $name, $header, "2", "128", "512"),
                    other_slot!(@predicted $name, $header, "3", "192", "768"),
                    other_slot!(@any $name, $header),
                )
            ),
            "movsxd r11, dword ptr [rip + {hot} + {index_offset}]\n",
            "mov r11d, dword ptr fs:[r11]\n",
            "mov ",
            $header,
            ", qword ptr [rip + {hot} + {headers}]\n",
            "test r11d, r11d\n",
            "jnz .L",
            $name,
            "_other_slot\n",
            "lea r11, [rip + {hot} + {slots}]\n",
            ".L",
            $name,
            "_slot:\n",
            // Comparing the low halves is enough: neither is ever more than a ring ahead of the other. A slot without a ring has a
            // limit of 0, and its head is 0; so the limit is looked at first.
            "mov eax, dword ptr [",
            $header,
            "]\n",
            "cmp eax, dword ptr [r11 + {limit}]\n",
            "jns .L",
            $name,
            "_refuse\n",
            "mov rcx, qword ptr [r11 + {ring}]\n",
            "mov r11, qword ptr [",
            $header,
            "]\n",
            "and eax, dword ptr [rip + {hot} + {mask}]\n",
            "shl eax, 6\n",
            "add rcx, rax\n",
            "prefetchw byte ptr [rcx + {ahead}]\n",
            // One by one: ids that were stored one by one a moment ago could be loaded as a pair only after those stores are done.
            "mov rax, qword ptr [rdi]\n",
            "mov qword ptr [rcx + 16], rax\n",
            "mov rax, qword ptr [rdi + 8]\n",
            "mov qword ptr [rcx + 24], rax\n",
            "mov rax, qword ptr [rdi + 16]\n",
            "mov qword ptr [rcx + 32], rax\n",
            "mov qword ptr [rcx + 40], rsi\n",
            "mov qword ptr [rcx + 48], r8\n",
            "mov rax, r11\n",
            "shr rax, 36\n",
            "mov qword ptr [rcx + 56], rax\n",
            // Head without its count.
            "shl rax, 36\n",
            "xor rax, r11\n",
            "or rax, qword ptr [rip + {hot} + {stamp}]\n",
            "mov qword ptr [rcx], rax\n",
            "inc r11d\n",
            // Before the clock: on some processors nothing after the reading begins before that is done, and the next
            // record waits for this head.
            "movaps xmm0, xmmword ptr [",
            $header,
            "]\n",
            "paddq xmm0, xmmword ptr [rip + {hot} + {step}]\n",
            $word1,
            "movaps xmmword ptr [",
            $header,
            "], xmm0\n",
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

/// From the number, not 0, of a slot in r11 to the slot in r11 and its header in `$header`, which holds the first slot's. The
/// first slots, nearly the only ones ever used, are handled by branches: the processor predicts them, and need not wait for the
/// number. This stands before the function, so that the path of the very first slot has nothing to jump over.
macro_rules! other_slot {
    (@predicted $name:literal, $header:literal, $number:literal, $slot_bytes:literal, $header_bytes:literal) => {
        concat!(
            "cmp r11d, ",
            $number,
            "\njne 2f\nadd ",
            $header,
            ", ",
            $header_bytes,
            "\nlea r11, [rip + {hot} + {slots} + ",
            $slot_bytes,
            "]\njmp .L",
            $name,
            "_slot\n2:\n",
        )
    };
    (@any $name:literal, $header:literal) => {
        concat!(
            "shl r11d, 6\n",
            // Headers are four times as far apart as the slots of `Hot`.
            "lea ",
            $header,
            ", [",
            $header,
            " + r11 * 4]\n",
            "lea rax, [rip + {hot} + {slots}]\n",
            "add r11, rax\n",
            "jmp .L",
            $name,
            "_slot\n",
        )
    };
}

// Whatever library or program this is linked into, these symbols are its own and lie within reach of its code.
global_asm!(
    ".hidden {hot}", ".hidden {again}", ".hidden {event}", ".hidden {value}",
    hot = sym STATE, again = sym push_again, event = sym push_event_otherwise, value = sym push_value_otherwise
);

/// Both kinds of short records.
macro_rules! sequence_of_short {
    ($name:literal, $header:literal, $word1:literal, $otherwise:ident) => {
        push_sequence!(
            push_short!($name, $header, $word1),
            again = sym push_again,
            otherwise = sym $otherwise,
            own_slots = const offset_of!(Hot, own_slots),
        );
    };
}

// An event has no value in r9, and the clock overwrites rdx.
sequence_of_short!(
    "blkin_rseq_push_event",
    "r9",
    "rdtsc\nmov dword ptr [rcx + 8], eax\nmov dword ptr [rcx + 12], edx\n",
    push_event_otherwise
);
sequence_of_short!("blkin_rseq_push_value", "rdx", "mov qword ptr [rcx + 8], r9\n", push_value_otherwise);

/// An argument in a register that a sequence uses otherwise: nothing is passed in it.
type Nothing = MaybeUninit<u64>;
const NOTHING: Nothing = MaybeUninit::uninit();

unsafe extern "C" {
    fn blkin_rseq_push_event(ids: *const u64, names: u64, _: Nothing, _: Nothing, traits: u64) -> i32;
    fn blkin_rseq_push_value(
        ids: *const u64,
        names: u64,
        _: Nothing,
        _: Nothing,
        traits: u64,
        value: u64,
    ) -> i32;
}

/// Puts a record of one grain into the ring of the calling thread's slot, with the time. If that cannot be done at once,
/// [`push_again`] goes on; in a process without sequences, [`push_event_otherwise`]. Always 0.
///
/// # Safety
/// `ids` points to three readable words.
#[inline(always)]
pub(crate) unsafe fn push_event(ids: *const u64, names: u64, traits: u64) -> i32 {
    // SAFETY: passed on from the caller (invariant 13).
    unsafe { blkin_rseq_push_event(ids, names, NOTHING, NOTHING, traits) }
}

/// As [`push_event`], with a value instead of the time.
///
/// # Safety
/// As [`push_event`].
#[inline(always)]
pub(crate) unsafe fn push_value(ids: *const u64, names: u64, traits: u64, value: u64) -> i32 {
    // SAFETY: passed on from the caller (invariant 13).
    unsafe { blkin_rseq_push_value(ids, names, NOTHING, NOTHING, traits, value) }
}
