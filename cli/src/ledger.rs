//! The ledger: written = stored + the sum of named losses.
//!
//! Every figure was counted where it happened, by the daemon that reports it; here they are only compared. The unit
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
    /// Annotations.
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
    /// Whom it speaks of: `osd:812`, `sink scribe`, `collector`.
    pub scope: String,
    /// The whole.
    pub left: Term,
    /// Its parts.
    pub right: Vec<Term>,
}

/// The collector's scope.
const COLLECTOR: &str = "collector";
/// What consumerd calls all programs that have ended.
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

/// What the daemons said when they were asked.
#[derive(Debug, Default)]
pub struct Reading {
    /// The equations of those that could be read.
    pub ledger: Ledger,
    /// A sentence for each of the others: which, and why.
    pub unread: Vec<String>,
    /// How many of them may be read in a moment.
    starting: usize,
    /// That a Zipkin server has the collector's place, which counts no annotations.
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
                    let silence = "a Zipkin server, which does not tell what became of annotations";
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

    /// Whether nothing that was read can change by waiting, or what was not read never will be.
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
    /// Where there can be no thread.
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

/// What an earlier consumerd has drained of a program: shipped, and no longer in this one's figures.
const DRAINED_BEFORE: &str = "drained_before";

impl Ledger {
    /// Reads consumerd, the relays behind it, and the collector, as far as they can be read.
    pub fn read(consumerd: &Client, relays: &[Client], collector: &Client) -> Reading {
        let (of_consumerd, of_relays, of_collector) = thread::scope(|scope| {
            // All at once: each that stands still is waited for.
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

    /// Reads all daemons until nothing is on its way, one cannot be read, or `patience` has passed. One whose worker is
    /// being started can be read in a moment.
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

    /// Both together.
    pub fn and(mut self, other: Ledger) -> Ledger {
        self.equations.extend(other.equations);
        self
    }

    /// Whether every equation holds.
    pub fn balances(&self) -> bool {
        self.equations.iter().all(Equation::holds)
    }

    /// Annotations that are on their way: in a ring, in a spool, or shipped and not acknowledged.
    pub fn on_the_way(&self) -> i64 {
        let terms = self.equations.iter().flat_map(|equation| &equation.right);
        terms
            .filter(|term| ["pending", "in_flight"].contains(&term.name.as_str()))
            .map(|term| term.value)
            .sum()
    }

    /// Annotations that were lost, whatever the cause, over all programs and daemons (a sink's losses count once a sink).
    pub fn lost(&self) -> i64 {
        let terms = self.equations.iter().flat_map(|equation| &equation.right);
        terms.filter(|term| term.name.starts_with("lost")).map(|term| term.value).sum()
    }

    /// The causes of what [`Ledger::lost`] counts, such as `queue_full`, with their counts; none is 0.
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

/// Metrics of a Zipkin server, which counts no annotations.
pub(crate) fn is_zipkins(metrics: &str) -> bool {
    metrics.contains("zipkin_collector")
}

#[cfg(test)]
mod tests;
