//! Reading: the ledger, one trace, traces by time.

use std::ops::{ControlFlow, RangeInclusive};

use super::commit::ALL;
use super::engine::Snapshot;
use super::summary::Summary;
use super::{Damage, Room, StoreError, frame, keys};
use crate::ledger::{ALL_FIGURES, Count, Ledger};
use crate::merge::Piece;
use crate::model::TraceId;

/// The ledger as committed.
pub(super) fn ledger(rows: &(impl Snapshot + ?Sized)) -> Result<Ledger, StoreError> {
    let mut ledger = Ledger::default();
    for figure in ALL_FIGURES {
        let Some(row) = rows.get(&keys::figure(figure as u8))? else { continue };
        let (annotations, spans) = keys::read_u64(&row, 0)
            .zip(keys::read_u64(&row, 8))
            .ok_or_else(|| StoreError::Damaged("the ledger".to_owned()))?;
        *ledger.get_mut(figure) = Count { annotations, spans };
    }
    Ok(ledger)
}

/// The summary of a trace.
pub(super) fn summary(
    rows: &(impl Snapshot + ?Sized),
    trace: TraceId,
) -> Result<Option<Summary>, StoreError> {
    match rows.get(&keys::summary(trace))? {
        None => Ok(None),
        Some(row) => match Summary::decode(&row) {
            Some(summary) => Ok(Some(summary)),
            None => Err(StoreError::Damaged(format!("the summary of trace {trace}"))),
        },
    }
}

/// The pieces of a trace.
pub(super) fn trace(
    rows: &dyn Snapshot,
    id: TraceId,
    strict: bool,
    room: &mut Room,
    damage: &Damage,
) -> Result<Vec<Piece>, StoreError> {
    let ids = if strict { vec![id] } else { traces_with_low_bits(rows, id.low())? };
    let mut pieces = Vec::new();
    for id in ids {
        read_pieces(rows, id, room, &mut pieces, damage)?;
    }
    Ok(pieces)
}

fn read_pieces(
    rows: &dyn Snapshot,
    id: TraceId,
    room: &mut Room,
    pieces: &mut Vec<Piece>,
    damage: &Damage,
) -> Result<(), StoreError> {
    let prefix = keys::kind_prefix(id, keys::KIND_PIECES);
    rows.scan(&prefix, &prefix, &mut |_, row| {
        for framed in frame::each(row) {
            if !room.take(framed.len()) {
                return Ok(ControlFlow::Break(()));
            }
            // A damaged piece must not hide the others.
            match Piece::decode(framed) {
                Ok(piece) => pieces.push(piece),
                Err(error) => {
                    damage.note_piece();
                    tracing::error!(trace = %id, "{error}");
                }
            }
        }
        Ok(ALL)
    })
}

/// The ids that share their low 64 bits; each is found with one look, whatever lies between.
fn traces_with_low_bits(rows: &dyn Snapshot, low: u64) -> Result<Vec<TraceId>, StoreError> {
    let prefix = keys::low_prefix(low);
    let mut found = Vec::new();
    let mut from = Some(prefix.clone());
    while let Some(start) = from.take() {
        rows.scan(&prefix, &start, &mut |key, _| {
            if let Some(id) = keys::trace_at(key, 1) {
                found.push(id);
                from =
                    id.high().checked_add(1).and_then(|high| TraceId::new(high, low)).map(keys::trace_prefix);
            }
            Ok(ControlFlow::Break(()))
        })?;
    }
    Ok(found)
}

/// Visits traces by time, latest first.
pub(super) fn traces_by_time(
    rows: &dyn Snapshot,
    service: Option<&str>,
    window_us: RangeInclusive<u64>,
    visit: &mut dyn FnMut(TraceId) -> Result<ControlFlow<()>, StoreError>,
) -> Result<(), StoreError> {
    let service = service.map_or(keys::ANY_SERVICE, keys::service_hash);
    let from = keys::not_later_than(service, *window_us.end());
    rows.scan(&keys::service_prefix(service), &from, &mut |key, _| match (
        keys::time_of(key),
        keys::trace_at_end(key),
    ) {
        (Some(time), Some(trace)) if time >= *window_us.start() => visit(trace),
        (Some(_), Some(_)) => Ok(ControlFlow::Break(())),
        _ => Ok(ALL),
    })
}

/// Counts every piece in the store by reading it.
pub(super) fn count(rows: &dyn Snapshot, damage: &Damage) -> Result<Count, StoreError> {
    let mut count = Count::default();
    let kind_at = keys::KIND_AT;
    rows.scan(&[keys::TRACES], &[keys::TRACES], &mut |key, row| {
        let is_row_of_pieces = key.get(kind_at) == Some(&keys::KIND_PIECES);
        for framed in frame::each(if is_row_of_pieces { row } else { &[] }) {
            match Piece::decode(framed) {
                Ok(piece) => count += Count::piece(piece.annotation_count()),
                Err(_) => damage.note_piece(),
            }
        }
        Ok(ALL)
    })?;
    Ok(count)
}
