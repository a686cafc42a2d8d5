//! What `/metrics` shows.

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
    /// Pieces of spans that had left before.
    pub late: u64,
}

/// Everything, at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Live programs.
    pub programs: Vec<(String, Totals)>,
    /// Sums over those that have ended.
    pub departed: Totals,
    /// How many have.
    pub departed_programs: u64,
    /// Live programs whose rings are left as they are, as there is no room for more of them.
    pub programs_held_back: usize,
    /// Offers that could not be mapped.
    pub rejected_programs: u64,
    /// Programs whose own figures contradicted each other.
    pub unsound_programs: u64,
    /// Flight recorders of ended programs that nobody took in time.
    pub recorders_evicted: u64,
    /// Those that are kept.
    pub recorders_kept: u64,
    /// Each sink's ledger.
    pub sinks: Vec<(&'static str, SinkFigures)>,
    /// How full each sink's queue is.
    pub queues: Vec<(&'static str, Fill)>,
    /// Spans that left.
    pub spans: SpanFigures,
    /// Spans that did not yet.
    pub open_spans: u64,
    /// Bytes in them.
    pub open_span_bytes: u64,
    /// Staging memory in use.
    pub staging_used_bytes: u64,
    /// How much may be: beyond that the oldest is given up.
    pub staging_limit_bytes: u64,
    /// The holder's counters.
    pub holder: Counters,
}

impl Engine {
    /// Each sink's figures.
    pub(in crate::worker) fn sinks(&self) -> impl Iterator<Item = SinkFigures> + '_ {
        self.ledger.sinks().map(|(_, figures)| figures)
    }

    /// Something may have written into a program's memory: what it claims then would be in every sum.
    fn doubt_programs(&mut self) {
        for program in self.programs.values_mut() {
            if let Some(counters) = program.turns_out_unsound() {
                self.told.unsound(&program.label, &counters);
                self.unsound_programs += 1;
            }
        }
    }

    /// Everything for `/metrics`, at one moment.
    pub(in crate::worker) fn snapshot(&mut self) -> Snapshot {
        self.doubt_programs();
        // What is damaged there its holder writes anew before long.
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
