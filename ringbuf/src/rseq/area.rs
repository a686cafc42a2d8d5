//! A thread's rseq area: where it lies, and which slot it names.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::hot::Hot;

/// Where a thread finds its rseq area, and the index of its slot in it: offsets from the thread pointer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Area {
    pub(crate) offset: i32,
    pub(crate) index_offset: i32,
}

impl Area {
    /// Whether slots are chosen by CPU: kernels before 6.3 give threads no concurrency ids.
    pub(crate) fn is_by_cpu(self) -> bool {
        self.index_offset == self.offset + CPU_AT
    }
}

const AT_RSEQ_FEATURE_SIZE: libc::c_ulong = 27;
pub(super) const CPU_AT: i32 = 4;
const MM_CID_AT: i32 = 24;
const WITH_MM_CID: libc::c_ulong = 28;

/// The area that libc has registered; `None` without one. May change errno.
pub(crate) fn area() -> Option<Area> {
    let (offset, size): (*const isize, *const u32);
    // SAFETY: loads two addresses from the global offset table, which has an entry for each symbol named here. An entry is 0 where
    // libc lacks the symbol (glibc before 2.35, musl): the references are weak in whatever object this ends up in (invariant 14).
    unsafe {
        std::arch::asm!(
            ".weak __rseq_offset",
            ".weak __rseq_size",
            "mov {offset}, qword ptr [rip + __rseq_offset@GOTPCREL]",
            "mov {size}, qword ptr [rip + __rseq_size@GOTPCREL]",
            offset = out(reg) offset, size = out(reg) size, options(pure, readonly, nostack, preserves_flags)
        );
    }
    if offset.is_null() || size.is_null() {
        return None;
    }
    // SAFETY: a constant of libc, set before any code of the program runs (invariant 15).
    let size = unsafe { size.read() };
    if size == 0 {
        return None;
    }
    // SAFETY: as above (invariant 15).
    let offset = unsafe { offset.read() };
    // SAFETY: no preconditions (invariant 14).
    let features = unsafe { libc::getauxval(AT_RSEQ_FEATURE_SIZE) };
    let index_at = if features >= WITH_MM_CID { MM_CID_AT } else { CPU_AT };
    let offset = i32::try_from(offset).ok()?;
    Some(Area { offset, index_offset: offset.checked_add(index_at)? })
}

/// The index of the calling thread's slot at this moment; `None` if the thread is not registered, or there are no areas.
#[inline(always)]
pub(crate) fn index(hot: &Hot) -> Option<usize> {
    let offset = hot.rseq_offset.load(Relaxed);
    if offset == 0 {
        return None;
    }
    // SAFETY: the area lies at that offset from the thread pointer in every thread (see `area`) (invariant 15).
    let (cpu, index) = unsafe { cpu_and_index(offset as isize, hot.index_offset.load(Relaxed) as isize) };
    (cpu >= 0).then_some(index as usize)
}

/// The CPU in the area at `offset`, and the word at `index_offset`.
///
/// # Safety
/// Both are offsets from the thread pointer of words that may be read.
#[inline(always)]
unsafe fn cpu_and_index(offset: isize, index_offset: isize) -> (i32, u32) {
    let (cpu, index): (i32, u32);
    // SAFETY: passed on from the caller; both words are only read (invariant 13).
    unsafe {
        std::arch::asm!(
            "mov {cpu:e}, dword ptr fs:[{offset} + {cpu_at}]",
            "mov {index:e}, dword ptr fs:[{index_offset}]",
            offset = in(reg) offset, index_offset = in(reg) index_offset, cpu_at = const CPU_AT,
            // Written while `index_offset` is still needed, so it must not share an input's register.
            cpu = out(reg) cpu, index = lateout(reg) index,
            options(readonly, nostack, preserves_flags)
        );
    }
    (cpu, index)
}

/// Adds to a word of the calling thread's slot and returns the word's previous value: one instruction, which nothing on this CPU
/// can split. If the thread has just been migrated, this may undo an addition made on the other CPU; nothing worse can happen.
#[inline(always)]
pub(crate) fn add(word: &AtomicU64, number: u64) -> u64 {
    let mut was = number;
    // SAFETY: adds to an aligned word that is only ever seen as atomic (invariant 3).
    unsafe {
        std::arch::asm!(
            "xadd qword ptr [{word}], {was}",
            word = in(reg) word.as_ptr(), was = inout(reg) was, options(nostack)
        );
    }
    was
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::hint::black_box;

    use super::*;

    thread_local! {
        // Laid out as an area begins: a word, the CPU, and then the index.
        static WORDS: Cell<[u32; 3]> = const { Cell::new([1, 2, 3]) };
    }

    #[test]
    fn reading_the_cpu_does_not_clobber_the_index_register() {
        let thread_pointer: usize;
        // SAFETY: the first word of a thread's block is its own address.
        unsafe {
            std::arch::asm!("mov {}, fs:[0]", out(reg) thread_pointer, options(pure, readonly, nostack));
        }
        let at = WORDS.with(|words| words.as_ptr().addr()).wrapping_sub(thread_pointer) as isize;
        let (offset, index_offset) = (black_box(at), black_box(at + 8));
        // SAFETY: both are words of this thread.
        let read = unsafe { cpu_and_index(offset, index_offset) };
        // `offset` is used once more, so that only the register of `index_offset` could be given out twice.
        assert_eq!((read, black_box(offset)), ((2, 3), at));
    }
}
