//! Feeds the sinks: annotations as they come, spans as they leave.

use std::sync::Arc;

use blkin_thrift::scribe::span_message;

use crate::annotation::Annotation;
use crate::join::SpanPiece;
use crate::sinks::queue::{Entry, Outcome, Refs};
use crate::sinks::{Feed, Sink, json, zipkin};

/// JSON lines go to the queues in portions of about this size.
const PORTION_BYTES: usize = 64 << 10;

/// All sinks.
pub(super) struct Feeder {
    sinks: Vec<Sink>,
    wants_spans: bool,
    wants_lines: bool,
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
        Self { wants_spans: wants(Feed::Spans), wants_lines: wants(Feed::Annotations), sinks }
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
        for portion in lines.portions {
            self.sinks(Feed::Annotations).for_each(|sink| sink.queue.push(portion.clone()));
        }
    }

    /// Hands a piece of a span to every sink that takes spans.
    pub(super) fn push_span(&self, piece: &mut SpanPiece) {
        for (span, annotations) in zipkin::spans(piece) {
            let mut message = span_message(&span);
            message.push(b'\n');
            let program = annotations.first().map_or(0, |annotation| annotation.origin.program);
            let entry = Entry { lines: message.into(), messages: 1, refs: refs(annotations), program };
            self.sinks(Feed::Spans).for_each(|sink| sink.queue.push(entry.clone()));
        }
    }

    /// What was settled since the last call, with the index of the sink.
    pub(super) fn outcomes(&self) -> Vec<(usize, Refs, Outcome)> {
        let of_sink = |(index, sink): (usize, &Sink)| {
            sink.queue.take_outcomes().into_iter().map(move |(refs, outcome)| (index, refs, outcome))
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

    fn sinks(&self, feed: Feed) -> impl Iterator<Item = &Sink> {
        self.sinks.iter().filter(move |sink| sink.feed == feed)
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
                lines: Arc::from(std::mem::take(&mut self.bytes)),
                messages: self.count as usize,
                refs: vec![(self.frame, self.count)],
                program: self.program,
            });
            self.count = 0;
        }
    }
}

/// How many annotations came from each frame.
fn refs(annotations: &[Annotation]) -> Refs {
    let mut frames: Vec<u64> = annotations.iter().map(|annotation| annotation.origin.frame).collect();
    frames.sort_unstable();
    let mut refs: Refs = Vec::new();
    for frame in frames {
        match refs.last_mut() {
            Some((last, count)) if *last == frame => *count += 1,
            _ => refs.push((frame, 1)),
        }
    }
    refs
}
