//! The node's daemon: drains the rings of every traced program, joins annotations into spans and ships them.
//!
//! Two processes share the work. The **holder** owns the socket and every file descriptor, and parses nothing. The
//! **worker** reads what programs wrote, and may be killed at any time. What has left a ring and is not yet acknowledged
//! by the upstreams is kept in the holder's memory, in the [`staging`] log.

pub mod annotation;
pub mod clock_set;
pub mod config;
mod hash;
pub mod holder;
pub mod join;
pub mod link;
pub mod process;
mod second_runtime;
pub mod settings;
pub mod sinks;
pub mod staging;
pub mod timer;
pub mod worker;
