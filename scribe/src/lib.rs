//! Scribe over TCP, as every daemon of BlkKin speaks it. What the bytes mean is `blkin_thrift`'s; here are the sockets.
//!
//! - [`server`]: framed calls, pipelined and answered in order, within limits of connections, sizes, memory and time.
//! - [`client`]: one upstream, called with blocking sockets; it never waits without a limit.
//! - [`backoff`]: pauses between two attempts.

pub mod backoff;
mod budget;
pub mod client;
pub mod server;

pub use backoff::Backoff;
pub use budget::Budget;
pub use client::{Client, Reply};
