//! What the sequences are made of.
//!
//! Registers by the C convention: rdi is the process's [`Hot`](crate::hot::Hot); rsi, rcx, r8, r9 are arguments. Inside: r10
//! the rseq area, r11 the slot, then head. Those of short records know where `Hot` is, and have registers of their own.

/// Begins a function: its names, the registration check and the entry into the sequence.
/// `$area`: what brings the area's offset into r10. `$before`: a part of the sequence that stands before the function, and is
/// jumped to. `$section`: how its section's name begins; what records is sorted behind the calls that jump to it (`blkin-lib/src/capi/mod.rs`).
macro_rules! begin {
    ($name:literal, $area:expr, $before:expr) => {
        begin!(".text.sorted.blkin_5_", $name, $area, $before)
    };
    ($section:literal, $name:literal, $area:expr, $before:expr) => {
        concat!(
            ".pushsection ",
            $section,
            $name,
            ",\"ax\",@progbits\n",
            ".p2align 6\n",
            ".cfi_startproc\n",
            ".L",
            $name,
            "_range:\n",
            $before,
            ".p2align 6\n",
            ".globl ",
            $name,
            "\n.hidden ",
            $name,
            "\n.type ",
            $name,
            ",@function\n",
            $name,
            ":\n",
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
        begin!(
            ".text.",
            $name,
            concat!(
                "movsxd r10, dword ptr [rdi + {rseq_offset}]\n",
                // No more in a child that was forked since somebody looked.
                "test r10, r10\n",
                "jz .L",
                $name,
                "_off\n"
            ),
            ""
        )
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
            // In a child that was forked between the look at the offset and the arming there is none, and nothing is its own.
            "test r10, r10\n",
            "jz 7f\n",
            "mov qword ptr fs:[r10 + 8], 0\n",
            "7:\n",
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
            // What stands before the arming is in it too, and is never interrupted there: nothing is armed yet.
            ".quad .L",
            $name,
            "_range, ",
            $name,
            "_end - .L",
            $name,
            "_range, .L",
            $name,
            "_abort\n",
            ".popsection\n",
        )
    };
    ($name:literal, $result:expr) => {
        end!(
            $name,
            "movsxd r10, dword ptr [rdi + {rseq_offset}]\n",
            concat!($result, ".L", $name, "_off:\nmov eax, {no_slot}\nret\n"),
            "ret\n"
        )
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

/// From a slot's number in r11 to its distance from the first, in bytes of [`HotSlot`](crate::hot::HotSlot). The first
/// slots, which are nearly all that are ever used, by branches: the processor guesses them, and need not wait for the
/// number to go on. `$own_slots`: where it says how many of them sequences write. The one behind these is the shared one,
/// of which the head moves though its ring is not to be found in [`Hot`](crate::hot::Hot).
macro_rules! predicted_slot {
    ($name:literal, $own_slots:literal) => {
        concat!(
            "cmp r11d, dword ptr [",
            $own_slots,
            "]\njae .L",
            $name,
            "_no_slot\n",
            predicted_slot!(@pair $name, "1", "64", "0"),
            predicted_slot!(@pair $name, "3", "192", "128"),
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

/// A sequence by its code, with the constants that every one names.
macro_rules! sequence {
    ($code:expr $(, $name:ident = $value:expr)*) => {
        std::arch::global_asm!(
            $code,
            rseq_offset = const std::mem::offset_of!($crate::hot::Hot, rseq_offset),
            index_offset = const std::mem::offset_of!($crate::hot::Hot, index_offset),
            cpu_at = const $crate::rseq::area::CPU_AT,
            slots = const std::mem::offset_of!($crate::hot::Hot, slots),
            no_slot = const $crate::rseq::NO_SLOT,
            refused = const $crate::rseq::REFUSED,
            aborted = const $crate::rseq::ABORTED,
            $($name = const $value,)*
        );
    };
}

/// A sequence that knows where `Hot` is and writes a record there, by its code, with the constants that all such name, and
/// its own operands behind them.
macro_rules! push_sequence {
    ($code:expr, $($operands:tt)*) => {
        std::arch::global_asm!(
            $code,
            hot = sym $crate::process::state::STATE,
            push_offset = const std::mem::offset_of!($crate::hot::Hot, push_offset),
            index_offset = const std::mem::offset_of!($crate::hot::Hot, index_offset),
            cpu_at = const $crate::rseq::area::CPU_AT,
            headers = const std::mem::offset_of!($crate::hot::Hot, headers),
            slots = const std::mem::offset_of!($crate::hot::Hot, slots),
            ring = const std::mem::offset_of!($crate::hot::HotSlot, ring),
            limit = const std::mem::offset_of!($crate::hot::HotSlot, limit),
            mask = const std::mem::offset_of!($crate::hot::Hot, mask),
            stamp = const std::mem::offset_of!($crate::hot::Hot, stamp),
            step = const std::mem::offset_of!($crate::hot::Hot, step),
            eighth = const std::mem::offset_of!($crate::hot::Hot, eighth),
            ahead = const $crate::rseq::AHEAD_BYTES,
            no_slot = const $crate::rseq::NO_SLOT,
            refused = const $crate::rseq::REFUSED,
            aborted = const $crate::rseq::ABORTED,
            $($operands)*
        );
    };
}
