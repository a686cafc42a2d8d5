//! Decides whether a small commit should wait for more spans.
//!
//! A commit costs nearly the same for one span as for a thousand. Senders that go on without waiting for an answer, as
//! `blkin-consumerd` does, fill a commit that waits for a moment; with a few hundred messages a second that saves a
//! quarter of all CPU time. A sender that waits for each answer sends nothing more, and would be delayed for nothing. The
//! collector finds out by waiting now and then, and seeing whether anything comes.

use std::time::Duration;

/// The longest such delay of an answer: as long as consumerd's messages wait for each other.
pub(super) const LONGEST: Duration = Duration::from_millis(5);
/// Once so many bytes wait, they are committed without waiting for more.
pub(super) const ENOUGH_BYTES: usize = 64 << 10;
/// The most commits between two tries, as a power of two.
const MOST_DOUBLINGS: u32 = 6;

/// What the tries so far have shown.
#[derive(Debug, Default)]
pub(super) struct CommitDelay {
    /// How many tries in a row brought nothing.
    in_vain: u32,
    /// Commits until the next try.
    pause: u32,
}

impl CommitDelay {
    /// Whether to wait before this commit.
    pub(super) fn is_due(&mut self) -> bool {
        let is_due = self.pause == 0;
        self.pause = self.pause.saturating_sub(1);
        is_due
    }

    /// Learns whether anything came during the wait.
    pub(super) fn learn(&mut self, something_came: bool) {
        self.in_vain = if something_came { 0 } else { (self.in_vain + 1).min(MOST_DOUBLINGS) };
        self.pause = (1 << self.in_vain) - 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tries(delay: &mut CommitDelay, commits: usize, something_comes: bool) -> usize {
        let mut tries = 0;
        for _ in 0..commits {
            if delay.is_due() {
                tries += 1;
                delay.learn(something_comes);
            }
        }
        tries
    }

    #[test]
    fn waiting_that_does_not_pay_is_tried_ever_less_often() {
        let mut delay = CommitDelay::default();
        assert_eq!(tries(&mut delay, 100, true), 100);
        assert_eq!(tries(&mut delay, 127, false), 7);
        assert_eq!(tries(&mut delay, 6400, false), 100);
        // Once waiting pays again, it is done each time.
        tries(&mut delay, 64, true);
        assert_eq!(tries(&mut delay, 100, true), 100);
    }
}
