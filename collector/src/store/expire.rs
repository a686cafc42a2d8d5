//! Retention: the traces that have been silent longest leave first, whole, by age and by size.
//!
//! A cursor passes the blocks in the order of their arrival. A trace leaves when the cursor passes the block that got its
//! last piece, and with it what was kept of it in blocks that were passed before. What of a block belongs to traces that
//! went on is kept in its place, and no more than that: so the blocks that are left take no more than what is in them.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::commit::{number, write_ledger};
use super::engine::Transaction;
use super::index::View;
use super::{StoreError, block, frame, keys, names, read};
use crate::ledger::{Count, Figure};
use crate::merge::Piece;
use crate::model::TraceId;

/// Blocks that one step passes at most, so that it does not hold up the batches that wait.
const BLOCKS_PER_STEP: u64 = 16;

/// How long, and how much, the store keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Milliseconds after which a trace that got nothing new leaves; 0 keeps it.
    pub max_age_ms: u64,
    /// Payload bytes that are kept; 0 sets no limit.
    pub max_bytes: u64,
}

impl Retention {
    fn before_ms(&self, now_ms: u64) -> u64 {
        match self.max_age_ms {
            0 => 0,
            age => now_ms.saturating_sub(age),
        }
    }
}

/// Removes some traces that are too old or too much; returns the block that was not passed yet, if any was passed.
pub(super) fn step(
    rows: &mut dyn Transaction,
    view: &View,
    retention: &Retention,
    now_ms: u64,
) -> Result<Option<u64>, StoreError> {
    let (begin, end) = (number(rows, keys::CURSOR)?, number(rows, keys::NEXT_BLOCK)?);
    let before_ms = retention.before_ms(now_ms);
    let mut bytes = number(rows, keys::PAYLOAD_BYTES)?;
    let (mut gone, mut cursor) = (Count::default(), begin);
    while cursor < end.min(begin + BLOCKS_PER_STEP) {
        if let Some(row) = rows.get(&keys::block(cursor))? {
            let too_old = block::arrival_ms(&row) <= before_ms;
            let too_much = retention.max_bytes != 0 && bytes > retention.max_bytes;
            if !(too_old || too_much) {
                break;
            }
            let removed = Passing { rows, view, block: cursor, gone: Gone::default() }.pass(&row)?;
            gone += removed.count;
            bytes = bytes.saturating_sub(removed.bytes);
        }
        cursor += 1;
    }
    if cursor == begin {
        names::expire(rows, before_ms)?;
        return Ok(None);
    }
    rows.put(keys::CURSOR, &cursor.to_be_bytes())?;
    rows.put(keys::PAYLOAD_BYTES, &bytes.to_be_bytes())?;
    let mut ledger = read::ledger(rows)?;
    *ledger.get_mut(Figure::Stored) -= gone;
    *ledger.get_mut(Figure::Expired) += gone;
    write_ledger(rows, &ledger)?;
    Ok(Some(cursor))
}

/// What was removed.
#[derive(Debug, Default)]
struct Gone {
    count: Count,
    bytes: u64,
}

impl Gone {
    fn take(&mut self, sealed: &[u8], piece: Option<&Piece>) {
        // A damaged piece leaves too: then the ledger tells that something is missing.
        self.count += Count::piece(piece.map_or(0, Piece::annotation_count));
        self.bytes += sealed.len() as u64;
    }
}

struct Passing<'s> {
    rows: &'s mut dyn Transaction,
    view: &'s View,
    block: u64,
    gone: Gone,
}

impl Passing<'_> {
    /// Passes one block.
    fn pass(mut self, row: &[u8]) -> Result<Gone, StoreError> {
        let mut goes_on: HashMap<TraceId, bool> = HashMap::new();
        let mut kept_before: BTreeMap<u64, HashSet<TraceId>> = BTreeMap::new();
        let mut kept = row[..block::FIRST.min(row.len())].to_vec();
        for part in frame::each(row, block::FIRST) {
            let piece = part.body.and_then(|body| Piece::decode_body(body).ok());
            let trace = piece.as_ref().and_then(Piece::trace_id);
            let stays = match trace {
                None => false,
                Some(id) => match goes_on.get(&id) {
                    Some(&known) => known,
                    None => {
                        let known = self.goes_on(id, &mut kept_before)?;
                        goes_on.insert(id, known);
                        known
                    }
                },
            };
            if stays {
                kept.extend_from_slice(part.sealed);
            } else {
                self.gone.take(part.sealed, piece.as_ref());
            }
        }
        self.rows.delete(&keys::block(self.block))?;
        self.put_kept(self.block, &kept)?;
        for (block, traces) in kept_before {
            self.remove_kept(block, &traces)?;
        }
        Ok(self.gone)
    }

    /// Whether a trace has pieces in later blocks; if not, notes those in earlier ones.
    fn goes_on(
        &self,
        id: TraceId,
        kept_before: &mut BTreeMap<u64, HashSet<TraceId>>,
    ) -> Result<bool, StoreError> {
        let Some(version) = self.view.find(&*self.rows, id)? else { return Ok(false) };
        if version.last_block() > self.block {
            return Ok(true);
        }
        for part in version.parts.iter().filter(|part| part.block < self.block) {
            kept_before.entry(part.block).or_default().insert(id);
        }
        Ok(false)
    }

    fn put_kept(&mut self, block: u64, kept: &[u8]) -> Result<(), StoreError> {
        let key = keys::kept(block);
        if kept.len() > block::FIRST { self.rows.put(&key, kept) } else { self.rows.delete(&key) }
    }

    /// Removes traces that have left from a block that was passed before.
    fn remove_kept(&mut self, block: u64, traces: &HashSet<TraceId>) -> Result<(), StoreError> {
        let Some(row) = self.rows.get(&keys::kept(block))? else { return Ok(()) };
        let mut kept = row[..block::FIRST.min(row.len())].to_vec();
        for part in frame::each(&row, block::FIRST) {
            let piece = part.body.and_then(|body| Piece::decode_body(body).ok());
            if piece.as_ref().and_then(Piece::trace_id).is_some_and(|id| !traces.contains(&id)) {
                kept.extend_from_slice(part.sealed);
            } else {
                self.gone.take(part.sealed, piece.as_ref());
            }
        }
        self.put_kept(block, &kept)
    }
}
