//! The entries of a queue that wait.
//!
//! While staging is full the oldest are given up with each round. Most wait in front, others anywhere, for a span leaves when
//! it is closed, and not by its age. So it is known behind which place none is old: all others are not looked at.

use std::collections::VecDeque;

use super::Entry;

#[derive(Debug, Default)]
pub(super) struct Waiting {
    entries: VecDeque<Entry>,
    messages: usize,
    bytes: usize,
    /// Place of the first entry. What comes before all others takes the place before it.
    first: i64,
    /// Places of those that are older than all behind them, and their first frames: both ascend.
    older: VecDeque<(i64, u64)>,
    /// How many entries were looked at for their age.
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
        let frame = entry.first_frame();
        if self.older.front().is_none_or(|(_, other)| frame < *other) {
            self.older.push_front((self.first, frame));
        }
        self.count(&entry);
        self.entries.push_front(entry);
    }

    pub(super) fn pop_front(&mut self) -> Option<Entry> {
        let entry = self.entries.pop_front()?;
        self.older.pop_front_if(|(place, _)| *place == self.first);
        self.first += 1;
        self.messages -= entry.messages;
        self.bytes -= entry.lines.len();
        Some(entry)
    }

    /// Takes out every entry with an annotation of a frame up to `frame`, in their order.
    pub(super) fn take_up_to_frame(&mut self, frame: u64) -> Vec<Entry> {
        let count = self.older.partition_point(|(_, first)| *first <= frame);
        let Some((last, _)) = count.checked_sub(1).and_then(|index| self.older.get(index)) else {
            return Vec::new();
        };
        let end = last + 1;
        let looked_at: Vec<_> = (self.first..end).filter_map(|_| self.pop_front()).collect();
        #[cfg(test)]
        {
            self.looks += looked_at.len();
        }
        let (old, kept): (Vec<_>, Vec<_>) =
            looked_at.into_iter().partition(|entry| entry.first_frame() <= frame);
        kept.into_iter().rev().for_each(|entry| self.push_front(entry));
        old
    }

    fn count(&mut self, entry: &Entry) {
        self.messages += entry.messages;
        self.bytes += entry.lines.len();
    }
}
