//! Texts in cells: the second form of a tail, in which each text has a fixed place.
//!
//! An event may be written in this form if none of its texts is interned and each of them is short. A writer then need not
//! know where one text ends in order to copy the next one, and no text crosses the end of a grain. Flag 2 of word 6 marks
//! this form.
//!
//! ```text
//! head grain                                   first continuation grain      second continuation grain
//! word 5  0                                    words 1..3  name of the span  words 1..5  the event's text
//! word 6  port (16 of 32) | kind | level | 2   words 3..5  address           words 5..8  undefined
//! word 7  ordinal | 112                        words 5..7  service
//!                                              word 7      undefined
//! ```
//!
//! A cell is 16 bytes; the event's text has two cells. A text ends before its first zero byte, or at the end of its cells.

use crate::layout::{FLAG_CELLS, GRAIN_BYTES, KIND_EVENT, TAIL_GRAIN_BYTES};

/// Bytes of a cell.
pub const CELL_BYTES: usize = 16;
/// Grains of a record in cells.
pub const CELLS_GRAINS: usize = 3;
/// Tail bytes of a record in cells, as word 7 states them.
pub const CELLS_TAIL_BYTES: usize = (CELLS_GRAINS - 1) * TAIL_GRAIN_BYTES;
/// Offset of the span's name in a record in cells, in bytes.
pub const NAME_CELL: usize = GRAIN_BYTES + 8;
/// Offset of the endpoint's address, in bytes.
pub const ADDRESS_CELL: usize = NAME_CELL + CELL_BYTES;
/// Offset of the endpoint's name, in bytes.
pub const SERVICE_CELL: usize = ADDRESS_CELL + CELL_BYTES;
/// Offset of the event's text, which has two cells, in bytes.
pub const KEY_CELLS: usize = 2 * GRAIN_BYTES + 8;

const _: () = assert!(SERVICE_CELL + CELL_BYTES <= 2 * GRAIN_BYTES);
const _: () = assert!(KEY_CELLS + 2 * CELL_BYTES <= CELLS_GRAINS * GRAIN_BYTES);

/// The high half of word 6 of an event in cells; the low half is its endpoint's port.
#[inline(always)]
pub const fn cells_traits(level: u8) -> u32 {
    KIND_EVENT as u32 | (level as u32) << 8 | (FLAG_CELLS as u32) << 16
}
