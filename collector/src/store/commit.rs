//! Storing batches: duplicates are found and trimmed, then each trace of the batches grows once, whatever came for it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::ControlFlow;

use super::engine::Transaction;
use super::growth::Growth;
use super::names::Recent;
use super::{Batch, Piece, StoreError, keys, names, read};
use crate::ledger::{Count, Figure, Ledger};
use crate::model::TraceId;

/// Stores batches within one transaction. `recent` are the names that need not be noted again; after a transaction that
/// failed it must be emptied.
pub(super) fn commit(
    rows: &mut dyn Transaction,
    batches: &[Batch],
    autocomplete_keys: &[String],
    recent: &mut Recent,
    now_ms: u64,
) -> Result<(), StoreError> {
    let mut commit = Commit {
        next_number: number(rows, keys::NEXT_NUMBER)?,
        ledger: Ledger::default(),
        traces: BTreeMap::new(),
        autocomplete_keys,
        recent,
        now_ms,
    };
    for batch in batches {
        commit.ledger.add(&batch.ledger);
        for piece in &batch.pieces {
            commit.store(rows, piece)?;
        }
    }
    commit.finish(rows)
}

/// The number in a row; 0 without one.
pub(super) fn number(rows: &dyn Transaction, key: &[u8]) -> Result<u64, StoreError> {
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
    for figure in crate::ledger::ALL_FIGURES {
        let Count { annotations, spans } = ledger.get(figure);
        let mut row = [0; 16];
        row[..8].copy_from_slice(&annotations.to_be_bytes());
        row[8..].copy_from_slice(&spans.to_be_bytes());
        rows.put(&keys::figure(figure as u8), &row)?;
    }
    Ok(())
}

struct Commit<'a> {
    next_number: u64,
    ledger: Ledger,
    /// In the order of their rows, so that neighbours are written one after the other.
    traces: BTreeMap<(u64, u64), (TraceId, Growth)>,
    autocomplete_keys: &'a [String],
    recent: &'a mut Recent,
    now_ms: u64,
}

impl Commit<'_> {
    fn store(&mut self, rows: &mut dyn Transaction, piece: &Piece) -> Result<(), StoreError> {
        let annotations = piece.annotation_count();
        let Some(trace) = piece.trace_id() else {
            *self.ledger.get_mut(Figure::Malformed) += Count::piece(annotations);
            return Ok(());
        };
        let growth = match self.traces.entry((trace.low(), trace.high())) {
            Entry::Occupied(known) => &mut known.into_mut().1,
            Entry::Vacant(place) => &mut place.insert((trace, Growth::of(rows, trace)?)).1,
        };
        let encoded = piece.encode();
        let Some(new) = growth.new_part(rows, trace, piece, &encoded)? else {
            *self.ledger.get_mut(Figure::Duplicate) += Count::piece(annotations);
            return Ok(());
        };
        let encoded = match new {
            Cow::Borrowed(_) => encoded,
            Cow::Owned(_) => new.encode(),
        };
        let count = Count::piece(new.annotation_count());
        *self.ledger.get_mut(Figure::Duplicate) += Count::annotations(annotations - new.annotation_count());
        *self.ledger.get_mut(Figure::Stored) += count;
        *self.ledger.get_mut(Figure::Committed) += count;
        let facts = new.facts(self.autocomplete_keys);
        names::learn(rows, &facts, self.now_ms, self.recent)?;
        growth.add(rows, trace, &encoded, &facts, &mut self.next_number)
    }

    fn finish(mut self, rows: &mut dyn Transaction) -> Result<(), StoreError> {
        let mut bytes = number(rows, keys::PAYLOAD_BYTES)?;
        for (trace, growth) in std::mem::take(&mut self.traces).into_values() {
            bytes = bytes.saturating_add(growth.write(rows, trace, &mut self.next_number, self.now_ms)?);
        }
        rows.put(keys::NEXT_NUMBER, &self.next_number.to_be_bytes())?;
        rows.put(keys::PAYLOAD_BYTES, &bytes.to_be_bytes())?;
        add_to_ledger(rows, &self.ledger)
    }
}

/// Whether a scan goes on: always.
pub(super) const ALL: ControlFlow<()> = ControlFlow::Continue(());
