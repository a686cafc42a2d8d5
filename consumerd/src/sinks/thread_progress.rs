//! Whether a sink's thread makes progress. The watcher must not wake the thread to find out. So the thread itself notes when it
//! begins to wait where it should, and otherwise, from time to time, that it has made progress.

use std::sync::atomic::{AtomicU64, Ordering};

/// The progress of one thread, watched by one other.
#[derive(Debug, Default)]
pub struct ThreadProgress {
    /// Even while the thread waits where it should, such as for something to do; odd while it works. It changes with each
    /// note of the thread.
    steps: AtomicU64,
    /// The number that the watcher saw last.
    seen: AtomicU64,
}

impl ThreadProgress {
    /// The thread begins to wait where it should, which nothing can hold up for good.
    pub fn note_rest(&self) {
        let now = self.steps.load(Ordering::Relaxed);
        self.steps.store((now | 1) + 1, Ordering::Release);
    }

    /// The thread works, and has made progress.
    pub fn note_progress(&self) {
        let now = self.steps.load(Ordering::Relaxed);
        self.steps.store((now + 1) | 1, Ordering::Release);
    }

    /// Whether the thread rests, or has made progress since the last look.
    pub fn check_alive(&self) -> bool {
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
        let progress = ThreadProgress::default();
        assert!(progress.check_alive() && progress.check_alive());
        progress.note_progress();
        assert!(progress.check_alive() && !progress.check_alive() && !progress.check_alive());
        progress.note_progress();
        assert!(progress.check_alive() && !progress.check_alive());
        progress.note_rest();
        assert!(progress.check_alive() && progress.check_alive());
        progress.note_rest();
        progress.note_progress();
        progress.note_rest();
        progress.note_progress();
        assert!(progress.check_alive() && !progress.check_alive());
    }
}
