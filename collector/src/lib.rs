//! The central collector: ingest, assemble, store, query.

pub mod convert;
mod json;
pub mod merge;
pub mod model;
pub mod trace;
pub mod v1json;
pub mod v2json;
