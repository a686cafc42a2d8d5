//! The entries of a queue.

use bytes::Bytes;

/// How many annotations of which staged frames an entry carries. Nearly always it is one frame, for which nothing is allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refs {
    /// One frame.
    One((u64, u32)),
    /// Several frames, or none.
    Many(Box<[(u64, u32)]>),
}

impl Refs {
    /// Each frame and its number of annotations.
    pub fn as_slice(&self) -> &[(u64, u32)] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}

impl Default for Refs {
    fn default() -> Self {
        Self::Many(Box::default())
    }
}

impl From<Vec<(u64, u32)>> for Refs {
    fn from(refs: Vec<(u64, u32)>) -> Self {
        match refs[..] {
            [one] => Self::One(one),
            _ => Self::Many(refs.into()),
        }
    }
}

/// Messages that are acknowledged or lost together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The messages, each ended by a line feed; none contains one.
    pub lines: Bytes,
    /// How many messages there are.
    pub messages: usize,
    /// Which frames its annotations came from.
    pub refs: Refs,
    /// The program to which its room is charged.
    pub program: u64,
}

impl Entry {
    /// Moves a single message out of the portion of memory that it shares with others. Entries of many lines have their own memory.
    pub(super) fn take_own_memory(&mut self) {
        if self.messages == 1 {
            self.lines = Bytes::copy_from_slice(&self.lines);
        }
    }

    /// The oldest frame of its annotations; `u64::MAX` for an entry without any.
    pub fn first_frame(&self) -> u64 {
        self.refs.as_slice().iter().map(|(frame, _)| *frame).min().unwrap_or(u64::MAX)
    }

    /// Room that it takes in a queue.
    pub fn cost_bytes(&self) -> usize {
        self.lines.len() + self.refs.as_slice().len() * 16 + 96
    }
}
