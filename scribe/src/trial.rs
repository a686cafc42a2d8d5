//! Sends entries one by one after calls with several entries failed, to find the entry that the upstream does not accept.
//!
//! An upstream may refuse an entry by an exception, or break the connection: it crashes over the entry, or never answers. A
//! broken connection alone proves nothing: an upstream that is down behind a proxy that accepts every connection looks the same.
//! An exception for an internal error proves nothing either, and is treated like a broken connection. So when the connection
//! breaks on the first entry, the suspect, the next entry sent is another one, a witness. If the witness is answered, the
//! upstream works apart from the suspect. After [`TIMES`] such rounds in a row the suspect is given up, so that the entries
//! behind it get through.
//!
//! - An entry is given up only if the connection broke on it every time it was sent, [`TIMES`] times in a row, and another entry
//!   was answered right after each time.
//! - The suspect is sent by turns on a new connection, as its witness was, and on the connection of its witness. An upstream, or
//!   a proxy in between, that closes each connection after the first answer thus still gets everything; so does one that leads
//!   every second connection to a server that is down.
//! - If the connection breaks on the witness too, the upstream counts as down, and the count starts again from 0. The next
//!   witness is an entry farther behind, since several bad entries may lie together.
//! - Attempts that reach nobody, and `TRY_LATER`, prove nothing.

use std::collections::VecDeque;

/// How many times in a row the connection breaks on an entry before the entry is given up. With an upstream that breaks half of
/// all calls, whatever they carry, fewer than one in a thousand of the tried entries are lost.
pub const TIMES: u32 = 6;
/// Witnesses that take turns at first. When the connection has broken on each of them, their number doubles.
const WITNESSES: usize = 8;
/// The most witnesses that take turns.
const MOST_WITNESSES: usize = 256;

/// The entries that have no answer yet, in their order.
#[derive(Debug)]
pub struct Trial<E> {
    entries: VecDeque<E>,
    /// How many times in a row the connection broke on the first entry, and not on the witness after it.
    times: u32,
    /// Whether the connection broke on the first entry when that was last sent.
    wants_witness: bool,
    /// Which witness is next.
    turn: usize,
    /// How many witnesses take turns.
    witnesses: usize,
}

impl<E> Default for Trial<E> {
    fn default() -> Self {
        Trial { entries: VecDeque::new(), times: 0, wants_witness: false, turn: 0, witnesses: WITNESSES }
    }
}

impl<E> Trial<E> {
    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds an entry behind the others.
    pub fn push(&mut self, entry: E) {
        if self.entries.is_empty() {
            (self.turn, self.witnesses) = (0, WITNESSES);
        }
        self.entries.push_back(entry);
    }

    /// Whether more entries are wanted as witnesses, if there are any.
    pub fn wants_more(&self) -> bool {
        self.wants_witness && self.entries.len() <= self.witnesses
    }

    /// Whether the next entry needs a new connection: the suspect does, every second time after a witness was answered.
    pub fn wants_connection(&self) -> bool {
        self.times % 2 == 1 && !self.wants_witness
    }

    /// The entry to send next. If there is no witness, that is the first entry again.
    pub fn next(&self) -> Option<&E> {
        self.entries.get(self.index())
    }

    fn index(&self) -> usize {
        let witnesses = self.entries.len().saturating_sub(1).min(self.witnesses);
        if self.wants_witness && witnesses > 0 { 1 + self.turn % witnesses } else { 0 }
    }

    /// Notes that the entry that was sent has its answer. Returns that entry, and the entry that is given up now, if any.
    pub fn answered(&mut self) -> (Option<E>, Option<E>) {
        let index = self.index();
        let answered = self.entries.remove(index);
        if index == 0 {
            self.begin_anew();
            return (answered, None);
        }
        self.times += 1;
        self.wants_witness = false;
        if self.times < TIMES {
            return (answered, None);
        }
        self.begin_anew();
        (answered, self.entries.pop_front())
    }

    /// Notes that the connection broke on the entry that was sent.
    pub fn broke(&mut self) {
        if self.index() == 0 {
            self.wants_witness = true;
        } else {
            self.wants_witness = false;
            self.times = 0;
            self.next_turn();
        }
    }

    fn next_turn(&mut self) {
        self.turn += 1;
        if self.turn == MOST_WITNESSES {
            self.turn = 0;
        } else if self.turn == self.witnesses {
            self.witnesses *= 2;
        }
    }

    /// Removes the entries that are no longer wanted.
    pub fn retain(&mut self, mut is_wanted: impl FnMut(&E) -> bool) {
        let is_first_wanted = self.entries.front().is_none_or(&mut is_wanted);
        self.entries.retain(is_wanted);
        if !is_first_wanted {
            self.begin_anew();
        }
    }

    fn begin_anew(&mut self) {
        self.times = 0;
        self.wants_witness = false;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Tries entries, in at most `calls` calls, with an upstream that breaks a call if `breaks` says so. Returns the entries that
    /// were answered and those that were given up.
    fn run(entries: u32, calls: usize, mut breaks: impl FnMut(u32) -> bool) -> (Vec<u32>, Vec<u32>) {
        let (mut source, mut trial) = (0..entries, Trial::default());
        let (mut all, mut given_up) = (Vec::new(), Vec::new());
        for _ in 0..calls {
            if trial.is_empty() || trial.wants_more() {
                source.next().into_iter().for_each(|entry| trial.push(entry));
            }
            let Some(entry) = trial.next().copied() else { break };
            if breaks(entry) {
                trial.broke();
                continue;
            }
            let (answered, lost) = trial.answered();
            assert_eq!(answered, Some(entry));
            all.push(entry);
            given_up.extend(lost);
        }
        (all, given_up)
    }

    #[test]
    fn single_breaking_entry_is_given_up_and_others_answered() {
        let mut called = 0;
        let (mut answered, given_up) = run(20, 100, |entry| {
            called += u32::from(entry == 3);
            entry == 3
        });
        answered.sort_unstable();
        assert_eq!(answered, Vec::from_iter((0..20).filter(|entry| *entry != 3)));
        assert_eq!((given_up, called), (vec![3], TIMES));
    }

    #[test]
    fn adjacent_bad_entries_are_distinguished_from_a_down_upstream() {
        let most = MOST_WITNESSES as u32;
        for together in [7, WITNESSES as u32 + 1, 100, most] {
            let (answered, given_up) = run(3000, 20_000, |entry| (3..3 + together).contains(&entry));
            assert_eq!((answered.len() as u32, given_up), (3000 - together, Vec::from_iter(3..3 + together)));
        }
        let (answered, given_up) = run(3000, 20_000, |entry| (3..=3 + most).contains(&entry));
        assert_eq!((answered.len(), given_up), (3, vec![]), "no witness shows that the upstream is up");
    }

    #[test]
    fn nothing_is_given_up_while_the_upstream_is_down() {
        let (answered, given_up) = run(1000, 100_000, |_| true);
        assert_eq!((answered, given_up), (vec![], vec![]));
        let mut calls = 0;
        let (answered, given_up) = run(40, 1000, |_| {
            calls += 1;
            calls < 100
        });
        assert_eq!((answered.len(), given_up), (40, vec![]));
    }

    #[test]
    fn breaking_half_of_all_calls_loses_under_one_in_a_thousand() {
        let mut state = 1u64;
        let (answered, given_up) = run(300_000, 2_000_000, |_| {
            // Knuth's linear congruential generator (MMIX); its top bit.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 63 == 0
        });
        let all = answered.len() + given_up.len();
        println!("{} of {all} were given up", given_up.len());
        assert!(all > 290_000 && given_up.len() * 1000 < all);
    }

    #[test]
    fn entry_without_a_witness_is_never_given_up() {
        assert_eq!(run(1, 1000, |_| true), (vec![], vec![]));
        // All others were answered before it was sent for the last time.
        assert_eq!(run(TIMES, 1000, |entry| entry == 0), (Vec::from_iter(1..TIMES), vec![]));
    }

    #[test]
    fn number_of_witnesses_is_bounded_and_resets() {
        let mut trial = Trial::default();
        assert!(trial.is_empty());
        trial.push(0);
        assert!(!trial.is_empty() && !trial.wants_more());
        for entry in 1..10 * MOST_WITNESSES {
            trial.broke();
            if trial.wants_more() {
                trial.push(entry);
            }
        }
        assert_eq!(trial.entries.len(), 1 + MOST_WITNESSES);
        while !trial.is_empty() {
            trial.answered();
        }
        (0..=WITNESSES).for_each(|entry| trial.push(entry));
        trial.broke();
        assert!(!trial.wants_more());
    }

    /// Twenty entries. The first one is given up after one more broken connection, if its witness is answered.
    fn suspected() -> Trial<u32> {
        let mut trial = Trial::default();
        (0..20).for_each(|entry| trial.push(entry));
        for _ in 1..TIMES {
            trial.broke();
            assert_eq!(trial.answered().1, None);
        }
        trial
    }

    #[test]
    fn failure_count_is_reset_when_the_suspect_is_removed() {
        let mut trial = suspected();
        trial.broke();
        trial.retain(|entry| *entry != 0);
        assert_eq!(trial.next(), Some(&TIMES), "the first remaining entry is not next");
        trial.broke();
        assert_eq!(trial.answered(), (Some(TIMES + 1), None), "the new suspect has broken only once");
    }

    #[test]
    fn failure_count_is_kept_when_another_entry_is_removed() {
        let mut trial = suspected();
        trial.retain(|entry| *entry != 19);
        trial.broke();
        assert_eq!(trial.answered().1, Some(0));
    }

    #[test]
    fn failure_count_is_reset_when_the_witness_fails_too() {
        let mut trial = suspected();
        trial.broke();
        trial.broke();
        assert_eq!(trial.next(), Some(&0));
        trial.broke();
        assert_eq!(trial.answered().1, None);
    }

    #[test]
    fn suspect_alternates_between_new_and_witness_connections() {
        let mut trial = Trial::default();
        (0..20).for_each(|entry| trial.push(entry));
        assert!(!trial.wants_connection(), "there is no suspect yet");
        for times in 1..TIMES {
            trial.broke();
            assert!(!trial.wants_connection(), "a witness needs no new connection");
            trial.answered();
            assert_eq!(trial.wants_connection(), times % 2 == 1);
        }
    }

    proptest! {
        /// Whichever calls break: each entry is answered or given up exactly once, if calls are answered in the end; and an entry
        /// is given up only after the connection broke on it [`TIMES`] times in a row, and not on its witnesses.
        #[test]
        fn every_entry_is_decided_once(breaks in proptest::collection::vec(any::<bool>(), 0..200)) {
            let mut breaks = breaks.into_iter();
            let mut broken = std::collections::BTreeMap::<u32, u32>::new();
            let (answered, given_up) = run(30, 1000, |entry| {
                let is_broken = breaks.next().unwrap_or(false);
                *broken.entry(entry).or_default() += u32::from(is_broken);
                is_broken
            });
            let mut all = [&answered[..], &given_up].concat();
            all.sort_unstable();
            prop_assert_eq!(all, Vec::from_iter(0..30));
            for entry in given_up {
                prop_assert!(broken[&entry] >= TIMES);
            }
        }
    }
}
