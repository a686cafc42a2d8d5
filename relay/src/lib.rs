//! `blkin-relay`: Scribe in, Scribe out, in any tree between nodes and collector.
//!
//! An entry travels through these files: [`intake`] finds it in a call and counts it, [`spool`] makes it durable, then
//! `OK` is answered; a thread of [`upstream`] for each upstream sends it on, in order, at least once. [`ledger`] has the
//! figures, [`metrics`] shows them. Entries are never decoded: what came is what leaves, byte for byte.

pub mod config;
pub mod intake;
pub mod ledger;
mod metrics;
pub mod server;
pub mod spool;
pub mod upstream;
