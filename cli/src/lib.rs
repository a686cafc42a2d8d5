//! The `blkin` command: reads a collector's Zipkin v2 API and the daemons' metrics, and prints what it found.
//!
//! | module | purpose |
//! |---|---|
//! | [`environment`] | environment variables in place of options that were not given |
//! | [`http`] | bounded GET requests |
//! | [`span`], [`tree`] | Zipkin v2 spans, and the tree they form |
//! | [`traces`], [`waterfall`] | the two views of traces |
//! | `skew` | how far the clocks of the hosts of a trace are apart |
//! | [`live`] | spans as they arrive |
//! | [`metrics`], [`ledger`] | Prometheus text, and the equations that say where each annotation went |
//! | [`rejects`] | what the collector rejected, and why |
//! | [`stats`] | time between two annotations, by service |
//! | [`doctor`] | whether tracing works on this machine, and if not, why |
//! | [`snapshot`], [`recover`] | saving what the rings hold now, and reading such a file |
//! | `process` | what /proc says about a process |
//! | `private_file` | the file of a snapshot, which appears as a whole or not at all |
//! | [`set`] | changing what running programs record |
//! | [`target`] | which programs `snapshot` and `set` apply to |
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
