//! How long a peer may be silent. Written data may take long over a slow link. As long as the kernel reports that more of it
//! arrives, the peer does not count as silent.

use std::time::{Duration, Instant};

/// A wait for a peer. The first look at what has arrived comes after half of the timeout, since it costs too much to make for
/// every peer that answers promptly.
#[derive(Debug)]
pub(super) struct Silence {
    timeout: Duration,
    look_at: Instant,
    /// Bytes that had arrived at the last look.
    arrived: Option<u64>,
}

impl Silence {
    /// Begins now, and is too long once nothing has arrived for `timeout`.
    pub(super) fn begin(timeout: Duration) -> Self {
        Silence { timeout, look_at: Instant::now() + timeout / 2, arrived: None }
    }

    /// Starts again, because the peer sent something.
    pub(super) fn begin_anew(&mut self) {
        *self = Silence::begin(self.timeout);
    }

    /// How long the silence may last.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// When to look next at what has arrived.
    pub(super) fn look_at(&self) -> Instant {
        self.look_at
    }

    /// Looks at what has arrived, if it is time for that. Returns whether the silence has lasted too long.
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

    /// After how many timeouts the silence is too long, if this much has arrived at each look.
    fn lasts(arrived: &[u64]) -> f64 {
        const TIMEOUT: Duration = Duration::from_millis(20);
        let (began, mut arrived) = (Instant::now(), arrived.iter());
        let mut silence = Silence::begin(TIMEOUT);
        while !silence.is_too_long(|| *arrived.next().unwrap()) {
            std::thread::sleep(silence.look_at().saturating_duration_since(Instant::now()));
        }
        assert_eq!(arrived.len(), 0, "the silence ended before the last look");
        began.elapsed().as_secs_f64() / TIMEOUT.as_secs_f64()
    }

    #[test]
    fn silence_timeout_restarts_whenever_something_arrives() {
        assert!(lasts(&[7, 7]) >= 1.0);
        assert!(lasts(&[0, 7, 7]) >= 2.0);
        assert!(lasts(&[7, 8, 9, 9]) >= 3.0);
    }
}
