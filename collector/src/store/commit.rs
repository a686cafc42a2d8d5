//! Stores batches: duplicates are found and trimmed, each trace's pieces are written together, and the index learns where they
//! are.

use std::collections::HashMap;
use std::ops::ControlFlow;

use foldhash::fast::RandomState;

use super::batch::{Batch, Part};
use super::engine::{Snapshot, Transaction};
use super::expire::{ContinuingTraces, Misdated};
use super::facts::Time;
use super::head::{Growth, Learned, Rest, Version};
use super::index::{Index, View};
use super::names::{self, Recent};
use super::read::PieceFate;
use super::stored_stamps::{New, StoredStamps, TraceHistory};
use super::{Beat, Damage, Piece, StoreError, block, check_beat, keys, read};
use crate::ledger::{ALL_FIGURES, Count, Figure, Ledger};
use crate::model::TraceId;

/// What is remembered between commits. After a failed transaction all of it must be forgotten.
#[derive(Debug, Default)]
pub(super) struct CommitCache {
    pub(super) recent: Recent,
    pub(super) stamps: StoredStamps,
    pub(super) continuing: ContinuingTraces,
    pub(super) misdated: Misdated,
    /// Blocks that the last commit wrote.
    pub(super) last_blocks: u64,
    /// Whether a transaction failed, and may be durable all the same.
    pub(super) in_doubt: bool,
}

impl CommitCache {
    /// Forgets everything after a failed transaction.
    pub(super) fn forget_after_failure(&mut self) {
        self.recent.forget();
        self.stamps.forget();
        self.continuing = ContinuingTraces::default();
        self.in_doubt = true;
    }
}

/// What a commit works with.
pub(super) struct CommitContext<'s> {
    pub(super) index: &'s Index,
    pub(super) view: &'s View,
    pub(super) damage: &'s Damage,
    pub(super) cache: &'s mut CommitCache,
    pub(super) now_ms: u64,
    pub(super) beat: Beat<'s>,
}

/// Stores batches within one transaction.
pub(super) fn commit(
    rows: &mut dyn Transaction,
    batches: &[Batch],
    context: &mut CommitContext<'_>,
) -> Result<Learned, StoreError> {
    let mut commit = Commit { batches, ..Commit::default() };
    commit.pieces.reserve(batches.iter().map(Batch::len).sum());
    commit.learned.terms.reserve(batches.iter().map(|batch| batch.terms().len()).sum());
    for (at, batch) in batches.iter().enumerate() {
        commit.ledger.add(&batch.ledger);
        names::learn(rows, batch, context.now_ms, &mut context.cache.recent)?;
        for (entry, part) in batch.parts().enumerate() {
            commit.sort(rows, context, &part, (at, entry))?;
        }
    }
    for (trace, history) in commit.learned.traces.iter().zip(&commit.histories) {
        if *history == TraceHistory::Followed {
            context.cache.stamps.add_time(trace.0, &trace.1.time);
        }
    }
    context.cache.stamps.end(|at| commit.learned.traces[at].0);
    commit.write(rows, context.now_ms)
}

/// Where the bytes of a piece are.
enum Source {
    /// In a batch: the number of the batch, and of the entry in it.
    Batch(usize, usize),
    /// In a batch of its own, because a part of the piece was removed.
    Trimmed(Box<Batch>),
}

#[derive(Default)]
struct Commit<'b> {
    batches: &'b [Batch],
    ledger: Ledger,
    /// The traces, in the order in which they first came.
    learned: Learned,
    places: HashMap<TraceId, usize, RandomState>,
    /// The history of each of those traces.
    histories: Vec<TraceHistory>,
    /// The pieces to store, each with the place of its trace.
    pieces: Vec<(u32, Source)>,
}

impl Commit<'_> {
    fn sort(
        &mut self,
        rows: &dyn Transaction,
        context: &mut CommitContext<'_>,
        part: &Part<'_>,
        source: (usize, usize),
    ) -> Result<(), StoreError> {
        let annotations = part.entry.annotations as usize;
        let trace = self.place(rows, context, part.entry.trace)?;
        // Even if the piece turns out to be stored already: later pieces of the batch do not repeat the terms that it has given.
        self.learned.terms.extend(part.terms.iter().map(|&term| (trace as u32, term)));
        self.learned.traces[trace].1.weigh(annotations, part.terms.len());
        let history = self.histories[trace];
        let (source, kept) = match context.cache.stamps.new_part(part, history, trace) {
            New::All => (Source::Batch(source.0, source.1), annotations),
            New::Some(is_new) => {
                let (left, kept) = trimmed(part, is_new)?;
                (Source::Trimmed(Box::new(left)), kept)
            }
            New::Nothing => {
                *self.ledger.get_mut(Figure::Duplicate) += Count::piece(annotations);
                return Ok(());
            }
        };
        self.pieces.push((trace as u32, source));
        let growth = &mut self.learned.traces[trace].1;
        growth.pieces += 1;
        growth.time.add(&part.entry.time);
        *self.ledger.get_mut(Figure::Duplicate) += Count::annotations(annotations - kept);
        *self.ledger.get_mut(Figure::Stored) += Count::piece(kept);
        *self.ledger.get_mut(Figure::Committed) += Count::piece(kept);
        Ok(())
    }

    /// The place of a trace in this commit. At its first piece, the trace is looked for in the store.
    fn place(
        &mut self,
        rows: &dyn Transaction,
        context: &mut CommitContext<'_>,
        id: TraceId,
    ) -> Result<usize, StoreError> {
        let next = self.learned.traces.len();
        if self.learned.traces.last().is_some_and(|last| last.0 == id) {
            return Ok(next - 1);
        }
        let at = *self.places.entry(id).or_insert(next);
        if at == next {
            let (growth, history) = begin(rows, context, id)?;
            self.learned.traces.push((id, growth));
            self.histories.push(history);
        }
        Ok(at)
    }

    fn write(mut self, rows: &mut dyn Transaction, now_ms: u64) -> Result<Learned, StoreError> {
        let mut bytes = number(rows, keys::PAYLOAD_BYTES)?;
        let first = number(rows, keys::NEXT_BLOCK)?;
        let mut blocks = block::Writing::new(&mut *rows, first, now_ms);
        // A stable sort, so the pieces of a trace stay in order.
        self.pieces.sort_by_key(|(trace, _)| *trace);
        for of_trace in self.pieces.chunk_by(|left, right| left.0 == right.0) {
            let parts = &mut self.learned.traces[of_trace[0].0 as usize].1.parts;
            for (_, source) in of_trace {
                let part = match source {
                    Source::Batch(at, entry) => self.batches[*at].part(*entry),
                    Source::Trimmed(left) => left.part(0),
                };
                bytes = bytes.saturating_add(part.sealed.len() as u64);
                parts.extend(blocks.add(part.sealed)?);
            }
            parts.extend(blocks.end_part());
        }
        self.learned.next_block = blocks.finish()?;
        rows.put(keys::NEXT_BLOCK, &self.learned.next_block.to_be_bytes())?;
        rows.put(keys::PAYLOAD_BYTES, &bytes.to_be_bytes())?;
        add_to_ledger(rows, &self.ledger)?;
        Ok(self.learned)
    }
}

/// The first growth of a trace in a commit, and its history. A trace that is stored but not remembered is read.
fn begin(
    rows: &dyn Transaction,
    context: &mut CommitContext<'_>,
    id: TraceId,
) -> Result<(Growth, TraceHistory), StoreError> {
    let CommitCache { stamps, .. } = &mut *context.cache;
    let time = match stamps.follow(id) {
        Some(time) => time,
        None if stamps.recall(id) && context.index.grows(id) => {
            return Ok((Growth::default(), TraceHistory::GoesOn));
        }
        None => {
            let Some(version) = context.view.find(rows, id)? else {
                stamps.begin(id);
                return Ok((Growth { rest: Rest::Nowhere, ..Growth::default() }, TraceHistory::Fresh));
            };
            let stored = stored(rows, id, &version, context.damage, context.beat)?;
            stamps.remember(id, &stored);
            stored.time
        }
    };
    let growth = if context.index.grows(id) {
        Growth::default()
    } else {
        Growth { rest: Rest::Earlier, time, ..Growth::default() }
    };
    Ok((growth, TraceHistory::Followed))
}

/// Most bytes that are read of a trace. Reading all of a larger one would store nothing for seconds, and its facts would fill the
/// memory.
const MOST_READ: u64 = 8 << 20;
/// How many of these bytes are read from the beginning, where a root often is. The others are those that came last, which are the
/// ones that may be sent again.
const READ_OF_BEGIN: u64 = 1 << 20;
/// Reading a part takes as long as reading so many bytes more than its own, because its block is read.
const OF_PART: u64 = 2 << 10;

/// What must be known of a trace that is stored.
pub(super) struct Stored {
    /// The pieces that were read, without their bytes.
    pub(super) pieces: Batch,
    /// The time of the trace.
    pub(super) time: Time,
    /// Whether all of the trace was read.
    pub(super) is_all: bool,
}

/// Reads what must be known of a trace. Its blocks may lie far apart on a slow disk, so `beat` is called for each piece.
pub(super) fn stored(
    rows: &dyn Snapshot,
    id: TraceId,
    version: &Version,
    damage: &Damage,
    beat: Beat<'_>,
) -> Result<Stored, StoreError> {
    let mut pieces = Batch::default();
    let (begin, end) = ends(&version.parts);
    for parts in [begin, end] {
        let mut goes_on = Ok(());
        read::bodies(rows, parts, id, damage, &mut |body| {
            goes_on = check_beat(beat);
            if goes_on.is_err() {
                return PieceFate::NoMore;
            }
            let was_read = pieces.push_stored(body);
            pieces.shed();
            if was_read { PieceFate::Taken } else { PieceFate::Damaged }
        })?;
        goes_on?;
    }
    let is_all = begin.len() + end.len() == version.parts.len();
    let mut time = Time::default();
    pieces.parts().for_each(|part| time.add(&part.entry.time));
    if !is_all {
        time = time.within(version.time_us, version.longest_us);
    }
    Ok(Stored { pieces, time, is_all })
}

/// The parts of a trace that are read: those of its beginning, and its last ones. If the trace is not large, these are all.
fn ends(parts: &[block::Part]) -> (&[block::Part], &[block::Part]) {
    let end = fitting(parts.iter().rev(), MOST_READ - READ_OF_BEGIN);
    let (rest, end) = parts.split_at(parts.len() - end);
    (&rest[..fitting(rest.iter(), READ_OF_BEGIN)], end)
}

/// How many of these parts have to be read to read so many bytes; the last part may exceed them.
fn fitting<'p>(parts: impl Iterator<Item = &'p block::Part>, most: u64) -> usize {
    let mut before = 0;
    let fits = |part: &&block::Part| {
        let begins = before;
        before += OF_PART + u64::from(part.length);
        begins < most
    };
    parts.take_while(fits).count()
}

/// A piece without the annotations that are not new, and how many annotations are left.
fn trimmed(part: &Part<'_>, is_new: Vec<bool>) -> Result<(Batch, usize), StoreError> {
    let mut piece = Piece::decode(part.sealed)?;
    let mut is_new = is_new.into_iter();
    piece.trim(&mut |_| is_new.next().unwrap_or(true));
    Ok((Batch::of_one(&piece), piece.annotation_count()))
}

/// The number in a row; 0 if there is no such row.
pub(super) fn number(rows: &(impl Snapshot + ?Sized), key: &[u8]) -> Result<u64, StoreError> {
    match rows.get(key)? {
        None => Ok(0),
        Some(row) => keys::read_u64(&row, 0).ok_or_else(|| StoreError::Damaged("a number".to_owned())),
    }
}

/// Adds to the ledger in the store.
fn add_to_ledger(rows: &mut dyn Transaction, change: &Ledger) -> Result<(), StoreError> {
    let mut ledger = read::ledger(rows)?;
    ledger.add(change);
    write_ledger(rows, &ledger)
}

/// Replaces the ledger in the store.
pub(super) fn write_ledger(rows: &mut dyn Transaction, ledger: &Ledger) -> Result<(), StoreError> {
    let counts = ALL_FIGURES.map(|figure| ledger.get(figure));
    let numbers = counts.iter().flat_map(|count| [count.annotations, count.spans]);
    let row: Vec<u8> = numbers.flat_map(u64::to_be_bytes).collect();
    rows.put(keys::LEDGER, &row)
}

/// The answer of a visitor that never ends a scan.
pub(super) const ALL: ControlFlow<()> = ControlFlow::Continue(());
