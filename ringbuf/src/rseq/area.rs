//! A thread's rseq area: where it lies, and which slot it names.

use std::arch::global_asm;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::hot::Hot;

// The address of each, or 0 where libc does not have it (before 2.35, or another libc).
global_asm!(".weak __rseq_offset", ".weak __rseq_size");

/// Where a thread finds its rseq area, and in it the index of its slot: distances from the thread pointer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Area {
    pub(crate) offset: i32,
    pub(crate) index_offset: i32,
}

const AT_RSEQ_FEATURE_SIZE: libc::c_ulong = 27;
pub(super) const CPU_AT: i32 = 4;
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
