//! The pieces that the sequences are built from.
//!
//! Registers follow the C convention: rdi is the process's [`Hot`](crate::hot::Hot); rsi, rcx, r8, r9 are arguments. Inside: r10
//! is the rseq area, r11 the slot, then head. The sequences of short records know the address of `Hot`, and use other registers.

/// Begins a function: its names, the registration check and the entry into the sequence.
/// `$area`: code that loads the area's offset into r10. `$before`: a part of the sequence that stands before the function, and is
/// jumped to. `$section`: prefix of its section's name; code that records is sorted after the calls that jump to it
/// (`blkin-lib/src/capi/mod.rs`).
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
                // No longer set up in a child that was forked since the caller looked.
                "test r10, r10\n",
                "jz .L",
                $name,
                "_off\n"
            ),
            ""
        )
    };
}

/// Loads the slot's address into r11.
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

/// As above, and its header's address into rdx.
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

/// After the commit: the way out of the sequence, its other exits (`$exit`, with the result in eax), and its descriptor.
/// `$area`: code that loads the area's offset into r10 again, in sequences that use r10 for more.
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
            // 0 in a child that was forked between the first load of the offset and the arming: fs:[0 + 8] is libc's word.
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
            // The range includes the code before the arming, which is never aborted: nothing is armed yet.
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

/// Result of a push: 1, by way of `$exit`, if head has passed an eighth of the ring; `$jump` is the branch that tells.
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

/// Turns a slot's number in r11 into its distance from the first slot, in bytes of [`HotSlot`](crate::hot::HotSlot). The first
/// slots, nearly the only ones ever used, are handled by branches: the processor predicts them, and need not wait for the
/// number. `$own_slots`: where the number of slots that sequences write is stored. The slot after these is the shared one:
/// its head moves, though its ring is not found in [`Hot`](crate::hot::Hot).
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

/// Emits a sequence from its code, with the constants that all sequences name.
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

/// Emits a sequence that knows the address of `Hot` and writes a record there, from its code, with the constants that all such
/// sequences name, and its own operands after them.
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
