//! The common part of all sinks' threads: they work on a queue, and pause ever longer while the other side has trouble.

use std::fmt::Display;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use blkin_daemon::{Cause, Standing};
use blkin_scribe::Backoff;

use super::queue::Queue;
use crate::config::Config;

/// Where a sink's batches go.
pub trait Outlet: Send {
    /// Ships until the queue has ended and everything is settled. It retries until it succeeds, never waits without a
    /// limit for the other side, and drops batches that the queue has taken away.
    ///
    /// # Errors
    /// When the kernel refuses to wait; then the sink is dead.
    fn run(self, pump: Pump) -> io::Result<()>;
}

/// A sink's queue, and whether the other side takes what it is sent.
#[derive(Debug)]
pub struct Pump {
    name: &'static str,
    /// What is to be shipped.
    pub queue: Arc<Queue>,
    standing: Arc<Standing>,
    backoff: Backoff,
}

impl Pump {
    /// Starts without any trouble on the other side.
    pub fn new(name: &'static str, queue: Arc<Queue>, standing: Arc<Standing>, config: &Config) -> Self {
        let backoff = Backoff::new(
            Duration::from_millis(config.backoff_min_ms),
            Duration::from_millis(config.backoff_max_ms),
        );
        Self { name, queue, standing, backoff }
    }

    /// Ships through `outlet` until the sink ends.
    pub fn run(self, outlet: impl Outlet) {
        let name = self.name;
        if let Err(error) = outlet.run(self) {
            tracing::error!(sink = name, "the sink's thread failed and ships nothing more: {error}");
        }
    }

    /// Notes that something was shipped.
    pub fn note_shipped(&mut self) {
        self.backoff.reset();
        if let Some(over) = self.standing.succeeded() {
            let (to, seconds, failures) = (self.standing.to(), over.lasted.as_secs(), over.failures);
            tracing::info!(sink = self.name, to, seconds, failures, "shipping again");
        }
    }

    /// Notes that the other side has answered without taking anything: at least it can be reached.
    pub fn note_answered(&mut self) {
        self.backoff.reset();
    }

    /// Notes that the other side refuses everything it gets, and refuses it for good.
    pub fn note_refused(&mut self, reason: &impl Display) {
        if let Some(begun) = self.standing.failed(Cause::Refused, reason) {
            let (to, cause, held_back) = (self.standing.to(), Cause::Refused.label(), begun.held_back);
            tracing::warn!(sink = self.name, to, cause, held_back, "failed to ship: {reason}");
        }
    }

    /// Notes that something has to be shipped again, and pauses before that.
    ///
    /// # Errors
    /// When the kernel refuses to wait.
    pub fn report_failure_and_pause(&mut self, cause: Cause, reason: &impl Display) -> io::Result<()> {
        if let Some(begun) = self.standing.failed(cause, reason) {
            let (to, cause, held_back) = (self.standing.to(), cause.label(), begun.held_back);
            tracing::warn!(
                sink = self.name,
                to,
                cause,
                held_back,
                "failed to ship: {reason}; trying again until it works"
            );
        }
        self.queue.pause(self.backoff.next_pause())
    }
}
