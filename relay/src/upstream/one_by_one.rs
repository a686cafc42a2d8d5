//! Sends entries one by one, because a call with them was refused or the connection broke again and again: see [`Trial`].
//! Entries may be decided out of order, but records are settled in order.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;

use blkin_daemon::Cause;
use blkin_scribe::trial::TIMES;
use blkin_scribe::{Reply, Trial, Trouble};
use blkin_thrift::scribe::{RawEntry, encode_raw_log_call, raw_entries};

use super::{Upstream, sign_of_life};
use crate::ledger::Count;
use crate::spool::checkpoint::Position;
use crate::spool::{Batch, Spool};

/// The entries that are sent one by one.
#[derive(Debug, Default)]
pub(super) struct OneByOne {
    trial: Trial<Single>,
    /// The batches of its entries, in the order of the spool.
    held: VecDeque<HeldBatch>,
    /// Counts the batches.
    number: u64,
}

/// The place of an entry: a record of a batch, and the bytes in it.
#[derive(Debug, Clone)]
struct Single {
    batch: u64,
    record: usize,
    bytes: Range<usize>,
}

/// A batch, and the outcome of its records.
#[derive(Debug)]
struct HeldBatch {
    number: u64,
    batch: Batch,
    records: Vec<RecordOutcome>,
    /// How many records are settled, from the first on.
    settled: usize,
}

/// The outcome of the entries of a record.
#[derive(Debug, Clone)]
struct RecordOutcome {
    undecided: usize,
    rejected: Count,
}

impl OneByOne {
    /// Whether there are no such entries.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Adds a batch behind those that are held.
    pub(super) fn hold(&mut self, batch: Batch) {
        self.number += 1;
        let mut records = Vec::new();
        for (record, payload) in batch.payloads().enumerate() {
            let entries = ranges(payload);
            records.push(RecordOutcome {
                undecided: entries.as_ref().map_or(0, Vec::len),
                // This does not happen: the record was split into entries before it was spooled, and has a checksum.
                rejected: if entries.is_none() { Count::MAX } else { Count::default() },
            });
            for bytes in entries.unwrap_or_default() {
                self.trial.push(Single { batch: self.number, record, bytes });
            }
        }
        self.held.push_back(HeldBatch { number: self.number, batch, records, settled: 0 });
    }

    /// Whether another entry should be read as a witness, without holding much more than `bytes`.
    fn wants_more(&self, bytes: usize) -> bool {
        let held = self.held.iter().map(|held| held.batch.bytes()).sum::<usize>();
        self.trial.wants_more() && (self.held.len() == 1 || held < bytes)
    }

    /// The end of the last batch that is held.
    fn end(&self) -> Option<Position> {
        self.held.back().map(|held| held.batch.end())
    }

    fn of(&mut self, single: &Single) -> Option<&mut HeldBatch> {
        self.held.iter_mut().find(|held| held.number == single.batch)
    }

    /// The bytes of the entry to send next.
    fn next(&self) -> Option<&[u8]> {
        let single = self.trial.next()?;
        let held = self.held.iter().find(|held| held.number == single.batch)?;
        held.batch.payloads().nth(single.record)?.get(single.bytes.clone())
    }

    /// Notes that an entry is decided, and how much of it the upstream rejects.
    fn note_decided(&mut self, single: &Single, rejected: Count) {
        let outcome = self.of(single).and_then(|held| held.records.get_mut(single.record));
        if let Some(outcome) = outcome {
            outcome.undecided -= 1;
            outcome.rejected += rejected;
        }
    }

    /// Forgets batches that were evicted from the spool.
    fn forget_passed(&mut self, spool: &Spool, upstream: usize) {
        self.held.retain(|held| !spool.has_passed(upstream, &held.batch));
        let held = &self.held;
        self.trial.retain(|single| held.iter().any(|held| held.number == single.batch));
    }

    /// Settles records, in order, up to the first one with an undecided entry.
    fn settle(&mut self, spool: &Spool, upstream: usize) {
        while let Some(held) = self.held.front_mut() {
            while let Some(outcome) = held.records.get(held.settled).filter(|outcome| outcome.undecided == 0)
            {
                spool.settle_record(upstream, &held.batch, held.settled, outcome.rejected);
                held.settled += 1;
            }
            if held.settled < held.records.len() {
                return;
            }
            spool.pass(upstream, &held.batch);
            self.held.pop_front();
        }
    }
}

/// The bytes of each entry of a record; none if the record cannot be split into entries.
fn ranges(payload: &[u8]) -> Option<Vec<Range<usize>>> {
    let mut begin = 0;
    let range = |entry: &RawEntry<'_>| {
        let range = begin..begin + entry.bytes.len();
        begin = range.end;
        range
    };
    Some(raw_entries(payload)?.iter().map(range).collect())
}

impl Upstream {
    /// Reads and holds the next record that is not settled, to send it entry by entry.
    ///
    /// # Errors
    /// When the spool cannot be read.
    pub(super) fn hold_next_record(&mut self) -> io::Result<()> {
        if let Some(batch) = self.read_batch(self.one_by_one.end(), 1, 1)? {
            self.read = Some(batch.end());
            self.one_by_one.hold(batch);
        }
        Ok(())
    }

    /// Sends one entry by itself.
    ///
    /// # Errors
    /// When the spool cannot be read.
    pub(super) fn try_one(&mut self) -> io::Result<()> {
        self.one_by_one.forget_passed(&self.spool, self.number);
        // Without a witness the first entry is sent again, whether there is no other entry or none can be read.
        let wants_more = self.one_by_one.wants_more(self.options.window.bytes);
        let read = if wants_more { self.hold_next_record() } else { Ok(()) };
        let called = self.one_by_one.next().map(<[u8]>::to_vec);
        if let Some(entry) = called {
            match self.call_one(&entry) {
                Ok(Reply::Ok) => {
                    self.decide(Count::default());
                    self.note_success();
                }
                Ok(Reply::Refused(why)) => {
                    self.note_refused_entry(&why);
                    let rejected = self.count(&entry);
                    self.decide(rejected);
                }
                Ok(Reply::TryLater) => self.report_failure_and_pause(Cause::TryLater, &Trouble::TryLater),
                Ok(Reply::Failed(why)) => self.fail_one(&Trouble::Failed(why)),
                Err(trouble) => self.fail_one(&trouble),
            }
        }
        self.one_by_one.settle(&self.spool, self.number);
        read
    }

    fn call_one(&mut self, entry: &[u8]) -> Result<Reply, Trouble> {
        if self.one_by_one.trial.wants_connection() {
            self.pipeline.disconnect();
        }
        let mut alive = sign_of_life(&self.heartbeat, &self.ending);
        self.pipeline.call(|sequence| encode_raw_log_call(sequence, 1, [entry]), &mut alive)
    }

    fn fail_one(&mut self, trouble: &Trouble) {
        if matches!(trouble, Trouble::Broken(_) | Trouble::Failed(_)) {
            self.count_uncertain(1);
            self.one_by_one.trial.broke();
            // Witnesses are read behind the held batches, and everything behind them is read again.
            self.pipeline.clear();
            self.read = self.one_by_one.end();
        }
        self.report_failure_and_pause(trouble.cause(), trouble);
    }

    /// Notes that the entry that was sent has an answer, by which another entry may be given up.
    fn decide(&mut self, rejected: Count) {
        let (answered, given_up) = self.one_by_one.trial.answered();
        answered.iter().for_each(|single| self.one_by_one.note_decided(single, rejected));
        if let Some(single) = given_up {
            self.give_up(&single);
        }
        self.note_answer();
    }

    fn give_up(&mut self, single: &Single) {
        self.log_refused(&format_args!(
            "the upstream disconnected or failed {TIMES} times in a row on the same entry, and on no other: the entry is given up"
        ));
        let held = self.one_by_one.of(single);
        let payload = held.and_then(|held| held.batch.payloads().nth(single.record));
        let rejected = payload.and_then(|payload| payload.get(single.bytes.clone())).map(<[u8]>::to_vec);
        let rejected = rejected.map_or(Count::default(), |entry| self.count(&entry));
        self.one_by_one.note_decided(single, rejected);
    }

    /// The count of an entry.
    fn count(&self, entry: &[u8]) -> Count {
        let entries = raw_entries(entry).unwrap_or_default();
        let annotations = entries.iter().map(|entry| self.counter.annotations(entry, &mut Vec::new())).sum();
        Count::entry(annotations)
    }
}
