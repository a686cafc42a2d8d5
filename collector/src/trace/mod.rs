//! What a trace means as a whole: spans that belong together, who caused whom, which service called which.

mod cleanup;
mod links;
mod tree;

pub use cleanup::merge_for_reading;
pub use links::{DependencyLink, Linker, Links};
pub use tree::{Node, Tree};
