//! Names that senders chose, for the log: each is logged once, and only a few are logged at all.

use std::borrow::Cow;
use std::sync::{Mutex, PoisonError};

/// At most this many names are logged, and at most this many bytes of each: a sender may write anything.
const MOST_NAMED: usize = 16;
const MOST_BYTES: usize = 100;

/// The names that were logged.
#[derive(Default)]
pub(crate) struct Named(Mutex<Vec<Box<[u8]>>>);

impl Named {
    /// The name as it may be logged, if it is new and there is room for one more.
    pub(crate) fn once<'n>(&self, name: &'n [u8]) -> Option<Cow<'n, str>> {
        let name = &name[..name.len().min(MOST_BYTES)];
        let mut named = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = named.len() < MOST_NAMED && !named.iter().any(|known| **known == *name);
        is_new.then(|| {
            named.push(name.into());
            String::from_utf8_lossy(name)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_reported_once_and_only_up_to_a_limit() {
        let named = Named::default();
        assert_eq!(named.once(b"zipkn").as_deref(), Some("zipkn"));
        assert_eq!(named.once(b"zipkn"), None);
        assert_eq!(named.once(&[b'x'; 10_000]).map(|name| name.len()), Some(MOST_BYTES));
        let told = (0..100_u8).filter(|name| named.once(&[*name]).is_some()).count();
        assert_eq!(told, MOST_NAMED - 2);
    }
}
