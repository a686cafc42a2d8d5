//! Joining annotations of one (trace, span) into spans, and deciding when a span leaves.
//!
//! Each program that annotates a span has a *part* in it; [`part`] says when a part is closed. A span leaves
//! 1. complete, when every part is closed and every ring of those programs has been drained past the closing annotations;
//! 2. quiet, when nothing was added to it for some time;
//! 3. split, oldest first, under memory pressure.
//!
//! Annotations that come after a span left form a further piece of the same span.

mod by_program;
mod part;
mod recent;
mod share;
mod span;
mod spare;
mod table;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::annotation::Annotation;
use by_program::ByProgram;
use part::Part;
use recent::Recent;
pub use share::{MAX_ANNOTATIONS, Share};
pub use span::{Reason, SpanPiece, Timing};
use spare::Spare;
use table::{Open, Table, Ticket};

/// When spans leave.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Annotations that close a part which is neither a client's nor a server's.
    pub close_events: Vec<String>,
    /// Time without a new annotation after which a span leaves as it is.
    pub quiet: Duration,
    /// Most open spans.
    pub max_spans: usize,
    /// Most bytes in open spans.
    pub max_bytes: usize,
    /// A span with more bytes than this leaves as it is.
    pub max_span_bytes: usize,
}

/// At least how many spans that left are remembered, so that further pieces are recognised as late.
const REMEMBERED_SPANS: usize = 1 << 15;
/// Memory that an open span takes apart from its annotations.
const SPAN_COST_BYTES: usize = 256;

/// The open spans.
#[derive(Debug)]
pub struct Join {
    rules: Rules,
    open: Table,
    bytes: usize,
    /// Open spans, oldest first, and so in the order of their first frames; entries of spans that left are skipped.
    by_age: VecDeque<Ticket>,
    /// Open spans by the time at which each is to be checked for quiet; entries of spans that left are skipped.
    quiet: VecDeque<(Ticket, Duration)>,
    /// Closed spans, to be checked in this order; entries of spans that left are skipped.
    closed: VecDeque<Ticket>,
    /// Spans that hold too many bytes.
    large: Vec<Ticket>,
    /// Closed spans by the program and the sweep for which they wait: checked again once that sweep is over, not in each round.
    waiting: BTreeMap<(u64, u64), Vec<Ticket>>,
    /// How many parts all open spans have.
    parts: usize,
    /// Open spans by the programs that annotated them; entries of spans that left are skipped.
    by_program: ByProgram,
    recent: Recent,
    spare: Spare,
}

impl Join {
    /// No open spans.
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            open: Table::default(),
            bytes: 0,
            by_age: VecDeque::new(),
            quiet: VecDeque::new(),
            closed: VecDeque::new(),
            large: Vec::new(),
            waiting: BTreeMap::new(),
            parts: 0,
            by_program: ByProgram::default(),
            recent: Recent::new(REMEMBERED_SPANS),
            spare: Spare::default(),
        }
    }

    /// How many spans are open.
    pub fn open_spans(&self) -> usize {
        self.open.len()
    }

    /// Bytes in open spans.
    pub fn open_bytes(&self) -> usize {
        self.bytes
    }

    /// How often a span was looked up.
    #[cfg(test)]
    pub fn looks(&self) -> usize {
        self.open.looks
    }

    /// Whether more than half as many spans or bytes are open as may be.
    pub fn is_half_full(&self) -> bool {
        self.open.len() > self.rules.max_spans / 2 || self.bytes > self.rules.max_bytes / 2
    }

    /// Adds one annotation, from a frame no older than the last one's. `sweep` is the first sweep over its program's rings that
    /// begins after the annotation's place was reserved.
    #[inline]
    pub fn add(&mut self, annotation: &Annotation<'_>, sweep: u64, now: Duration) {
        let key = (annotation.trace_id, annotation.span_id);
        let (ticket, is_new) = self.open.find_or_insert(key, || {
            let (shares, parts) = self.spare.lists();
            let piece = SpanPiece::new(key.0, key.1, shares);
            Open { piece, parts, touched: now, bytes: 0, listed_as_closed: false }
        });
        if is_new {
            self.by_age.push_back(ticket);
            self.quiet.push_back((ticket, now + self.rules.quiet));
            self.bytes += SPAN_COST_BYTES;
        }
        let Some(open) = self.open.get(ticket) else { return };
        let bytes = open.piece.add(annotation, &mut self.spare);
        self.bytes += bytes;
        let was_large = open.bytes > self.rules.max_span_bytes;
        open.bytes += bytes;
        if !was_large && open.bytes > self.rules.max_span_bytes {
            self.large.push(ticket);
        }
        open.touched = now;
        let program = annotation.origin.program;
        let part = match open.parts.iter_mut().position(|part| part.program() == program) {
            Some(index) => &mut open.parts[index],
            None => {
                open.parts.push(Part::new(program));
                self.by_program.add(program, ticket);
                self.parts += 1;
                let last = open.parts.len() - 1;
                &mut open.parts[last]
            }
        };
        let closes = part.note(annotation, &self.rules.close_events, sweep);
        if closes && !open.listed_as_closed && open.parts.iter().all(Part::is_closed) {
            open.listed_as_closed = true;
            self.closed.push_back(ticket);
        }
    }

    /// Moves out the spans that are complete, quiet, or beyond a limit. `is_past(program, sweep)` says whether that sweep over the
    /// program's rings is over. While less than half as much is open as may be, complete and quiet spans leave only as far as there
    /// is `room`, in bytes: when a program ends, all of its spans become complete at once.
    pub fn leave(
        &mut self,
        now: Duration,
        room: usize,
        is_past: impl Fn(u64, u64) -> bool,
        out: &mut Vec<SpanPiece>,
    ) {
        let least = self.bytes.saturating_sub(room);
        self.leave_complete(least, is_past, out);
        self.leave_quiet(now, least, out);
        for ticket in std::mem::take(&mut self.large) {
            self.take(ticket, Reason::Split, out);
        }
        while self.open.len() > self.rules.max_spans || self.bytes > self.rules.max_bytes {
            let Some(ticket) = self.by_age.pop_front() else { break };
            self.take(ticket, Reason::Split, out);
        }
        self.forget_those_that_left();
    }

    /// Removes spans that left from the lists, if a list has become much longer than there are open spans.
    fn forget_those_that_left(&mut self) {
        let (open, most) = (&self.open, 2 * self.open.len() + 1024);
        if self.by_age.len() > most {
            self.by_age.retain(|ticket| open.holds(*ticket));
        }
        if self.quiet.len() > most {
            self.quiet.retain(|(ticket, _)| open.holds(*ticket));
        }
        if self.closed.len() > most {
            self.closed.retain(|ticket| open.holds(*ticket));
        }
        if self.by_program.len() > 2 * self.parts + 1024 {
            self.by_program.retain(|_| true, |_, ticket| open.holds(ticket));
        }
        self.open.shrink();
    }

    /// Whether spans are to wait for room, because no more than `least` bytes are open.
    fn keeps(&self, least: usize) -> bool {
        self.bytes <= least && !self.is_half_full()
    }

    /// Whether closed spans wait for room to leave.
    pub fn waits_for_room(&self) -> bool {
        !self.closed.is_empty()
    }

    fn leave_complete(&mut self, least: usize, is_past: impl Fn(u64, u64) -> bool, out: &mut Vec<SpanPiece>) {
        let closed = &mut self.closed;
        self.waiting.retain(|(program, sweep), tickets| {
            let is_due = is_past(*program, *sweep);
            if is_due {
                closed.extend(tickets.drain(..));
            }
            !is_due
        });
        while !self.keeps(least)
            && let Some(ticket) = self.closed.pop_front()
        {
            let Some(open) = self.open.get(ticket) else { continue };
            if !open.parts.iter().all(Part::is_closed) {
                open.listed_as_closed = false;
                continue;
            }
            let awaited = |part: &&Part| !is_past(part.program(), part.closed_in_sweep());
            match open.parts.iter().find(awaited) {
                Some(part) => {
                    let sweep = (part.program(), part.closed_in_sweep());
                    self.waiting.entry(sweep).or_default().push(ticket);
                }
                None => self.take(ticket, Reason::Complete, out),
            }
        }
    }

    fn leave_quiet(&mut self, now: Duration, least: usize, out: &mut Vec<SpanPiece>) {
        while let Some(&(ticket, due)) = self.quiet.front() {
            if due > now || self.keeps(least) {
                break;
            }
            self.quiet.pop_front();
            let Some(open) = self.open.get(ticket) else { continue };
            let due = open.touched + self.rules.quiet;
            if due > now {
                self.quiet.push_back((ticket, due));
            } else {
                self.take(ticket, Reason::Quiet, out);
            }
        }
    }

    /// Closes the parts of programs that have ended and are drained: nothing more can come from them, except what an earlier worker
    /// had staged. Only the spans of these programs are visited, because thousands of programs may end one after the other while
    /// others have a million spans open.
    pub fn programs_ended(&mut self, has_ended: impl Fn(u64) -> bool) {
        let (spans, closed) = (&mut self.open, &mut self.closed);
        self.by_program.retain(has_ended, |program, ticket| {
            let Some(open) = spans.get(ticket) else { return false };
            open.parts.iter_mut().filter(|part| part.program() == program).for_each(Part::end);
            if !open.listed_as_closed && open.parts.iter().all(Part::is_closed) {
                open.listed_as_closed = true;
                closed.push_back(ticket);
            }
            true
        });
    }

    /// Moves out every span with an annotation of a frame up to `frame`, because staging needs the room. While staging is full this
    /// is called in each round, so spans of later frames are not visited.
    pub fn split_up_to_frame(&mut self, frame: u64, out: &mut Vec<SpanPiece>) {
        while let Some(&ticket) = self.by_age.front() {
            if self.open.get(ticket).is_some_and(|open| open.piece.first_frame() > frame) {
                break;
            }
            self.by_age.pop_front();
            self.take(ticket, Reason::Split, out);
        }
    }

    /// Moves out every open span, because the daemon ends.
    pub fn leave_all(&mut self, out: &mut Vec<SpanPiece>) {
        while let Some(ticket) = self.by_age.pop_front() {
            self.take(ticket, Reason::Ending, out);
        }
    }

    fn take(&mut self, ticket: Ticket, reason: Reason, out: &mut Vec<SpanPiece>) {
        if let Some(open) = self.open.remove(ticket) {
            self.bytes -= open.bytes + SPAN_COST_BYTES;
            self.parts -= open.parts.len();
            let mut piece = open.piece;
            piece.late = self.recent.insert(piece.key());
            piece.reason = reason;
            piece.parts = open.parts;
            out.push(piece);
        }
    }

    /// Takes back the memory of a piece that was handed over.
    pub fn recycle(&mut self, piece: SpanPiece) {
        self.spare.put(piece);
    }
}

#[cfg(test)]
mod tests;
