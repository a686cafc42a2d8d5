//! Tells why entries were rejected, without letting a flood of bad ones flood the log: the counters tell how many.

use std::fmt::Display;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const WINDOW: Duration = Duration::from_secs(10);
const LINES_PER_WINDOW: u64 = 5;
/// Reasons quote what was sent; no more of them is logged than this.
const MAX_REASON_CHARS: usize = 300;

#[derive(Default)]
pub(super) struct RejectLog {
    window: Mutex<Option<Window>>,
}

struct Window {
    opened: Instant,
    told: u64,
}

impl RejectLog {
    pub(super) fn tell(&self, reason: &dyn Display) {
        let Some(held_back) = self.admit(Instant::now()) else { return };
        let reason: String = reason.to_string().chars().take(MAX_REASON_CHARS).collect();
        tracing::warn!(held_back, "rejected an entry: {reason}");
    }

    /// Whether a line may be written now, and how many could not be in the window before.
    fn admit(&self, now: Instant) -> Option<u64> {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        match window.as_mut() {
            Some(open) if now.duration_since(open.opened) < WINDOW => {
                open.told += 1;
                (open.told <= LINES_PER_WINDOW).then_some(0)
            }
            before => {
                let held_back = before.map_or(0, |w| w.told.saturating_sub(LINES_PER_WINDOW));
                *window = Some(Window { opened: now, told: 1 });
                Some(held_back)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_held_back_and_told_of_later() {
        let log = RejectLog::default();
        let start = Instant::now();
        let lines = (0..100).filter(|_| log.admit(start).is_some()).count();
        assert_eq!(lines, LINES_PER_WINDOW as usize);
        assert_eq!(log.admit(start + WINDOW), Some(95));
    }
}
