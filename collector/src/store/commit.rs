//! Storing batches: duplicates are found and trimmed, pieces get their numbers, indexes and ledger follow.

use std::collections::HashMap;
use std::ops::ControlFlow;

use super::engine::{Snapshot, Transaction};
use super::pieces::{Facts, Identity};
use super::summary::Summary;
use super::{Batch, StoreError, keys, names, read};
use crate::ledger::{Count, Figure, Ledger};
use crate::merge::Piece;
use crate::model::TraceId;

const MINUTE_MS: u64 = 60_000;

/// Stores batches within one transaction.
pub(super) fn commit(
    rows: &mut dyn Transaction,
    batches: &[Batch],
    autocomplete_keys: &[String],
    now_ms: u64,
) -> Result<(), StoreError> {
    let mut commit = Commit {
        next_number: number(rows, keys::NEXT_NUMBER)?,
        ledger: Ledger::default(),
        bytes: 0,
        autocomplete_keys,
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
pub(super) fn number(rows: &dyn Snapshot, key: &[u8]) -> Result<u64, StoreError> {
    match rows.get(key)? {
        None => Ok(0),
        Some(row) => keys::read_u64(&row, 0).ok_or_else(|| StoreError::Damaged("a number".to_owned())),
    }
}

/// Adds to the ledger in the store.
pub(super) fn add_to_ledger(rows: &mut dyn Transaction, change: &Ledger) -> Result<(), StoreError> {
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
    bytes: u64,
    autocomplete_keys: &'a [String],
    now_ms: u64,
}

impl Commit<'_> {
    fn store(&mut self, rows: &mut dyn Transaction, piece: &Piece) -> Result<(), StoreError> {
        let Some(trace) = piece.trace_id() else {
            *self.ledger.get_mut(Figure::Malformed) += Count::piece(piece.annotation_count());
            return Ok(());
        };
        match new_part(rows, trace, piece)? {
            Some(new) => {
                let duplicates = piece.annotation_count() - new.annotation_count();
                *self.ledger.get_mut(Figure::Duplicate) += Count::annotations(duplicates);
                self.put(rows, trace, &new)
            }
            None => {
                *self.ledger.get_mut(Figure::Duplicate) += Count::piece(piece.annotation_count());
                Ok(())
            }
        }
    }

    fn put(&mut self, rows: &mut dyn Transaction, trace: TraceId, piece: &Piece) -> Result<(), StoreError> {
        let encoded = piece.encode();
        rows.put(&keys::piece(trace, self.next_number), &encoded)?;
        self.next_number += 1;
        self.bytes += encoded.len() as u64;
        let count = Count::piece(piece.annotation_count());
        *self.ledger.get_mut(Figure::Stored) += count;
        *self.ledger.get_mut(Figure::Committed) += count;
        let facts = piece.facts(self.autocomplete_keys);
        names::learn(rows, &facts, self.now_ms)?;
        index(rows, trace, &facts, encoded.len() as u64, self.now_ms)
    }

    fn finish(self, rows: &mut dyn Transaction) -> Result<(), StoreError> {
        rows.put(keys::NEXT_NUMBER, &self.next_number.to_be_bytes())?;
        let bytes = number(rows, keys::PAYLOAD_BYTES)?.saturating_add(self.bytes);
        rows.put(keys::PAYLOAD_BYTES, &bytes.to_be_bytes())?;
        add_to_ledger(rows, &self.ledger)
    }
}

/// What of a piece is not in the store yet, and notes it as stored; none if all of it is.
fn new_part(rows: &mut dyn Transaction, trace: TraceId, piece: &Piece) -> Result<Option<Piece>, StoreError> {
    if !piece.is_identified() {
        let key = keys::content(trace, &piece.encode());
        if rows.get(&key)?.is_some() {
            return Ok(None);
        }
        rows.put(&key, &[])?;
    }
    let mut new = piece.clone();
    let mut identities = Identities::default();
    let trimmed = new.trim(&mut |identity| identities.insert(rows, trace, identity))?;
    identities.write(rows)?;
    let nothing_new = trimmed > 0 && new.annotation_count() == 0;
    Ok((!nothing_new).then_some(new))
}

/// Rows of identities that one piece touches: sorted offsets within a block of positions.
#[derive(Default)]
struct Identities {
    blocks: HashMap<Vec<u8>, Vec<u16>>,
}

impl Identities {
    /// Returns whether the identity was there already.
    fn insert(
        &mut self,
        rows: &dyn Snapshot,
        trace: TraceId,
        (source, position): Identity,
    ) -> Result<bool, StoreError> {
        let (key, offset) = keys::identity(trace, source, position);
        let offsets = match self.blocks.entry(key) {
            std::collections::hash_map::Entry::Occupied(block) => block.into_mut(),
            std::collections::hash_map::Entry::Vacant(block) => {
                let row = rows.get(block.key())?.unwrap_or_default();
                block.insert(row.chunks_exact(2).map(|b| u16::from_be_bytes([b[0], b[1]])).collect())
            }
        };
        match offsets.binary_search(&offset) {
            Ok(_) => Ok(true),
            Err(at) => {
                offsets.insert(at, offset);
                Ok(false)
            }
        }
    }

    fn write(&self, rows: &mut dyn Transaction) -> Result<(), StoreError> {
        for (key, offsets) in &self.blocks {
            let row: Vec<u8> = offsets.iter().flat_map(|offset| offset.to_be_bytes()).collect();
            rows.put(key, &row)?;
        }
        Ok(())
    }
}

/// Brings summary, services and the indexes of a trace up to date with one more piece.
fn index(
    rows: &mut dyn Transaction,
    trace: TraceId,
    facts: &Facts,
    bytes: u64,
    now_ms: u64,
) -> Result<(), StoreError> {
    let before = read::summary(rows, trace)?.unwrap_or_default();
    let mut after = before;
    after.learn(facts);
    after.bytes += bytes;
    after.pieces += 1;
    after.arrival = now_ms / MINUTE_MS + 1;
    let mut services = vec![keys::ANY_SERVICE];
    for service in &facts.services {
        let service = keys::service_hash(service);
        let key = keys::service_of_trace(trace, service);
        if rows.get(&key)?.is_none() {
            rows.put(&key, &[])?;
            services.push(service);
        }
    }
    if before.time_us != after.time_us {
        services.extend(move_in_time(rows, trace, before.time_us)?);
    }
    if after.time_us != 0 {
        for service in services {
            rows.put(&keys::by_time(service, after.time_us, trace), &[])?;
        }
    }
    touch(rows, trace, &before, &after)?;
    rows.put(&keys::summary(trace), &after.encode())
}

/// Takes a trace out of the time index; returns the services it has to be put back for.
fn move_in_time(rows: &mut dyn Transaction, trace: TraceId, old_us: u64) -> Result<Vec<u64>, StoreError> {
    let services = read::services_of(rows, trace)?;
    if old_us != 0 {
        rows.delete(&keys::by_time(keys::ANY_SERVICE, old_us, trace))?;
        for &service in &services {
            rows.delete(&keys::by_time(service, old_us, trace))?;
        }
    }
    Ok(services)
}

fn touch(
    rows: &mut dyn Transaction,
    trace: TraceId,
    before: &Summary,
    after: &Summary,
) -> Result<(), StoreError> {
    if before.arrival == after.arrival {
        return Ok(());
    }
    if before.arrival != 0 {
        rows.delete(&keys::by_arrival(before.arrival, trace))?;
    }
    rows.put(&keys::by_arrival(after.arrival, trace), &[])
}

/// Whether a scan goes on: always.
pub(super) const ALL: ControlFlow<()> = ControlFlow::Continue(());
