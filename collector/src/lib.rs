//! The central collector: ingest, assemble, store, query.
//!
//! | step | module |
//! |---|---|
//! | spans come in by Scribe or HTTP, bad ones are counted and left out | [`ingest`] |
//! | Zipkin's models, and what turns one into the other | [`model`], [`convert`], [`v1json`], [`v2json`] and [`v2view`], [`proto3`] |
//! | why something was refused | [`refusal`] |
//! | pieces are committed, indexed, expired | [`store`], counted in [`ledger`] |
//! | pieces become the spans of a trace, its tree, its links | [`merge`], [`trace`] |
//! | traces are found | [`query`] |
//! | what arrives is shown to whoever watches | [`live`] |
//! | Zipkin's HTTP API, its page, metrics, health | [`http`] |
//! | all of it is started, and drained when asked to stop | [`server`], as [`config`] says; [`settings`] change while it runs |

pub mod config;
pub mod http;
pub mod ingest;
mod json;
pub mod ledger;
pub mod live;
pub mod merge;
mod named;
pub mod proto3;
pub mod query;
pub mod refusal;
pub mod server;
pub mod settings;
pub mod store;
pub mod trace;
pub mod v1json;
pub mod v2json;
pub mod v2view;

pub use blkin_zipkin::{convert, model};
