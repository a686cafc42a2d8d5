//! Scribe over TCP, as every daemon of BlkKin speaks it. What the bytes mean is `blkin_thrift`'s; here are the sockets.
//!
//! - [`server`]: framed calls, pipelined and answered in order, within limits of connections, sizes, memory and time.
//! - [`client`]: one upstream, called with blocking sockets; it never waits without a limit.
//! - [`pipeline`]: a bounded window of calls under way to it, and what becomes of each.
//! - [`trial`]: which entry it is that an upstream does not take.
//! - [`doorbell`]: how other threads end the wait for it.
//! - [`backoff`]: pauses between two attempts.

pub mod backoff;
mod budget;
pub mod client;
pub mod doorbell;
pub mod pipeline;
pub mod server;
pub mod trial;

pub use backoff::Backoff;
pub use budget::{Budget, Denied, Share};
pub use client::{Client, Reply};
pub use doorbell::Doorbell;
pub use pipeline::{Pipeline, Trouble, Verdict, Window};
pub use trial::Trial;
