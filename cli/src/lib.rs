//! The blkin command.
