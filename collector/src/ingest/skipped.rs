//! Scribe entries of other categories. They are skipped, as in Zipkin, but counted, and the log names some of the categories. A
//! category that is misspelt at either end costs all spans, and no ledger shows that loss, because the sender was told OK.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::logged_names::LoggedNames;

/// Entries that were skipped since the start.
#[derive(Default)]
pub struct Skipped {
    entries: AtomicU64,
    logged: LoggedNames,
}

impl Skipped {
    /// Counts the skipped entries of a call, and logs the category of one of them if it is new.
    pub(super) fn tell(&self, category: &[u8], entries: u64, wanted: &str) {
        self.entries.fetch_add(entries, Ordering::Relaxed);
        if let Some(category) = self.logged.once(category) {
            tracing::warn!(
                ?category,
                scribe_category = wanted,
                "skipping Scribe entries of another category"
            );
        }
    }

    /// How many entries were skipped.
    pub fn entries(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }
}
