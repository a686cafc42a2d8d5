//! Formats of the daemon as it builds them.
#![allow(dead_code)]

#[path = "../../src/staging/mod.rs"]
pub mod staging;

#[path = "../../src/settings"]
pub mod settings {
    pub mod levels;
    pub mod message;
    pub mod peer;
    pub mod rules;
}
