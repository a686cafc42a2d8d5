//! Calls on their way into the spool.

use super::layout::{RECORD_HEADER_BYTES, RecordHeader, payload_sum};
use crate::ledger::Count;

/// The entries of a call on their way into the spool.
#[derive(Debug, Default)]
pub struct Draft {
    /// The bytes of the entries, one after another.
    payload: Vec<u8>,
    records: Vec<DraftRecord>,
    /// The count of all entries, made entry by entry when they were read.
    pub count: Count,
}

#[derive(Debug, Default)]
struct DraftRecord {
    end: usize,
    count: Count,
}

impl Draft {
    /// A record gets further entries up to this size. A record is sent, counted and lost as a whole.
    const RECORD_BYTES: usize = 64 << 10;

    /// Adds one entry.
    pub fn push(&mut self, entry: &[u8], annotations: u64) {
        let begin = self.records.iter().rev().nth(1).map_or(0, |record| record.end);
        let room = self.payload.len() - begin + entry.len() <= Self::RECORD_BYTES;
        if self.records.is_empty() || !room {
            self.records.push(DraftRecord::default());
        }
        self.payload.extend_from_slice(entry);
        let count = Count::entry(annotations);
        if let Some(record) = self.records.last_mut() {
            record.end = self.payload.len();
            record.count += count;
        }
        self.count += count;
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Bytes that the draft takes in memory and, roughly, on disk.
    pub fn bytes(&self) -> usize {
        self.payload.len() + self.records.len() * (size_of::<DraftRecord>() + RECORD_HEADER_BYTES)
    }

    pub(super) fn payloads(&self) -> impl Iterator<Item = (&[u8], Count)> {
        let begins = std::iter::once(0).chain(self.records.iter().map(|record| record.end));
        begins.zip(&self.records).map(|(begin, record)| (&self.payload[begin..record.end], record.count))
    }
}

/// Encodes the records of these calls for a segment, after a count of `before`. Returns the bytes and the count of the records.
pub(super) fn encode(drafts: &[Draft], segment: u64, mut before: Count, size: usize) -> (Vec<u8>, Count) {
    let (mut bytes, mut accepted) = (Vec::with_capacity(size), Count::default());
    for (payload, count) in drafts.iter().flat_map(Draft::payloads) {
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let header = RecordHeader { length, count, before, payload_sum: payload_sum(payload) };
        header.encode_with(segment, payload, &mut bytes);
        before += count;
        accepted += count;
    }
    (bytes, accepted)
}
