//! One interface to shared words, so that the protocols run unchanged on mapped memory, on the heap and under loom.

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
    /// Loads a run of words: the first one in the given order, before the others, which are relaxed and in no given order.
    fn load_run<const COUNT: usize>(&self, start: usize, first: Ordering) -> [u64; COUNT] {
        let order = |index| if index == 0 { first } else { Ordering::Relaxed };
        std::array::from_fn(|index| self.load(start + index, order(index)))
    }
    /// Stores a run of words, relaxed, in no given order.
    fn store_run<const COUNT: usize>(&self, start: usize, values: [u64; COUNT]) {
        for (index, value) in (start..).zip(values) {
            self.store(index, value, Ordering::Relaxed);
        }
    }
    /// Hints that the word will soon be loaded. A program cannot observe any effect.
    fn prefetch(&self, _index: usize) {}
    /// Hints that the word will soon be stored. As [`Words::prefetch`].
    fn prefetch_to_store(&self, _index: usize) {}
    /// Orders the accesses before it and after it, as [`std::sync::atomic::fence`] does.
    fn fence(&self, order: Ordering);
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

    /// One bounds check for the whole run.
    #[inline(always)]
    fn load_run<const COUNT: usize>(&self, start: usize, first: Ordering) -> [u64; COUNT] {
        let words = &self[start..start + COUNT];
        let order = |index| if index == 0 { first } else { Ordering::Relaxed };
        std::array::from_fn(|index| words[index].load(order(index)))
    }

    /// As above.
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
}

/// Prefetch hints, where the processor has them.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod hint {
    use std::arch::asm;
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    use std::sync::atomic::AtomicU64;

    #[inline(always)]
    pub(super) fn ask_to_load(word: *const AtomicU64) {
        // SAFETY: asking for a line loads nothing and cannot fault, wherever it is (invariant 14).
        unsafe { _mm_prefetch::<_MM_HINT_T0>(word.cast()) };
    }

    /// The instruction by its name: if the target processor might lack it (and then does nothing), the intrinsic would emit a
    /// prefetch for loading instead.
    #[inline(always)]
    pub(super) fn ask_to_store(word: *const AtomicU64) {
        // SAFETY: as above (invariant 14).
        unsafe { asm!("prefetchw [{}]", in(reg) word, options(nostack, preserves_flags, readonly)) };
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod hint {
    use std::sync::atomic::AtomicU64;

    pub(super) fn ask_to_load(_: *const AtomicU64) {}
    pub(super) fn ask_to_store(_: *const AtomicU64) {}
}
