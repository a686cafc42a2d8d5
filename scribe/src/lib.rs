//! Scribe over TCP, for all BlkKin daemons. `blkin_thrift` encodes and decodes the bytes; this crate handles the sockets.
//!
//! - [`server`]: framed calls, pipelined and answered in order, with limits on connections, sizes, memory and time.
//! - `budget`: the memory that messages being read may hold together.
//! - [`client`]: one upstream, called with blocking sockets; it never waits without a limit.
//! - [`pipeline`]: a bounded window of calls under way to one upstream, and the outcome of each.
//! - [`trial`]: finds the entry that an upstream does not accept.
//! - [`doorbell`]: how other threads wake a thread that waits for its upstream.
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
