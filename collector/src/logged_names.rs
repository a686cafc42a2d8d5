//! Names that senders chose, for the log: each is logged once, and only a few are logged at all.

use std::borrow::Cow;
use std::sync::{Mutex, PoisonError};

/// At most this many names are logged, and at most this many bytes of each: a sender may write anything.
const MOST_LOGGED: usize = 16;
const MOST_BYTES: usize = 100;

/// The names that were logged.
#[derive(Default)]
pub(crate) struct LoggedNames(Mutex<Vec<Box<[u8]>>>);

impl LoggedNames {
    /// The name as it may be logged, if it is new and there is room for one more.
    pub(crate) fn once<'n>(&self, name: &'n [u8]) -> Option<Cow<'n, str>> {
        let name = &name[..name.len().min(MOST_BYTES)];
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = logged.len() < MOST_LOGGED && !logged.iter().any(|known| **known == *name);
        is_new.then(|| {
            logged.push(name.into());
            String::from_utf8_lossy(name)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_reported_once_and_only_up_to_a_limit() {
        let logged = LoggedNames::default();
        assert_eq!(logged.once(b"zipkn").as_deref(), Some("zipkn"));
        assert_eq!(logged.once(b"zipkn"), None);
        assert_eq!(logged.once(&[b'x'; 10_000]).map(|name| name.len()), Some(MOST_BYTES));
        let count = (0..100_u8).filter(|name| logged.once(&[*name]).is_some()).count();
        assert_eq!(count, MOST_LOGGED - 2);
    }
}
