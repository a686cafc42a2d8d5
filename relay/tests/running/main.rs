//! The running relay, as a process with clients and upstreams.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod answers;
mod connections;
mod damage;
mod disks;
mod dying;
mod floods;
mod keys;
mod process;
mod upstream;
