//! Entries that are called one by one, because a call with them was refused or the connection broke again and again: see
//! [`Trial`]. Whatever is decided out of order, records are settled in their order.

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

/// What is tried one by one.
#[derive(Debug, Default)]
pub(super) struct Singly {
    trial: Trial<Single>,
    /// The batches of its entries, in the order of the spool.
    held: VecDeque<Held>,
    /// Counts the batches.
    number: u64,
}

/// An entry of a record of a batch.
#[derive(Debug, Clone)]
struct Single {
    batch: u64,
    record: usize,
    bytes: Range<usize>,
}

/// A batch, and what became of its records.
#[derive(Debug)]
struct Held {
    number: u64,
    batch: Batch,
    records: Vec<Fate>,
    /// The first so many records are settled.
    settled: usize,
}

/// What became of the entries of a record.
#[derive(Debug, Clone)]
struct Fate {
    undecided: usize,
    rejected: Count,
}

impl Singly {
    /// Whether there is nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Takes a batch in, behind those that are held.
    pub(super) fn hold(&mut self, batch: Batch) {
        self.number += 1;
        let mut records = Vec::new();
        for (record, payload) in batch.payloads().enumerate() {
            let entries = ranges(payload);
            records.push(Fate {
                undecided: entries.as_ref().map_or(0, Vec::len),
                // It was taken apart before it was spooled, and has a checksum: this does not happen.
                rejected: if entries.is_none() { Count::MAX } else { Count::default() },
            });
            for bytes in entries.unwrap_or_default() {
                self.trial.push(Single { batch: self.number, record, bytes });
            }
        }
        self.held.push_back(Held { number: self.number, batch, records, settled: 0 });
    }

    /// Whether another entry is to be read, so as to have a witness: not more than `bytes` are to be held for that.
    fn wants_more(&self, bytes: usize) -> bool {
        let held = self.held.iter().map(|held| held.batch.bytes()).sum::<usize>();
        self.trial.wants_more() && (self.held.len() == 1 || held < bytes)
    }

    /// Where what is held ends.
    fn end(&self) -> Option<Position> {
        self.held.back().map(|held| held.batch.end())
    }

    fn of(&mut self, single: &Single) -> Option<&mut Held> {
        self.held.iter_mut().find(|held| held.number == single.batch)
    }

    /// The bytes of the entry that is to be called.
    fn next(&self) -> Option<&[u8]> {
        let single = self.trial.next()?;
        let held = self.held.iter().find(|held| held.number == single.batch)?;
        held.batch.payloads().nth(single.record)?.get(single.bytes.clone())
    }

    /// An entry is decided, with what the upstream does not take of it.
    fn decided(&mut self, single: &Single, rejected: Count) {
        let fate = self.of(single).and_then(|held| held.records.get_mut(single.record));
        if let Some(fate) = fate {
            fate.undecided -= 1;
            fate.rejected += rejected;
        }
    }

    /// Lets go of what was evicted.
    fn forget_passed(&mut self, spool: &Spool, upstream: usize) {
        self.held.retain(|held| !spool.has_passed(upstream, &held.batch));
        let held = &self.held;
        self.trial.retain(|single| held.iter().any(|held| held.number == single.batch));
    }

    /// Settles the records all of whose entries are decided, up to the first of which that is not so.
    fn settle(&mut self, spool: &Spool, upstream: usize) {
        while let Some(held) = self.held.front_mut() {
            while let Some(fate) = held.records.get(held.settled).filter(|fate| fate.undecided == 0) {
                spool.settle_record(upstream, &held.batch, held.settled, fate.rejected);
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

/// Where each entry of a record lies; none if they cannot be told apart.
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
    /// Holds the next record that is not settled, to be tried entry by entry.
    ///
    /// # Errors
    /// When the spool cannot be read.
    pub(super) fn read_singly(&mut self) -> io::Result<()> {
        if let Some(batch) = self.read_batch(self.singly.end(), 1, 1)? {
            self.read = Some(batch.end());
            self.singly.hold(batch);
        }
        Ok(())
    }

    /// Calls one entry by itself.
    ///
    /// # Errors
    /// When the spool cannot be read.
    pub(super) fn try_one(&mut self) -> io::Result<()> {
        self.singly.forget_passed(&self.spool, self.number);
        // Without a witness the first is called again, whether there is no other or none can be read.
        let wants_more = self.singly.wants_more(self.options.window.bytes);
        let read = if wants_more { self.read_singly() } else { Ok(()) };
        let called = self.singly.next().map(<[u8]>::to_vec);
        if let Some(entry) = called {
            match self.call_singly(&entry) {
                Ok(Reply::Ok) => {
                    self.decide(Count::default());
                    self.succeeded();
                }
                Ok(Reply::Refused(why)) => {
                    self.was_refused(&why);
                    let rejected = self.count(&entry);
                    self.decide(rejected);
                }
                Ok(Reply::TryLater) => self.later(Cause::TryLater, &Trouble::TryLater),
                Ok(Reply::Failed(why)) => self.failed_singly(&Trouble::Failed(why)),
                Err(trouble) => self.failed_singly(&trouble),
            }
        }
        self.singly.settle(&self.spool, self.number);
        read
    }

    fn call_singly(&mut self, entry: &[u8]) -> Result<Reply, Trouble> {
        if self.singly.trial.wants_connection() {
            self.pipeline.disconnect();
        }
        let mut alive = sign_of_life(&self.heartbeat, &self.ending);
        self.pipeline.call(|sequence| encode_raw_log_call(sequence, 1, [entry]), &mut alive)
    }

    fn failed_singly(&mut self, trouble: &Trouble) {
        if matches!(trouble, Trouble::Broken(_) | Trouble::Failed(_)) {
            self.uncertain(1);
            self.singly.trial.broke();
            // Witnesses are read behind what is held, and all that is behind them is read again.
            self.pipeline.clear();
            self.read = self.singly.end();
        }
        self.later(trouble.cause(), trouble);
    }

    /// The entry that was called has an answer, and perhaps another one is given up by that.
    fn decide(&mut self, rejected: Count) {
        let (answered, given_up) = self.singly.trial.answered();
        answered.iter().for_each(|single| self.singly.decided(single, rejected));
        if let Some(single) = given_up {
            self.give_up(&single);
        }
        self.answered();
    }

    fn give_up(&mut self, single: &Single) {
        self.tell_refused(&format_args!(
            "the upstream broke off or failed {TIMES} times in a row on the same entry, and on no other: it is given up"
        ));
        let held = self.singly.of(single);
        let payload = held.and_then(|held| held.batch.payloads().nth(single.record));
        let rejected = payload.and_then(|payload| payload.get(single.bytes.clone())).map(<[u8]>::to_vec);
        let rejected = rejected.map_or(Count::default(), |entry| self.count(&entry));
        self.singly.decided(single, rejected);
    }

    /// What an entry counts as.
    fn count(&self, entry: &[u8]) -> Count {
        let entries = raw_entries(entry).unwrap_or_default();
        let annotations = entries.iter().map(|entry| self.counter.annotations(entry, &mut Vec::new())).sum();
        Count::entry(annotations)
    }
}
