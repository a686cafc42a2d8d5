//! One door to shared words, so that the protocols run unchanged on mapped memory, on the heap and under loom.

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

    #[inline(always)]
    fn fence(&self, order: Ordering) {
        fence(order);
    }
}
