//! The worker's rounds, each of which does: drain, stage, free the space in the rings, read, join, hand to the sinks, retire.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use blkin_ringbuf::ClockSeries;

use super::askers::Askers;
use super::feed::Feeder;
use super::ledger::Ledger;
use super::program::Program;
use super::program_log::ProgramLog;
use super::shown_figures::ShownFigures;
use super::spare::Spare;
use crate::config::Config;
use crate::holder::counters::Counters;
use crate::join::{Join, Rules, SpanPiece};
use crate::settings::Settings;
use crate::sinks::{Sign, Sink};
use crate::staging::log::Place;
use crate::staging::{DepartedTotals, Frame, Memfd, ProgramState, Staging, StagingError};

mod attach;
mod ending;
mod figures;
mod read;
mod rebuild;
mod refill;
mod retire;
mod room;
#[cfg(test)]
mod tests;
mod writers;

use attach::Offered;
pub use figures::{Snapshot, SpanFigures};

/// Time between two looks at the clocks while nothing is drained.
const CLOCK_TICK_EVERY: Duration = Duration::from_millis(100);
/// Frames of several programs are committed together, up to about so many bytes.
const TOGETHER_BYTES: u64 = 128 << 10;

/// A span with fewer bytes is never split for its size. A span with more than an eighth of a queue's limit would not fit into it.
const LARGE_SPAN_BYTES: usize = 64 << 10;

/// Where a frame lies, which is needed when it is retired or read again.
#[derive(Clone, Copy, Debug)]
struct FrameNote {
    slot: u32,
    to: Place,
    bytes: u64,
    end: u64,
}

/// What a round found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    /// Something was drained.
    pub drained: bool,
    /// There is more.
    pub has_more: bool,
    /// The largest part of a ring that was copied, in 1024ths of the ring.
    pub fill: u64,
    /// Something was left in the rings because there is no room for it.
    pub holds_back: bool,
}

/// A frame that was written to the staging memory.
struct Staged {
    frame: Frame,
    /// Bytes that it takes there, and where it ends.
    bytes: u64,
    end: u64,
}

/// The whole state of the worker.
pub(super) struct Engine {
    config: Config,
    boot: String,
    born: Instant,
    staging: Staging<Memfd>,
    /// The same memory, for what `/metrics` has shown.
    shown: Memfd,
    ledger: Ledger,
    notes: VecDeque<FrameNote>,
    /// Boxed: each round goes over all programs, and most have nothing new.
    programs: BTreeMap<u64, Box<Program>>,
    saved: BTreeMap<u64, ProgramState>,
    departed: DepartedTotals,
    departed_programs: u64,
    /// The largest number of a program that was attached to, possibly by an earlier worker.
    last_program: u64,
    /// Programs to which the worker could not attach for want of a system resource, and will try again.
    late: Vec<Offered>,
    /// Programs to release, with the state that stays in checkpoints until the holder has been told.
    to_release: BTreeMap<u64, ProgramState>,
    askers: Askers,
    retired_end: u64,
    /// No open span contains anything of the frames up to this one.
    hurried_to: u64,
    /// Since when ended programs nearly use up a quota.
    crowded_since: Option<Duration>,
    next_program: u64,
    settings: Settings,
    join: Join,
    feeder: Feeder,
    /// A reused buffer for spans on their way from the join to the feeder.
    leaving: Vec<SpanPiece>,
    /// While the daemon ends: spans that were open, until the sinks have room for them.
    last: VecDeque<SpanPiece>,
    /// Reused buffers for drained records.
    spare: Spare,
    clocks: ClockSeries,
    spans: SpanFigures,
    checkpoint_due: bool,
    last_checkpoint: Duration,
    next_tick: Duration,
    rejected_programs: u64,
    /// How many programs had counters that contradicted each other.
    unsound_programs: u64,
    program_log: ProgramLog,
    /// The holder's counters as they were last read.
    holder: Counters,
    /// Flight recorders of ended programs that nobody took in time.
    recorders_evicted: u64,
    /// What earlier workers left has been taken over.
    is_rebuilt: bool,
}

impl Engine {
    /// Continues from the state in the staging memory. Also returns the log position from which staged frames are to be read.
    ///
    /// # Errors
    /// When the staging memory cannot be used.
    pub(super) fn new(
        config: Config,
        staging: Memfd,
        sinks: Vec<Sink>,
        settings: Settings,
    ) -> Result<(Self, u64), StagingError> {
        let shown = staging.duplicate()?;
        let (staging, recovered) = rebuild::open(staging, &config)?;
        let checkpoint = recovered.checkpoint;
        let names = sinks.iter().map(|sink| sink.name).collect();
        let ledger = Ledger::new(names, &checkpoint.sinks, checkpoint.next_frame);
        let join = Join::new(rules(&config));
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let engine = Self {
            config,
            boot,
            born: Instant::now(),
            staging,
            shown,
            ledger,
            notes: VecDeque::new(),
            programs: BTreeMap::new(),
            saved: checkpoint.programs.into_iter().map(|state| (state.program, state)).collect(),
            departed: checkpoint.departed,
            departed_programs: checkpoint.programs_departed,
            last_program: checkpoint.last_program,
            late: Vec::new(),
            to_release: BTreeMap::new(),
            askers: Askers::default(),
            retired_end: recovered.tail,
            hurried_to: 0,
            crowded_since: None,
            next_program: 0,
            settings,
            join,
            feeder: Feeder::new(sinks),
            leaving: Vec::new(),
            last: VecDeque::new(),
            spare: Spare::default(),
            clocks: ClockSeries::new(),
            spans: SpanFigures { split: checkpoint.spans_split, ..SpanFigures::default() },
            checkpoint_due: false,
            last_checkpoint: Duration::ZERO,
            next_tick: Duration::ZERO,
            rejected_programs: 0,
            unsound_programs: 0,
            program_log: ProgramLog::default(),
            holder: Counters::default(),
            recorders_evicted: 0,
            is_rebuilt: false,
        };
        Ok((engine, recovered.tail))
    }

    fn now(&self) -> Duration {
        self.born.elapsed()
    }

    /// Records for the next worker what `/metrics` is about to show.
    pub(super) fn note_shown(&mut self) -> Result<(), StagingError> {
        let shown = ShownFigures::of(self.ledger.sinks(), self.spans.split);
        Ok(shown.write(&mut self.shown)?)
    }

    /// One round over all programs and sinks.
    ///
    /// # Errors
    /// When the staging memory cannot be used.
    pub(super) fn round(&mut self) -> Result<Progress, StagingError> {
        let now = self.now();
        if now >= self.next_tick {
            self.clocks.tick();
            self.live_programs().filter(|program| program.is_recorder()).for_each(|program| program.beat());
            self.attach_late(now);
            self.next_tick = now + CLOCK_TICK_EVERY;
        }
        // If a program has no writer any more, this round may find that it has ended.
        self.ask_of_writers(now);
        let mut progress = self.drain_all(now)?;
        self.refill(&mut progress)?;
        progress.drained |= self.leave_spans(now);
        self.settle();
        self.make_room();
        self.hurry_ended(now);
        self.give_up_ended(now);
        self.end_programs(now);
        self.retire(now)?;
        self.program_log.rest();
        self.staging.beat()?;
        Ok(progress)
    }

    /// Measures the clock's new offset at once, so that what is recorded from here on gets it.
    pub(super) fn clock_was_set(&mut self) {
        tracing::info!("the clock was set");
        self.clocks.tick();
    }

    fn drain_all(&mut self, now: Duration) -> Result<Progress, StagingError> {
        let mut progress = Progress::default();
        let first = self.next_program;
        let order: Vec<u64> = self
            .programs
            .range(first..)
            .chain(self.programs.range(..first))
            .map(|(number, _)| *number)
            .collect();
        self.next_program = order.get(1).copied().unwrap_or(0);
        self.look();
        let (mut staged, mut bytes) = (Vec::new(), 0);
        for number in order {
            bytes += self.copy(number, now, &mut progress, &mut staged)?;
            if bytes >= TOGETHER_BYTES {
                self.take_staged(&mut staged)?;
                bytes = 0;
            }
        }
        self.take_staged(&mut staged)?;
        Ok(progress)
    }

    /// Looks at the rings of all programs before anything is copied, because a span may have annotations of several programs.
    fn look(&mut self) {
        self.live_programs().for_each(Program::look_ahead);
        self.live_programs().for_each(Program::look);
    }

    fn live_programs(&mut self) -> impl Iterator<Item = &mut Program> {
        self.programs.values_mut().map(Box::as_mut).filter(|program| !program.ended)
    }

    /// Copies what a program's rings hold, and stages it. Returns how many bytes it takes in the staging memory.
    fn copy(
        &mut self,
        number: u64,
        now: Duration,
        progress: &mut Progress,
        staged: &mut Vec<Staged>,
    ) -> Result<u64, StagingError> {
        let room = self.room();
        let Some(program) = self.programs.get_mut(&number).filter(|program| !program.ended) else {
            return Ok(0);
        };
        program.is_held_back = room.holds_back(program, &self.feeder);
        if program.is_held_back {
            progress.holds_back = true;
            return Ok(0);
        }
        let round = program.round(self.config.ring_budget_bytes, &mut self.spare, now);
        if let Some(slot) = round.insane {
            self.program_log.insane(&program.label, slot);
        }
        progress.has_more |= round.has_more;
        progress.fill = progress.fill.max(round.fill);
        let first = self.staging.end();
        for frame in round.frames {
            let before = self.staging.end();
            match self.staging.append(&frame) {
                Ok((_, end)) => staged.push(Staged { frame, bytes: end - before, end }),
                Err(StagingError::Full) => program.put_back(&frame),
                Err(e) => return Err(e),
            }
        }
        progress.drained |= self.staging.end() != first;
        Ok(self.staging.end() - first)
    }

    /// Commits what was staged, of all programs at once, frees the space in the rings, and reads the frames.
    fn take_staged(&mut self, staged: &mut Vec<Staged>) -> Result<(), StagingError> {
        if staged.is_empty() {
            return Ok(());
        }
        // All that was copied is older than this look at the clocks.
        self.clocks.tick();
        self.staging.commit()?;
        for Staged { frame, .. } in &*staged {
            if let Some(program) = self.programs.get_mut(&frame.program) {
                program.attachment.publish(frame.slot as usize);
            }
        }
        for Staged { frame, bytes, end } in staged.drain(..) {
            self.take_frame(&frame, bytes, end);
            self.spare.put(frame.raw);
        }
        Ok(())
    }

    /// Wakes every sink whose batch is due before the rings are looked at again.
    pub(super) fn call_sinks(&self, next_look: Instant) {
        self.feeder.call(next_look);
    }

    /// Tells the holder which programs it may release; `send` returns whether that was sent.
    pub(super) fn release(&mut self, send: impl Fn(u64) -> bool) {
        self.to_release.retain(|number, _| !send(*number));
    }

    /// Whether records wait in a ring.
    pub(super) fn has_pending(&self) -> bool {
        let mut live = self.programs.values().filter(|program| !program.ended && !program.is_recorder());
        live.any(|program| program.attachment.pending() > 0)
    }

    /// Every attached program.
    pub(super) fn programs(&self) -> &BTreeMap<u64, Box<Program>> {
        &self.programs
    }

    /// Every attached program.
    pub(super) fn programs_mut(&mut self) -> &mut BTreeMap<u64, Box<Program>> {
        &mut self.programs
    }

    /// How many records of each program were drained so far.
    pub(super) fn drained(&self) -> Vec<(u64, u64)> {
        self.programs.iter().map(|(number, program)| (*number, program.figures.drained)).collect()
    }

    /// Each sink, and whether its thread shows a sign of life.
    pub(super) fn signs_of_sinks(&self) -> Vec<(&'static str, Sign)> {
        self.feeder.signs()
    }
}

/// The join's rules about when spans leave.
fn rules(config: &Config) -> Rules {
    Rules {
        close_events: config.close_events.clone(),
        quiet: Duration::from_millis(config.quiet_ms),
        max_spans: config.max_open_spans,
        max_bytes: config.max_open_bytes,
        max_span_bytes: (config.max_open_bytes.min(config.queue_bytes) / 8).max(LARGE_SPAN_BYTES),
    }
}

/// The state of a program that only remains to be released.
fn folded(number: u64) -> ProgramState {
    ProgramState { program: number, folded: true, ..ProgramState::default() }
}
