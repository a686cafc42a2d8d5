//! `blkin-relay`: Scribe in, Scribe out, in any tree between nodes and collector.
//!
//! An entry travels through these files: [`intake`] finds it in a call and counts it, [`spool`] makes it durable, then
//! `OK` is answered; a thread of [`upstream`] for each upstream sends it on, in order, at least once; `sweeper` removes what
//! all of them have. [`ledger`] has the figures, `metrics` shows them; [`returning`] knows when what was sent comes back. What
//! came is what leaves, byte for byte: entries are decoded for [`live`] viewers only, and on a thread of their own.

pub mod config;
pub mod intake;
pub mod ledger;
pub mod live;
mod metrics;
pub mod returning;
pub mod server;
pub mod spool;
mod sweeper;
pub mod upstream;
