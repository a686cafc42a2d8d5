//! Sinks work independently: each has its own bounded [`queue`] and its own thread, so that an upstream which is
//! slow, away or broken costs the other sinks nothing. Annotations that a sink loses are counted by cause.

pub mod json;
pub mod lines;
pub mod pump;
pub mod queue;
pub mod scribe;
pub mod thread_progress;
pub mod zipkin;

use std::sync::Arc;
use std::thread::JoinHandle;

use blkin_daemon::{Cause, Standing, threads};

use crate::config::Config;
use queue::Queue;

/// Names of all sinks that can be switched on, in the order of their figures in the staging memory.
pub const NAMES: [&str; 3] = ["scribe", "scribe_json", "json_lines"];

/// What a sink is fed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feed {
    /// Whole spans, as messages of Scribe's category for Zipkin.
    Spans,
    /// Single annotations, as JSON.
    Annotations,
}

/// What the thread of a sink shows of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// It makes progress, waits where it should, or has finished its work.
    Life,
    /// It has made no progress since the last look, as in a system call that does not return.
    Silence,
    /// It has ended too early.
    Death,
}

/// A running sink.
#[derive(Debug)]
pub struct Sink {
    /// Name in the metrics.
    pub name: &'static str,
    /// What it takes.
    pub feed: Feed,
    /// Its queue.
    pub queue: Arc<Queue>,
    /// Whether the other side takes what it is sent.
    pub standing: Arc<Standing>,
    thread: Option<JoinHandle<()>>,
}

impl Sink {
    /// Starts `outlet` on a thread of its own; `standing` is what is known of the other side.
    ///
    /// # Errors
    /// When no thread can be started, or no file descriptor is left.
    pub fn start(
        name: &'static str,
        feed: Feed,
        standing: Standing,
        config: &Config,
        outlet: impl pump::Outlet + 'static,
    ) -> std::io::Result<Self> {
        let queue = Arc::new(Queue::new(queue::Limits {
            bytes: config.queue_bytes,
            batch_bytes: config.batch_bytes,
            batch_entries: config.batch_entries,
            linger: std::time::Duration::from_millis(config.linger_ms),
        })?);
        let standing = Arc::new(standing);
        let pump = pump::Pump::new(name, queue.clone(), standing.clone(), config);
        let thread = threads::start(name, move || pump.run(outlet))?;
        Ok(Self { name, feed, queue, standing, thread: Some(thread) })
    }

    /// The thread's sign of life. To be called by a single watcher only, because each call is compared with the last one.
    pub fn sign(&self) -> Sign {
        let has_ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        match (has_ended, self.queue.is_through()) {
            // Everything is shipped, and nothing more comes.
            (_, true) => Sign::Life,
            (true, false) => Sign::Death,
            (false, false) if self.queue.progress().check_alive() => Sign::Life,
            (false, false) => Sign::Silence,
        }
    }
}

/// Starts every sink that is switched on.
///
/// # Errors
/// When no thread can be started or no descriptor is left.
pub fn start_all(config: &Config) -> std::io::Result<Vec<Sink>> {
    let mut sinks = Vec::new();
    let upstream = |name, to: &str| Standing::new(name, to, Cause::OF_UPSTREAM);
    if !config.scribe_upstream.is_empty() {
        let (name, to) = (NAMES[0], &config.scribe_upstream);
        let outlet = scribe::Scribe::new(to, &config.scribe_category, config);
        sinks.push(Sink::start(name, Feed::Spans, upstream(name, to), config, outlet)?);
    }
    if !config.json_scribe_upstream.is_empty() {
        let (name, to) = (NAMES[1], &config.json_scribe_upstream);
        let outlet = scribe::Scribe::new(to, &config.json_scribe_category, config);
        sinks.push(Sink::start(name, Feed::Annotations, upstream(name, to), config, outlet)?);
    }
    if !config.json_lines.as_os_str().is_empty() {
        let (name, to) = (NAMES[2], &config.json_lines);
        let standing = Standing::new(name, to.display().to_string(), Cause::OF_FILE);
        sinks.push(Sink::start(name, Feed::Annotations, standing, config, lines::Lines::new(to, config))?);
    }
    Ok(sinks)
}
