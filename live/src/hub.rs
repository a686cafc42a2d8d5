//! The link between ingestion and viewers: a bounded queue, and one thread that matches arriving spans with the viewers' filters.

use std::io;
use std::slice;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use blkin_daemon::health::BEAT_EVERY;
use blkin_daemon::held_bytes::{Held, HeldBytes};
use blkin_daemon::{Heartbeat, threads};
use blkin_zipkin::model::Span;
use blkin_zipkin::query::{SearchRequest, matches};
use blkin_zipkin::write::write_span;

use crate::viewer::{Event, Viewer};

/// The most arrivals that may wait for the thread.
const QUEUE_ARRIVALS: usize = 1024;
/// The most bytes that waiting arrivals may hold.
const QUEUE_BYTES: usize = 32 << 20;

/// A batch of entries with spans, as it arrived. The hub's thread does the costly part, [`Arrival::spans`].
pub trait Arrival: Send + 'static {
    /// The number of entries.
    fn entries(&self) -> u64;
    /// The memory that this arrival holds, in bytes.
    fn bytes(&self) -> usize;
    /// Calls `each` with every span that can be read.
    fn spans(self, each: &mut dyn FnMut(Span));
}

/// Limits of the live streams.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The most viewers at a time; 0 switches live streams off.
    pub max_viewers: usize,
    /// The most memory for events that wait for one viewer, in bytes.
    pub viewer_bytes: usize,
    /// The interval at which a stream without spans sends a keep-alive comment.
    pub keep_alive: Duration,
}

impl Options {
    /// At most `max_viewers`, each with a queue of `queue_kib` KiB. A connection that is idle for `idle_time` is closed, so
    /// keep-alives come after a third of that time, or every ten seconds if that is sooner.
    pub fn new(max_viewers: usize, queue_kib: usize, idle_time: Duration) -> Self {
        Options {
            max_viewers,
            viewer_bytes: queue_kib << 10,
            keep_alive: (idle_time / 3).min(Duration::from_secs(10)),
        }
    }
}

/// What the metric `live_spans` says about its units.
pub const UNITS: &str = "what became of spans for live viewers since the start: shown and missed count spans, once for each viewer; \
                         unseen and unkept count entries as they arrived, however many viewers there are";

/// The figures for the metrics; all but `viewers` count since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Viewers at this moment.
    pub viewers: u64,
    /// Spans that were handed to viewers, counted once for each viewer.
    pub shown: u64,
    /// Spans that were left out because a viewer's queue was full, counted once for each viewer.
    pub missed: u64,
    /// Entries that were not matched with any filter because too many arrived at once.
    pub unseen: u64,
    /// Entries that viewers may have seen but that were not stored: their sender sends them again.
    pub unkept: u64,
}

/// The number of entries of an arrival that viewers may see before they are stored.
#[derive(Debug, Default)]
#[must_use = "if the entries are not stored, pass this to Hub::not_kept to count them"]
pub struct Shown {
    entries: u64,
}

/// Error of [`Hub::watch`]: there are as many viewers as are allowed.
#[derive(Debug, PartialEq, Eq)]
pub struct TooMany;

#[derive(Debug)]
struct Shared {
    options: Options,
    /// The number of viewers. While it is 0, ingestion reads nothing else.
    watched: AtomicUsize,
    viewers: Mutex<Vec<Arc<Viewer>>>,
    queued: HeldBytes,
    /// Entries that were left out, and not yet reported to the viewers.
    unreported: AtomicU64,
    shown: AtomicU64,
    missed: AtomicU64,
    unseen: AtomicU64,
    unkept: AtomicU64,
    closed: AtomicBool,
}

/// Takes arrivals and viewers. Clones share the same queue and viewers.
#[derive(Debug)]
pub struct Hub<A> {
    arrivals: SyncSender<(A, Held)>,
    shared: Arc<Shared>,
}

impl<A> Clone for Hub<A> {
    fn clone(&self) -> Self {
        Hub { arrivals: self.arrivals.clone(), shared: self.shared.clone() }
    }
}

impl<A: Arrival> Hub<A> {
    /// Starts the hub and its thread, which ends when the hub is closed.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(options: Options, heartbeat: Heartbeat) -> io::Result<Hub<A>> {
        let (arrivals, queue) = sync_channel(QUEUE_ARRIVALS);
        let shared = Arc::new(Shared {
            options,
            watched: AtomicUsize::new(0),
            viewers: Mutex::default(),
            queued: HeldBytes::default(),
            unreported: AtomicU64::new(0),
            shown: AtomicU64::new(0),
            missed: AtomicU64::new(0),
            unseen: AtomicU64::new(0),
            unkept: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        });
        let of_thread = shared.clone();
        threads::start("live", move || run(&queue, &of_thread, heartbeat))?;
        Ok(Hub { arrivals, shared })
    }

    /// Whether there are viewers. If not, arrivals need not be offered.
    pub fn is_watched(&self) -> bool {
        self.shared.watched.load(Ordering::Relaxed) > 0
    }

    /// Queues an arrival for the viewers, before it is stored. Never waits: if there is no room, its entries are counted as
    /// unseen.
    pub fn offer(&self, arrival: A) -> Shown {
        let (entries, bytes) = (arrival.entries(), arrival.bytes());
        let held = self.shared.queued.hold(bytes as u64, QUEUE_BYTES as u64);
        if held.is_none_or(|held| self.arrivals.try_send((arrival, held)).is_err()) {
            self.shared.unreported.fetch_add(entries, Ordering::AcqRel);
            self.shared.unseen.fetch_add(entries, Ordering::Relaxed);
            return Shown::default();
        }
        Shown { entries }
    }

    /// Counts entries that were shown but not stored. Their sender still has them, and sends them again.
    pub fn not_kept(&self, shown: Shown) {
        self.shared.unkept.fetch_add(shown.entries, Ordering::Relaxed);
    }

    /// Begins a view of the spans that match `filter`.
    ///
    /// # Errors
    /// [`TooMany`] if there are as many viewers as are allowed.
    pub fn watch(&self, filter: SearchRequest) -> Result<View, TooMany> {
        let viewer = Arc::new(Viewer::new(filter, self.shared.options.viewer_bytes));
        let mut viewers = self.shared.viewers();
        if viewers.len() >= self.shared.options.max_viewers {
            return Err(TooMany);
        }
        if self.shared.closed.load(Ordering::Acquire) {
            viewer.close();
        }
        viewers.push(viewer.clone());
        self.shared.watched.store(viewers.len(), Ordering::Relaxed);
        drop(viewers);
        Ok(View { viewer, shared: self.shared.clone() })
    }

    /// Ends every view, and the thread.
    pub fn close(&self) {
        self.shared.closed.store(true, Ordering::Release);
        self.shared.viewers().iter().for_each(|viewer| viewer.close());
    }

    /// The interval at which a stream without spans sends a keep-alive comment.
    pub(crate) fn keep_alive(&self) -> Duration {
        self.shared.options.keep_alive
    }

    /// The figures for the metrics.
    pub fn figures(&self) -> Figures {
        let of = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        let shared = &self.shared;
        Figures {
            viewers: shared.watched.load(Ordering::Relaxed) as u64,
            shown: of(&shared.shown),
            missed: of(&shared.missed),
            unseen: of(&shared.unseen),
            unkept: of(&shared.unkept),
        }
    }
}

impl Shared {
    fn viewers(&self) -> MutexGuard<'_, Vec<Arc<Viewer>>> {
        self.viewers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One viewer's stream of events. Dropping it ends the view.
#[derive(Debug)]
pub struct View {
    viewer: Arc<Viewer>,
    shared: Arc<Shared>,
}

impl View {
    /// The next event; `None` once the hub is closed and all waiting events have been taken.
    pub fn poll_event(&self, context: &Context<'_>) -> Poll<Option<Event>> {
        self.viewer.poll_event(context)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let mut viewers = self.shared.viewers();
        viewers.retain(|viewer| !Arc::ptr_eq(viewer, &self.viewer));
        self.shared.watched.store(viewers.len(), Ordering::Relaxed);
    }
}

fn run<A: Arrival>(queue: &Receiver<(A, Held)>, shared: &Shared, heartbeat: Heartbeat) {
    while !shared.closed.load(Ordering::Acquire) {
        heartbeat.beat();
        match queue.recv_timeout(BEAT_EVERY) {
            Ok((arrival, _held)) => show(arrival, shared, &heartbeat),
            Err(RecvTimeoutError::Timeout) => tell_unseen(&shared.viewers(), shared),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    heartbeat.finish();
}

fn show<A: Arrival>(arrival: A, shared: &Shared, heartbeat: &Heartbeat) {
    let viewers = shared.viewers().clone();
    tell_unseen(&viewers, shared);
    if viewers.is_empty() {
        return;
    }
    arrival.spans(&mut |span| {
        heartbeat.beat();
        let mut json: Option<Arc<str>> = None;
        for viewer in viewers.iter().filter(|viewer| matches(&viewer.filter, slice::from_ref(&span))) {
            let json = json.get_or_insert_with(|| write_span(&span).into());
            let figure = if viewer.push(json.clone()) { &shared.shown } else { &shared.missed };
            figure.fetch_add(1, Ordering::Relaxed);
        }
    });
}

fn tell_unseen(viewers: &[Arc<Viewer>], shared: &Shared) {
    let entries = shared.unreported.swap(0, Ordering::AcqRel);
    if entries > 0 {
        viewers.iter().for_each(|viewer| viewer.miss_unseen(entries));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::sync::mpsc::{Sender, channel};
    use std::task::Waker;

    use blkin_daemon::Health;
    use blkin_zipkin::model::{Endpoint, SpanId, TraceId};
    use blkin_zipkin::query::{Defaults, Parameters};

    /// Spans of these services. If there is a `gate`, the hub's thread first waits for it.
    struct Spans {
        services: Vec<&'static str>,
        gate: Option<Receiver<()>>,
        bytes: usize,
    }

    fn spans(services: &[&'static str]) -> Spans {
        Spans { services: services.to_vec(), gate: None, bytes: 1 }
    }

    impl Arrival for Spans {
        fn entries(&self) -> u64 {
            self.services.len() as u64
        }

        fn bytes(&self) -> usize {
            self.bytes
        }

        fn spans(self, each: &mut dyn FnMut(Span)) {
            if let Some(gate) = self.gate {
                let _opened = gate.recv();
            }
            for service in self.services {
                let mut span = Span::new(TraceId::new(0, 1).unwrap(), SpanId::new(1).unwrap());
                span.local_endpoint = Some(Endpoint::service(service));
                each(span);
            }
        }
    }

    fn hub(max_viewers: usize) -> Hub<Spans> {
        let options = Options { max_viewers, viewer_bytes: 1 << 20, keep_alive: Duration::from_secs(1) };
        Hub::start(options, Health::new().worker("live")).unwrap()
    }

    fn filter(pairs: &[(&str, &str)]) -> SearchRequest {
        let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        SearchRequest::read(&Parameters(pairs), &Defaults { now_ms: 1, max_traces: 1 }).unwrap()
    }

    async fn next(view: &View) -> Option<Event> {
        poll_fn(|context| view.poll_event(context)).await
    }

    fn gate() -> (Sender<()>, Receiver<()>) {
        channel()
    }

    #[tokio::test]
    async fn each_viewer_gets_the_spans_that_match_its_filter() {
        let hub = hub(2);
        let osd = hub.watch(filter(&[("serviceName", "OSD")])).unwrap();
        let all = hub.watch(filter(&[])).unwrap();
        assert_eq!(hub.watch(filter(&[])).unwrap_err(), TooMany);
        let _kept = hub.offer(spans(&["mon", "osd"]));
        hub.not_kept(hub.offer(spans(&["mds"])));
        for service in ["mon", "osd", "mds"] {
            let Some(Event::Span(json)) = next(&all).await else { panic!("no span") };
            assert!(json.contains(service), "{json}");
        }
        let Some(Event::Span(json)) = next(&osd).await else { panic!("no span") };
        assert!(json.contains("osd"), "{json}");
        // A span is counted after it was handed over, but before the next one is.
        let _kept = hub.offer(spans(&["last"]));
        assert!(matches!(next(&all).await, Some(Event::Span(_))));
        let figures = hub.figures();
        assert!((4..=5).contains(&figures.shown), "{figures:?}");
        assert_eq!((figures.viewers, figures.missed, figures.unseen, figures.unkept), (2, 0, 0, 1));
        hub.close();
        assert_eq!(next(&osd).await, None);
    }

    #[test]
    fn a_view_of_a_closed_hub_ends_at_once() {
        let hub = hub(1);
        hub.close();
        let view = hub.watch(filter(&[])).unwrap();
        assert_eq!(view.poll_event(&Context::from_waker(Waker::noop())), Poll::Ready(None));
    }

    #[test]
    fn viewer_options_are_derived_from_the_configuration() {
        let of = |idle_secs| {
            let options = Options::new(3, 64, Duration::from_secs(idle_secs));
            (options.max_viewers, options.viewer_bytes, options.keep_alive.as_secs())
        };
        assert_eq!([of(6), of(30), of(60)], [(3, 65_536, 2), (3, 65_536, 10), (3, 65_536, 10)]);
    }

    #[test]
    fn a_dropped_view_frees_its_place_and_ends_the_watching() {
        let hub = hub(1);
        assert!(!hub.is_watched());
        for _ in 0..3 {
            let view = hub.watch(filter(&[])).unwrap();
            assert!(hub.is_watched());
            drop(view);
            assert!(!hub.is_watched());
        }
    }

    #[tokio::test]
    async fn arrivals_beyond_the_queue_are_reported_as_unseen() {
        let hub = hub(1);
        let view = hub.watch(filter(&[])).unwrap();
        let (open, gate) = gate();
        let _kept = hub.offer(Spans { gate: Some(gate), ..spans(&["first"]) });
        // The thread may or may not have taken the first arrival from the queue.
        for _ in 0..QUEUE_ARRIVALS + 10 {
            let _kept = hub.offer(spans(&["next"]));
        }
        let unseen = hub.figures().unseen;
        assert!((10..=11).contains(&unseen), "{unseen}");
        open.send(()).unwrap();
        let (mut seen, mut told) = (0, 0);
        while seen + told < QUEUE_ARRIVALS as u64 + 11 {
            match next(&view).await {
                Some(Event::Span(_)) => seen += 1,
                Some(Event::Missed(missed)) => told += missed.unseen,
                None => panic!("the hub is not closed"),
            }
        }
        assert_eq!(told, unseen);
    }

    #[test]
    fn queued_bytes_are_bounded_but_one_large_arrival_passes() {
        let hub = hub(1);
        let _view = hub.watch(filter(&[])).unwrap();
        let offer = |bytes: usize, gate: Option<Receiver<()>>| {
            let shown = hub.offer(Spans { bytes, gate, ..spans(&["osd"]) });
            shown.entries == 1
        };
        let (open, gate) = gate();
        assert!(offer(QUEUE_BYTES + 1, Some(gate)), "a large arrival is taken if nothing is queued");
        assert!(!offer(1, None));
        open.send(()).unwrap();
        let empty = || hub.shared.queued.now() == 0;
        wait_until(empty);
        let (open, gate) = self::gate();
        assert!(offer(1, Some(gate)));
        assert!(offer(QUEUE_BYTES - 2, None));
        assert!(!offer(2, None), "one byte too many");
        assert!(offer(1, None));
        assert_eq!(hub.figures().unseen, 2);
        open.send(()).unwrap();
        wait_until(empty);
    }

    fn wait_until(condition: impl Fn() -> bool) {
        while !condition() {
            std::thread::yield_now();
        }
    }
}
