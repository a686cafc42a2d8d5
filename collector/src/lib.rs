//! The central collector: ingest, assemble, store, query.
