//! Feeds the sinks: annotations as they come, spans as they leave.

use std::collections::VecDeque;
use std::time::Instant;

use blkin_thrift::scribe::{message_bytes, write_message};
use bytes::{Bytes, BytesMut};

use crate::annotation::Annotation;
use crate::join::SpanPiece;
use crate::sinks::queue::{Entry, Fill, Refs, Settled};
use crate::sinks::zipkin::Encoder;
use crate::sinks::{Feed, Sink, json};

/// JSON lines go to the queues in portions of about this size; messages of spans have their memory in such.
const PORTION_BYTES: usize = 64 << 10;
/// Most portions that are kept until what is in them was shipped, to be used again.
const MOST_PORTIONS: usize = 16;

/// All sinks.
pub(super) struct Feeder {
    sinks: Vec<Sink>,
    wants_spans: bool,
    wants_lines: bool,
    encoder: Encoder,
    portions: Portions,
    /// Messages of spans that left in this round.
    messages: Vec<Entry>,
}

/// Memory for messages. They share it, and its next portion is taken when they need more.
#[derive(Default)]
struct Portions {
    now: BytesMut,
    /// It has the size of a portion, and is kept: it was not made for one message that needs more, and is not nothing.
    is_regular: bool,
    /// Full ones, the oldest first.
    full: VecDeque<BytesMut>,
}

/// Lines of one frame.
pub(super) struct Lines {
    is_wanted: bool,
    program: u64,
    frame: u64,
    bytes: Vec<u8>,
    count: u32,
    portions: Vec<Entry>,
}

impl Feeder {
    pub(super) fn new(sinks: Vec<Sink>) -> Self {
        let wants = |feed| sinks.iter().any(|sink| sink.feed == feed);
        Self {
            wants_spans: wants(Feed::Spans),
            wants_lines: wants(Feed::Annotations),
            sinks,
            encoder: Encoder::default(),
            portions: Portions::default(),
            messages: Vec::new(),
        }
    }

    /// Whether any sink takes spans.
    pub(super) fn wants_spans(&self) -> bool {
        self.wants_spans
    }

    /// Lets everything into the queues that has annotations of a frame before this one: an earlier worker staged it.
    pub(super) fn let_in_before(&self, frame: u64) {
        self.sinks.iter().for_each(|sink| sink.queue.let_in_before(frame));
    }

    /// Begins the lines of a frame.
    pub(super) fn begin(&self, program: u64, frame: u64) -> Lines {
        Lines {
            is_wanted: self.wants_lines,
            program,
            frame,
            bytes: Vec::new(),
            count: 0,
            portions: Vec::new(),
        }
    }

    /// Hands the lines of a frame to every sink that takes annotations.
    pub(super) fn push_lines(&self, mut lines: Lines) {
        lines.close_portion();
        push(&self.sinks, Feed::Annotations, &mut lines.portions);
    }

    /// Encodes a piece of a span for [`Feeder::push_spans`].
    pub(super) fn add_span(&mut self, piece: &SpanPiece) {
        let Self { messages, portions, .. } = self;
        self.encoder.spans(piece, |span, share| {
            let lines = portions.message(span);
            messages.push(Entry { lines, messages: 1, refs: refs(&share.frames), program: share.program });
        });
    }

    /// Hands the encoded spans to every sink that takes spans.
    pub(super) fn push_spans(&mut self) {
        push(&self.sinks, Feed::Spans, &mut self.messages);
    }

    /// Hands the encoded spans over if every sink that takes spans has room for them; says whether none is left.
    pub(super) fn push_spans_with_room(&mut self) -> bool {
        let mut of_spans = self.sinks.iter().filter(|sink| sink.feed == Feed::Spans);
        let has_room = of_spans.all(|sink| sink.queue.has_room_for(&self.messages));
        if has_room {
            self.push_spans();
        }
        has_room
    }

    /// Has batches leave whose time comes before `next`, when this may be called again.
    pub(super) fn call(&self, next: Instant) {
        self.sinks.iter().for_each(|sink| sink.queue.call(next));
    }

    /// What was settled since the last call, with the index of the sink.
    pub(super) fn outcomes(&self) -> Vec<(usize, Settled)> {
        let of_sink = |(index, sink): (usize, &Sink)| {
            sink.queue.take_outcomes().into_iter().map(move |settled| (index, settled))
        };
        self.sinks.iter().enumerate().flat_map(of_sink).collect()
    }

    /// Gives up what waits for the oldest frames.
    pub(super) fn evict_up_to_frame(&self, frame: u64) {
        self.sinks.iter().for_each(|sink| sink.queue.evict_up_to_frame(frame));
    }

    /// Tells every sink that the end is near.
    pub(super) fn hurry(&self) {
        self.sinks.iter().for_each(|sink| sink.queue.hurry());
    }

    /// Asks every sink to ship what it has, and then to end.
    pub(super) fn end(&self) {
        self.sinks.iter().for_each(|sink| sink.queue.end());
    }

    /// Each sink, and whether its thread runs.
    pub(super) fn alive(&self) -> Vec<(&'static str, bool)> {
        self.sinks.iter().map(|sink| (sink.name, sink.is_alive())).collect()
    }

    /// How full each sink's queue is.
    pub(super) fn fills(&self) -> Vec<(&'static str, Fill)> {
        self.sinks.iter().map(|sink| (sink.name, sink.queue.fill())).collect()
    }
}

impl Portions {
    /// The message of an encoded span: base64, ended by a line feed.
    fn message(&mut self, span: &[u8]) -> Bytes {
        let base64 = message_bytes(span.len());
        if self.now.capacity() <= base64 {
            self.take_next((base64 + 1).max(PORTION_BYTES));
        }
        self.now.resize(base64 + 1, b'\n');
        write_message(span, &mut self.now[..base64]);
        self.now.split().freeze()
    }

    /// Sinks ship in order, so that the oldest portion is free before the others; if it is not, the allocator has more.
    fn take_next(&mut self, bytes: usize) {
        let full = std::mem::take(&mut self.now);
        let was_regular = std::mem::replace(&mut self.is_regular, bytes <= PORTION_BYTES);
        if self.full.len() < MOST_PORTIONS && was_regular {
            self.full.push_back(full);
        }
        let is_free = self.full.front_mut().is_some_and(|oldest| oldest.try_reclaim(bytes));
        let free = if is_free { self.full.pop_front() } else { None };
        self.now = free.unwrap_or_else(|| BytesMut::with_capacity(bytes));
    }
}

/// Moves entries to the last sink of that feed, and copies to the others.
fn push(sinks: &[Sink], feed: Feed, entries: &mut Vec<Entry>) {
    if entries.is_empty() {
        return;
    }
    let mut of_feed = sinks.iter().filter(|sink| sink.feed == feed).rev();
    let last = of_feed.next();
    of_feed.for_each(|sink| sink.queue.push(entries.iter().cloned()));
    let entries = entries.drain(..);
    if let Some(sink) = last {
        sink.queue.push(entries);
    }
}

impl Lines {
    /// Adds one annotation.
    #[inline]
    pub(super) fn add(&mut self, annotation: &Annotation<'_>) {
        if self.is_wanted {
            json::append_line(annotation, &mut self.bytes);
            self.count += 1;
            if self.bytes.len() >= PORTION_BYTES {
                self.close_portion();
            }
        }
    }

    fn close_portion(&mut self) {
        if self.count > 0 {
            self.portions.push(Entry {
                lines: std::mem::take(&mut self.bytes).into(),
                messages: self.count as usize,
                refs: Refs::One((self.frame, self.count)),
                program: self.program,
            });
            self.count = 0;
        }
    }
}

/// How many annotations came from each frame.
fn refs(frames: &[(u64, u32)]) -> Refs {
    match frames {
        [one] => Refs::One(*one),
        several => Refs::Many(several.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_what_was_shipped_is_used_again_and_that_of_what_waits_is_not() {
        let mut portions = Portions::default();
        let span = [7; 3 * (PORTION_BYTES / 16) - 3];
        let round = |portions: &mut Portions| (0..4).map(|_| portions.message(&span)).collect::<Vec<_>>();
        let waiting = round(&mut portions);
        let shipped = round(&mut portions);
        assert!(waiting.iter().chain(&shipped).all(|lines| lines == &waiting[0] && lines.ends_with(b"\n")));
        let first = waiting[0].as_ptr();
        drop(shipped);
        let later = round(&mut portions);
        assert!(later.iter().all(|lines| lines.as_ptr() != first));
        drop(waiting);
        assert_eq!(round(&mut portions)[0].as_ptr(), first);
    }
}
