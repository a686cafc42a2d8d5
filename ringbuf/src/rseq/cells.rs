//! An event whose texts are all new: each is copied from where it lies straight into its cells in the ring.
//!
//! Before the sequence begins, the texts are in registers, without the bytes past their ends. No text waits for another, and
//! nothing is stored only to be loaded again: a call costs its instructions and no more (docs/adr/0011-records-with-texts.md).

use std::arch::global_asm;
use std::mem::offset_of;

use blkin_record::{
    ADDRESS_CELL, CELL_BYTES, CELLS_GRAINS, CELLS_TAIL_BYTES, GRAIN_BYTES, KEY_CELLS, NAME_CELL,
    SERVICE_CELL, cells_traits,
};

use crate::cstring::{BLOCK, PAGE};
use crate::hot::Hot;
use crate::layout::slot;
use crate::process::call::record_call_if;
use crate::process::record::Short;
use crate::process::state::STATE;
use crate::process::strings::{LEGACY_LEVEL, Place, call_at, push_cells_otherwise, record_brief_call};
use crate::process::text::set_longer;
use crate::process::waking::wake;
use crate::process::{CallValue, record_call};
use crate::shapes::Size;

/// Bytes to keep, then as many to clear: a block loaded n bytes before the second half keeps the first n bytes of a text.
#[repr(C, align(32))]
struct Masks([u8; BLOCK], [u8; BLOCK]);

static MASKS: Masks = Masks([0xff; BLOCK], [0; BLOCK]);

/// What the grains after the first one add to the pair of head and attempts.
#[repr(C, align(16))]
struct MoreGrains([u64; 2]);

static MORE_GRAINS: MoreGrains = MoreGrains([MORE, 0]);
const MORE: u64 = CELLS_GRAINS as u64 - 1;

/// New texts are looked up, in vain, about once in 1,024 times ([`crate::process::text`]). Here the position in the slot's
/// own ring decides when, which no other CPU writes: multiplied by this, it is below the bound that often, and not at
/// even intervals.
const GOLDEN: u32 = 0x9e37_79b9;
const LOOKED_UP_BELOW: u32 = 1 << 22;

/// Clears what lies past the end of the text in the block `$cell`, by the masks at r10; jumps to `$longer` if the text does
/// not end in this block.
macro_rules! end_text {
    ($cell:literal, $longer:literal) => {
        concat!(
            "pxor xmm5, xmm5\npcmpeqb xmm5, ",
            $cell,
            "\npmovmskb eax, xmm5\n",
            "test eax, eax\njz .Lblkin_rseq_push_cells_",
            $longer,
            // tzcnt counts zeros, bsf finds the first set bit: the same, unless the value is 0.
            "\nrep bsf eax, eax\nneg rax\n",
            "movdqu xmm5, xmmword ptr [r10 + rax + {block}]\n",
            "pand ",
            $cell,
            ", xmm5\n",
        )
    };
}

// rdi: ids; rsi: the endpoint; rdx: the event's text; rcx: the span's name; r8: address; r9: service. All are passed on
// to the function that does what is not done here. Before the sequence: the texts, in xmm0 to xmm4. Inside: r10 is the rseq
// area, then the head grain, and the area again; r11 the slot, then head, then a stamp, and head again; rcx the slot's
// header; the arguments in rcx and rdx are kept in xmm8 and xmm9. It leaves out the same cases as `push_texts`.
push_sequence!(
    concat!(
        begin!(
            ".text.sorted.blkin_9_",
            "blkin_rseq_push_cells",
            concat!(
                "movdqu xmm0, xmmword ptr [rcx]\n",
                "movdqu xmm1, xmmword ptr [r8]\n",
                "movdqu xmm2, xmmword ptr [r9]\n",
                "movdqu xmm3, xmmword ptr [rdx]\n",
                "lea r10, [rip + {masks}]\n",
                end_text!("xmm0", "longer"),
                end_text!("xmm1", "longer"),
                end_text!("xmm2", "longer"),
                "pxor xmm4, xmm4\n",
                end_text!("xmm3", "two_cells"),
                ".Lblkin_rseq_push_cells_ended:\n",
                "movq xmm8, rcx\nmovq xmm9, rdx\n",
                "movsxd r10, dword ptr [rip + {hot} + {push_offset}]\n",
                // Not set up; or no longer, in a child that was forked since the caller looked.
                "test r10, r10\n",
                "jz .Lblkin_rseq_push_cells_off\n",
            ),
            concat!(
                ".Lblkin_rseq_push_cells_due:\n",
                "movsxd r10, dword ptr [rip + {hot} + {push_offset}]\n",
                "test r10, r10\njz 7f\nmov qword ptr fs:[r10 + 8], 0\n7:\n",
                "movq rcx, xmm8\nmovq rdx, xmm9\njmp {look_up}\n",
                ".Lblkin_rseq_push_cells_off:\n",
                "jmp {otherwise}\n",
                ".Lblkin_rseq_push_cells_two_cells:\n",
                // Whether the second block lies in the same page has to be checked.
                "mov eax, edx\nand eax, {page} - 1\ncmp eax, {page} - 2 * {block}\n",
                "ja .Lblkin_rseq_push_cells_longer\n",
                "movdqu xmm4, xmmword ptr [rdx + {block}]\n",
                end_text!("xmm4", "longer"),
                "jmp .Lblkin_rseq_push_cells_ended\n",
                ".Lblkin_rseq_push_cells_longer:\n",
                "jmp {longer}\n",
                ".Lblkin_rseq_push_cells_later:\n",
                predicted_slot!("blkin_rseq_push_cells_other", "rip + {hot} + {own_slots}"),
                "lea rcx, [rcx + r11 * 4]\n",
                "lea rax, [rip + {hot} + {slots}]\n",
                "add r11, rax\n",
                "jmp .Lblkin_rseq_push_cells_slot\n",
                ".Lblkin_rseq_push_cells_other_no_slot:\n",
                "jmp .Lblkin_rseq_push_cells_no_slot\n",
            )
        ),
        "movsxd r11, dword ptr [rip + {hot} + {index_offset}]\n",
        "mov r11d, dword ptr fs:[r11]\n",
        "mov rcx, qword ptr [rip + {hot} + {headers}]\n",
        "test r11d, r11d\n",
        "jnz .Lblkin_rseq_push_cells_later\n",
        "lea r11, [rip + {hot} + {slots}]\n",
        ".Lblkin_rseq_push_cells_slot:\n",
        // The last grain, as in `push_texts`.
        "mov eax, dword ptr [rcx]\nadd eax, {more}\ncmp eax, dword ptr [r11 + {limit}]\n",
        "jns .Lblkin_rseq_push_cells_refuse\n",
        "imul r10d, eax, {golden}\ncmp r10d, {below}\njb .Lblkin_rseq_push_cells_due\n",
        "mov r10, qword ptr [r11 + {ring}]\n",
        "mov r11, qword ptr [rcx]\n",
        "and eax, dword ptr [rip + {hot} + {mask}]\nsub eax, {more}\n",
        "jb .Lblkin_rseq_push_cells_refuse\n",
        "shl eax, 6\nadd r10, rax\n",
        "prefetchw byte ptr [r10 + {ahead}]\n",
        "prefetchw byte ptr [r10 + {ahead} + {grain}]\n",
        "prefetchw byte ptr [r10 + {ahead} + 2 * {grain}]\n",
        "mov rax, qword ptr [rdi]\nmov qword ptr [r10 + 16], rax\n",
        "mov rax, qword ptr [rdi + 8]\nmov qword ptr [r10 + 24], rax\n",
        "mov rax, qword ptr [rdi + 16]\nmov qword ptr [r10 + 32], rax\n",
        "mov qword ptr [r10 + 40], 0\n",
        "movzx eax, word ptr [rsi + {port}]\nmov dword ptr [r10 + 48], eax\nmov dword ptr [r10 + 52], {traits}\n",
        "mov rax, r11\nshr rax, 36\nmov dword ptr [r10 + 56], eax\nmov dword ptr [r10 + 60], {tail}\n",
        // Head without its count; from it the stamp of a one-grain record, and from that the stamps of all three grains.
        "shl rax, 36\nxor rax, r11\nadd rax, qword ptr [rip + {hot} + {stamp}]\n",
        "movabs r11, {more} << 36\nadd r11, rax\nmov qword ptr [r10], r11\n",
        "btr rax, 45\ninc rax\nmov qword ptr [r10 + {grain}], rax\n",
        "movabs r11, (1 << 36) + 1\nadd rax, r11\nmov qword ptr [r10 + 2 * {grain}], rax\n",
        "movups xmmword ptr [r10 + {name_at}], xmm0\n",
        "movups xmmword ptr [r10 + {address_at}], xmm1\n",
        "movups xmmword ptr [r10 + {service_at}], xmm2\n",
        "movups xmmword ptr [r10 + {key_at}], xmm3\n",
        "movups xmmword ptr [r10 + {key_at} + {cell}], xmm4\n",
        "rdtsc\nmov dword ptr [r10 + 8], eax\nmov dword ptr [r10 + 12], edx\n",
        "mov r11d, dword ptr [rcx]\n",
        "movsxd r10, dword ptr [rip + {hot} + {push_offset}]\n",
        "movaps xmm0, xmmword ptr [rcx]\npaddq xmm0, xmmword ptr [rip + {hot} + {step}]\n",
        "paddq xmm0, xmmword ptr [rip + {more_grains}]\n",
        "movaps xmmword ptr [rcx], xmm0\n",
        end!(
            "blkin_rseq_push_cells",
            "movsxd r10, dword ptr [rip + {hot} + {push_offset}]\n",
            concat!(
                // Three texts: name, endpoint and key. No sequence stores to this word; see `add`.
                "add qword ptr [rcx + {not_interned}], 3\n",
                "mov eax, dword ptr [rip + {hot} + {eighth}]\nand r11d, eax\nadd r11d, {more}\n",
                "cmp r11d, eax\n",
                "jae {wake}\n",
                "ret\n",
            ),
            "movq rcx, xmm8\nmovq rdx, xmm9\njmp {otherwise}\n"
        )
    ),
    masks = sym MASKS,
    more_grains = sym MORE_GRAINS,
    otherwise = sym push_cells_otherwise,
    look_up = sym look_up,
    longer = sym push_longer,
    wake = sym wake,
    golden = const GOLDEN.cast_signed(),
    below = const LOOKED_UP_BELOW,
    more = const MORE,
    traits = const cells_traits(LEGACY_LEVEL),
    tail = const CELLS_TAIL_BYTES,
    name_at = const NAME_CELL,
    address_at = const ADDRESS_CELL,
    service_at = const SERVICE_CELL,
    key_at = const KEY_CELLS,
    cell = const CELL_BYTES,
    block = const BLOCK,
    page = const PAGE,
    grain = const GRAIN_BYTES,
    port = const offset_of!(Place, port),
    own_slots = const offset_of!(Hot, own_slots),
    not_interned = const slot::NOT_INTERNED * size_of::<u64>(),
);

// As in `short`.
global_asm!(
    ".hidden {hot}", ".hidden {masks}", ".hidden {more_grains}", ".hidden {otherwise}", ".hidden {look_up}",
    ".hidden {longer}", ".hidden {wake}",
    hot = sym STATE, masks = sym MASKS, more_grains = sym MORE_GRAINS, otherwise = sym push_cells_otherwise,
    look_up = sym look_up, longer = sym push_longer, wake = sym wake
);

const _: () = assert!(BLOCK == CELL_BYTES && CELLS_GRAINS == 3);

unsafe extern "C" {
    fn blkin_rseq_push_cells(
        ids: *const u64,
        place: *const Place,
        key: *const u8,
        name: *const u8,
        ip: *const u8,
        service: *const u8,
    );
}

/// Puts an event in cells into the ring of the calling thread's slot, and counts its texts that are not interned; or has it
/// recorded on whatever path is available.
///
/// # Safety
/// `ids` points to three readable words, `place` to an endpoint. From each of the texts, which are C strings, a block may be read:
/// the block ends in the same page.
#[inline(always)]
pub(crate) unsafe fn push_cells(
    ids: *const u64,
    place: *const Place,
    key: *const u8,
    name: *const u8,
    ip: *const u8,
    service: *const u8,
) {
    // SAFETY: passed on from the caller (invariant 13).
    unsafe { blkin_rseq_push_cells(ids, place, key, name, ip, service) }
}

/// Where the sequence ends if one of the texts is longer than its cells. Its arguments are those of the sequence.
///
/// # Safety
/// As [`push_cells`].
#[cold]
unsafe extern "C" fn push_longer(
    ids: *const u64,
    place: *const Place,
    key: *const u8,
    name: *const u8,
    ip: *const u8,
    service: *const u8,
) {
    // SAFETY: passed on from the caller (invariant 13).
    let call = unsafe { call_at(place, [name, ip, service, key]) };
    set_longer(&call, Size::Cells);
    // SAFETY: as above (invariant 13).
    if !unsafe { record_brief_call(ids, call, Short::Event, LEGACY_LEVEL) } {
        // SAFETY: as above (invariant 13).
        unsafe { record_call(ids, call, CallValue::Short(Short::Event), LEGACY_LEVEL) };
    }
}

/// Where the sequence ends if the texts are to be looked up although they will most likely not be found. Its arguments are
/// those of the sequence.
///
/// # Safety
/// As [`push_cells`].
#[cold]
unsafe extern "C" fn look_up(
    ids: *const u64,
    place: *const Place,
    key: *const u8,
    name: *const u8,
    ip: *const u8,
    service: *const u8,
) {
    // SAFETY: passed on from the caller (invariant 13).
    let call = unsafe { call_at(place, [name, ip, service, key]) };
    // SAFETY: as above (invariant 13).
    unsafe { record_call_if(ids, call, CallValue::Short(Short::Event), LEGACY_LEVEL, || true) };
}
