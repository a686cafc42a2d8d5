//! C strings: where they end, and whether one equals a text of the table of names, without looking for its end first.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// A block that begins in a page and ends in it may be read.
pub(crate) const PAGE: usize = 4096;
/// Bytes that are compared at once.
pub(crate) const BLOCK: usize = 16;

/// A block of a string.
#[cfg(target_arch = "x86_64")]
pub(crate) type Block = std::arch::x86_64::__m128i;
#[cfg(not(target_arch = "x86_64"))]
pub(crate) type Block = [u8; BLOCK];

/// Whether blocks can be compared at once here.
pub(crate) const HAS_BLOCKS: bool = cfg!(all(target_arch = "x86_64", not(miri)));

/// Whether strings should be read block by block: where that is quick, and not under valgrind, which would complain about reads
/// past a string's end. Makes no system call.
pub(crate) fn may_read_blocks() -> bool {
    HAS_BLOCKS && !is_under_valgrind()
}

/// Asks as valgrind's manual says ("The Client Request mechanism"): valgrind knows these instructions, which to the processor
/// itself only bring registers back to where they were.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn is_under_valgrind() -> bool {
    const RUNNING_ON_VALGRIND: u64 = 0x1001;
    let request = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
    let mut answer = 0u64;
    // SAFETY: rdi is rotated by twice its 64 bits, and rbx changes places with itself; valgrind reads the request (invariant 14).
    unsafe {
        std::arch::asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") request.as_ptr(), inout("rdx") answer, options(nostack, readonly)
        );
    }
    answer != 0
}

/// Never called: there are no blocks here.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn is_under_valgrind() -> bool {
    false
}

/// The block at `text`, and which of its bytes are 0: bit n says so of byte n. Memory checkers would complain.
///
/// # Safety
/// The block's first byte may be read, and it ends in the same page.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn block(text: *const u8) -> (Block, u32) {
    let (block, zeros): (Block, u32);
    // SAFETY: passed on from the caller: of one page either everything may be read or nothing (invariant 13).
    unsafe {
        std::arch::asm!(
            "movdqu {block}, xmmword ptr [{text}]",
            "pxor {zero}, {zero}",
            "pcmpeqb {zero}, {block}",
            "pmovmskb {zeros:e}, {zero}",
            block = out(xmm_reg) block, zero = out(xmm_reg) _, text = in(reg) text, zeros = lateout(reg) zeros,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    (block, zeros)
}

/// As above, for machines on which strings are not read block by block: never called.
///
/// # Safety
/// As above.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn block(text: *const u8) -> (Block, u32) {
    let mut block = [0; BLOCK];
    let mut zeros = 0;
    for (number, byte) in block.iter_mut().enumerate() {
        // SAFETY: passed on from the caller (invariant 13).
        *byte = unsafe { text.wrapping_add(number).read() };
        zeros |= u32::from(*byte == 0) << number;
    }
    (block, zeros)
}

/// Whether the string at `text` equals the text `id`, which holds no 0. `wide`: compare sixteen bytes at a time, which reads
/// past the string's end, though never in another page; memory checkers would complain.
///
/// # Safety
/// `text` points to a string that ends with a 0.
#[inline(always)]
pub(crate) unsafe fn equals_interned(text: *const u8, table: &[AtomicU64], id: usize, wide: bool) -> bool {
    let Some((length, stored)) = table.get(id..).and_then(<[AtomicU64]>::split_first) else { return false };
    let length = length.load(Relaxed) as usize;
    // There must be room for the last block of sixteen bytes too.
    if length / 8 + 3 > stored.len() {
        // SAFETY: passed on from the caller (invariant 13).
        return unsafe { bytes_are(text, stored, length) };
    }
    #[cfg(target_arch = "x86_64")]
    if wide {
        // SAFETY: passed on from the caller; the bounds of the stored text were checked above (invariant 13).
        return unsafe { blocks_are_from(text, stored, length, 0) };
    }
    let _ = wide;
    // SAFETY: passed on from the caller (invariant 13).
    unsafe { bytes_are(text, stored, length) }
}

/// As [`equals_interned`], for a text of at least a block, which the string is known to begin with.
///
/// # Safety
/// As [`equals_interned`].
#[inline(always)]
pub(crate) unsafe fn equals_interned_rest(text: *const u8, table: &[AtomicU64], id: usize) -> bool {
    let Some((length, stored)) = table.get(id..).and_then(<[AtomicU64]>::split_first) else { return false };
    let length = length.load(Relaxed) as usize;
    #[cfg(target_arch = "x86_64")]
    if length / 8 + 3 <= stored.len() {
        // SAFETY: passed on from the caller; the bounds of the stored text were checked above (invariant 13).
        return unsafe { blocks_are_from(text, stored, length, BLOCK) };
    }
    // SAFETY: passed on from the caller (invariant 13).
    unsafe { bytes_are_from(text, stored, length, BLOCK) }
}

/// Bytes of the string at `text` before its end; for one that is longer than `most`, that many or a few more. `wide`:
/// as for [`equals_interned`].
///
/// # Safety
/// `text` points to bytes that may be read up to a 0 or `most`, and then to the end of a block.
#[inline(always)]
pub(crate) unsafe fn length(text: *const u8, most: usize, wide: bool) -> usize {
    #[cfg(target_arch = "x86_64")]
    if wide && text.addr() % PAGE <= PAGE - BLOCK {
        // SAFETY: passed on from the caller; the first block lies in one page (invariant 13).
        return unsafe { length_by_blocks(text, most) };
    }
    let _ = wide;
    // SAFETY: passed on from the caller (invariant 13).
    unsafe { libc::strnlen(text.cast(), most) }
}

/// # Safety
/// As [`length`]; the first block ends in the page in which it begins.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn length_by_blocks(text: *const u8, most: usize) -> usize {
    let mut at = 0;
    while at < most {
        // SAFETY: the block's first byte may be read, since no byte before it was the end, and the block lies in one page
        // with it: the first by the caller's promise, the others because they are aligned (invariant 16).
        let (_, ends) = unsafe { block(text.wrapping_add(at)) };
        if ends != 0 {
            return at + ends.trailing_zeros() as usize;
        }
        // The next block is the aligned one that begins in this one, or right after it.
        at += BLOCK - text.wrapping_add(at).addr() % BLOCK;
    }
    at
}

/// # Safety
/// As [`bytes_are_from`]; `stored` has at least 16 bytes from each multiple of 16 up to `length`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn blocks_are_from(text: *const u8, stored: &[AtomicU64], length: usize, from: usize) -> bool {
    let mut at = from;
    loop {
        let block = text.wrapping_add(at);
        if block.addr() % PAGE > PAGE - BLOCK {
            // SAFETY: passed on from the caller; what lies before was equal (invariant 13).
            return unsafe { bytes_are_from(text, stored, length, at) };
        }
        let equal: u32;
        // SAFETY: the block's first byte belongs to the string, since all bytes before it equalled a text without a 0,
        // and the block lies in one page with it; the stored block lies within the table (see above) (invariant 16).
        unsafe {
            std::arch::asm!(
                "movdqu {x}, xmmword ptr [{text}]",
                "movdqu {y}, xmmword ptr [{stored}]",
                "pcmpeqb {x}, {y}",
                "pmovmskb {equal:e}, {x}",
                x = out(xmm_reg) _, y = out(xmm_reg) _,
                text = in(reg) block, stored = in(reg) stored.as_ptr().cast::<u8>().wrapping_add(at),
                equal = lateout(reg) equal,
                options(pure, readonly, nostack, preserves_flags)
            );
        }
        let rest = length - at;
        if rest < BLOCK {
            // The text's bytes and the 0 after them.
            let wanted = (2u32 << rest) - 1;
            return equal & wanted == wanted;
        }
        if equal != 0xffff {
            return false;
        }
        at += BLOCK;
    }
}

/// # Safety
/// `text` points to a string that ends with a 0.
unsafe fn bytes_are(text: *const u8, stored: &[AtomicU64], length: usize) -> bool {
    // SAFETY: passed on from the caller (invariant 13).
    unsafe { bytes_are_from(text, stored, length, 0) }
}

/// # Safety
/// As [`bytes_are`]; the string has no end before `from`.
unsafe fn bytes_are_from(text: *const u8, stored: &[AtomicU64], length: usize, from: usize) -> bool {
    for at in from..=length {
        let Some(word) = stored.get(at / 8) else { return false };
        let byte = (word.load(Relaxed) >> (at % 8 * 8)) as u8;
        // SAFETY: no byte before this one was the string's end, for all equalled a text without a 0 (invariant 16).
        if unsafe { text.wrapping_add(at).read() } != byte {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn table(text: &[u8]) -> Vec<AtomicU64> {
        let mut bytes = text.to_vec();
        bytes.resize(text.len() / 8 * 8 + 8 + 16, 0);
        let words = bytes.chunks(8).map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap()));
        std::iter::once(text.len() as u64).chain(words).map(AtomicU64::new).collect()
    }

    proptest! {
        #[test]
        fn strings_compare_correctly_at_any_length_and_page_offset(text in "[ab]{0,40}", other in "[ab]{0,40}", gap in 0usize..64) {
            let table = table(text.as_bytes());
            // A page to find, and room before and after its end.
            let mut place = vec![b'x'; 3 * 4096];
            for (given, expected) in [(&text, true), (&other, text == other)] {
                // Around the end of a page too.
                let page = place.as_ptr().align_offset(4096) + 4096 - gap;
                place[page..page + given.len()].copy_from_slice(given.as_bytes());
                place[page + given.len()] = 0;
                for wide in [false, true] {
                    // SAFETY: a string with a 0 after it, in a buffer that goes on past the page.
                    prop_assert_eq!(unsafe { equals_interned(place[page..].as_ptr(), &table, 0, wide) }, expected);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn length_stops_at_the_terminator_or_beyond_the_bound(length in 0usize..80, gap in 0usize..64, most in 0usize..80) {
            let mut place = vec![b'x'; 3 * 4096];
            let start = place.as_ptr().align_offset(4096) + 4096 - gap;
            place[start + length] = 0;
            for wide in [false, true] {
                // SAFETY: a string with a 0 after it, in a buffer that goes on past the page.
                let found = unsafe { super::length(place[start..].as_ptr(), most, wide) };
                prop_assert!(found == length || found >= most && found < length);
            }
        }
    }

    #[test]
    fn a_string_at_the_end_of_readable_memory_is_not_read_past() {
        use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
        // SAFETY: a new mapping at a place of the kernel's choice.
        let start = unsafe {
            mmap_anonymous(std::ptr::null_mut(), 8192, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        }
        .expect("two pages");
        let second = start.wrapping_byte_add(4096);
        // SAFETY: the second of the two pages, to which nothing refers.
        unsafe { mprotect(second, 4096, MprotectFlags::empty()) }.expect("the second page can be protected");
        for length in 0..40usize {
            let text = vec![b'q'; length];
            let table = table(&text);
            let place = start.cast::<u8>().wrapping_add(4096 - length - 1);
            // SAFETY: the last bytes of the first page; the string and its 0 fit there.
            unsafe { place.copy_from_nonoverlapping(text.as_ptr(), length) };
            // SAFETY: the last byte of the first page.
            unsafe { place.wrapping_add(length).write(0) };
            // SAFETY: a string that ends with the page.
            assert!(unsafe { equals_interned(place, &table, 0, true) });
            // SAFETY: as above.
            assert_eq!(unsafe { super::length(place, 4096, true) }, length);
        }
    }
}
