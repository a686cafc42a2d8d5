//! Pauses between two attempts.

use std::time::Duration;

use rand::RngExt;

/// Pauses that double up to a limit. Each is drawn from the upper half of its range, so that many daemons which lost
/// the same upstream do not come back at the same time.
#[derive(Debug)]
pub struct Backoff {
    min: Duration,
    max: Duration,
    current: Duration,
}

impl Backoff {
    /// Starts at `min`.
    pub fn new(min: Duration, max: Duration) -> Self {
        Self { min, max, current: min }
    }

    /// The next pause.
    pub fn next_pause(&mut self) -> Duration {
        let pause = self.current.mul_f64(rand::rng().random_range(0.5..=1.0));
        self.current = (self.current * 2).min(self.max);
        pause
    }

    /// Starts again at the shortest pause, after an attempt worked.
    pub fn reset(&mut self) {
        self.current = self.min;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_limit_and_start_again() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(ms(100), ms(350));
        for most in [100, 200, 350, 350] {
            let pause = backoff.next_pause();
            assert!(pause >= ms(most / 2) && pause <= ms(most), "{pause:?}");
        }
        backoff.reset();
        assert!(backoff.next_pause() <= ms(100));
    }
}
