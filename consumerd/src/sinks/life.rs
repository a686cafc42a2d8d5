//! Whether a sink's thread gets on. Whoever watches it must not wake it to see that: it says itself when it begins to wait
//! where it should, and else, from time to time, that it has come further.

use std::sync::atomic::{AtomicU64, Ordering};

/// Of one thread, watched by one other.
#[derive(Debug, Default)]
pub struct Life {
    /// Even while the thread waits where it should, such as for something to do; odd while it works. Another number with
    /// each word of the thread's.
    steps: AtomicU64,
    /// The last number that was looked at.
    seen: AtomicU64,
}

impl Life {
    /// It waits for nothing that could hold it up for good.
    pub fn rests(&self) {
        let now = self.steps.load(Ordering::Relaxed);
        self.steps.store((now | 1) + 1, Ordering::Release);
    }

    /// It works, and has come further.
    pub fn works(&self) {
        let now = self.steps.load(Ordering::Relaxed);
        self.steps.store((now + 1) | 1, Ordering::Release);
    }

    /// Whether it rests, or has come further since the last look.
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
    fn who_works_gets_on_only_by_coming_further_and_who_rests_always_does() {
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
