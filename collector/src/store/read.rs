//! Reads the ledger, the pieces of traces, and all pieces.

use super::block::{self, Found, Part};
use super::commit::number;
use super::engine::Snapshot;
use super::held::Pieces;
use super::index::View;
use super::outline::Outline;
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

/// When the newest block arrived; 0 if it has expired, or if there was none.
pub(super) fn newest_arrival_ms(rows: &dyn Snapshot) -> Result<u64, StoreError> {
    let Some(newest) = number(rows, keys::NEXT_BLOCK)?.checked_sub(1) else { return Ok(0) };
    let mut arrival_ms = 0;
    rows.look(&keys::block(newest), &mut |row| arrival_ms = block::arrival_ms(row))?;
    Ok(arrival_ms)
}

/// Adds the pieces of a trace, compared strictly or not, to `pieces`.
pub(super) fn trace(
    rows: &dyn Snapshot,
    view: &View,
    (id, strict): (TraceId, bool),
    room: &mut Room,
    damage: &Damage,
    pieces: &mut Pieces,
) -> Result<(), StoreError> {
    let found = if strict {
        view.find(rows, id)?.map(|version| (id, version)).into_iter().collect()
    } else {
        view.find_low(rows, id.low())?
    };
    for (id, version) in found {
        bodies(rows, &version.parts, id, damage, &mut |body| match Outline::of(body) {
            // The index led to a piece of another trace.
            Ok(outline) if outline.trace != Some(id) => PieceFate::Damaged,
            Ok(outline) if room.take(outline.spelled_out) => {
                pieces.push(outline.span, body);
                PieceFate::Taken
            }
            Ok(_) => PieceFate::NoMore,
            Err(_) => PieceFate::Damaged,
        })?;
        if room.exhausted {
            break;
        }
    }
    Ok(())
}

/// What became of a piece that was shown.
pub(super) enum PieceFate {
    /// It was taken.
    Taken,
    /// It cannot be read.
    Damaged,
    /// No further piece is wanted.
    NoMore,
}

/// Shows each piece of a trace to `take`, until `take` wants no more.
pub(super) fn bodies(
    rows: &dyn Snapshot,
    parts: &[Part],
    id: TraceId,
    damage: &Damage,
    take: &mut dyn FnMut(&[u8]) -> PieceFate,
) -> Result<(), StoreError> {
    let mut showing = Showing { id, damage, take, wants_more: true };
    let mut last_kept = None;
    for part in parts {
        if last_kept == Some(part.block) {
            continue;
        }
        match block::look(rows, part.block, &mut |row, found| showing.show(part, row, found))? {
            Found::Whole => {}
            Found::Kept => last_kept = Some(part.block),
            Found::Nothing => note_if_missing(rows, part.block, damage)?,
        }
        if !showing.wants_more {
            break;
        }
    }
    Ok(())
}

/// Shows pieces of a trace.
struct Showing<'t> {
    id: TraceId,
    damage: &'t Damage,
    take: &'t mut dyn FnMut(&[u8]) -> PieceFate,
    wants_more: bool,
}

impl Showing<'_> {
    /// Shows a part of a block. If retention has passed the block, shows everything that it kept of the trace there.
    fn show(&mut self, part: &Part, row: &[u8], found: Found) {
        let (from, to) = match found {
            Found::Whole => (part.offset as usize, (part.offset + part.length) as usize),
            _ => (block::FIRST, row.len()),
        };
        for piece in frame::each(&row[..to.min(row.len())], from) {
            let fate = match piece.body {
                Some(body) if self.wants_more && is_of(body, self.id, found) => (self.take)(body),
                Some(_) => PieceFate::Taken,
                None => PieceFate::Damaged,
            };
            self.wants_more &= !matches!(fate, PieceFate::NoMore);
            // A damaged piece must not hide the others.
            if matches!(fate, PieceFate::Damaged) {
                self.damage.tell_of_piece(Some(self.id), part.block);
            }
        }
    }
}

/// Whether a piece belongs to this trace. In a block as it was written, its place already shows that.
fn is_of(body: &[u8], id: TraceId, found: Found) -> bool {
    found == Found::Whole || Piece::decode_body(body).is_ok_and(|piece| piece.trace_id() == Some(id))
}

/// A block that is neither written yet nor passed by retention must be there.
fn note_if_missing(rows: &dyn Snapshot, block: u64, damage: &Damage) -> Result<(), StoreError> {
    if (number(rows, keys::CURSOR)?..number(rows, keys::NEXT_BLOCK)?).contains(&block) {
        damage.tell_of_missing(block);
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

#[cfg(test)]
mod tests {
    use blkin_thrift::Span;

    use super::super::head::{Growth, Learned, Rest};
    use super::super::memory::Memory;
    use super::super::{Batch, Store, TraceStore};
    use super::*;

    #[test]
    fn a_wrong_index_entry_never_returns_another_traces_piece() {
        let store = TraceStore::new(Memory::default()).unwrap();
        let mut batch = Batch::default();
        batch.push(&Piece::V1(Span { trace_id: 1, id: 1, ..Span::default() }));
        store.commit(&[batch], 1).unwrap();
        let other = TraceId::new(0, 2).unwrap();
        let parts = vec![Part { block: 0, offset: block::FIRST as u32, length: 1000 }];
        let growth = Growth { rest: Rest::Nowhere, parts, ..Growth::default() };
        store.index.grow(Learned { traces: vec![(other, growth)], next_block: 1, ..Learned::default() });
        let read = |id| store.trace(id, true, &mut Room::of(usize::MAX)).unwrap().len();
        assert_eq!((read(TraceId::new(0, 1).unwrap()), store.damage().pieces()), (1, 0));
        assert_eq!((read(other), store.damage().pieces()), (0, 1));
    }
}
