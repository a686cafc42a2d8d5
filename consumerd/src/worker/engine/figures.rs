//! The figures that `/metrics` shows.

use super::Engine;
use crate::holder::counters::{self, Counters};
use crate::sinks::queue::Fill;
use crate::worker::ledger::SinkFigures;
use crate::worker::totals::Totals;

/// What became of spans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpanFigures {
    /// Left complete.
    pub complete: u64,
    /// Left after a quiet period.
    pub quiet: u64,
    /// Left because memory was needed.
    pub split: u64,
    /// Left because the daemon ended.
    pub ending: u64,
    /// Pieces of spans of which an earlier piece had left.
    pub late: u64,
}

/// All figures at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Live programs.
    pub programs: Vec<(String, Totals)>,
    /// Sums over programs that have ended.
    pub departed: Totals,
    /// How many programs have ended.
    pub departed_programs: u64,
    /// Live programs whose rings are not drained because there is no room for more of their records.
    pub programs_held_back: usize,
    /// Offers that could not be mapped.
    pub rejected_programs: u64,
    /// Programs whose own counters contradicted each other.
    pub unsound_programs: u64,
    /// Flight recorders of ended programs that nobody took in time.
    pub recorders_evicted: u64,
    /// Flight recorders of ended programs that are kept.
    pub recorders_kept: u64,
    /// Each sink's ledger.
    pub sinks: Vec<(&'static str, SinkFigures)>,
    /// How full each sink's queue is.
    pub queues: Vec<(&'static str, Fill)>,
    /// Spans that left.
    pub spans: SpanFigures,
    /// Spans that have not left yet.
    pub open_spans: u64,
    /// Bytes in spans that have not left yet.
    pub open_span_bytes: u64,
    /// Staging memory in use.
    pub staging_used_bytes: u64,
    /// How much staging memory may be in use: beyond that the oldest annotations are given up.
    pub staging_limit_bytes: u64,
    /// The holder's counters.
    pub holder: Counters,
}

impl Engine {
    /// Each sink's figures.
    pub(in crate::worker) fn sinks(&self) -> impl Iterator<Item = SinkFigures> + '_ {
        self.ledger.sinks().map(|(_, figures)| figures)
    }

    /// Finds programs whose counters contradict each other, because something may have written into their memory. What they claim
    /// would spoil every sum.
    fn check_program_counters(&mut self) {
        for program in self.programs.values_mut() {
            if let Some(counters) = program.check_unsound() {
                self.program_log.unsound(&program.label, &counters);
                self.unsound_programs += 1;
            }
        }
    }

    /// All figures for `/metrics`, at one moment.
    pub(in crate::worker) fn snapshot(&mut self) -> Snapshot {
        self.check_program_counters();
        // If the holder's counters are damaged, the last ones are shown until the holder writes them again.
        self.holder = counters::read(self.staging.memory()).unwrap_or(self.holder);
        Snapshot {
            programs: self
                .programs
                .values()
                .map(|program| (program.label.clone(), program.totals()))
                .collect(),
            departed: Totals::of_departed(&self.departed),
            departed_programs: self.departed_programs,
            programs_held_back: self.held_back(),
            rejected_programs: self.rejected_programs,
            unsound_programs: self.unsound_programs,
            recorders_evicted: self.recorders_evicted,
            recorders_kept: self.programs.values().filter(|program| program.ended_at().is_some()).count()
                as u64,
            sinks: self.ledger.sinks().collect(),
            queues: self.feeder.fills(),
            spans: self.spans,
            open_spans: (self.join.open_spans() + self.last.len()) as u64,
            open_span_bytes: self.join.open_bytes() as u64,
            staging_used_bytes: self.staging.used_bytes(),
            staging_limit_bytes: self.staging_limit_bytes(),
            holder: self.holder,
        }
    }
}
