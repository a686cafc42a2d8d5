//! Programs that were let go while an offer of theirs may still wait to be taken.
//!
//! A program offers itself once more as it ends, since it cannot know whether it is read. Taken for a new one after it
//! was let go, it would count as a program all of whose records somebody else has read. To take all offers before any
//! program is let go would keep the quotas full while ever more programs come. So who was let go is known until
//! everything that had come by then was dealt with.

use std::collections::{HashSet, VecDeque};

use super::held::Identity;
use super::offers::MOST_UNDEALT;

/// They, and how many connections had been dealt with when each was let go.
#[derive(Debug, Default)]
pub(super) struct Gone {
    since: VecDeque<(u64, Identity)>,
    known: HashSet<Identity>,
}

impl Gone {
    /// Was let go when so many connections had been dealt with.
    pub(super) fn add(&mut self, segment: Identity, dealt: u64) {
        if self.known.insert(segment) {
            self.since.push_back((dealt, segment));
        }
    }

    /// Whether an offer of this segment is one that came before its program was let go.
    pub(super) fn has(&self, segment: &Identity) -> bool {
        self.known.contains(segment)
    }

    /// Forgets those whose offers must have been among the connections that were dealt with; all, if none waits.
    pub(super) fn forget(&mut self, dealt: u64, is_anyone_waiting: bool) {
        let is_over = |since: u64| !is_anyone_waiting || dealt.saturating_sub(since) >= MOST_UNDEALT;
        while let Some((_, segment)) = self.since.pop_front_if(|(since, _)| is_over(*since)) {
            self.known.remove(&segment);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_let_go_is_known_until_all_that_had_come_by_then_was_dealt_with() {
        let mut gone = Gone::default();
        gone.add((1, 7), 10);
        gone.add((1, 8), 20);
        gone.forget(10 + MOST_UNDEALT - 1, true);
        assert!(gone.has(&(1, 7)) && gone.has(&(1, 8)) && !gone.has(&(2, 7)));
        gone.forget(10 + MOST_UNDEALT, true);
        assert!(!gone.has(&(1, 7)) && gone.has(&(1, 8)));
        gone.forget(21, false);
        assert!(!gone.has(&(1, 8)));
        assert!(gone.since.is_empty() && gone.known.is_empty());
    }
}
