//! The daemon's source files for its formats.
#![allow(dead_code)]

#[path = "../../src/staging/mod.rs"]
pub mod staging;

#[path = "../../src/process.rs"]
pub mod process;

#[path = "../../src/link"]
pub mod link {
    pub mod message;
}

#[path = "../../src/settings"]
pub mod settings {
    pub mod file;
    pub mod levels;
    pub mod message;
    pub mod peer;
    pub mod rules;
}
