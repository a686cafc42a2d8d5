//! Joining annotations of one (trace, span) into spans, and deciding when a span leaves.
//!
//! Each program that annotates a span is a *part* of it, closed as [`part`] says. A span leaves
//! 1. complete, when every part is closed and every ring of those programs has been drained past the closing;
//! 2. quiet, when nothing was added to it for some time;
//! 3. split, oldest first, under memory pressure.
//!
//! What comes after that leaves as a further piece of the same span.

mod part;
mod recent;
mod span;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::annotation::Annotation;
use crate::hash::Map;
use part::Part;
use recent::Recent;
pub use span::{Reason, SpanPiece, Timing};

/// When spans leave.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Annotations that close a part which is neither a client's nor a server's.
    pub close_events: Vec<String>,
    /// Pause after which a span leaves as it is.
    pub quiet: Duration,
    /// Most open spans.
    pub max_spans: usize,
    /// Most bytes in open spans.
    pub max_bytes: usize,
}

type Key = (u64, u64);

/// How many spans that left are remembered at least, so that what comes late is known as late.
const REMEMBERED_SPANS: usize = 1 << 15;
/// Memory of an open span apart from its annotations.
const SPAN_COST_BYTES: usize = 256;

/// Lists that are kept for spans to come, and the longest that is worth it.
const SPARE_LISTS: usize = 1024;
const SPARE_CAPACITY: usize = 64;

#[derive(Debug)]
struct Open {
    piece: SpanPiece,
    parts: Vec<Part>,
    touched: Duration,
    born: u64,
    bytes: usize,
    listed_as_closed: bool,
}

/// The open spans.
#[derive(Debug)]
pub struct Join {
    rules: Rules,
    open: Map<Key, Open>,
    bytes: usize,
    births: u64,
    /// Oldest first; entries of spans that left are skipped.
    by_age: VecDeque<(Key, u64)>,
    /// By the time of the look, at least one entry for each open span.
    quiet: VecDeque<(Key, u64, Duration)>,
    /// Closed since the last look.
    closed: Vec<Key>,
    /// Closed before, by program and sweep that they wait for: looked at again when that is past, not in each round.
    waiting: BTreeMap<(u64, u64), Vec<Key>>,
    recent: Recent,
    /// Emptied lists of spans that left, for spans to come.
    spare: Vec<(Vec<Annotation>, Vec<Part>)>,
}

impl Join {
    /// No open spans.
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            open: Map::default(),
            bytes: 0,
            births: 0,
            by_age: VecDeque::new(),
            quiet: VecDeque::new(),
            closed: Vec::new(),
            waiting: BTreeMap::new(),
            recent: Recent::new(REMEMBERED_SPANS),
            spare: Vec::new(),
        }
    }

    /// Open spans.
    pub fn open_spans(&self) -> usize {
        self.open.len()
    }

    /// Bytes in them.
    pub fn open_bytes(&self) -> usize {
        self.bytes
    }

    /// Adds one annotation, seen in the given sweep over its program's rings.
    #[inline]
    pub fn add(&mut self, annotation: Annotation, sweep: u64, now: Duration) {
        let key = (annotation.trace_id, annotation.span_id);
        let open = self.open.entry(key).or_insert_with(|| {
            self.births += 1;
            self.by_age.push_back((key, self.births));
            self.quiet.push_back((key, self.births, now + self.rules.quiet));
            self.bytes += SPAN_COST_BYTES;
            let (annotations, parts) = self.spare.pop().unwrap_or_default();
            let piece = SpanPiece::new(key.0, key.1, self.recent.contains(key), annotations);
            Open::new(piece, parts, self.births, now)
        });
        let cost = annotation.cost_bytes();
        self.bytes += cost;
        open.bytes += cost;
        open.touched = now;
        let program = annotation.origin.program;
        let part = match open.parts.iter_mut().position(|part| part.program() == program) {
            Some(index) => &mut open.parts[index],
            None => {
                open.parts.push(Part::new(program));
                let last = open.parts.len() - 1;
                &mut open.parts[last]
            }
        };
        part.note(&annotation, &self.rules.close_events, sweep);
        let is_closed = part.is_closed();
        open.piece.add(annotation);
        if is_closed && !open.listed_as_closed && open.parts.iter().all(Part::is_closed) {
            open.listed_as_closed = true;
            self.closed.push(key);
        }
    }

    /// Moves out what is complete, quiet or too much. `is_past(program, sweep)` says whether every ring of the
    /// program has been drained since that sweep.
    pub fn leave(&mut self, now: Duration, is_past: impl Fn(u64, u64) -> bool, out: &mut Vec<SpanPiece>) {
        self.leave_complete(is_past, out);
        self.leave_quiet(now, out);
        while self.open.len() > self.rules.max_spans || self.bytes > self.rules.max_bytes {
            let Some((key, born)) = self.by_age.pop_front() else { break };
            self.take(key, born, Reason::Split, out);
        }
        if self.by_age.len() > 2 * self.open.len() + 1024 {
            let open = &self.open;
            self.by_age.retain(|(key, born)| open.get(key).is_some_and(|span| span.born == *born));
        }
    }

    fn leave_complete(&mut self, is_past: impl Fn(u64, u64) -> bool, out: &mut Vec<SpanPiece>) {
        let mut due = Vec::new();
        self.waiting.retain(|(program, sweep), keys| {
            let is_due = is_past(*program, *sweep);
            if is_due {
                due.append(keys);
            }
            !is_due
        });
        due.append(&mut self.closed);
        for key in due {
            let Some(open) = self.open.get_mut(&key) else { continue };
            if !open.parts.iter().all(Part::is_closed) {
                open.listed_as_closed = false;
                continue;
            }
            let awaited = |part: &&Part| !is_past(part.program(), part.closed_in_sweep());
            match open.parts.iter().find(awaited) {
                Some(part) => {
                    let sweep = (part.program(), part.closed_in_sweep());
                    self.waiting.entry(sweep).or_default().push(key);
                }
                None => {
                    let born = open.born;
                    self.take(key, born, Reason::Complete, out);
                }
            }
        }
    }

    fn leave_quiet(&mut self, now: Duration, out: &mut Vec<SpanPiece>) {
        while let Some(&(key, born, due)) = self.quiet.front() {
            if due > now {
                break;
            }
            self.quiet.pop_front();
            let Some(open) = self.open.get(&key).filter(|open| open.born == born) else { continue };
            let due = open.touched + self.rules.quiet;
            if due > now {
                self.quiet.push_back((key, born, due));
            } else {
                self.take(key, born, Reason::Quiet, out);
            }
        }
    }

    /// A program has ended and is drained: nothing more can come from it.
    pub fn program_ended(&mut self, program: u64) {
        for (key, open) in &mut self.open {
            let Some(part) = open.parts.iter_mut().find(|part| part.program() == program) else { continue };
            part.end();
            if !open.listed_as_closed && open.parts.iter().all(Part::is_closed) {
                open.listed_as_closed = true;
                self.closed.push(*key);
            }
        }
    }

    /// Moves out every span that holds an annotation of a frame up to `frame`: staging needs the room.
    pub fn split_up_to_frame(&mut self, frame: u64, out: &mut Vec<SpanPiece>) {
        let pinning = self.open.iter().filter(|(_, open)| open.piece.first_frame() <= frame);
        let pinning: Vec<_> = pinning.map(|(key, open)| (*key, open.born)).collect();
        for (key, born) in pinning {
            self.take(key, born, Reason::Split, out);
        }
    }

    /// Moves every open span out: the daemon ends.
    pub fn leave_all(&mut self, out: &mut Vec<SpanPiece>) {
        while let Some((key, born)) = self.by_age.pop_front() {
            self.take(key, born, Reason::Ending, out);
        }
    }

    fn take(&mut self, key: Key, born: u64, reason: Reason, out: &mut Vec<SpanPiece>) {
        if self.open.get(&key).is_none_or(|open| open.born != born) {
            return;
        }
        if let Some(open) = self.open.remove(&key) {
            self.bytes -= open.bytes + SPAN_COST_BYTES;
            self.recent.insert(key);
            let mut piece = open.piece;
            piece.reason = reason;
            piece.parts = open.parts;
            out.push(piece);
        }
    }

    /// Takes back the memory of a piece that was shipped.
    pub fn recycle(&mut self, piece: SpanPiece) {
        let SpanPiece { mut annotations, mut parts, .. } = piece;
        if self.spare.len() < SPARE_LISTS && annotations.capacity() <= SPARE_CAPACITY {
            annotations.clear();
            parts.clear();
            self.spare.push((annotations, parts));
        }
    }
}

impl Open {
    fn new(piece: SpanPiece, parts: Vec<Part>, born: u64, now: Duration) -> Self {
        Self { piece, parts, touched: now, born, bytes: 0, listed_as_closed: false }
    }
}

#[cfg(test)]
mod tests;
