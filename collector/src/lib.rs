//! The central collector: ingest, assemble, store, query.
//!
//! | step | module |
//! |---|---|
//! | spans come in by Scribe or HTTP, bad ones are counted and left out | [`ingest`] |
//! | Zipkin's models, and what turns one into the other | [`model`], [`convert`], [`v1json`], [`v2json`] |
//! | pieces are committed, indexed, expired | [`store`], counted in [`ledger`] |
//! | pieces become the spans of a trace, its tree, its links | [`merge`], [`trace`] |
//! | traces are found | [`query`] |
//! | Zipkin's HTTP API, its page, metrics, health | [`http`] |
//! | all of it is started, and drained when asked to stop | [`server`], as [`config`] says |

pub mod config;
pub mod convert;
pub mod http;
pub mod ingest;
mod json;
pub mod ledger;
pub mod merge;
pub mod model;
pub mod query;
pub mod server;
pub mod store;
pub mod trace;
pub mod v1json;
pub mod v2json;
