//! A sink's thread: takes batches, ships them, tries again with growing pauses.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;

use super::queue::{Batch, Outcome, Queue};
use crate::config::Config;

/// What became of a batch.
#[derive(Debug)]
pub enum Delivery {
    /// One outcome for each entry.
    Settled(Vec<Outcome>),
    /// Not now: the other side is busy, away or broken.
    Later(io::Error),
}

/// Where a sink's batches go.
pub trait Outlet: Send {
    /// Ships a batch. It may be called again with the same batch, and must come back within bounded time.
    fn deliver(&mut self, batch: &Batch) -> Delivery;
    /// The batch that was begun will not be tried again.
    fn give_up(&mut self) {}
}

/// The thread's state.
#[derive(Debug)]
pub struct Pump<O> {
    name: &'static str,
    queue: Arc<Queue>,
    outlet: O,
    backoff: Backoff,
    troubled: bool,
}

impl<O: Outlet> Pump<O> {
    /// A pump from `queue` to `outlet`.
    pub fn new(name: &'static str, queue: Arc<Queue>, config: &Config, outlet: O) -> Self {
        let backoff = Backoff::new(
            Duration::from_millis(config.backoff_min_ms),
            Duration::from_millis(config.backoff_max_ms),
        );
        Self { name, queue, outlet, backoff, troubled: false }
    }

    /// Ships until the queue has ended.
    pub fn run(mut self) {
        while let Some(batch) = self.queue.next_batch() {
            self.ship(&batch);
        }
    }

    fn ship(&mut self, batch: &Batch) {
        while self.queue.holds(batch) {
            match self.outlet.deliver(batch) {
                Delivery::Settled(outcomes) => {
                    self.queue.settle(batch, &outcomes);
                    self.tell_recovery();
                    self.backoff.reset();
                    return;
                }
                Delivery::Later(error) => {
                    self.tell_trouble(&error);
                    self.queue.pause(self.backoff.next_pause());
                }
            }
        }
        self.outlet.give_up();
    }

    fn tell_trouble(&mut self, error: &io::Error) {
        if !self.troubled {
            tracing::warn!(sink = self.name, "failed to ship a batch: {error}; trying again until it works");
            self.troubled = true;
        }
    }

    fn tell_recovery(&mut self) {
        if self.troubled {
            tracing::info!(sink = self.name, "shipping again");
            self.troubled = false;
        }
    }
}

/// Pauses that double up to a limit; each is drawn from the upper half of its range, so that many daemons which lost
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

    /// It worked: starts at the beginning.
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
