//! The staging log: what was drained but is not yet acknowledged, in memory that outlives the worker.
//!
//! A worker appends each drained range as a [`Frame`], commits all frames of a pass with one write of eight bytes, and only
//! then frees the space in the rings. A new worker reads the same frames again and continues as if nothing had happened.
//! Frames whose annotations every sink has settled are retired: their sums move into the [`checkpoint`], two copies of
//! which are written in turn. [`layout`] says which byte is where.
//!
//! # Why the worker may be killed at any instruction
//! 1. A frame's bytes lie behind `head` until `head` itself, eight aligned bytes, is written: a kill before leaves the old log.
//! 2. A checkpoint overwrites only the older copy, and counts only if its checksum is right: a kill before leaves the newer copy.
//! 3. Space is reused, and pages are freed, only before the tail of the newest whole checkpoint.
//!
//! If anything else writes to the memory, a new worker continues with what is whole: frames carry their number and a checksum,
//! and the log is cut at the first entry that is not the next frame.

pub mod checkpoint;
pub mod layout;
pub mod log;
pub mod memory;
pub mod number;
pub mod twice;

pub use checkpoint::{Checkpoint, DepartedTotals, ProgramState, SinkState, SlotState};
pub use layout::Geometry;
pub use log::{Frame, Recovered, Staging, StagingError};
pub use memory::{Memfd, Memory};
pub use number::NumberRow;
