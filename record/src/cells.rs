//! Texts in cells: the second shape of a tail, where each text has its place.
//!
//! An event none of whose texts is interned may be written so, if each of them is brief: who writes need not know where one
//! text ends to copy the next one, and no text lies over the end of a grain. Flag 2 of word 6 says it.
//!
//! ```text
//! head grain                                   first continuation grain      second continuation grain
//! word 5  0                                    words 1..3  name of the span  words 1..5  the event's text
//! word 6  port (16 of 32) | kind | level | 2   words 3..5  address           words 5..8  without meaning
//! word 7  ordinal | 112                        words 5..7  service
//!                                              word 7      without meaning
//! ```
//!
//! A cell is sixteen bytes, and the event's text has two of them. A text ends before the first byte that is 0, or with its cells.

use crate::layout::{FLAG_CELLS, GRAIN_BYTES, KIND_EVENT, TAIL_GRAIN_BYTES};

/// Bytes of a cell.
pub const CELL_BYTES: usize = 16;
/// Grains of a record in cells.
pub const CELLS_GRAINS: usize = 3;
/// Bytes of its tail, as word 7 has them.
pub const CELLS_TAIL_BYTES: usize = (CELLS_GRAINS - 1) * TAIL_GRAIN_BYTES;
/// Where a record in cells has its span's name, from its first byte on.
pub const NAME_CELL: usize = GRAIN_BYTES + 8;
/// Where it has its endpoint's address.
pub const ADDRESS_CELL: usize = NAME_CELL + CELL_BYTES;
/// Where it has its endpoint's name.
pub const SERVICE_CELL: usize = ADDRESS_CELL + CELL_BYTES;
/// Where it has its event's text, in two cells.
pub const KEY_CELLS: usize = 2 * GRAIN_BYTES + 8;

const _: () = assert!(SERVICE_CELL + CELL_BYTES <= 2 * GRAIN_BYTES);
const _: () = assert!(KEY_CELLS + 2 * CELL_BYTES <= CELLS_GRAINS * GRAIN_BYTES);

/// The high half of word 6 of an event in cells; the low one is its endpoint's port.
#[inline(always)]
pub const fn cells_traits(level: u8) -> u32 {
    KIND_EVENT as u32 | (level as u32) << 8 | (FLAG_CELLS as u32) << 16
}
