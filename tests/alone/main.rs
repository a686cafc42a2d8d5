//! Tests that need the machine for themselves: each holds [`alone`].
#![allow(missing_docs)]

mod demo;
mod doctor;
mod idle;
mod scan;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Lets one test run at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
