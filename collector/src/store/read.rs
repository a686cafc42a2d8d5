//! Reading: the ledger, the pieces of traces, all pieces.

use super::block::{self, Found, Part};
use super::commit::number;
use super::engine::Snapshot;
use super::index::View;
use super::pieces::Stored;
use super::{Damage, Room, StoreError, frame, keys};
use crate::ledger::{ALL_FIGURES, Count, Ledger};
use crate::merge::Piece;
use crate::model::TraceId;

/// The ledger as committed.
pub(super) fn ledger(rows: &(impl Snapshot + ?Sized)) -> Result<Ledger, StoreError> {
    let mut ledger = Ledger::default();
    let Some(row) = rows.get(keys::LEDGER)? else { return Ok(ledger) };
    for (at, figure) in ALL_FIGURES.into_iter().enumerate() {
        let (annotations, spans) = keys::read_u64(&row, 16 * at)
            .zip(keys::read_u64(&row, 16 * at + 8))
            .ok_or_else(|| StoreError::Damaged("the ledger".to_owned()))?;
        *ledger.get_mut(figure) = Count { annotations, spans };
    }
    Ok(ledger)
}

/// The pieces of a trace.
pub(super) fn trace(
    rows: &dyn Snapshot,
    view: &View,
    id: TraceId,
    strict: bool,
    room: &mut Room,
    damage: &Damage,
) -> Result<Vec<Piece>, StoreError> {
    let found = if strict {
        view.find(rows, id)?.map(|version| (id, version)).into_iter().collect()
    } else {
        view.find_low(rows, id.low())?
    };
    let mut pieces = Vec::new();
    for (id, version) in found {
        bodies(rows, &version.parts, id, damage, &mut |body| match Stored::read(body) {
            Ok(stored) if room.take(stored.spelled_out()) => {
                stored.into_piece().map_or(Took::Damaged, |piece| {
                    pieces.push(piece);
                    Took::It
                })
            }
            Ok(_) => Took::NoMore,
            Err(_) => Took::Damaged,
        })?;
        if room.exhausted {
            break;
        }
    }
    Ok(pieces)
}

/// What has become of a piece that was shown.
pub(super) enum Took {
    It,
    /// It cannot be read.
    Damaged,
    /// No further piece is wanted.
    NoMore,
}

/// Shows each piece of a trace to `take`, until no more is wanted.
pub(super) fn bodies(
    rows: &dyn Snapshot,
    parts: &[Part],
    id: TraceId,
    damage: &Damage,
    take: &mut dyn FnMut(&[u8]) -> Took,
) -> Result<(), StoreError> {
    let (mut last_kept, mut wants_more) = (None, true);
    for part in parts {
        if last_kept == Some(part.block) {
            continue;
        }
        let mut of_part = |row: &[u8], found: Found| {
            let (from, to) = match found {
                Found::Whole => (part.offset as usize, (part.offset + part.length) as usize),
                _ => (block::FIRST, row.len()),
            };
            for piece in frame::each(&row[..to.min(row.len())], from) {
                let took = match piece.body {
                    Some(body) if wants_more && is_of(body, id, found) => take(body),
                    Some(_) => Took::It,
                    None => Took::Damaged,
                };
                wants_more &= !matches!(took, Took::NoMore);
                // A damaged piece must not hide the others.
                if matches!(took, Took::Damaged) {
                    damage.note_piece();
                    tracing::error!(trace = %id, block = part.block, "left out a piece of a span that is damaged");
                }
            }
        };
        match block::look(rows, part.block, &mut of_part)? {
            Found::Whole => {}
            Found::Kept => last_kept = Some(part.block),
            Found::Nothing => note_if_missing(rows, part.block, damage)?,
        }
        if !wants_more {
            break;
        }
    }
    Ok(())
}

/// Whether a piece is of this trace. In a block as it was written, that is known from its place.
fn is_of(body: &[u8], id: TraceId, found: Found) -> bool {
    found == Found::Whole || Piece::decode_body(body).is_ok_and(|piece| piece.trace_id() == Some(id))
}

/// A block that is neither written yet nor passed by retention must be there.
fn note_if_missing(rows: &dyn Snapshot, block: u64, damage: &Damage) -> Result<(), StoreError> {
    if (number(rows, keys::CURSOR)?..number(rows, keys::NEXT_BLOCK)?).contains(&block) {
        damage.note_piece();
        tracing::error!(block, "failed to find a block of pieces of spans");
    }
    Ok(())
}

/// Counts every piece in the store by reading it.
pub(super) fn count(rows: &dyn Snapshot, damage: &Damage) -> Result<Count, StoreError> {
    let mut count = Count::default();
    block::each(rows, &mut |_, part| {
        match part.body.map(Piece::decode_body) {
            Some(Ok(piece)) => count += Count::piece(piece.annotation_count()),
            _ => damage.note_piece(),
        }
        Ok(())
    })?;
    Ok(count)
}
