//! Released programs of which a second offer may still wait to be read.
//!
//! A program offers itself once more as it ends, since it cannot know whether it is read. If that offer were taken for a
//! new program after the release, it would count as a program whose records another daemon has read. Reading all offers
//! before each release would keep the quotas full while ever more programs come. So a released program is remembered
//! until every connection that had come by then has been handled.

use std::collections::{HashSet, VecDeque};

use super::held::Identity;
use super::offers::MOST_UNHANDLED;

/// The released programs that are remembered.
#[derive(Debug, Default)]
pub(super) struct ReleasedPrograms {
    /// How many connections had been handled when each program was released, and its segment; oldest first.
    since: VecDeque<(u64, Identity)>,
    known: HashSet<Identity>,
}

impl ReleasedPrograms {
    /// Notes that a program was released when so many connections had been `handled`.
    pub(super) fn add(&mut self, segment: Identity, handled: u64) {
        if self.known.insert(segment) {
            self.since.push_back((handled, segment));
        }
    }

    /// Whether the program of this segment was released, so that an offer of it is an old one.
    pub(super) fn has(&self, segment: &Identity) -> bool {
        self.known.contains(segment)
    }

    /// Forgets the programs whose offers must have been among the connections `handled` by now; all programs if no connection
    /// waits.
    pub(super) fn forget(&mut self, handled: u64, is_anyone_waiting: bool) {
        let is_over = |since: u64| !is_anyone_waiting || handled.saturating_sub(since) >= MOST_UNHANDLED;
        while let Some((_, segment)) = self.since.pop_front_if(|(since, _)| is_over(*since)) {
            self.known.remove(&segment);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_released_program_is_known_until_prior_offers_are_handled() {
        let mut released = ReleasedPrograms::default();
        released.add((1, 7), 10);
        released.add((1, 8), 20);
        released.forget(10 + MOST_UNHANDLED - 1, true);
        assert!(released.has(&(1, 7)) && released.has(&(1, 8)) && !released.has(&(2, 7)));
        released.forget(10 + MOST_UNHANDLED, true);
        assert!(!released.has(&(1, 7)) && released.has(&(1, 8)));
        released.forget(21, false);
        assert!(!released.has(&(1, 8)));
        assert!(released.since.is_empty() && released.known.is_empty());
    }
}
