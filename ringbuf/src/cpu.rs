//! On which CPU the calling thread runs, for processes whose C library has registered no rseq areas.
//!
//! Only a hint: the thread may be elsewhere by the time that anybody uses the answer.

/// The CPU's number; by an instruction if `by_instruction`, which only [`has_instruction`] may allow.
#[inline(always)]
pub(crate) fn current(by_instruction: bool) -> usize {
    if by_instruction { processor::current() } else { system() }
}

/// Whether the processor itself tells what the system would: `rdpid` (Ice Lake, Zen 2 and later), at a quarter of the cost.
/// Makes no system call that [`current`] would not make.
pub(crate) fn has_instruction() -> bool {
    // Asked again because the thread may be migrated between the two readings.
    processor::has_instruction() && (0..3).any(|_| processor::current() == system())
}

/// As the system says.
fn system() -> usize {
    // SAFETY: no preconditions; libc serves it from the vDSO, or by a system call that never fails here (invariant 14).
    unsafe { libc::sched_getcpu() }.max(0) as usize
}

#[cfg(all(target_arch = "x86_64", not(blkin_portable)))]
mod processor {
    use std::arch::x86_64::__cpuid_count;

    const FEATURES_LEAF: u32 = 7;
    const RDPID: u32 = 1 << 22;
    /// Linux keeps the CPU's number in these bits of what the instruction reads, and the node's number above them
    /// (`VDSO_CPUNODE_MASK`).
    const CPU: usize = 0xfff;

    pub(super) fn has_instruction() -> bool {
        __cpuid_count(0, 0).eax >= FEATURES_LEAF && __cpuid_count(FEATURES_LEAF, 0).ecx & RDPID != 0
    }

    #[inline(always)]
    pub(super) fn current() -> usize {
        let read: usize;
        // SAFETY: `has_instruction`; it reads a register that every program may (invariant 14).
        unsafe { std::arch::asm!("rdpid {}", out(reg) read, options(nomem, nostack, preserves_flags)) };
        read & CPU
    }
}

#[cfg(not(all(target_arch = "x86_64", not(blkin_portable))))]
mod processor {
    pub(super) fn has_instruction() -> bool {
        false
    }

    pub(super) fn current() -> usize {
        0
    }
}
