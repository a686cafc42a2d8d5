//! Limits how often the log repeats the same message, so that nobody can fill the disk by causing it.

use std::time::{Duration, Instant};

/// Pause between two lines with the same message.
const PAUSE: Duration = Duration::from_secs(1);

/// An event that may happen very often: the first is logged at once, later ones at most once per pause, with the count of those
/// held back.
#[derive(Debug, Default)]
pub struct Notices {
    last: Option<Instant>,
    held_back: u64,
}

impl Notices {
    /// Notes an event. If it may be logged, returns how many events were held back since the last line.
    pub fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.is_soon(now) {
            self.held_back += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.held_back))
    }

    /// How many events were held back, once they may be logged. Called from time to time, so that the last events of a flood are
    /// reported too.
    pub fn rest(&mut self, now: Instant) -> Option<u64> {
        if self.held_back == 0 || self.is_soon(now) {
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.held_back))
    }

    /// How many events were held back, for a last line at the end.
    pub fn last(&mut self) -> Option<u64> {
        let held_back = std::mem::take(&mut self.held_back);
        (held_back > 0).then_some(held_back)
    }

    fn is_soon(&self, now: Instant) -> bool {
        self.last.is_some_and(|last| now.duration_since(last) < PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_notice_is_logged_at_once_and_a_flood_once_a_second() {
        let mut notices = Notices::default();
        let begin = Instant::now();
        assert_eq!(notices.admit(begin), Some(0));
        for ms in 1..1000 {
            assert_eq!(notices.admit(begin + Duration::from_millis(ms)), None);
        }
        assert_eq!(notices.admit(begin + PAUSE), Some(999));
        assert_eq!(notices.admit(begin + PAUSE * 5), Some(0));
    }

    #[test]
    fn end_of_a_flood_is_counted_even_if_nothing_follows() {
        let mut notices = Notices::default();
        let begin = Instant::now();
        assert_eq!(notices.rest(begin), None);
        assert_eq!((0..300).filter_map(|_| notices.admit(begin)).count(), 1);
        assert_eq!(notices.rest(begin + PAUSE / 2), None);
        assert_eq!(notices.rest(begin + PAUSE), Some(299));
        assert_eq!(notices.rest(begin + PAUSE * 2), None);
        assert_eq!((0..3).filter_map(|_| notices.admit(begin + PAUSE)).count(), 0);
        assert_eq!((notices.last(), notices.last()), (Some(3), None));
    }
}
