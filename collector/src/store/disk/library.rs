//! Calls of the database library, which may panic on a damaged file, and of our own code, whose panics say nothing about the file.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::store::StoreError;

/// The code that the library's caller has called back, and its panic if it panicked.
#[derive(Default)]
pub(super) struct OwnCode {
    panic: RefCell<Option<Box<dyn Any + Send>>>,
}

impl OwnCode {
    /// Runs our own code in the middle of a [`call`]. If it panics, what called it gets an error, and `call` goes on with the
    /// panic once the library has returned.
    pub(super) fn run<T>(&self, code: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
        catch_unwind(AssertUnwindSafe(code)).unwrap_or_else(|panic| {
            self.panic.replace(Some(panic));
            Err(StoreError::Ended)
        })
    }
}

/// Calls the library. It reports the damage that it detects, and may panic on damage that it does not detect.
///
/// # Errors
/// The error of `work`, or [`StoreError::Corrupted`] if the library panicked.
///
/// # Panics
/// If our own code panicked in [`OwnCode::run`].
pub(super) fn call<T>(work: impl FnOnce(&OwnCode) -> Result<T, StoreError>) -> Result<T, StoreError> {
    let own = OwnCode::default();
    let done = catch_unwind(AssertUnwindSafe(|| work(&own)));
    if let Some(panic) = own.panic.take() {
        resume_unwind(panic);
    }
    done.unwrap_or_else(|_| Err(StoreError::Corrupted("the database library panicked on it".to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Done = Result<(), StoreError>;

    fn panics() -> Done {
        panic!("as a test does")
    }

    /// What the caller sees: an error, or nothing if the panic goes on.
    fn seen(work: impl FnOnce(&OwnCode) -> Done) -> Option<Done> {
        catch_unwind(AssertUnwindSafe(|| call(work))).ok()
    }

    #[test]
    fn a_panic_of_the_library_is_damage() {
        assert!(matches!(seen(|_| panics()), Some(Err(StoreError::Corrupted(_)))));
        let within_our_code = seen(|own| own.run(|| call(|_| panics())));
        assert!(matches!(within_our_code, Some(Err(StoreError::Corrupted(_)))));
    }

    #[test]
    fn a_panic_of_our_own_code_goes_on() {
        assert!(seen(|own| own.run(panics)).is_none());
        assert!(seen(|own| own.run(|| call(|own| own.run(panics)))).is_none());
        assert!(seen(|own| own.run(panics).or(Ok(()))).is_none(), "whatever the library makes of the error");
        let and_then_the_library = seen(|own| {
            assert!(own.run(panics).is_err());
            panics()
        });
        assert!(and_then_the_library.is_none());
    }
}
