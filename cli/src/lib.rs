//! The `blkin` command: reads a collector's Zipkin v2 API and the daemons' metrics, and says what it found.
//!
//! | module | one purpose |
//! |---|---|
//! | [`environment`] | what variables say for options that were not given |
//! | [`http`] | bounded GET requests |
//! | [`span`], [`tree`] | Zipkin v2 spans, and the tree they form |
//! | [`traces`], [`waterfall`] | the two views of traces |
//! | `skew` | how far clocks of a trace are apart |
//! | [`live`] | spans as they arrive |
//! | [`metrics`], [`ledger`] | Prometheus text, and the equations that say where each annotation went |
//! | [`rejects`] | what the collector rejected, and why |
//! | [`stats`] | time between two annotations, by service |
//! | [`doctor`] | whether tracing works on this machine, and if not, why |
//! | [`snapshot`], [`recover`] | what the rings hold now, and what a file of that says |
//! | `process` | what /proc says of a process |
//! | `private_file` | the file of a snapshot, which is there as a whole or not at all |
//! | [`set`] | what programs record, changed while they run |
//! | [`target`] | whose programs those two are about |
//! | [`terminal`], [`units`], [`moments`] | width, colours, safe text; durations and ages; points in time |

pub mod doctor;
pub mod environment;
pub mod http;
pub mod json;
pub mod ledger;
pub mod live;
pub mod metrics;
pub mod moments;
mod private_file;
mod process;
pub mod recover;
pub mod rejects;
pub mod set;
mod skew;
pub mod snapshot;
pub mod span;
pub mod stats;
pub mod target;
pub mod terminal;
pub mod traces;
pub mod tree;
pub mod units;
pub mod views;
pub mod waterfall;
