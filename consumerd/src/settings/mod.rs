//! What programs record, changed while they run: on or off, one of how many requests, which levels.
//!
//! Somebody asks on the control socket ([`service`]); who that is, by the kernel's word, decides whose programs may be
//! set ([`peer`]). The [`rules`] are kept in a [`file`](mod@file) that outlives the worker, and what they say of each
//! program is written to its control page, where it is in force with the program's next call. All of it has a thread of
//! its own and waits for no round of draining.

mod copies;
pub mod file;
pub mod levels;
mod live;
pub mod message;
pub mod peer;
pub mod rules;
pub mod service;

pub use live::{Figures, Settings};
