//! The events that wait for one viewer. The queue is bounded; spans for which it has no room are counted in their place.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use blkin_zipkin::query::SearchRequest;
use serde::Serialize;

/// The memory that a waiting event takes in addition to its text, roughly, in bytes.
const EVENT_OVERHEAD_BYTES: usize = 64;

/// An event of a live stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A span that matches the viewer's filter, as v2 JSON on one line.
    Span(Arc<str>),
    /// Spans were left out here.
    Missed(Missed),
}

/// Spans that were left out of a view.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Missed {
    /// Spans that match the filter, and for which the viewer's queue was full.
    pub spans: u64,
    /// Entries that were not matched because too many arrived at once: some of them might match the filter.
    pub unseen: u64,
}

/// One viewer.
#[derive(Debug)]
pub(crate) struct Viewer {
    /// The conditions that spans must meet.
    pub(crate) filter: SearchRequest,
    most_bytes: usize,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    events: VecDeque<Event>,
    bytes: usize,
    waker: Option<Waker>,
    closed: bool,
}

impl Viewer {
    pub(crate) fn new(filter: SearchRequest, most_bytes: usize) -> Self {
        Viewer { filter, most_bytes, queue: Mutex::default() }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a span; false if there was no room, and the span was counted as missed.
    pub(crate) fn push(&self, json: Arc<str>) -> bool {
        let mut queue = self.queue();
        let bytes = json.len() + EVENT_OVERHEAD_BYTES;
        if queue.bytes + bytes > self.most_bytes {
            queue.miss(Missed { spans: 1, unseen: 0 });
            // If the span is larger than the whole queue, the queue may be empty and the viewer waiting.
            wake(queue);
            return false;
        }
        queue.bytes += bytes;
        queue.events.push_back(Event::Span(json));
        wake(queue);
        true
    }

    /// Reports entries that were left out before they were matched.
    pub(crate) fn miss_unseen(&self, entries: u64) {
        let mut queue = self.queue();
        queue.miss(Missed { spans: 0, unseen: entries });
        wake(queue);
    }

    /// Ends the view after the events that wait in it.
    pub(crate) fn close(&self) {
        let mut queue = self.queue();
        queue.closed = true;
        wake(queue);
    }

    /// The next event; `None` once the view has ended.
    pub(crate) fn poll_event(&self, context: &Context<'_>) -> Poll<Option<Event>> {
        let mut queue = self.queue();
        if let Some(event) = queue.events.pop_front() {
            if let Event::Span(json) = &event {
                queue.bytes -= json.len() + EVENT_OVERHEAD_BYTES;
            }
            return Poll::Ready(Some(event));
        }
        if queue.closed {
            return Poll::Ready(None);
        }
        queue.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Queue {
    /// Adds to the event for all spans missed between two others, so that missed spans do not make the queue grow.
    fn miss(&mut self, more: Missed) {
        match self.events.back_mut() {
            Some(Event::Missed(missed)) => {
                missed.spans += more.spans;
                missed.unseen += more.unseen;
            }
            _ => self.events.push_back(Event::Missed(more)),
        }
    }
}

fn wake(mut queue: MutexGuard<'_, Queue>) {
    let waker = queue.waker.take();
    drop(queue);
    if let Some(waker) = waker {
        waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkin_zipkin::query::{Defaults, Parameters};
    use proptest::prelude::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Wake;

    fn viewer(most_bytes: usize) -> Viewer {
        let defaults = Defaults { now_ms: 1, max_traces: 1 };
        Viewer::new(SearchRequest::read(&Parameters::default(), &defaults).unwrap(), most_bytes)
    }

    fn next(viewer: &Viewer) -> Poll<Option<Event>> {
        viewer.poll_event(&Context::from_waker(Waker::noop()))
    }

    proptest! {
        /// However slowly a viewer reads: the spans sent, and those reported as missed, are all spans in order, and the queue
        /// stays within its bound.
        #[test]
        fn every_span_is_sent_or_reported_missed_in_order(
            steps in proptest::collection::vec((0_usize..12, 0_usize..6), 1..60),
        ) {
            let viewer = viewer(10 * (4 + EVENT_OVERHEAD_BYTES));
            let (mut pushed, mut reached) = (0, 0);
            let mut take = |most: usize| {
                for _ in 0..most {
                    match next(&viewer) {
                        Poll::Ready(Some(Event::Span(json))) => {
                            assert_eq!(json.parse::<u64>().unwrap(), reached);
                            reached += 1;
                        }
                        Poll::Ready(Some(Event::Missed(missed))) => reached += missed.spans,
                        _ => break,
                    }
                }
                reached
            };
            for (pushes, takes) in steps {
                for _ in 0..pushes {
                    viewer.push(format!("{pushed:04}").into());
                    pushed += 1;
                }
                prop_assert!(viewer.queue().bytes <= viewer.most_bytes);
                prop_assert!(viewer.queue().events.len() <= 21);
                take(takes);
            }
            prop_assert_eq!(take(usize::MAX), pushed);
        }
    }

    #[test]
    fn a_waiting_viewer_is_woken_for_a_span_too_large_for_its_queue() {
        struct Woken(AtomicBool);
        impl Wake for Woken {
            fn wake(self: Arc<Self>) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let (viewer, woken) = (viewer(EVENT_OVERHEAD_BYTES + 3), Arc::new(Woken(AtomicBool::new(false))));
        let waker = woken.clone().into();
        assert_eq!(viewer.poll_event(&Context::from_waker(&waker)), Poll::Pending);
        assert!(!viewer.push("long".into()));
        assert!(woken.0.load(Ordering::Relaxed));
        assert_eq!(next(&viewer), Poll::Ready(Some(Event::Missed(Missed { spans: 1, unseen: 0 }))));
    }

    #[test]
    fn a_queue_takes_what_fits_and_again_once_read() {
        let viewer = viewer(2 * (EVENT_OVERHEAD_BYTES + 4));
        for _ in 0..3 {
            assert_eq!(["1234", "5678", "long"].map(|json| viewer.push(json.into())), [true, true, false]);
            while next(&viewer).is_ready() {}
        }
    }

    #[test]
    fn a_closed_view_ends_after_its_queued_events() {
        let viewer = viewer(1000);
        assert_eq!(next(&viewer), Poll::Pending);
        viewer.push("1".into());
        viewer.miss_unseen(1);
        viewer.miss_unseen(2);
        viewer.close();
        assert_eq!(next(&viewer), Poll::Ready(Some(Event::Span("1".into()))));
        assert_eq!(next(&viewer), Poll::Ready(Some(Event::Missed(Missed { spans: 0, unseen: 3 }))));
        assert_eq!(next(&viewer), Poll::Ready(None));
    }
}
