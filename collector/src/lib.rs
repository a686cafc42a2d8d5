//! The central collector: ingest, assemble, store, query.
//!
//! | step | module |
//! |---|---|
//! | spans arrive by Scribe or HTTP; bad ones are counted and left out | [`ingest`] |
//! | Zipkin's models, and the conversions between them | [`model`], [`convert`], [`v1json`], [`v2json`] and [`v2view`], [`proto3`] |
//! | why something was refused | [`refusal`] |
//! | pieces of spans are committed, indexed, expired | [`store`], counted in [`ledger`] |
//! | pieces become the spans of a trace, its tree, its links | [`merge`], [`trace`] |
//! | traces are found | [`query`] |
//! | arriving spans are shown to live viewers | [`live`] |
//! | Zipkin's HTTP API, its page, metrics, health | [`http`] |
//! | everything is started, and drained at a stop | [`server`], as [`config`] says; [`settings`] may change while it runs |

pub mod config;
pub mod http;
pub mod ingest;
mod json;
pub mod ledger;
pub mod live;
mod logged_names;
pub mod merge;
pub mod proto3;
pub mod query;
mod recurring;
pub mod refusal;
pub mod server;
pub mod settings;
pub mod store;
pub mod trace;
pub mod v1json;
pub mod v2json;
pub mod v2view;

pub use blkin_zipkin::{convert, model};
