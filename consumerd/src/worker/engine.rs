//! One round after another: drain, stage, give the space back, read, join, hand to the sinks, retire.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{Ordering::SeqCst, fence};
use std::time::{Duration, Instant};

use blkin_record::{POSITION_MASK, records};
use blkin_ringbuf::{AttachError, ClockSeries, RingTime};
use rustix::io::Errno;

use super::feed::Feeder;
use super::ledger::{DrainFigures, Ledger, SinkFigures};
use super::program::{Program, Totals};
use super::snapshot::keep_within_bounds;
use super::spare::Spare;
use crate::annotation::{Origin, position};
use crate::config::Config;
use crate::holder::counters;
use crate::join::{Join, Reason, Rules, SpanPiece};
use crate::link;
use crate::settings::Settings;
use crate::sinks::Sink;
use crate::staging::layout::HOLDER_COUNTERS;
use crate::staging::log::Place;
use crate::staging::{Checkpoint, DepartedTotals, Frame, Memfd, ProgramState, Staging, StagingError};

/// Least time between two checkpoints.
const CHECKPOINT_EVERY: Duration = Duration::from_millis(20);
/// Time between two looks at the clocks while nothing is drained.
const CLOCK_TICK_EVERY: Duration = Duration::from_millis(100);
/// A frame and its header are at most this much larger than the budget of a ring.
const FRAME_MARGIN_BYTES: u64 = 64 << 10;

/// The longest list of leaving spans of which the memory is kept.
const MOST_LEAVING_KEPT: usize = 4096;

/// Where a frame lies, for the day on which it is retired.
#[derive(Clone, Copy, Debug)]
struct FrameNote {
    slot: u32,
    to: Place,
    bytes: u64,
    end: u64,
}

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

/// What a round found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    /// Something was drained.
    pub drained: bool,
    /// And there is more.
    pub has_more: bool,
}

/// The rings that a round copied from, as far as it matters whether that was one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Source {
    #[default]
    None,
    /// One ring of one program.
    Ring(u64, u32),
    Several,
}

impl Source {
    fn note(&mut self, program: u64, slot: u32) {
        *self = match *self {
            Self::None => Self::Ring(program, slot),
            same if same == Self::Ring(program, slot) => same,
            _ => Self::Several,
        };
    }
}

/// Everything that the worker knows.
pub(super) struct Engine {
    config: Config,
    boot: String,
    born: Instant,
    staging: Staging<Memfd>,
    ledger: Ledger,
    notes: VecDeque<FrameNote>,
    /// Boxed: each round goes over all of them, and most have nothing.
    programs: BTreeMap<u64, Box<Program>>,
    saved: BTreeMap<u64, ProgramState>,
    departed: DepartedTotals,
    departed_programs: u64,
    /// Programs to let go, with the state that stays in checkpoints until that has been said.
    to_release: BTreeMap<u64, ProgramState>,
    retired_end: u64,
    /// No span that is open has anything of a frame up to this one.
    hurried_to: u64,
    next_program: u64,
    settings: Settings,
    join: Join,
    feeder: Feeder,
    /// Memory of spans on their way from the join to the feeder.
    leaving: Vec<SpanPiece>,
    /// The daemon ends: spans that were open, until the sinks have room for them.
    last: VecDeque<SpanPiece>,
    /// Memory for what is drained.
    spare: Spare,
    clocks: ClockSeries,
    spans: SpanFigures,
    checkpoint_due: bool,
    last_checkpoint: Duration,
    next_tick: Duration,
    rejected_programs: u64,
    /// Flight recorders of ended programs that nobody took in time.
    recorders_evicted: u64,
    /// What earlier workers left is taken over.
    is_rebuilt: bool,
}

impl Engine {
    /// Goes on where the staging memory says.
    ///
    /// # Errors
    /// When the staging memory cannot be used.
    pub(super) fn new(
        config: Config,
        staging: Memfd,
        sinks: Vec<Sink>,
        settings: Settings,
    ) -> Result<(Self, u64), StagingError> {
        let (staging, recovered) = Staging::open(staging)?;
        let checkpoint = recovered.checkpoint;
        let names = sinks.iter().map(|sink| sink.name).collect();
        let ledger = Ledger::new(names, &checkpoint.sinks, checkpoint.next_frame);
        let rules = Rules {
            close_events: config.close_events.clone(),
            quiet: Duration::from_millis(config.quiet_ms),
            max_spans: config.max_open_spans,
            max_bytes: config.max_open_bytes,
        };
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let engine = Self {
            config,
            boot,
            born: Instant::now(),
            staging,
            ledger,
            notes: VecDeque::new(),
            programs: BTreeMap::new(),
            saved: checkpoint.programs.into_iter().map(|state| (state.program, state)).collect(),
            departed: checkpoint.departed,
            departed_programs: checkpoint.programs_departed,
            to_release: BTreeMap::new(),
            retired_end: recovered.tail,
            hurried_to: 0,
            next_program: 0,
            settings,
            join: Join::new(rules),
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
            recorders_evicted: 0,
            is_rebuilt: false,
        };
        Ok((engine, recovered.tail))
    }

    fn now(&self) -> Duration {
        self.born.elapsed()
    }

    /// Takes a program in; one that cannot be is released.
    ///
    /// # Errors
    /// When memory or descriptors lack for a program of an earlier worker, which another try may have.
    pub(super) fn attach(
        &mut self,
        identity: link::Program,
        segment: OwnedFd,
        control: OwnedFd,
    ) -> Result<(), AttachError> {
        let number = identity.number;
        let saved = self.saved.get(&number);
        if let Some(state) = saved.filter(|state| state.folded) {
            self.to_release.insert(number, state.clone());
            return Ok(());
        }
        let (pid, comm) = (identity.pid, identity.comm.clone());
        match Program::attach(identity.clone(), segment, control, &self.boot, saved) {
            Ok(program) => {
                program.attachment.mark_attached(true);
                // An earlier worker may have been killed in its sleep.
                program.attachment.control().set_sleeping(false);
                self.settings.attach(&identity, program.attachment.control());
                tracing::debug!(pid, comm, "attached");
                self.programs.insert(number, Box::new(program));
            }
            // Frames of it may be staged, and it does not offer itself again.
            Err(e) if !self.is_rebuilt && is_shortage(&e) => return Err(e),
            Err(e) => {
                tracing::warn!(pid, comm, "failed to attach to a program: {e}");
                self.rejected_programs += 1;
                let state = ProgramState { program: number, folded: true, ..ProgramState::default() };
                self.to_release.insert(number, state);
            }
        }
        Ok(())
    }

    /// Reads again what an earlier worker had staged; every program that it knew has been attached before.
    ///
    /// # Errors
    /// When the staging memory cannot be used.
    pub(super) fn rebuild(&mut self, tail: u64) -> Result<(), StagingError> {
        self.clocks.tick();
        self.feeder.let_in_before(u64::MAX);
        let mut at = tail;
        while let Some((frame, end)) = self.staging.read_frame(at)? {
            if let Some(program) = self.programs.get_mut(&frame.program) {
                program.resume_after(&frame);
            }
            self.take_frame(&frame, end - at, end);
            at = end;
            if self.ledger.open_frames().is_multiple_of(64) {
                self.staging.beat()?;
            }
        }
        self.feeder.let_in_before(self.ledger.first_frame() + self.ledger.open_frames() as u64);
        for program in self.programs.values_mut() {
            (0..program.attachment.slots()).for_each(|slot| program.attachment.publish(slot));
        }
        self.fold_lost();
        self.is_rebuilt = true;
        Ok(())
    }

    /// Moves the figures of saved programs that could not be attached again to the departed ones.
    fn fold_lost(&mut self) {
        for state in std::mem::take(&mut self.saved).into_values() {
            if !state.folded && !self.programs.contains_key(&state.program) {
                let drain = DrainFigures {
                    drained: state.drained,
                    valid: state.valid,
                    invalid: state.invalid,
                    torn: state.torn,
                };
                Totals::of_unreadable(state.drained_before, state.unsettled, drain)
                    .fold_into(&mut self.departed);
                self.departed_programs += 1;
                self.checkpoint_due = true;
            }
        }
    }

    /// One round over all programs and sinks.
    ///
    /// # Errors
    /// When the staging memory cannot be used.
    pub(super) fn round(&mut self) -> Result<Progress, StagingError> {
        let now = self.now();
        if now >= self.next_tick {
            self.clocks.tick();
            self.next_tick = now + CLOCK_TICK_EVERY;
        }
        let progress = self.drain_all(now)?;
        self.leave_spans(now);
        self.settle();
        self.make_room();
        self.hurry_ended();
        self.end_programs(now);
        self.retire(now)?;
        self.staging.beat()?;
        Ok(progress)
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
        let mut source = Source::default();
        for number in order {
            let one = self.drain_program(number, now, &mut source)?;
            progress.drained |= one.drained;
            progress.has_more |= one.has_more;
        }
        self.look_again(source);
        Ok(progress)
    }

    /// After the frames of a round were read: if they are of one ring, and no other of any program has anything by now,
    /// nothing that they hold has to wait for the next round. Other programs count, for a span may be theirs too.
    fn look_again(&mut self, source: Source) {
        let Source::Ring(number, slot) = source else { return };
        let mut programs = self.programs.iter();
        let is_drained = programs.all(|(of, program)| {
            program.ended || program.is_drained_but_for((*of == number).then_some(slot))
        });
        if is_drained && let Some(program) = self.programs.get_mut(&number) {
            program.sweeps.others_are_empty();
        }
    }

    fn drain_program(
        &mut self,
        number: u64,
        now: Duration,
        source: &mut Source,
    ) -> Result<Progress, StagingError> {
        let room = self.staging.capacity_bytes() - self.staging.used_bytes();
        let Some(program) = self.programs.get_mut(&number).filter(|program| !program.ended) else {
            return Ok(Progress::default());
        };
        let most = 4 * self.config.ring_budget_bytes as u64 + 64 * FRAME_MARGIN_BYTES;
        // A program may hold no more of the staging memory than is still free: see `sinks::queue`.
        if room < most || program.staged_bytes > room {
            return Ok(Progress::default());
        }
        let round = program.round(self.config.ring_budget_bytes, &mut self.spare, now);
        if round.frames.is_empty() {
            return Ok(Progress { drained: false, has_more: round.has_more });
        }
        // Whatever was copied is older than this.
        self.clocks.tick();
        let mut staged = Vec::with_capacity(round.frames.len());
        for frame in round.frames {
            let before = self.staging.end();
            match self.staging.append(&frame) {
                Ok((_, end)) => staged.push((frame, end - before, end)),
                Err(StagingError::Full) => program.put_back(&frame),
                Err(e) => return Err(e),
            }
        }
        self.staging.commit()?;
        for (frame, _, _) in &staged {
            program.attachment.publish(frame.slot as usize);
        }
        let drained = !staged.is_empty();
        for (frame, bytes, end) in &staged {
            source.note(number, frame.slot);
            self.take_frame(frame, *bytes, *end);
        }
        staged.into_iter().for_each(|(frame, ..)| self.spare.put(frame.raw));
        Ok(Progress { drained, has_more: round.has_more })
    }

    /// Reads a staged frame's records and hands them on. What comes first after a restart comes here again.
    fn take_frame(&mut self, frame: &Frame, bytes: u64, end: u64) {
        let number = self.ledger.first_frame() + self.ledger.open_frames() as u64;
        let now = self.born.elapsed();
        let mut figures =
            DrainFigures { drained: u64::from(frame.records), torn: frame.torn, ..DrainFigures::default() };
        let mut lines = self.feeder.begin(frame.program, number);
        if let Some(program) = self.programs.get_mut(&frame.program) {
            let sweep = program.sweeps.next_whole();
            let cookie = program.attachment.info().cookie;
            let mut unknown = RingTime::default();
            let ring = program.times.get_mut(frame.slot as usize).unwrap_or(&mut unknown);
            let wants_spans = self.feeder.wants_spans();
            records(&frame.raw, cookie).each(|record| {
                let resolved = record.ok().and_then(|record| {
                    let ahead = record.position.wrapping_sub(frame.from.grain) & POSITION_MASK;
                    let position = position(frame.slot, frame.from.grain + ahead);
                    let origin =
                        Origin { program: frame.program, source: program.source, position, frame: number };
                    program.texts.annotation(&program.attachment, &self.clocks, ring, record, origin)
                });
                let Some(annotation) = resolved else {
                    figures.invalid += 1;
                    return;
                };
                figures.valid += 1;
                lines.add(&annotation);
                if wants_spans {
                    self.join.add(&annotation, sweep, now);
                }
            });
            // A ring that was spoilt while it was copied may show fewer records than were committed.
            figures.invalid += figures.drained.saturating_sub(figures.valid + figures.invalid);
            program.figures.add(figures);
            program.staged_bytes += bytes;
            program.open_frames += 1;
            program.last_frame = number;
        } else {
            // Its program could not be attached again: without cookie and names nobody can read them.
            figures.invalid = figures.drained;
        }
        self.notes.push_back(FrameNote { slot: frame.slot, to: frame.to, bytes, end });
        self.ledger.open_frame(frame.program, end, figures);
        self.feeder.push_lines(lines);
    }

    fn leave_spans(&mut self, now: Duration) {
        let mut out = std::mem::take(&mut self.leaving);
        let programs = &self.programs;
        let is_past = |program: u64, sweep: u64| {
            programs.get(&program).is_none_or(|program| program.ended || program.sweeps.is_past(sweep))
        };
        self.join.leave(now, is_past, &mut out);
        self.ship(out);
    }

    fn ship(&mut self, mut pieces: Vec<SpanPiece>) {
        pieces.drain(..).for_each(|piece| self.encode(piece));
        if pieces.capacity() <= MOST_LEAVING_KEPT {
            self.leaving = pieces;
        }
        self.feeder.push_spans();
    }

    /// A piece of a span has left: the feeder has it, encoded.
    fn encode(&mut self, piece: SpanPiece) {
        match piece.reason {
            Reason::Complete => self.spans.complete += 1,
            Reason::Quiet => self.spans.quiet += 1,
            Reason::Split => self.spans.split += 1,
            Reason::Ending => self.spans.ending += 1,
        }
        self.spans.late += u64::from(piece.late);
        self.feeder.add_span(&piece);
        self.join.recycle(piece);
    }

    fn settle(&mut self) {
        for (sink, settled) in self.feeder.outcomes() {
            self.ledger.settle(sink, settled.frame, settled.annotations, settled.outcome);
        }
    }

    /// Keeps staging less than half full, so that no upstream which is away stops the draining: first spans that hold
    /// old frames leave, then entries that wait in queues for them are given up, oldest first.
    fn make_room(&mut self) {
        let used = self.staging.end() - self.retired_end;
        let part = self.staging.capacity_bytes() / 16;
        if let Some(frame) = self.frame_after(used.saturating_sub(6 * part)) {
            let mut out = Vec::new();
            self.join.split_up_to_frame(frame, &mut out);
            self.ship(out);
        }
        if let Some(frame) = self.frame_after(used.saturating_sub(7 * part)) {
            self.feeder.evict_up_to_frame(frame);
            self.settle();
        }
    }

    /// A program that has ended is held, and counts in the quotas, until its frames are retired, and those before them: a
    /// span that stays open keeps them all. When many have ended, the spans that hold them up leave as they are.
    fn hurry_ended(&mut self) {
        let most = self.config.max_programs.min(self.config.max_programs_per_uid) / 4;
        let ended = self.programs.values().filter(|program| program.ended);
        let (count, frame) = ended.fold((0, 0), |(n, last), program| (n + 1, program.last_frame.max(last)));
        if count > most && frame > self.hurried_to {
            self.hurried_to = frame;
            let mut out = Vec::new();
            self.join.split_up_to_frame(frame, &mut out);
            self.ship(out);
        }
    }

    /// The last of the oldest frames that together have `bytes`.
    fn frame_after(&self, bytes: u64) -> Option<u64> {
        let mut sum = 0;
        let index = self.notes.iter().take_while(|note| {
            let is_needed = sum < bytes;
            sum += note.bytes;
            is_needed
        });
        (index.count() as u64).checked_sub(1).map(|index| self.ledger.first_frame() + index)
    }

    fn end_programs(&mut self, now: Duration) {
        self.recorders_evicted += keep_within_bounds(&mut self.programs, &self.config, now);
        for (number, program) in &mut self.programs {
            if program.has_ended(now) {
                self.settings.depart(*number);
                self.join.program_ended(*number);
                tracing::debug!(process = program.label, "the program has ended and is drained");
            }
        }
    }

    fn retire(&mut self, now: Duration) -> Result<(), StagingError> {
        while let Some(frame) = self.ledger.retire_first() {
            self.checkpoint_due = true;
            let Some(note) = self.notes.pop_front() else { break };
            self.retired_end = note.end;
            if let Some(program) = self.programs.get_mut(&frame.program) {
                program.retire(frame.figures, note.slot, note.to, note.bytes);
            } else {
                Totals::of_unreadable(0, 0, frame.figures).fold_into(&mut self.departed);
            }
        }
        let over: Vec<u64> =
            self.programs.iter().filter(|(_, p)| p.ended && p.open_frames == 0).map(|(n, _)| *n).collect();
        if over.is_empty()
            && (!self.checkpoint_due || now.saturating_sub(self.last_checkpoint) < CHECKPOINT_EVERY)
        {
            return Ok(());
        }
        let folded: Vec<_> = over.into_iter().filter_map(|number| self.fold(number)).collect();
        self.write_checkpoint(now)?;
        // Another daemon may wait for its turn to read them.
        folded.iter().for_each(|program| program.publish_settled());
        Ok(())
    }

    /// Moves the figures of a program that has ended to the departed ones, and gives it away.
    fn fold(&mut self, number: u64) -> Option<Box<Program>> {
        let program = self.programs.remove(&number)?;
        program.totals().fold_into(&mut self.departed);
        self.departed_programs += 1;
        self.to_release.insert(number, program.state(true));
        Some(program)
    }

    fn write_checkpoint(&mut self, now: Duration) -> Result<(), StagingError> {
        let mut programs: Vec<_> = self.programs.values().map(|program| program.state(false)).collect();
        programs.extend(self.to_release.values().cloned());
        let checkpoint = Checkpoint {
            next_frame: self.ledger.first_frame(),
            spans_split: self.spans.split,
            programs_departed: self.departed_programs,
            departed: self.departed,
            sinks: self.ledger.checkpoint(),
            programs,
        };
        self.staging.retire(&checkpoint, self.retired_end)?;
        self.programs.values().for_each(|program| program.publish_settled());
        self.checkpoint_due = false;
        self.last_checkpoint = now;
        Ok(())
    }

    /// Tells the holder which programs it may let go; `send` says whether it was told.
    pub(super) fn release(&mut self, send: impl Fn(u64) -> bool) {
        self.to_release.retain(|number, _| !send(*number));
    }

    /// Whether records wait in a ring.
    pub(super) fn has_pending(&self) -> bool {
        let mut live = self.programs.values().filter(|program| !program.ended && !program.is_recorder());
        live.any(|program| program.attachment.pending() > 0)
    }

    /// Every program that is attached.
    pub(super) fn programs(&self) -> &BTreeMap<u64, Box<Program>> {
        &self.programs
    }

    /// Every program that is attached.
    pub(super) fn programs_mut(&mut self) -> &mut BTreeMap<u64, Box<Program>> {
        &mut self.programs
    }

    /// How much each program has given so far.
    pub(super) fn drained(&self) -> Vec<(u64, u64)> {
        self.programs.iter().map(|(number, program)| (*number, program.figures.drained)).collect()
    }

    /// The daemon ends: nothing waits any longer in the join, nor lingers in the sinks.
    pub(super) fn finish(&mut self) {
        let mut out = Vec::new();
        self.join.leave_all(&mut out);
        self.last = out.into();
        self.feeder.hurry();
    }

    /// Hands the spans that were open to the sinks, as far as these have room for them. Says whether every sink has settled
    /// everything. What was not handed over by `due` stays on its way, and is named with the rest of that.
    pub(super) fn finish_more(&mut self, due: Instant) -> bool {
        self.settle();
        while self.feeder.push_spans_with_room() {
            let Some(piece) = self.last.pop_front() else {
                self.feeder.end();
                return self.ledger.sinks().all(|(_, sink)| sink.in_flight == 0);
            };
            self.encode(piece);
            if Instant::now() >= due {
                break;
            }
        }
        false
    }

    /// Tells every program that nobody reads any more, so that it offers itself to another, and takes what was recorded
    /// until then: what comes later its program names itself, should it end before it is read.
    ///
    /// # Errors
    /// When the staging memory cannot be used.
    pub(super) fn drain_last(&mut self) -> Result<(), StagingError> {
        self.programs.values().for_each(|program| program.attachment.mark_attached(false));
        // The rings are looked at after that can be seen.
        fence(SeqCst);
        self.round().map(drop)
    }

    /// Says how much is settled.
    ///
    /// # Errors
    /// When the staging memory cannot be used.
    pub(super) fn close_books(&mut self) -> Result<(), StagingError> {
        let now = self.now();
        self.retire(now)?;
        self.write_checkpoint(now)
    }

    /// Sinks and whether their threads run.
    pub(super) fn sinks_alive(&self) -> Vec<(&'static str, bool)> {
        self.feeder.alive()
    }

    /// Everything for `/metrics`, at one moment.
    pub(super) fn snapshot(&self) -> Snapshot {
        Snapshot {
            programs: self
                .programs
                .values()
                .map(|program| (program.label.clone(), program.totals()))
                .collect(),
            departed: Totals::of_departed(&self.departed),
            departed_programs: self.departed_programs,
            rejected_programs: self.rejected_programs,
            recorders_evicted: self.recorders_evicted,
            recorders_kept: self.programs.values().filter(|program| program.ended_at().is_some()).count()
                as u64,
            sinks: self.ledger.sinks().collect(),
            queued_bytes: self.feeder.queued_bytes(),
            spans: self.spans,
            open_spans: (self.join.open_spans() + self.last.len()) as u64,
            open_span_bytes: self.join.open_bytes() as u64,
            staging_used_bytes: self.staging.used_bytes(),
            staging_bytes: self.staging.capacity_bytes(),
            holder: counters::read(self.staging.memory()),
        }
    }
}

/// Whether the system lacks something that it may have later; no program can bring that about by what it offers.
fn is_shortage(error: &AttachError) -> bool {
    let AttachError::System(_, errno) = error else { return false };
    matches!(*errno, Errno::NOMEM | Errno::AGAIN | Errno::MFILE | Errno::NFILE)
}

/// What `/metrics` shows.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Live programs.
    pub programs: Vec<(String, Totals)>,
    /// Sums over those that have ended.
    pub departed: Totals,
    /// How many have.
    pub departed_programs: u64,
    /// Offers that could not be mapped.
    pub rejected_programs: u64,
    /// Flight recorders of ended programs that nobody took in time.
    pub recorders_evicted: u64,
    /// Those that are kept.
    pub recorders_kept: u64,
    /// Each sink's ledger.
    pub sinks: Vec<(&'static str, SinkFigures)>,
    /// Bytes in each sink's queue.
    pub queued_bytes: Vec<(&'static str, u64)>,
    /// Spans that left.
    pub spans: SpanFigures,
    /// Spans that did not yet.
    pub open_spans: u64,
    /// Bytes in them.
    pub open_span_bytes: u64,
    /// Staging memory in use.
    pub staging_used_bytes: u64,
    /// All of it.
    pub staging_bytes: u64,
    /// The holder's counters.
    pub holder: [u64; HOLDER_COUNTERS],
}

#[cfg(test)]
mod tests;
