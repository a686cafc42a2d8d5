//! The ledger: written = stored + the sum of named losses.
//!
//! Every figure is counted where the event happens, by the daemon that reports it; here the figures are only compared. The unit
//! is one annotation.

mod equations;
mod table;

use std::collections::BTreeMap;
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::anyhow;
use serde::Serialize;

use crate::http::{Client, NoAnswer};
use crate::metrics::Metrics;

/// A named figure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Term {
    /// Its name in the ledger, such as `lost{full}`.
    pub name: String,
    /// Number of annotations.
    pub value: i64,
}

impl Term {
    fn is_loss(&self) -> bool {
        self.name.contains("lost{")
    }
}

/// `left = right[0] + right[1] + …` for one program, daemon or sink.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Equation {
    /// What it is about: `osd:812`, `sink scribe`, `collector`.
    pub scope: String,
    /// The sum.
    pub left: Term,
    /// The parts.
    pub right: Vec<Term>,
}

/// The collector's scope.
const COLLECTOR: &str = "collector";
/// consumerd's name for all programs that have ended.
const DEPARTED: &str = "departed";

impl Equation {
    /// Whether both sides are equal.
    pub fn holds(&self) -> bool {
        self.left.value == self.right.iter().map(|term| term.value).sum::<i64>()
    }
}

/// All equations of one reading.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Ledger {
    /// In the order in which an annotation travels.
    pub equations: Vec<Equation>,
}

/// The answers of all daemons.
#[derive(Debug, Default)]
pub struct Reading {
    /// The equations of the daemons that could be read.
    pub ledger: Ledger,
    /// A sentence for each of the others: its name, and why it could not be read.
    pub unread: Vec<String>,
    /// How many of the others are just starting.
    starting: usize,
    /// A sentence if a Zipkin server is in the collector's place: it counts no annotations.
    pub silent: Option<String>,
}

impl Reading {
    /// Whether every daemon was read, and every equation holds.
    pub fn balances(&self) -> bool {
        self.unread.is_empty() && self.ledger.balances()
    }

    fn take(
        &mut self,
        daemon: &str,
        client: &Client,
        answer: anyhow::Result<String>,
        equations: impl FnOnce(&Metrics) -> Ledger,
    ) {
        match answer {
            Ok(text) => match equations(&Metrics::parse(&text)).equations {
                none if none.is_empty() && daemon == COLLECTOR && is_zipkins(&text) => {
                    let silence = "a Zipkin server, which does not count annotations";
                    self.silent = Some(format!("the ledger ends before {}: {silence}", client.base()));
                }
                none if none.is_empty() => self.miss(daemon, client.other(daemon)),
                found => self.ledger.equations.extend(found),
            },
            Err(error) => {
                self.starting += usize::from(matches!(error.downcast_ref(), Some(NoAnswer::NotYet(_))));
                self.miss(daemon, format!("{error:#}"));
            }
        }
    }

    /// Whether waiting is useless: nothing is in transit any more, or a daemon that could not be read is not just starting.
    fn is_final(&self) -> bool {
        let gone = self.unread.len() > self.starting;
        gone || (self.starting == 0 && self.ledger.on_the_way() == 0)
    }

    fn miss(&mut self, daemon: &str, why: String) {
        self.unread.push(format!("{daemon} is missing in the ledger: {why}"));
    }
}

/// A daemon that was asked for its metrics.
enum Asked<'s> {
    ByThread(ScopedJoinHandle<'s, anyhow::Result<String>>),
    /// If no thread could be started.
    Answered(anyhow::Result<String>),
}

impl<'s> Asked<'s> {
    fn ask<'e>(scope: &'s Scope<'s, 'e>, client: &'e Client) -> Asked<'s> {
        let ask = || client.get_ok("/metrics", &[]);
        thread::Builder::new()
            .spawn_scoped(scope, ask)
            .map_or_else(|_| Asked::Answered(ask()), Asked::ByThread)
    }

    fn answer(self) -> anyhow::Result<String> {
        match self {
            Asked::ByThread(asking) => asking.join().unwrap_or_else(|_| Err(anyhow!("failed to ask"))),
            Asked::Answered(answer) => answer,
        }
    }
}

/// What an earlier consumerd drained from a program and shipped, which is not in the figures of this one.
const DRAINED_BEFORE: &str = "drained_before";

impl Ledger {
    /// Reads the metrics of consumerd, the relays behind it, and the collector.
    pub fn read(consumerd: &Client, relays: &[Client], collector: &Client) -> Reading {
        let (of_consumerd, of_relays, of_collector) = thread::scope(|scope| {
            // All at the same time: each daemon that does not answer costs a wait.
            let ask = |client| Asked::ask(scope, client);
            let (consumerd, collector) = (ask(consumerd), ask(collector));
            let relays: Vec<_> = relays.iter().map(ask).collect();
            let of_relays: Vec<_> = relays.into_iter().map(Asked::answer).collect();
            (consumerd.answer(), of_relays, collector.answer())
        });
        let mut reading = Reading::default();
        reading.take("consumerd", consumerd, of_consumerd, Ledger::of_consumerd);
        for (relay, answer) in relays.iter().zip(of_relays) {
            reading.take("relay", relay, answer, |metrics| Ledger::of_relay(relay.host(), metrics));
        }
        reading.take(COLLECTOR, collector, of_collector, Ledger::of_collector);
        reading
    }

    /// Reads all daemons again and again until nothing is in transit, a daemon cannot be read, or `patience` has passed. A daemon
    /// whose worker is being started is waited for.
    pub fn settled(consumerd: &Client, relays: &[Client], collector: &Client, patience: Duration) -> Reading {
        const PERIOD: Duration = Duration::from_millis(50);
        let deadline = Instant::now() + patience;
        loop {
            let reading = Ledger::read(consumerd, relays, collector);
            if reading.is_final() || Instant::now() >= deadline {
                return reading;
            }
            thread::sleep(PERIOD);
        }
    }

    /// The equations of both.
    pub fn and(mut self, other: Ledger) -> Ledger {
        self.equations.extend(other.equations);
        self
    }

    /// Whether every equation holds.
    pub fn balances(&self) -> bool {
        self.equations.iter().all(Equation::holds)
    }

    /// Number of annotations in transit: in a ring, in a spool, or shipped and not acknowledged.
    pub fn on_the_way(&self) -> i64 {
        let terms = self.equations.iter().flat_map(|equation| &equation.right);
        terms
            .filter(|term| ["pending", "in_flight"].contains(&term.name.as_str()))
            .map(|term| term.value)
            .sum()
    }

    /// Number of annotations that were lost, from any cause, in all programs and daemons. (One that two sinks lose counts twice.)
    pub fn lost(&self) -> i64 {
        let terms = self.equations.iter().flat_map(|equation| &equation.right);
        terms.filter(|term| term.name.starts_with("lost")).map(|term| term.value).sum()
    }

    /// The causes of the losses in [`Ledger::lost`], such as `queue_full`, with their counts, which are not 0.
    pub fn lost_by_cause(&self) -> BTreeMap<&str, i64> {
        let mut causes = BTreeMap::new();
        for term in self.equations.iter().flat_map(|equation| &equation.right) {
            let name = term.name.strip_prefix("lost{").and_then(|rest| rest.strip_suffix('}'));
            if let Some(cause) = name.filter(|_| term.value != 0) {
                *causes.entry(cause).or_default() += term.value;
            }
        }
        causes
    }
}

/// Whether these are the metrics of a Zipkin server, which counts no annotations.
pub(crate) fn is_zipkins(metrics: &str) -> bool {
    metrics.contains("zipkin_collector")
}

#[cfg(test)]
mod tests;
