//! One door to shared words, so that the protocols run unchanged on mapped memory, on the heap and under loom.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Words that several threads or processes share (invariant 3).
pub trait Words {
    /// Atomic load.
    fn load(&self, index: usize, order: Ordering) -> u64;
    /// Atomic store.
    fn store(&self, index: usize, value: u64, order: Ordering);
    /// Atomic addition; returns the value before.
    fn fetch_add(&self, index: usize, value: u64, order: Ordering) -> u64;
    /// Atomic compare-and-swap that may fail spuriously; relaxed on failure.
    fn swap_if(&self, index: usize, current: u64, new: u64, success: Ordering) -> Result<u64, u64>;
    /// Stores a run of words, relaxed, in no given order.
    fn store_run<const COUNT: usize>(&self, start: usize, values: [u64; COUNT]) {
        for (index, value) in (start..).zip(values) {
            self.store(index, value, Ordering::Relaxed);
        }
    }
    /// Will soon be loaded. A hint, without any effect that a program could see.
    fn prefetch(&self, _index: usize) {}
    /// Will soon be stored. As [`Words::prefetch`].
    fn prefetch_to_store(&self, _index: usize) {}
    /// Orders the accesses before it and after it, as [`std::sync::atomic::fence`] does.
    fn fence(&self, order: Ordering);

    /// Appends a run of words to `out`, little-endian: each loaded once, relaxed, in no given order.
    fn copy(&self, run: Range<usize>, out: &mut Vec<u8>) {
        for index in run {
            out.extend_from_slice(&self.load(index, Ordering::Relaxed).to_le_bytes());
        }
    }
}

impl Words for [AtomicU64] {
    #[inline(always)]
    fn load(&self, index: usize, order: Ordering) -> u64 {
        self[index].load(order)
    }

    #[inline(always)]
    fn store(&self, index: usize, value: u64, order: Ordering) {
        self[index].store(value, order);
    }

    #[inline(always)]
    fn fetch_add(&self, index: usize, value: u64, order: Ordering) -> u64 {
        self[index].fetch_add(value, order)
    }

    #[inline(always)]
    fn swap_if(&self, index: usize, current: u64, new: u64, success: Ordering) -> Result<u64, u64> {
        self[index].compare_exchange_weak(current, new, success, Ordering::Relaxed)
    }

    /// One check of bounds for all of them.
    #[inline(always)]
    fn store_run<const COUNT: usize>(&self, start: usize, values: [u64; COUNT]) {
        for (word, value) in self[start..start + COUNT].iter().zip(values) {
            word.store(value, Ordering::Relaxed);
        }
    }

    #[inline(always)]
    fn prefetch(&self, index: usize) {
        hint::ask_to_load(self.as_ptr().wrapping_add(index));
    }

    #[inline(always)]
    fn prefetch_to_store(&self, index: usize) {
        hint::ask_to_store(self.as_ptr().wrapping_add(index));
    }

    #[inline(always)]
    fn fence(&self, order: Ordering) {
        fence(order);
    }

    /// One check of bounds for the whole run, so that it costs as many moves as it has words.
    #[inline]
    fn copy(&self, run: Range<usize>, out: &mut Vec<u8>) {
        let words = &self[run];
        let start = out.len();
        out.resize(start + size_of_val(words), 0);
        for (bytes, word) in out[start..].chunks_exact_mut(size_of::<u64>()).zip(words) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
    }
}

/// Hints to the processor's caches, where there are such.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod hint {
    use std::arch::asm;
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    use std::sync::atomic::AtomicU64;

    #[inline(always)]
    pub(super) fn ask_to_load(word: *const AtomicU64) {
        // SAFETY: asking for a line loads nothing and cannot fault, wherever it is.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(word.cast()) };
    }

    /// The instruction by its name: for a processor that might not know it (and then does nothing) the intrinsic asks for a
    /// line to load.
    #[inline(always)]
    pub(super) fn ask_to_store(word: *const AtomicU64) {
        // SAFETY: as above.
        unsafe { asm!("prefetchw [{}]", in(reg) word, options(nostack, preserves_flags, readonly)) };
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod hint {
    use std::sync::atomic::AtomicU64;

    pub(super) fn ask_to_load(_: *const AtomicU64) {}
    pub(super) fn ask_to_store(_: *const AtomicU64) {}
}
