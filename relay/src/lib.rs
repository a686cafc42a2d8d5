//! `blkin-relay`: Scribe in, Scribe out, in any tree between nodes and collector.
//!
//! The path of an entry: [`intake`] finds it in a call and counts it; [`spool`] makes it durable, and the call is answered with
//! `OK`; for each upstream, a thread of [`upstream`] sends it on, in order, at least once; `sweeper` removes what all upstreams
//! have. [`ledger`] holds the figures, `metrics` shows them, and [`loop_detector`] notices when entries come back to the relay.
//! Entries are passed on byte for byte. They are decoded only for [`live`] viewers, on a separate thread.

pub mod config;
pub mod intake;
pub mod ledger;
pub mod live;
pub mod loop_detector;
mod metrics;
pub mod server;
pub mod spool;
mod sweeper;
pub mod upstream;
