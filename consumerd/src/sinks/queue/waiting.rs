//! The waiting entries of a queue.
//!
//! While staging is full, the oldest entries are given up in each round. Most of them are at the front, but others can be
//! anywhere, because spans leave when they are closed, not in the order of their age. So this keeps track of the place behind
//! which there is no old entry; entries behind it are not visited.

use std::collections::VecDeque;

use super::Entry;

#[derive(Debug, Default)]
pub(super) struct Waiting {
    entries: VecDeque<Entry>,
    messages: usize,
    bytes: usize,
    /// Place of the first entry. An entry pushed to the front takes the place before it.
    first: i64,
    /// Places and first frames of the entries that are older than all entries behind them; both ascend.
    older: VecDeque<(i64, u64)>,
    /// How many entries were checked for their age.
    #[cfg(test)]
    pub(super) looks: usize,
}

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn messages(&self) -> usize {
        self.messages
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn front(&self) -> Option<&Entry> {
        self.entries.front()
    }

    pub(super) fn push_back(&mut self, entry: Entry) {
        let (place, frame) = (self.first + self.entries.len() as i64, entry.first_frame());
        while self.older.pop_back_if(|(_, other)| *other >= frame).is_some() {}
        self.older.push_back((place, frame));
        self.count(&entry);
        self.entries.push_back(entry);
    }

    pub(super) fn push_front(&mut self, entry: Entry) {
        self.first -= 1;
        self.note_front(0, entry.first_frame());
        self.count(&entry);
        self.entries.push_front(entry);
    }

    pub(super) fn pop_front(&mut self) -> Option<Entry> {
        let entry = self.entries.pop_front()?;
        self.older.pop_front_if(|(place, _)| *place == self.first);
        self.first += 1;
        self.discount(&entry);
        Some(entry)
    }

    /// Takes out every entry with an annotation of a frame up to `frame`, in the entries' order.
    pub(super) fn take_up_to_frame(&mut self, frame: u64) -> Vec<Entry> {
        let count = self.older.partition_point(|(_, first)| *first <= frame);
        let Some((last, _)) = count.checked_sub(1).and_then(|index| self.older.get(index)) else {
            return Vec::new();
        };
        let looked_at = (last + 1 - self.first) as usize;
        #[cfg(test)]
        {
            self.looks += looked_at;
        }
        self.older.drain(..count);
        // The entries that stay are moved towards the back, to close the gaps. There may be very many of them, where spans that
        // were open for long wait behind others.
        let (mut old, mut free) = (Vec::new(), looked_at);
        for at in (0..looked_at).rev() {
            let first = self.entries[at].first_frame();
            if first <= frame {
                old.push(std::mem::take(&mut self.entries[at]));
            } else {
                free -= 1;
                self.entries.swap(at, free);
                self.note_front(free, first);
            }
        }
        self.entries.drain(..free);
        self.first += free as i64;
        old.iter().for_each(|entry| self.discount(entry));
        old.reverse();
        old
    }

    /// Notes the entry at this index if it is older than all entries behind it, which are noted already.
    fn note_front(&mut self, index: usize, frame: u64) {
        if self.older.front().is_none_or(|(_, other)| frame < *other) {
            self.older.push_front((self.first + index as i64, frame));
        }
    }

    fn count(&mut self, entry: &Entry) {
        self.messages += entry.messages;
        self.bytes += entry.lines.len();
    }

    fn discount(&mut self, entry: &Entry) {
        self.messages -= entry.messages;
        self.bytes -= entry.lines.len();
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::Refs;
    use super::*;

    #[derive(Clone, Debug)]
    enum Deed {
        PushBack(u64),
        PushFront(u64),
        PopFront,
        TakeUpTo(u64),
    }

    fn deed() -> impl Strategy<Value = Deed> {
        prop_oneof![
            4 => (0..20u64).prop_map(Deed::PushBack),
            1 => (0..20u64).prop_map(Deed::PushFront),
            1 => Just(Deed::PopFront),
            1 => (0..20u64).prop_map(Deed::TakeUpTo),
        ]
    }

    fn entry(frame: u64) -> Entry {
        Entry { lines: vec![b'x'; 3].into(), messages: 2, refs: Refs::One((frame, 1)), program: 1 }
    }

    fn frames<'e>(entries: impl IntoIterator<Item = &'e Entry>) -> Vec<u64> {
        entries.into_iter().map(Entry::first_frame).collect()
    }

    proptest! {
        #[test]
        fn the_waiting_list_matches_a_simple_model(
            deeds in vec(deed(), 1..100)
        ) {
            let (mut waiting, mut expected) = (Waiting::default(), VecDeque::new());
            for deed in deeds {
                match deed {
                    Deed::PushBack(frame) => {
                        waiting.push_back(entry(frame));
                        expected.push_back(frame);
                    }
                    Deed::PushFront(frame) => {
                        waiting.push_front(entry(frame));
                        expected.push_front(frame);
                    }
                    Deed::PopFront => {
                        prop_assert_eq!(waiting.pop_front().map(|one| one.first_frame()), expected.pop_front());
                    }
                    Deed::TakeUpTo(frame) => {
                        let (old, kept): (Vec<u64>, Vec<u64>) =
                            expected.iter().partition(|first| **first <= frame);
                        prop_assert_eq!(frames(&waiting.take_up_to_frame(frame)), old);
                        expected = kept.into();
                    }
                }
                prop_assert_eq!(frames(&waiting.entries), Vec::from_iter(expected.iter().copied()));
                prop_assert_eq!((waiting.messages, waiting.bytes), (2 * expected.len(), 3 * expected.len()));
                let is_older = |at: &usize| expected.range(at + 1..).all(|behind| *behind > expected[*at]);
                let older = (0..expected.len()).filter(is_older);
                let older: Vec<_> = older.map(|at| (waiting.first + at as i64, expected[at])).collect();
                prop_assert_eq!(Vec::from_iter(waiting.older.iter().copied()), older);
            }
        }
    }
}
