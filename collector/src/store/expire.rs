//! Retention: removes whole traces by age and by size, those first that have been silent longest.
//!
//! A cursor passes the blocks in the order of their arrival. A trace is removed when the cursor passes the block of its last
//! piece, together with the pieces that were kept of it in earlier blocks. If traces in a passed block go on later, only their
//! pieces are kept, in place of the block, so they take no more room than they need. A trace that never ends, as when a program
//! uses one trace for everything it does, would take more and more of the room, and finally be removed with everything else. So
//! the room for kept pieces of one trace is bounded; beyond that, its older part is removed as if the trace ended there.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::commit::{CommitCache, number, write_ledger};
use super::engine::Transaction;
use super::index::View;
use super::pieces::Stored;
use super::{StoreError, block, frame, keys, names};
use crate::ledger::{Count, Figure};
use crate::model::TraceId;

/// Most blocks that one step passes, so that it does not hold up waiting batches for long.
const BLOCKS_PER_STEP: u64 = 16;
/// If the last commit wrote many blocks, a step passes so many times as many instead: otherwise commits, one for each step, would
/// fill the disk.
const CATCH_UP_FACTOR: u64 = 2;
/// An arrival time may be this far in the future, because clocks differ a little. One further ahead came from a wrong clock.
pub(super) const BELIEVED_MS: u64 = 600_000;
/// How many blocks after one with a wrong arrival time a step examines, to find the next with a believable time.
const LOOKED_AT_PER_STEP: u64 = 1024;

/// The kept pieces of one trace in passed blocks may take this many bytes, or the given part of `max_bytes` if that is more.
const LARGE_BYTES: u64 = 16 << 20;
const PART_OF_ALL: u64 = 4;

/// How long, and how much, the store keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Milliseconds after which a trace without new pieces is removed; 0 keeps it for ever.
    pub max_age_ms: u64,
    /// Most payload bytes that are kept; 0 sets no limit.
    pub max_bytes: u64,
}

impl Retention {
    fn before_ms(&self, now_ms: u64) -> u64 {
        match self.max_age_ms {
            0 => 0,
            age => now_ms.saturating_sub(age),
        }
    }

    /// Most payload bytes that are kept of one trace in passed blocks.
    fn most_of_one(&self) -> u64 {
        match self.max_bytes {
            0 => u64::MAX,
            all => (all / PART_OF_ALL).max(LARGE_BYTES),
        }
    }
}

/// The traces that go on after a passed block. A trace with parts in many blocks is met in each of them; looking it up in the
/// index each time, with all its parts, would cost the square of their number.
#[derive(Debug, Default)]
pub(super) struct ContinuingTraces(HashMap<TraceId, GoingOn>);

/// What is remembered of such a trace.
#[derive(Debug, Default)]
struct GoingOn {
    /// Its last known block.
    last: u64,
    /// Bytes that were kept of it since it has been remembered.
    kept: u64,
}

impl ContinuingTraces {
    const MOST: usize = 65_536;
    /// A trace with so many kept bytes stays remembered, however many others there are: few traces have as many.
    const MUCH: u64 = 1 << 20;

    /// Whether a trace surely goes on after a block: it does until retention has passed its last block.
    fn goes_on(&self, id: TraceId, block: u64) -> bool {
        self.0.get(&id).is_some_and(|of| of.last > block)
    }

    fn note(&mut self, id: TraceId, last: u64) {
        if self.0.len() >= Self::MOST {
            self.0.retain(|_, of| of.kept >= Self::MUCH);
        }
        self.0.entry(id).or_default().last = last;
    }

    fn keep(&mut self, id: TraceId, bytes: usize) {
        if let Some(of) = self.0.get_mut(&id) {
            of.kept += bytes as u64;
        }
    }

    fn kept(&self, id: TraceId) -> u64 {
        self.0.get(&id).map_or(0, |of| of.kept)
    }
}

/// Consecutive blocks whose arrival times are not believed. They came no later than the next block with a believable time, so
/// that time counts for them: they do not hold up later blocks, and do not expire before them.
#[derive(Debug, Default)]
pub(super) struct Misdated {
    /// The first block behind them, as far as blocks were examined.
    next: u64,
    /// When that block arrived, once it is found.
    next_ms: Option<u64>,
}

impl Misdated {
    /// When a block arrived whose own time is `told_ms`. If that is not believed and no later block with a believable time is
    /// known, the result is the end of time.
    fn arrival_ms(
        &mut self,
        rows: &dyn Transaction,
        (block, told_ms): (u64, u64),
        latest_ms: u64,
    ) -> Result<u64, StoreError> {
        if told_ms <= latest_ms {
            return Ok(told_ms);
        }
        if self.next <= block {
            *self = Misdated { next: block + 1, next_ms: None };
            tracing::warn!(
                block,
                "ignoring the arrival time of a block, which lies in the future: the clock was ahead then"
            );
        }
        self.look_on(rows, latest_ms)?;
        Ok(self.next_ms.unwrap_or(u64::MAX))
    }

    fn look_on(&mut self, rows: &dyn Transaction, latest_ms: u64) -> Result<(), StoreError> {
        let end = number(rows, keys::NEXT_BLOCK)?.min(self.next.saturating_add(LOOKED_AT_PER_STEP));
        while self.next_ms.is_none() && self.next < end {
            let row = rows.get(&keys::block(self.next))?;
            self.next_ms = row.map(|row| block::arrival_ms(&row)).filter(|&arrival| arrival <= latest_ms);
            self.next += u64::from(self.next_ms.is_none());
        }
        Ok(())
    }
}

/// The result of a step.
#[derive(Debug)]
pub(super) struct Passed {
    /// The first block that was not passed yet.
    pub(super) end: u64,
    /// The traces that were removed.
    pub(super) removed_traces: HashSet<TraceId>,
    /// Whether a piece was removed whose trace is unknown, because the piece is damaged.
    pub(super) removed_unread: bool,
}

/// Removes some traces that are too old, or too much for the size; returns none if there were none.
pub(super) fn step(
    rows: &mut dyn Transaction,
    view: &View,
    retention: &Retention,
    now_ms: u64,
    cache: &mut CommitCache,
) -> Result<Option<Passed>, StoreError> {
    let (begin, end) = (number(rows, keys::CURSOR)?, number(rows, keys::NEXT_BLOCK)?);
    let (before_ms, latest_ms) = (retention.before_ms(now_ms), now_ms.saturating_add(BELIEVED_MS));
    let bytes = number(rows, keys::PAYLOAD_BYTES)?;
    let mut left = bytes;
    let (mut removed, mut left_behind, mut cursor) = (Removed::default(), LeftBehind::default(), begin);
    let most = BLOCKS_PER_STEP.max(cache.last_blocks.saturating_mul(CATCH_UP_FACTOR));
    while cursor < end.min(begin.saturating_add(most)) {
        if let Some(row) = rows.get(&keys::block(cursor))? {
            let told = (cursor, block::arrival_ms(&row));
            let too_old = cache.misdated.arrival_ms(&*rows, told, latest_ms)? <= before_ms;
            let too_much = retention.max_bytes != 0 && left > retention.max_bytes;
            if !(too_old || too_much) {
                break;
            }
            let before = removed.bytes + left_behind.bytes;
            let (continuing, removed, left_behind) = (&mut cache.continuing, &mut removed, &mut left_behind);
            let most_of_one = retention.most_of_one();
            Passing { rows, view, block: cursor, most_of_one, continuing, removed, left_behind }
                .pass(&row)?;
            left = left.saturating_sub(removed.bytes + left_behind.bytes - before);
        }
        cursor += 1;
    }
    left_behind.remove(rows, &mut removed)?;
    if cursor == begin {
        names::expire(rows, before_ms, now_ms, &mut cache.recent)?;
        return Ok(None);
    }
    rows.put(keys::CURSOR, &cursor.to_be_bytes())?;
    rows.put(keys::PAYLOAD_BYTES, &bytes.saturating_sub(removed.bytes).to_be_bytes())?;
    let mut ledger = super::read::ledger(rows)?;
    *ledger.get_mut(Figure::Stored) -= removed.count;
    *ledger.get_mut(Figure::Expired) += removed.count;
    write_ledger(rows, &ledger)?;
    Ok(Some(Passed { end: cursor, removed_traces: removed.traces, removed_unread: removed.unread }))
}

/// What was removed.
#[derive(Debug, Default)]
struct Removed {
    count: Count,
    bytes: u64,
    traces: HashSet<TraceId>,
    unread: bool,
}

impl Removed {
    fn take(&mut self, sealed: &[u8], piece: Option<&Stored<'_>>) {
        // A damaged piece is removed too, with a count of no annotations; so the ledger shows that something is missing.
        self.count += Count::piece(piece.map_or(0, Stored::annotation_count));
        self.bytes += sealed.len() as u64;
        self.unread |= piece.is_none();
    }
}

/// The pieces that removed traces have in blocks passed before, block by block. They are removed once all blocks of a step are
/// passed. Many traces that went on together and end one after the other have pieces in the same blocks, and removing them one by
/// one would write these blocks again for each trace.
#[derive(Debug, Default)]
struct LeftBehind {
    traces: BTreeMap<u64, HashSet<TraceId>>,
    /// About how many bytes these pieces have.
    bytes: u64,
}

impl LeftBehind {
    fn note(&mut self, id: TraceId, part: &block::Part) {
        self.traces.entry(part.block).or_default().insert(id);
        self.bytes += u64::from(part.length);
    }

    fn remove(self, rows: &mut dyn Transaction, removed: &mut Removed) -> Result<(), StoreError> {
        for (block, traces) in self.traces {
            let Some(row) = rows.get(&keys::kept(block))? else { continue };
            let mut kept = row[..block::FIRST.min(row.len())].to_vec();
            for part in frame::each(&row, block::FIRST) {
                match read(&part) {
                    Some((_, id)) if !traces.contains(&id) => kept.extend_from_slice(part.sealed),
                    read => removed.take(part.sealed, read.as_ref().map(|(piece, _)| piece)),
                }
            }
            put_kept(rows, block, &kept)?;
        }
        Ok(())
    }
}

fn put_kept(rows: &mut dyn Transaction, block: u64, kept: &[u8]) -> Result<(), StoreError> {
    let key = keys::kept(block);
    if kept.len() > block::FIRST { rows.put(&key, kept) } else { rows.delete(&key) }
}

struct Passing<'s> {
    rows: &'s mut dyn Transaction,
    view: &'s View,
    block: u64,
    most_of_one: u64,
    continuing: &'s mut ContinuingTraces,
    removed: &'s mut Removed,
    left_behind: &'s mut LeftBehind,
}

/// A piece, read in place, and its trace; none if the piece is damaged.
fn read<'r>(part: &frame::Part<'r>) -> Option<(Stored<'r>, TraceId)> {
    let piece = Stored::read(part.body?).ok()?;
    let trace = piece.trace_id()?;
    Some((piece, trace))
}

impl Passing<'_> {
    /// Passes one block.
    fn pass(mut self, row: &[u8]) -> Result<(), StoreError> {
        let mut goes_on: HashMap<TraceId, bool> = HashMap::new();
        let mut kept = row[..block::FIRST.min(row.len())].to_vec();
        for part in frame::each(row, block::FIRST) {
            let read = read(&part);
            let stays = match &read {
                None => false,
                Some((_, id)) => match goes_on.get(id) {
                    Some(&known) => known,
                    None => {
                        let known = self.goes_on(*id)?;
                        goes_on.insert(*id, known);
                        known
                    }
                },
            };
            match &read {
                Some((_, id)) if stays => {
                    kept.extend_from_slice(part.sealed);
                    self.continuing.keep(*id, part.sealed.len());
                }
                read => self.removed.take(part.sealed, read.as_ref().map(|(piece, _)| piece)),
            }
        }
        self.rows.delete(&keys::block(self.block))?;
        put_kept(self.rows, self.block, &kept)?;
        Ok(())
    }

    /// Whether a trace has pieces in later blocks, and room for its pieces in earlier ones; if not, notes the earlier ones for
    /// removal. A trace with later pieces does not count as removed, so it stays followed, and its rest need not be read again.
    fn goes_on(&mut self, id: TraceId) -> Result<bool, StoreError> {
        if self.has_later(id)? {
            if self.continuing.kept(id) <= self.most_of_one {
                return Ok(true);
            }
            tracing::warn!(
                trace = %id,
                "removing the older part of a trace that takes too much room and does not end; perhaps a program uses one \
                 trace for everything it does"
            );
        } else {
            self.removed.traces.insert(id);
        }
        self.continuing.0.remove(&id);
        let Some(version) = self.view.find(&*self.rows, id)? else { return Ok(false) };
        let earlier = version.parts.iter().filter(|part| part.block < self.block);
        earlier.for_each(|part| self.left_behind.note(id, part));
        Ok(false)
    }

    fn has_later(&mut self, id: TraceId) -> Result<bool, StoreError> {
        if self.continuing.goes_on(id, self.block) {
            return Ok(true);
        }
        let last = self.view.last_block(&*self.rows, id)?.filter(|&last| last > self.block);
        last.into_iter().for_each(|last| self.continuing.note(id, last));
        Ok(last.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::super::engine::Engine;
    use super::super::memory::Memory;
    use super::*;

    fn trace(low: usize) -> TraceId {
        TraceId::new(1, low as u64).unwrap()
    }

    #[test]
    fn one_trace_may_take_a_quarter_of_the_limit_or_16_mib() {
        let most_of_one = |max_bytes| Retention { max_age_ms: 1, max_bytes }.most_of_one();
        assert_eq!(most_of_one(0), u64::MAX);
        assert_eq!([1, 64 << 20, 100 << 20].map(most_of_one), [16 << 20, 16 << 20, 25 << 20]);
    }

    #[test]
    fn excess_ongoing_traces_are_forgotten_except_large_ones() {
        let mut continuing = ContinuingTraces::default();
        (0..ContinuingTraces::MOST).for_each(|low| continuing.note(trace(low), 9));
        continuing.keep(trace(1), ContinuingTraces::MUCH as usize - 1);
        continuing.keep(trace(1), 1);
        continuing.keep(trace(2), ContinuingTraces::MUCH as usize - 1);
        assert_eq!(continuing.0.len(), ContinuingTraces::MOST);
        continuing.note(trace(ContinuingTraces::MOST), 9);
        let goes_on = [0, 1, 2, ContinuingTraces::MOST].map(|low| continuing.goes_on(trace(low), 8));
        assert_eq!((goes_on, continuing.0.len()), ([false, true, false, true], 2));
        assert_eq!(
            (continuing.kept(trace(1)), continuing.goes_on(trace(1), 9)),
            (ContinuingTraces::MUCH, false)
        );
    }

    #[test]
    fn misdated_blocks_are_searched_stepwise_for_a_credible_time() {
        const LATEST_MS: u64 = 100;
        const LAST: u64 = 2 * LOOKED_AT_PER_STEP + 1;
        let mut looks = |rows: &mut dyn Transaction| {
            for block in 0..=LAST {
                let arrival_ms = LATEST_MS + u64::from(block != LAST);
                rows.put(&keys::block(block), &arrival_ms.to_be_bytes())?;
            }
            rows.put(keys::NEXT_BLOCK, &(LAST + 1).to_be_bytes())?;
            let mut misdated = Misdated::default();
            let mut arrival_ms = |told| misdated.arrival_ms(&*rows, told, LATEST_MS).unwrap();
            let looks = [(); 3].map(|()| arrival_ms((0, LATEST_MS + 1)));
            assert_eq!(looks, [u64::MAX, u64::MAX, LATEST_MS]);
            assert_eq!([1, LAST - 1].map(|block| arrival_ms((block, LATEST_MS + 1))), [LATEST_MS; 2]);
            assert_eq!(arrival_ms((LAST + 1, LATEST_MS)), LATEST_MS, "a credible time is used as it is");
            Ok(())
        };
        Memory::default().write(&mut looks).unwrap();
    }
}
