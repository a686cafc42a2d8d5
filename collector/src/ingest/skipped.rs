//! Scribe entries of other categories. They are none of ours and are skipped, as Zipkin does; but counted, and each category
//! is named once: one that is misspelt at either end costs all spans, and nobody's ledger shows it, because the sender was
//! told OK.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::named::Named;

/// What was skipped since the start.
#[derive(Default)]
pub struct Skipped {
    entries: AtomicU64,
    named: Named,
}

impl Skipped {
    /// Counts the skipped entries of a call, and names the category of one of them if that is new.
    pub(super) fn tell(&self, category: &[u8], entries: u64, wanted: &str) {
        self.entries.fetch_add(entries, Ordering::Relaxed);
        if let Some(category) = self.named.once(category) {
            tracing::warn!(
                ?category,
                scribe_category = wanted,
                "skipping Scribe entries of another category"
            );
        }
    }

    /// How many entries.
    pub fn entries(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }
}
