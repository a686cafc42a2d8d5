//! From staged frames to annotations, spans and entries of the sinks.

use std::time::Duration;

use blkin_record::{POSITION_MASK, records};
use blkin_ringbuf::RingTime;
use blkin_thrift::position;

use super::{Engine, FrameNote};
use crate::annotation::Origin;
use crate::join::{Reason, SpanPiece};
use crate::staging::Frame;
use crate::worker::feed::Lines;
use crate::worker::ledger::DrainFigures;
use crate::worker::program::Program;

/// Largest capacity of the list of leaving spans that is kept for reuse.
const MOST_LEAVING_KEPT: usize = 4096;

impl Engine {
    /// Counts a staged frame, and hands its records to the sinks that are not behind. After a restart, the frames that an earlier
    /// worker staged come through here first.
    pub(super) fn take_frame(&mut self, frame: &Frame, bytes: u64, end: u64) {
        let number = self.ledger.next_frame();
        let mut lines = self.feeder.begin(frame.program, number);
        let wants_spans = self.feeder.wants_spans();
        let mut figures = self.read(frame, number, None, wants_spans, &mut lines);
        if let Some(program) = self.programs.get_mut(&frame.program) {
            // A ring that was spoilt while it was copied may show fewer records than were committed.
            figures.invalid += figures.drained.saturating_sub(figures.valid + figures.invalid);
            program.figures.add(figures);
            program.staged_bytes += bytes;
            program.open_frames += 1;
            program.last_frame = number;
        } else {
            // The program could not be attached to again: without its cookie and its names the records cannot be read.
            figures.invalid = figures.drained;
        }
        self.notes.push_back(FrameNote { slot: frame.slot, to: frame.to, bytes, end });
        self.ledger.open_frame(frame.program, figures);
        self.feeder.push_lines(lines);
    }

    /// Reads the records of a frame for lines, and for the join if spans are wanted. `time` is the ring's time for a sink that
    /// reads the frame later; otherwise the program's own is used.
    pub(super) fn read(
        &mut self,
        frame: &Frame,
        number: u64,
        time: Option<&mut RingTime>,
        wants_spans: bool,
        lines: &mut Lines,
    ) -> DrainFigures {
        let now = self.now();
        let mut figures =
            DrainFigures { drained: u64::from(frame.records), torn: frame.torn, ..DrainFigures::default() };
        let Some(program) = self.programs.get_mut(&frame.program) else { return figures };
        let awaited = program.sweeps.awaited(frame.slot as usize);
        let cookie = program.attachment.info().cookie;
        let mut unknown = RingTime::default();
        let own = program.times.get_mut(frame.slot as usize);
        let ring = time.or(own).unwrap_or(&mut unknown);
        records(&frame.raw, cookie).each(|record| {
            let resolved = record.ok().and_then(|record| {
                let ahead = record.position.wrapping_sub(frame.from.grain) & POSITION_MASK;
                let grain = frame.from.grain + ahead;
                let position = position::of(frame.slot, grain);
                let origin =
                    Origin { program: frame.program, source: program.source, position, frame: number };
                let texts = &mut program.texts;
                let annotation = texts.annotation(&program.attachment, &self.clocks, ring, record, origin)?;
                Some((annotation, awaited.of(grain)))
            });
            let Some((annotation, sweep)) = resolved else {
                figures.invalid += 1;
                return;
            };
            figures.valid += 1;
            lines.add(&annotation);
            if wants_spans {
                self.join.add(&annotation, sweep, now);
            }
        });
        figures
    }

    /// Ships the spans that may leave, as far as there is room. Returns whether some left and more wait for room.
    pub(super) fn leave_spans(&mut self, now: Duration) -> bool {
        let mut out = std::mem::take(&mut self.leaving);
        let programs = &self.programs;
        // After a restart, annotations that a span waits for may not have been read again yet: waiting spans may fill half of the
        // room for open spans until then.
        let may_leave = self.feeder.unread_by_join().is_none() || self.join.is_half_full();
        let is_past = |program: u64, sweep: u64| {
            let is_over = |program: &Program| program.ended || program.sweeps.is_past(sweep);
            may_leave && programs.get(&program).is_none_or(|program| is_over(program))
        };
        self.join.leave(now, self.feeder.room_for_spans(), is_past, &mut out);
        let has_more = !out.is_empty() && self.join.waits_for_room();
        self.ship(out);
        has_more
    }

    pub(super) fn ship(&mut self, mut pieces: Vec<SpanPiece>) {
        pieces.drain(..).for_each(|piece| self.encode(piece));
        if pieces.capacity() <= MOST_LEAVING_KEPT {
            self.leaving = pieces;
        }
        self.feeder.push_spans();
    }

    /// Counts a piece of a span that leaves, and hands it, encoded, to the feeder.
    pub(super) fn encode(&mut self, piece: SpanPiece) {
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

    pub(super) fn settle(&mut self) {
        for (sink, settled) in self.feeder.outcomes() {
            self.ledger.settle(sink, settled.frame, settled.annotations, settled.outcome);
        }
    }
}
