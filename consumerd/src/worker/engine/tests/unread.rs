//! How the sinks of a new worker read what earlier workers had staged.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use blkin_daemon::{Cause, Standing};
use blkin_record::{Draft, EndpointParts, Payload, Source};
use blkin_ringbuf::layout::RINGS_OFFSET_BYTES;
use blkin_thrift::Limits;
use blkin_thrift::scribe::decode_message;

use super::*;
use crate::sinks::Feed;
use crate::sinks::pump::{Outlet, Pump};
use crate::sinks::queue::{Entry, Next, Outcome, Queue};
use crate::worker::totals::Totals;

const QUEUE_BYTES: usize = 256 << 10;

/// An outlet that does nothing: the test itself takes entries from the queue.
struct Nobody;

impl Outlet for Nobody {
    fn run(self, _: Pump) -> io::Result<()> {
        Ok(())
    }
}

/// A segment whose only ring holds so many spans of a trace, of two events each.
pub(super) fn segment_of_spans(trace_id: u64, spans: u64) -> OwnedFd {
    segment_of_events(trace_id, spans, [b"start", b"end"])
}

/// Like [`segment_of_spans`], but only the program's end closes the spans.
pub(super) fn segment_of_open_spans(trace_id: u64, spans: u64) -> OwnedFd {
    segment_of_events(trace_id, spans, [b"start", b"more"])
}

fn segment_of_events(trace_id: u64, spans: u64, keys: [&[u8]; 2]) -> OwnedFd {
    let ring_bytes = 16 << 20;
    let mut words = segment_header(ring_bytes);
    let mut at = 0;
    for record in 0..2 * spans {
        let draft = Draft {
            trace_id,
            span_id: 1 + record / 2,
            parent_span_id: 0,
            name: Source::inline(b"n"),
            endpoint: Source::inline(EndpointParts::default()),
            key: Source::inline(keys[record as usize % 2]),
            payload: Payload::Event,
            level: 4,
            truncated: false,
        };
        let begin = RINGS_OFFSET_BYTES / 8 + at as usize * 8;
        let stamp = draft.write(at, record, 7, record, |index, word| words[begin + index] = word);
        words[begin] = stamp.0;
        at += draft.grains() as u64;
    }
    words[HEAD] = (2 * spans) << 36 | at;
    memfd(&words, SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE)
}

/// Programs, and staging memory that outlives workers.
pub(super) struct Node {
    pub(super) config: Config,
    pub(super) staging: Memfd,
    segment: OwnedFd,
    control: OwnedFd,
}

/// A worker and its queues: one of spans, one of lines, and one of lines that nobody takes.
pub(super) struct Worker {
    pub(super) engine: Engine,
    queues: Vec<Arc<Queue>>,
}

impl Node {
    /// What a worker leaves that has staged so many spans, and was killed.
    pub(super) fn with_staged(spans: u64, staging_bytes: u64) -> Self {
        Self::with_segment(segment_of_spans(1, spans), staging_bytes)
    }

    fn with_segment(segment: OwnedFd, staging_bytes: u64) -> Self {
        let config = Config {
            queue_bytes: QUEUE_BYTES,
            max_open_bytes: 2 * QUEUE_BYTES,
            staging_bytes,
            ..Config::default()
        };
        let geometry = config.geometry();
        let mut staging = Memfd::create(geometry.total_bytes()).unwrap();
        Staging::format(&mut staging, geometry).unwrap();
        let control = control(SealFlags::SHRINK | SealFlags::GROW);
        let node = Self { config, staging, segment, control };
        let mut first = node.worker();
        // Otherwise the program would count as alive, and be held back before all of it was drained.
        first.engine.ask_of_writers_by(Instant::now() + Duration::from_secs(10));
        while first.engine.drain_all(Duration::ZERO).unwrap().has_more {}
        node
    }

    pub(super) fn worker(&self) -> Worker {
        let lines = ["json_lines", "absent"].map(|name| (name, Feed::Annotations));
        self.worker_with([("scribe", Feed::Spans)].into_iter().chain(lines))
    }

    pub(super) fn worker_with(&self, sinks: impl IntoIterator<Item = (&'static str, Feed)>) -> Worker {
        let sinks: Vec<_> = sinks
            .into_iter()
            .map(|(name, feed)| {
                let standing = Standing::new(name, "nobody", Cause::OF_UPSTREAM);
                Sink::start(name, feed, standing, &self.config, Nobody).unwrap()
            })
            .collect();
        let queues = sinks.iter().map(|sink| sink.queue.clone()).collect();
        let staging = Memfd::from_fd(self.staging.as_fd().try_clone_to_owned().unwrap());
        let (mut engine, tail) =
            Engine::new(self.config.clone(), staging, sinks, Settings::default()).unwrap();
        let segment = self.segment.try_clone().unwrap();
        engine.attach(identity(1), segment, self.control.try_clone().unwrap()).unwrap();
        engine.rebuild(tail).unwrap();
        Worker { engine, queues }
    }
}

impl Worker {
    /// Does a round, and checks that no queue is fuller than it may be, and that every equation holds.
    pub(super) fn round(&mut self) {
        self.engine.round().unwrap();
        let snapshot = self.engine.snapshot();
        assert!(snapshot.queues.iter().all(|(_, fill)| fill.bytes <= QUEUE_BYTES), "{:?}", snapshot.queues);
        let valid: u64 = self.valid();
        for (name, sink) in &snapshot.sinks {
            assert!(sink.balances() && sink.valid == valid, "{name}: {sink:?}, {valid} were valid");
        }
        let mut programs = snapshot.programs.iter().map(|(_, totals)| totals).chain([&snapshot.departed]);
        assert!(programs.all(Totals::balances), "{:?}", snapshot.programs);
    }

    fn valid(&mut self) -> u64 {
        let snapshot = self.engine.snapshot();
        let live: u64 = snapshot.programs.iter().map(|(_, totals)| totals.drain.valid).sum();
        live + snapshot.departed.drain.valid
    }

    pub(super) fn in_flight(&mut self) -> Vec<u64> {
        self.engine.snapshot().sinks.iter().map(|(_, sink)| sink.in_flight).collect()
    }

    /// Takes so many entries from a queue, and acknowledges them.
    pub(super) fn take_some(&self, sink: usize, entries: usize) {
        let queue = &self.queues[sink];
        for batch in std::iter::from_fn(|| queue.next_single()).take(entries) {
            queue.settle_single(&batch, Outcome::Acked);
        }
    }

    /// Takes all entries from a queue, acknowledges them, and returns their messages.
    pub(super) fn take(&self, sink: usize) -> Vec<Vec<u8>> {
        let (queue, mut messages) = (&self.queues[sink], Vec::new());
        queue.hurry();
        while let Next::Batch(batch) = queue.next(Instant::now()) {
            let lines =
                |entry: &Entry| entry.lines.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
            messages
                .extend(batch.entries.iter().flat_map::<Vec<_>, _>(lines).filter(|line| !line.is_empty()));
            queue.settle(&batch, Outcome::Acked);
        }
        messages
    }
}

/// The identity of a message, by which it is recognised when it is sent again: its span, which leaves whole, or its record.
fn identity_of(message: &[u8]) -> i64 {
    match serde_json::from_slice::<serde_json::Value>(message) {
        Ok(line) => line["position"].as_i64().unwrap(),
        Err(_) => {
            let span = decode_message(message, &Limits::default()).unwrap();
            assert_eq!(span.annotations.len(), 2);
            span.id
        }
    }
}

#[test]
fn staged_annotations_ship_as_queues_allow_across_kills() {
    let spans = 20_000;
    let node = Node::with_staged(spans, 64 << 20);
    let mut taken = [BTreeSet::new(), BTreeSet::new()];
    let take = |worker: &Worker, taken: &mut [BTreeSet<i64>; 2]| {
        for (sink, taken) in taken.iter_mut().enumerate() {
            taken.extend(worker.take(sink).iter().map(|message| identity_of(message)));
        }
    };
    let mut second = node.worker();
    assert_eq!(second.in_flight(), [2 * spans; 3]);
    for _ in 0..4 {
        second.round();
        take(&second, &mut taken);
    }
    second.round();
    let acked: Vec<_> = second.engine.snapshot().sinks.iter().map(|(_, sink)| sink.acked).collect();
    assert!(
        acked[0] > 0 && acked[1] > 0 && acked[0] + acked[1] < 4 * spans,
        "the kill must come before everything is shipped: {acked:?}"
    );
    drop(second);

    let mut third = node.worker();
    let due = Instant::now() + Duration::from_secs(60);
    while third.in_flight()[..2] != [0, 0] {
        assert!(Instant::now() < due, "{:?}", third.engine.snapshot().sinks);
        third.round();
        take(&third, &mut taken);
    }
    third.round();
    assert_eq!([taken[0].len() as u64, taken[1].len() as u64], [spans, 2 * spans]);
    let snapshot = third.engine.snapshot();
    let lost = snapshot.sinks.iter().map(|(_, sink)| sink.queue_full + sink.spool_evicted + sink.rejected);
    assert_eq!((lost.sum::<u64>(), third.in_flight()[2]), (0, 2 * spans));
    assert_eq!((snapshot.spans.complete, snapshot.spans.late), (spans, 0), "each span leaves in one piece");
}

#[test]
fn unread_frames_are_evicted_when_staging_needs_room() {
    let node = Node::with_staged(30_000, 16 << 20);
    let mut second = node.worker();
    let all = second.valid();
    for _ in 0..3 {
        second.round();
    }
    for (name, sink) in second.engine.snapshot().sinks {
        assert!(sink.spool_evicted > 0 && sink.in_flight > 0, "{name}: {sink:?}");
        assert_eq!(sink.spool_evicted + sink.in_flight, all, "{name}");
    }
    let engine = &second.engine;
    let slack = engine.staging_limit_bytes() - (engine.staging.end() - engine.retired_end);
    assert!(
        slack < engine.notes.iter().map(|note| note.bytes).max().unwrap(),
        "no more frames than necessary are evicted: {slack}"
    );
    let mut given = 0;
    while second.in_flight()[..2] != [0, 0] {
        given += second.take(1).len() as u64;
        second.take(0);
        second.round();
    }
    let (_, lines) = second.engine.snapshot().sinks[1];
    assert_eq!((lines.acked, lines.spool_evicted + given), (given, all));
}

#[test]
fn unread_annotations_stay_in_flight_when_the_daemon_ends() {
    let spans = 5_000;
    let node = Node::with_staged(spans, 64 << 20);
    let mut second = node.worker();
    second.engine.finish();
    let due = Instant::now() + Duration::from_secs(60);
    while second.in_flight()[..2] != [0, 0] {
        assert!(!second.engine.finish_more(due).unwrap() && Instant::now() < due);
        (0..2).for_each(|sink| drop(second.take(sink)));
        second.engine.settle();
    }
    second.engine.close_books().unwrap();
    assert_eq!(second.in_flight(), [0, 0, 2 * spans]);
}

#[test]
fn frames_missing_from_staging_are_given_up() {
    let spans = 1000;
    let node = Node::with_staged(spans, 16 << 20);
    let mut second = node.worker();
    let end = second.engine.staging.end();
    let lost = second.engine.notes.len() as u64;
    second.engine.notes.iter_mut().for_each(|note| (note.bytes, note.end) = (0, end));
    second.round();
    assert_eq!((lost > 0, second.in_flight()), (true, vec![0; 3]));
    assert!(second.engine.snapshot().sinks.iter().all(|(_, sink)| sink.spool_evicted == 2 * spans));
}

#[test]
fn a_sink_without_room_reads_no_further_frames() {
    let node = Node::with_staged(5000, 16 << 20);
    let mut second = node.worker_with([("scribe", Feed::Spans)]);
    while second.engine.round().unwrap().drained {}
    let next = second.engine.feeder.unread_by_join();
    assert!(next.is_some_and(|next| next < second.engine.ledger.next_frame()), "{next:?}");
    assert!(second.engine.feeder.take_unread(0).is_none());
}

#[test]
fn unread_frames_are_evicted_only_up_to_the_given_frame() {
    let node = Node::with_staged(5000, 16 << 20);
    let mut second = node.worker_with([("scribe", Feed::Spans)]);
    while second.engine.round().unwrap().drained {}
    let feeder = &mut second.engine.feeder;
    let next = feeder.unread_by_join().unwrap();
    assert_eq!(feeder.evict_up_to_frame(next - 1), []);
    let unread = feeder.take_unread(0).expect("all frames read so far are evicted");
    feeder.put_unread(0, unread);
    assert_eq!(feeder.evict_up_to_frame(next), [(0, next..next + 1)]);
    assert_eq!(feeder.unread_by_join(), Some(next + 1));
}

#[test]
fn without_a_span_sink_the_daemon_ends_once_all_is_taken() {
    let node = Node::with_staged(10, 16 << 20);
    let mut second = node.worker_with([("json_lines", Feed::Annotations)]);
    second.engine.finish();
    let due = Instant::now() + Duration::from_secs(60);
    assert!(!second.engine.finish_more(due).unwrap());
    assert_eq!(second.take(0).len(), 20);
    assert!(second.engine.finish_more(due).unwrap());
}

#[test]
fn spans_wait_for_room_after_all_staged_frames_are_read() {
    let spans = 2000;
    let mut node = Node::with_segment(segment_of_open_spans(1, spans), 16 << 20);
    node.config.max_open_bytes = 1 << 30;
    let mut second = node.worker_with([("scribe", Feed::Spans)]);
    let due = Instant::now() + Duration::from_secs(60);
    let mut taken = BTreeSet::new();
    while second.in_flight() != [0] {
        assert!(Instant::now() < due);
        second.round();
        taken.extend(second.take(0).iter().map(|message| identity_of(message)));
    }
    let snapshot = second.engine.snapshot();
    assert_eq!((taken.len() as u64, snapshot.spans.complete), (spans, spans));
    assert_eq!(snapshot.sinks[0].1.queue_full, 0);
}
