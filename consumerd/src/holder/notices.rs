//! How often the log says the same: whoever causes it must not fill the disk with it.

use std::time::{Duration, Instant};

/// Pause between two lines.
const PAUSE: Duration = Duration::from_secs(1);

/// What happens again and again: the first time is said at once, the next ones with a pause and the count of those between.
#[derive(Debug, Default)]
pub(super) struct Notices {
    last: Option<Instant>,
    held_back: u64,
}

impl Notices {
    /// Whether a line may be written of what happens now, and how often it happened unsaid since the last one.
    pub(super) fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.duration_since(last) < PAUSE) {
            self.held_back += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.held_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_said_at_once_and_a_flood_once_a_second_with_its_count() {
        let mut notices = Notices::default();
        let begin = Instant::now();
        assert_eq!(notices.admit(begin), Some(0));
        for ms in 1..1000 {
            assert_eq!(notices.admit(begin + Duration::from_millis(ms)), None);
        }
        assert_eq!(notices.admit(begin + PAUSE), Some(999));
        assert_eq!(notices.admit(begin + PAUSE * 5), Some(0));
    }
}
