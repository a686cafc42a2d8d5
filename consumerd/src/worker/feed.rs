//! Feeds the sinks: annotations as they are read, spans as they leave the join.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

use blkin_thrift::scribe::{message_bytes, write_message};
use bytes::{Bytes, BytesMut};

use super::unread::Unread;
use crate::annotation::Annotation;
use crate::join::SpanPiece;
use crate::sinks::queue::{Entry, Fill, Queue, Refs, Settled};
use crate::sinks::zipkin::Encoder;
use crate::sinks::{Feed, Sign, Sink, json};

/// JSON lines go to the queues in portions of about this size. Messages of spans share memory in portions of this size.
const PORTION_BYTES: usize = 64 << 10;
/// Most portions that are kept for reuse once their messages are shipped.
const MOST_PORTIONS: usize = 16;

/// All sinks.
pub(super) struct Feeder {
    sinks: Vec<FedSink>,
    encoder: Encoder,
    portions: Portions,
    /// Messages of spans that left in this round.
    messages: Vec<Entry>,
}

/// One sink, and what it is yet to be given.
struct FedSink {
    sink: Sink,
    /// Present while the sink is behind: then it reads the staged frames by itself.
    unread: Option<Unread>,
    /// Frames before this one were staged while the sink was behind. Their entries are not lost for want of room in the queue,
    /// but wait in `waiting`.
    old_before: u64,
    /// Entries that wait for room in the queue. The staging memory bounds them, and what the join may hold bounds those of spans.
    waiting: VecDeque<Entry>,
}

/// Memory that messages share. When a portion is full, the next one is taken.
#[derive(Default)]
struct Portions {
    now: BytesMut,
    /// `now` has the regular size and is kept for reuse: it is neither empty nor made for a single large message.
    is_regular: bool,
    /// Full portions, the oldest first.
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
        Self {
            sinks: sinks.into_iter().map(FedSink::new).collect(),
            encoder: Encoder::default(),
            portions: Portions::default(),
            messages: Vec::new(),
        }
    }

    /// How many sinks there are.
    pub(super) fn sinks(&self) -> usize {
        self.sinks.len()
    }

    /// Whether a sink takes annotations or spans.
    pub(super) fn feed(&self, sink: usize) -> Option<Feed> {
        self.sinks.get(sink).map(|fed| fed.sink.feed)
    }

    /// Whether any sink takes spans as they come.
    pub(super) fn wants_spans(&self) -> bool {
        self.sinks.iter().any(|fed| fed.takes(Feed::Spans))
    }

    /// Number of the first frame that the join has yet to read, if there is one.
    pub(super) fn unread_by_join(&self) -> Option<u64> {
        let of_spans = self.sinks.iter().filter(|fed| fed.sink.feed == Feed::Spans);
        of_spans.filter_map(|fed| fed.unread.as_ref()).map(|unread| unread.next).min()
    }

    /// Lets every sink read by itself what is staged from this frame on.
    pub(super) fn fall_behind(&mut self, frame: u64) {
        for fed in &mut self.sinks {
            (fed.unread, fed.old_before) = (Some(Unread::from(frame)), u64::MAX);
        }
    }

    /// Takes out what a sink has yet to read, once everything that it has read is in its queue.
    pub(super) fn take_unread(&mut self, sink: usize) -> Option<Unread> {
        self.sinks.get_mut(sink).filter(|fed| fed.waiting.is_empty())?.unread.take()
    }

    /// Puts back what [`take_unread`](Self::take_unread) took out.
    pub(super) fn put_unread(&mut self, sink: usize, unread: Unread) {
        if let Some(fed) = self.sinks.get_mut(sink) {
            fed.unread = Some(unread);
        }
    }

    /// Notes that a sink has read every frame before this one, and takes the next ones as they come.
    pub(super) fn caught_up(&mut self, sink: usize, frame: u64) {
        if let Some(fed) = self.sinks.get_mut(sink) {
            (fed.unread, fed.old_before) = (None, frame);
        }
    }

    /// Notes that all frames before this one are retired.
    pub(super) fn forget_old(&mut self, frame: u64) {
        self.sinks.iter_mut().filter(|fed| fed.old_before <= frame).for_each(|fed| fed.old_before = 0);
    }

    /// Moves waiting entries into a sink's queue, as far as it has room. Returns whether any were moved.
    pub(super) fn let_in(&mut self, sink: usize) -> bool {
        self.sinks.get_mut(sink).is_some_and(FedSink::let_in)
    }

    /// Whether any sink is behind, or has entries that wait for room.
    pub(super) fn is_behind(&self) -> bool {
        self.sinks.iter().any(|fed| fed.unread.is_some() || !fed.waiting.is_empty())
    }

    /// Begins the lines of a frame.
    pub(super) fn begin(&self, program: u64, frame: u64) -> Lines {
        let is_wanted = self.sinks.iter().any(|fed| fed.takes(Feed::Annotations));
        Lines::new(is_wanted, program, frame)
    }

    /// Whether there are sinks, and none of them ships a program's annotations as they come. A sink that is behind does not.
    pub(super) fn none_keeps_up_with(&self, program: u64) -> bool {
        let keeps_up = |fed: &FedSink| fed.unread.is_none() && fed.sink.queue.keeps_up_with(program);
        !self.sinks.is_empty() && !self.sinks.iter().any(keeps_up)
    }

    /// Hands the lines of a frame to every sink that takes annotations as they come.
    pub(super) fn push_lines(&mut self, lines: Lines) {
        push(self.sinks.iter_mut().filter(|fed| fed.takes(Feed::Annotations)), &mut lines.close());
    }

    /// Hands the lines of a frame to a sink that was behind when the frame was staged.
    pub(super) fn push_lines_to(&mut self, sink: usize, lines: Lines) {
        push(self.sinks.get_mut(sink).into_iter(), &mut lines.close());
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
        push(self.sinks.iter_mut().filter(|fed| fed.sink.feed == Feed::Spans), &mut self.messages);
    }

    /// Bytes of spans for which every sink that takes spans has spare room.
    pub(super) fn room_for_spans(&self) -> usize {
        let of_spans = self.sinks.iter().filter(|fed| fed.sink.feed == Feed::Spans);
        of_spans.map(FedSink::room).min().unwrap_or(usize::MAX)
    }

    /// Hands the encoded spans over if every sink that takes spans has room for them. Returns whether it did.
    pub(super) fn push_spans_with_room(&mut self) -> bool {
        let mut of_spans = self.sinks.iter().filter(|fed| fed.sink.feed == Feed::Spans);
        let has_room = of_spans.all(|fed| fed.has_room_for(&self.messages));
        if has_room {
            self.push_spans();
        }
        has_room
    }

    /// Wakes the sinks whose batches are due before `next`, when this is called again at the earliest.
    pub(super) fn call(&self, next: Instant) {
        self.queues().for_each(|queue| queue.call(next));
    }

    /// What was settled since the last call, with the index of the sink.
    pub(super) fn outcomes(&self) -> Vec<(usize, Settled)> {
        let of_queue = |(index, queue): (usize, &Queue)| {
            queue.take_outcomes().into_iter().map(move |settled| (index, settled))
        };
        self.queues().enumerate().flat_map(of_queue).collect()
    }

    /// Gives up what the sinks hold of the frames up to this one. Returns, with the index of the sink, the frames that a sink had
    /// yet to read, and never will.
    pub(super) fn evict_up_to_frame(&mut self, frame: u64) -> Vec<(usize, Range<u64>)> {
        let sinks = self.sinks.iter_mut().enumerate();
        sinks.filter_map(|(index, fed)| Some((index, fed.evict_up_to_frame(frame)?))).collect()
    }

    /// Tells every sink that the daemon is about to end.
    pub(super) fn hurry(&self) {
        self.queues().for_each(Queue::hurry);
    }

    /// Asks every sink to ship what it has, and then to end.
    pub(super) fn end(&self) {
        self.queues().for_each(Queue::end);
    }

    /// Each sink, and whether its thread shows a sign of life.
    pub(super) fn signs(&self) -> Vec<(&'static str, Sign)> {
        self.sinks.iter().map(|fed| (fed.sink.name, fed.sink.sign())).collect()
    }

    /// How full each sink's queue is.
    pub(super) fn fills(&self) -> Vec<(&'static str, Fill)> {
        self.sinks.iter().map(|fed| (fed.sink.name, fed.sink.queue.fill())).collect()
    }

    fn queues(&self) -> impl Iterator<Item = &Queue> {
        self.sinks.iter().map(|fed| &*fed.sink.queue)
    }
}

impl FedSink {
    fn new(sink: Sink) -> Self {
        Self { sink, unread: None, old_before: 0, waiting: VecDeque::new() }
    }

    /// Whether the sink is fed with `feed`, and is not behind.
    fn takes(&self, feed: Feed) -> bool {
        self.sink.feed == feed && self.unread.is_none()
    }

    fn has_room_for<'a>(&self, entries: impl IntoIterator<Item = &'a Entry>) -> bool {
        self.waiting.is_empty() && self.sink.queue.has_room_for(entries)
    }

    /// Spare room in the queue, in bytes; 0 while entries wait for it.
    fn room(&self) -> usize {
        if self.waiting.is_empty() { self.sink.queue.room() } else { 0 }
    }

    fn push(&mut self, entries: impl Iterator<Item = Entry>) {
        let old_before = self.old_before;
        if old_before == 0 {
            return self.sink.queue.push(entries);
        }
        let is_old = |entry: &Entry| entry.first_frame() < old_before;
        let (old, new): (Vec<_>, Vec<_>) = entries.partition(is_old);
        self.sink.queue.push(new);
        self.waiting.extend(old);
        self.let_in();
    }

    fn let_in(&mut self) -> bool {
        let mut has_let_in = false;
        while self.waiting.front().is_some_and(|entry| self.sink.queue.has_room_for([entry])) {
            self.sink.queue.push(self.waiting.pop_front());
            has_let_in = true;
        }
        has_let_in
    }

    fn evict_up_to_frame(&mut self, frame: u64) -> Option<Range<u64>> {
        self.sink.queue.evict_up_to_frame(frame);
        let is_old = |entry: &Entry| entry.first_frame() <= frame;
        let (gone, kept): (Vec<_>, Vec<_>) = self.waiting.drain(..).partition(is_old);
        self.waiting = kept.into();
        self.sink.queue.evict(gone);
        let unread = self.unread.as_mut().filter(|unread| unread.next <= frame)?;
        Some(std::mem::replace(&mut unread.next, frame + 1)..frame + 1)
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

    /// Sinks ship in order, so the oldest portion is free first. If it is not free yet, new memory is allocated.
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

/// Moves entries to the last sink, and copies to the others.
fn push<'a>(to: impl DoubleEndedIterator<Item = &'a mut FedSink>, entries: &mut Vec<Entry>) {
    if entries.is_empty() {
        return;
    }
    let mut to = to.rev();
    let last = to.next();
    to.for_each(|fed| fed.push(entries.iter().cloned()));
    let entries = entries.drain(..);
    if let Some(fed) = last {
        fed.push(entries);
    }
}

impl Lines {
    /// Starts the lines of a program's frame.
    pub(super) fn new(is_wanted: bool, program: u64, frame: u64) -> Self {
        Self { is_wanted, program, frame, bytes: Vec::new(), count: 0, portions: Vec::new() }
    }

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

    fn close(mut self) -> Vec<Entry> {
        self.close_portion();
        self.portions
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
    use crate::annotation::{Content, Labels, Origin};

    #[test]
    fn lines_of_a_frame_leave_in_portions_with_their_count() {
        let labels = Labels::new("op".into(), Default::default(), "key".into());
        let annotation = Annotation {
            trace_id: 1,
            span_id: 2,
            parent_span_id: 0,
            labels: &labels,
            content: Content::Integer(7),
            level: 4,
            truncated: false,
            origin: Origin::default(),
        };
        let mut lines = Lines::new(true, 1, 7);
        (0..2000).for_each(|_| lines.add(&annotation));
        let portions = lines.close();
        assert!(portions.len() > 1);
        for entry in &portions {
            let count = entry.lines.iter().filter(|byte| **byte == b'\n').count();
            assert_eq!((entry.messages, &entry.refs), (count, &Refs::One((7, count as u32))));
        }
        assert_eq!(portions.iter().map(|entry| entry.messages).sum::<usize>(), 2000);
    }

    #[test]
    fn memory_is_reused_once_shipped_but_not_while_waiting() {
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
