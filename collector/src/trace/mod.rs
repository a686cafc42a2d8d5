//! A trace as a whole: which pieces belong together, which span caused which, which service called which.

mod cleanup;
mod links;
mod tree;

pub use cleanup::merge_for_reading;
pub use links::{DependencyLink, Linker, Links};
pub use tree::{Node, Tree};
