//! Whether it pays to wait for more before a small commit.
//!
//! A commit costs nearly the same for one span as for a thousand. Senders that go on without waiting for an answer, as
//! `blkin-consumerd` does, fill a commit that waits for a moment: with a few hundred messages a second that is a
//! quarter of all CPU. One that sends again only once it was answered never does: it would be held up for nothing. Which of them is
//! there is seen by whether anything comes, and tried again now and then.

use std::time::Duration;

/// Longest time by which an answer is put off for that: as long as consumerd's messages wait for each other.
pub(super) const LONGEST: Duration = Duration::from_millis(5);
/// Bytes that are worth a commit of their own.
pub(super) const ENOUGH_BYTES: usize = 64 << 10;
/// Most commits for which nothing is tried, as a power of two.
const MOST_DOUBLINGS: u32 = 6;

/// What trying has shown.
#[derive(Debug, Default)]
pub(super) struct Lull {
    /// How often in a row nothing came.
    in_vain: u32,
    /// Commits until the next try.
    pause: u32,
}

impl Lull {
    /// Whether to wait before this commit.
    pub(super) fn is_due(&mut self) -> bool {
        let is_due = self.pause == 0;
        self.pause = self.pause.saturating_sub(1);
        is_due
    }

    /// Learns whether anything came while it was waited.
    pub(super) fn learn(&mut self, something_came: bool) {
        self.in_vain = if something_came { 0 } else { (self.in_vain + 1).min(MOST_DOUBLINGS) };
        self.pause = (1 << self.in_vain) - 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tries(lull: &mut Lull, commits: usize, something_comes: bool) -> usize {
        let mut tries = 0;
        for _ in 0..commits {
            if lull.is_due() {
                tries += 1;
                lull.learn(something_comes);
            }
        }
        tries
    }

    #[test]
    fn what_pays_is_done_each_time_and_what_does_not_is_tried_ever_less_often() {
        let mut lull = Lull::default();
        assert_eq!(tries(&mut lull, 100, true), 100);
        assert_eq!(tries(&mut lull, 127, false), 7);
        assert_eq!(tries(&mut lull, 6400, false), 100);
        // And once it pays again it is done each time.
        tries(&mut lull, 64, true);
        assert_eq!(tries(&mut lull, 100, true), 100);
    }
}
