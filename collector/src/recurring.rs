//! Messages that clients can cause as often as they like: each is logged at most once a second, so that nobody can fill the disk
//! with them.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use blkin_daemon::Notices;

/// One such message.
#[derive(Debug, Default)]
pub(crate) struct Recurring(Mutex<Option<Notices>>);

impl Recurring {
    /// A message that was not logged yet.
    pub(crate) const fn new() -> Recurring {
        Recurring(Mutex::new(None))
    }

    /// Notes the event. If it may be logged, returns how many events were held back since the last line.
    pub(crate) fn admit(&self) -> Option<u64> {
        let mut notices = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        notices.get_or_insert_default().admit(Instant::now())
    }
}
