//! Scribe entries of other categories. They are none of ours and are skipped, as Zipkin does; but counted, and each category
//! is named once: one that is misspelt at either end costs all spans, and nobody's ledger shows it, because the sender was
//! told OK.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// So many categories are named in the log, and so much of each: they are whatever senders write.
const MOST_NAMED: usize = 16;
const MOST_BYTES: usize = 100;

/// What was skipped since the start.
#[derive(Default)]
pub struct Skipped {
    entries: AtomicU64,
    named: Mutex<Vec<Box<[u8]>>>,
}

impl Skipped {
    /// Counts the skipped entries of a call, and names the category of one of them if that is new.
    pub(super) fn tell(&self, category: &[u8], entries: u64, wanted: &str) {
        self.entries.fetch_add(entries, Ordering::Relaxed);
        let category = &category[..category.len().min(MOST_BYTES)];
        if self.is_new(category) {
            let category = String::from_utf8_lossy(category);
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

    fn is_new(&self, category: &[u8]) -> bool {
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = named.len() < MOST_NAMED && !named.iter().any(|known| **known == *category);
        if is_new {
            named.push(category.into());
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_category_is_named_once_and_no_more_than_a_few_are() {
        let skipped = Skipped::default();
        assert!(skipped.is_new(b"zipkn") && !skipped.is_new(b"zipkn"));
        let named = (0..100_u8).filter(|name| skipped.is_new(&[*name])).count();
        assert_eq!(named, MOST_NAMED - 1);
        skipped.tell(&[b'x'; 10_000], 7, "zipkin");
        assert_eq!(skipped.entries(), 7);
    }
}
