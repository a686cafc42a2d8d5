//! The staging log: what was drained but is not yet acknowledged, in memory that outlives the worker.
//!
//! A worker appends each drained range as a [`Frame`], commits all of a pass with one write of eight bytes and only
//! then gives the ring's space back. A new worker reads the same frames again and goes on as if nothing had happened.
//! Frames whose annotations every sink has settled are retired: their sums move into the [`checkpoint`], two copies of
//! which are written in turn. [`layout`] says which byte is where.
//!
//! # Why it is safe at any instruction
//! 1. A frame's bytes lie behind `head` until `head` itself, eight aligned bytes, is written: a cut leaves the old log.
//! 2. A checkpoint overwrites the older copy only, and counts only when its checksum holds: a cut leaves the newer one.
//! 3. Space is reused, and pages are given back, only behind the tail of the newest whole checkpoint.
//!
//! Should something else write to it, a new worker goes on with what is whole: frames carry their number and a checksum, and
//! the log is cut at the first that is not the next one.

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
