//! The spool's formats, compiled from the relay's own sources.
#![allow(dead_code)]

#[path = "../../src/ledger.rs"]
pub mod ledger;

#[path = "../../src/spool"]
pub mod spool {
    pub mod checkpoint;
    pub mod files;
    pub mod layout;
    pub mod segment;
}
