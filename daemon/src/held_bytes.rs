//! Limits the bytes that are held at the same time: by messages that wait for the disk, for example.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the bytes that are held. Clones share the count.
#[derive(Debug, Clone, Default)]
pub struct HeldBytes(Arc<AtomicU64>);

/// Bytes that are counted until this is dropped.
#[derive(Debug)]
#[must_use = "the bytes are counted only as long as this exists"]
pub struct Held {
    bytes: u64,
    all: HeldBytes,
}

impl HeldBytes {
    /// Counts so many bytes more, if the total stays within `most` or if nothing else is held. Refused bytes are not counted, not
    /// even for a moment: if they were, a small message would be refused because a large one is being refused at the same time.
    pub fn hold(&self, bytes: u64, most: u64) -> Option<Held> {
        let with_these = |held: u64| {
            let total = held.saturating_add(bytes);
            (held == 0 || total <= most).then_some(total)
        };
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, with_these).ok()?;
        Some(Held { bytes, all: self.clone() })
    }

    /// How many bytes are held now.
    pub fn now(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.0.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;

    #[test]
    fn bytes_are_counted_until_they_are_dropped() {
        let held = HeldBytes::default();
        let (first, second) = (held.hold(60, 100).unwrap(), held.hold(40, 100).unwrap());
        assert!(held.hold(1, 100).is_none());
        assert_eq!(held.now(), 100);
        drop(first);
        assert_eq!(held.now(), 40);
        drop(second);
        assert_eq!(held.now(), 0);
    }

    #[test]
    fn more_than_the_limit_is_held_if_nothing_else_is() {
        let held = HeldBytes::default();
        let huge = held.hold(u64::MAX, 100).unwrap();
        assert!(held.hold(1, u64::MAX - 1).is_none());
        drop(huge);
        assert_eq!(held.now(), 0);
    }

    #[test]
    fn a_small_message_is_accepted_while_large_ones_are_refused() {
        let (held, done) = (HeldBytes::default(), AtomicBool::new(false));
        let _waiting = held.hold(10, 100).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    assert!(held.hold(100, 100).is_none());
                }
            });
            let accepted = (0..100_000).filter(|_| held.hold(10, 100).is_some()).count();
            done.store(true, Ordering::Relaxed);
            assert_eq!(accepted, 100_000);
        });
    }
}
