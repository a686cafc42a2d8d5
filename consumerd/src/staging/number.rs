//! A row of the table that records which segment has which number.

use super::layout::{NUMBER_ROW_BYTES, checksum, word};

/// The number of a program, and the identity of its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumberRow {
    /// The holder's number of the program, never 0.
    pub number: u64,
    /// Device of its segment.
    pub device: u64,
    /// Inode of its segment.
    pub inode: u64,
}

impl NumberRow {
    /// Encodes a row of the table.
    pub fn encode(&self) -> [u8; NUMBER_ROW_BYTES] {
        let mut row = [0; NUMBER_ROW_BYTES];
        for (at, word) in [self.number, self.device, self.inode].into_iter().enumerate() {
            row[8 * at..][..8].copy_from_slice(&word.to_le_bytes());
        }
        let sum = checksum(&[&row[..24]]);
        row[24..].copy_from_slice(&sum.to_le_bytes());
        row
    }

    /// Decodes a row; `None` for a free row, and for one whose writing was interrupted.
    pub fn decode(row: &[u8; NUMBER_ROW_BYTES]) -> Option<Self> {
        let found = Self { number: word(row, 0), device: word(row, 8), inode: word(row, 16) };
        (found.number > 0 && word(row, 24) == checksum(&[&row[..24]])).then_some(found)
    }
}
