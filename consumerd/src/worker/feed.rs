//! Feeds the sinks: annotations as they come, spans as they leave.

use bytes::BytesMut;

use crate::annotation::Annotation;
use crate::join::SpanPiece;
use crate::sinks::queue::{Entry, Refs, Settled};
use crate::sinks::zipkin::Encoder;
use crate::sinks::{Feed, Sink, json};

/// JSON lines go to the queues in portions of about this size; messages of spans have their memory in such.
const PORTION_BYTES: usize = 64 << 10;

/// All sinks.
pub(super) struct Feeder {
    sinks: Vec<Sink>,
    wants_spans: bool,
    wants_lines: bool,
    encoder: Encoder,
    /// Memory for messages. They share it, and its next portion is taken when they need more.
    portion: BytesMut,
    /// Messages of spans that left in this round.
    messages: Vec<Entry>,
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
            portion: BytesMut::new(),
            messages: Vec::new(),
        }
    }

    /// Whether any sink takes spans.
    pub(super) fn wants_spans(&self) -> bool {
        self.wants_spans
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
    pub(super) fn add_span(&mut self, piece: &mut SpanPiece) {
        let Self { messages, portion, .. } = self;
        self.encoder.messages(piece, |message, annotations| {
            let program = annotations.first().map_or(0, |annotation| annotation.origin.program);
            if portion.capacity() < message.len() {
                portion.reserve(message.len().max(PORTION_BYTES));
            }
            portion.extend_from_slice(message);
            let lines = portion.split().freeze();
            messages.push(Entry { lines, messages: 1, refs: refs(annotations), program });
        });
    }

    /// Hands the encoded spans to every sink that takes spans.
    pub(super) fn push_spans(&mut self) {
        push(&self.sinks, Feed::Spans, &mut self.messages);
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

    /// Asks every sink to ship what it has, and then to end.
    pub(super) fn end(&self) {
        self.sinks.iter().for_each(|sink| sink.queue.end());
    }

    /// Each sink, and whether its thread runs.
    pub(super) fn alive(&self) -> Vec<(&'static str, bool)> {
        self.sinks.iter().map(|sink| (sink.name, sink.is_alive())).collect()
    }

    /// Bytes in each sink's queue.
    pub(super) fn queued_bytes(&self) -> Vec<(&'static str, u64)> {
        self.sinks.iter().map(|sink| (sink.name, sink.queue.bytes() as u64)).collect()
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
    pub(super) fn add(&mut self, annotation: &Annotation) {
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
fn refs(annotations: &[Annotation]) -> Refs {
    let frame_of = |annotation: &Annotation| annotation.origin.frame;
    match annotations {
        [first, rest @ ..] if rest.iter().all(|a| frame_of(a) == frame_of(first)) => {
            Refs::One((frame_of(first), annotations.len() as u32))
        }
        _ => {
            let mut frames: Vec<u64> = annotations.iter().map(frame_of).collect();
            frames.sort_unstable();
            let runs = frames.chunk_by(|a, b| a == b);
            runs.map(|run| (run[0], run.len() as u32)).collect::<Vec<_>>().into()
        }
    }
}
