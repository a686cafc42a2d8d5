//! How long a peer may be silent. What was written takes its time over a slow link, and the kernel tells how it gets on: as long
//! as it does the peer is not silent, however long that takes.

use std::time::{Duration, Instant};

/// A wait for a peer. What has arrived is looked at half-way for the first time, for that costs more than a peer that answers
/// is worth.
#[derive(Debug)]
pub(super) struct Silence {
    timeout: Duration,
    look_at: Instant,
    /// Bytes, at the last look.
    arrived: Option<u64>,
}

impl Silence {
    /// Begins now, and ends when nothing has arrived for `timeout`.
    pub(super) fn begin(timeout: Duration) -> Self {
        Silence { timeout, look_at: Instant::now() + timeout / 2, arrived: None }
    }

    /// Something was heard.
    pub(super) fn begin_anew(&mut self) {
        *self = Silence::begin(self.timeout);
    }

    /// How long it may last.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// When to look what has arrived.
    pub(super) fn look_at(&self) -> Instant {
        self.look_at
    }

    /// Looks, if it is time for that. Says whether it has lasted too long.
    pub(super) fn is_too_long(&mut self, arrived: impl FnOnce() -> u64) -> bool {
        let now = Instant::now();
        if now < self.look_at {
            return false;
        }
        let arrived = arrived();
        let patience = match self.arrived.replace(arrived) {
            None => self.timeout / 2,
            Some(before) if before < arrived => self.timeout,
            Some(_) => return true,
        };
        self.look_at = now + patience;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After how many timeouts it is too long, if at each look so much has arrived.
    fn lasts(arrived: &[u64]) -> f64 {
        const TIMEOUT: Duration = Duration::from_millis(20);
        let (began, mut arrived) = (Instant::now(), arrived.iter());
        let mut silence = Silence::begin(TIMEOUT);
        while !silence.is_too_long(|| *arrived.next().unwrap()) {
            std::thread::sleep(silence.look_at().saturating_duration_since(Instant::now()));
        }
        assert_eq!(arrived.len(), 0, "it was looked at less often");
        began.elapsed().as_secs_f64() / TIMEOUT.as_secs_f64()
    }

    #[test]
    fn nobody_is_given_up_before_nothing_has_arrived_for_the_timeout() {
        assert!(lasts(&[7, 7]) >= 1.0);
        assert!(lasts(&[0, 7, 7]) >= 2.0);
        assert!(lasts(&[7, 8, 9, 9]) >= 3.0);
    }
}
