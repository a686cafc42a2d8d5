//! Retention: the traces that have been silent longest leave first, whole, by age and by size.

use std::ops::ControlFlow;

use super::commit::{ALL, number, write_ledger};
use super::engine::Transaction;
use super::{StoreError, frame, keys, names, read};
use crate::ledger::{Count, Figure};
use crate::merge::Piece;
use crate::model::TraceId;

const MINUTE_MS: u64 = 60_000;
/// Traces that one step removes at most, so that it does not hold up the batches that wait.
const TRACES_PER_STEP: usize = 200;
/// Rows that one step reads at most of the traces it removes, apart from the first trace.
const ROWS_PER_STEP: usize = 20_000;

/// How long, and how much, the store keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Milliseconds after which a trace that got nothing new leaves; 0 keeps it.
    pub max_age_ms: u64,
    /// Payload bytes that are kept; 0 sets no limit.
    pub max_bytes: u64,
}

/// Removes some traces that are too old or too much; returns whether there are more.
pub(super) fn step(
    rows: &mut dyn Transaction,
    retention: &Retention,
    now_ms: u64,
) -> Result<bool, StoreError> {
    let mut bytes = number(rows, keys::PAYLOAD_BYTES)?;
    let before_ms = match retention.max_age_ms {
        0 => 0,
        age => now_ms.saturating_sub(age),
    };
    let (mut gone, mut looked_at) = (Count::default(), 0);
    for (minute, trace) in oldest(rows)? {
        let too_old = minute.saturating_mul(MINUTE_MS) <= before_ms;
        let too_much = retention.max_bytes != 0 && bytes > retention.max_bytes;
        if !(too_old || too_much) || looked_at > ROWS_PER_STEP {
            break;
        }
        let removed = remove(rows, minute, trace)?;
        gone += removed.count;
        bytes = bytes.saturating_sub(removed.bytes);
        looked_at += removed.rows;
    }
    if looked_at == 0 {
        names::expire(rows, before_ms)?;
        return Ok(false);
    }
    rows.put(keys::PAYLOAD_BYTES, &bytes.to_be_bytes())?;
    let mut ledger = read::ledger(rows)?;
    *ledger.get_mut(Figure::Stored) -= gone;
    *ledger.get_mut(Figure::Expired) += gone;
    write_ledger(rows, &ledger)?;
    Ok(true)
}

fn oldest(rows: &dyn Transaction) -> Result<Vec<(u64, TraceId)>, StoreError> {
    let mut traces = Vec::new();
    rows.scan(&[keys::BY_ARRIVAL], &[keys::BY_ARRIVAL], &mut |key, _| {
        traces.extend(keys::read_u64(key, 1).zip(keys::trace_at_end(key)));
        Ok(if traces.len() < TRACES_PER_STEP { ALL } else { ControlFlow::Break(()) })
    })?;
    Ok(traces)
}

struct Removed {
    count: Count,
    bytes: u64,
    rows: usize,
}

/// Removes every row of a trace.
fn remove(rows: &mut dyn Transaction, minute: u64, trace: TraceId) -> Result<Removed, StoreError> {
    let mut removed = Removed { count: Count::default(), bytes: 0, rows: 1 };
    if let Some(summary) = read::summary(rows, trace)?
        && summary.time_us != 0
    {
        for service in summary.services_and_any() {
            rows.delete(&keys::by_time(service, summary.time_us, trace))?;
        }
    }
    let prefix = keys::trace_prefix(trace);
    let mut found = Vec::new();
    rows.scan(&prefix, &prefix, &mut |key, row| {
        if key.get(keys::KIND_AT) == Some(&keys::KIND_PIECES) {
            for framed in frame::each(row) {
                // A damaged piece leaves too: then the ledger tells that something is missing.
                removed.count +=
                    Count::piece(Piece::decode(framed).map_or(0, |piece| piece.annotation_count()));
            }
            removed.bytes += row.len() as u64;
        }
        found.push(key.to_vec());
        Ok(ALL)
    })?;
    removed.rows += found.len();
    found.iter().try_for_each(|key| rows.delete(key))?;
    rows.delete(&keys::by_arrival(minute, trace))?;
    Ok(removed)
}
