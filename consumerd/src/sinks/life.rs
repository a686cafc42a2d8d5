//! Whether a sink's thread makes progress. The watcher must not wake the thread to find out. So the thread itself notes when it
//! begins to wait where it should, and otherwise, from time to time, that it has made progress.

use std::sync::atomic::{AtomicU64, Ordering};

/// The progress of one thread, watched by one other.
#[derive(Debug, Default)]
pub struct Life {
    /// Even while the thread waits where it should, such as for something to do; odd while it works. It changes with each
    /// note of the thread.
    steps: AtomicU64,
    /// The number that the watcher saw last.
    seen: AtomicU64,
}

impl Life {
    /// The thread begins to wait where it should, which nothing can hold up for good.
    pub fn rests(&self) {
        let now = self.steps.load(Ordering::Relaxed);
        self.steps.store((now | 1) + 1, Ordering::Release);
    }

    /// The thread works, and has made progress.
    pub fn works(&self) {
        let now = self.steps.load(Ordering::Relaxed);
        self.steps.store((now + 1) | 1, Ordering::Release);
    }

    /// Whether the thread rests, or has made progress since the last look.
    pub fn gets_on(&self) -> bool {
        let now = self.steps.load(Ordering::Acquire);
        let seen = self.seen.swap(now, Ordering::Relaxed);
        now.is_multiple_of(2) || now != seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_working_thread_must_progress_and_a_resting_one_need_not() {
        let life = Life::default();
        assert!(life.gets_on() && life.gets_on());
        life.works();
        assert!(life.gets_on() && !life.gets_on() && !life.gets_on());
        life.works();
        assert!(life.gets_on() && !life.gets_on());
        life.rests();
        assert!(life.gets_on() && life.gets_on());
        life.rests();
        life.works();
        life.rests();
        life.works();
        assert!(life.gets_on() && !life.gets_on());
    }
}
