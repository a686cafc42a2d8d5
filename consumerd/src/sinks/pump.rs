//! What the threads of all sinks do alike: they work on a queue, and pause ever longer while the other side has trouble.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use blkin_scribe::Backoff;

use super::queue::Queue;
use crate::config::Config;

/// Where a sink's batches go.
pub trait Outlet: Send {
    /// Ships until the queue has ended and everything is settled. It tries again until it works, never waits without a
    /// limit for the other side, and lets go of batches that the queue has taken away.
    ///
    /// # Errors
    /// When the kernel refuses to wait; the sink is dead then.
    fn run(self, pump: Pump) -> io::Result<()>;
}

/// A sink's queue, and how the other side is.
#[derive(Debug)]
pub struct Pump {
    name: &'static str,
    /// What is to be shipped.
    pub queue: Arc<Queue>,
    backoff: Backoff,
    troubled: bool,
}

impl Pump {
    /// The other side has had no trouble yet.
    pub fn new(name: &'static str, queue: Arc<Queue>, config: &Config) -> Self {
        let backoff = Backoff::new(
            Duration::from_millis(config.backoff_min_ms),
            Duration::from_millis(config.backoff_max_ms),
        );
        Self { name, queue, backoff, troubled: false }
    }

    /// Ships through `outlet`, to the end.
    pub fn run(self, outlet: impl Outlet) {
        let name = self.name;
        if let Err(error) = outlet.run(self) {
            tracing::error!(sink = name, "failed to go on shipping: {error}");
        }
    }

    /// Something was shipped.
    pub fn well(&mut self) {
        self.backoff.reset();
        if std::mem::take(&mut self.troubled) {
            tracing::info!(sink = self.name, "shipping again");
        }
    }

    /// Something is to be shipped again: pauses.
    ///
    /// # Errors
    /// When the kernel refuses to wait.
    pub fn later(&mut self, error: &io::Error) -> io::Result<()> {
        if !std::mem::replace(&mut self.troubled, true) {
            tracing::warn!(sink = self.name, "failed to ship a batch: {error}; trying again until it works");
        }
        self.queue.pause(self.backoff.next_pause())
    }
}
