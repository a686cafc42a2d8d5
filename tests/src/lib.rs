//! End-to-end tests and their harness.
