//! Changes what programs record while they run: on or off, one of how many requests, which levels.
//!
//! Requests come to the control socket ([`service`]). The kernel says which user asks, which decides whose programs may be
//! set ([`peer`]). The [`rules`] are kept in a [`file`](mod@file) that outlives the worker. What they say about each program
//! is written to its control page, and takes effect with the program's next call. All of this happens on a thread of its
//! own, which does not wait for the draining.

mod copies;
pub mod file;
pub mod levels;
pub mod message;
pub mod peer;
pub mod rules;
pub mod service;
mod state;

pub use state::{Figures, Settings};
