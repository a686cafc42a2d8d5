//! A full ring keeps waking a consumer that sleeps.

mod own;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::{slice, thread};

use blkin_record::{EndpointParts, Payload, Source};
use blkin_ringbuf::ControlPage;
use blkin_ringbuf::process::{Annotation, Status, init, record};
use blkin_ringbuf::wake::{Waiter, Woken};
use rustix::io::Errno;

/// Annotations within which everything happens, however slow the machine.
const ENOUGH: usize = 2_000_000_000;

fn annotate() {
    record(&Annotation {
        trace_id: 1,
        span_id: 2,
        parent_span_id: 0,
        name: Source::inline(b"name"),
        endpoint: Source::inline(EndpointParts { ip: b"", port: 0, name: b"service" }),
        key: Source::inline(b"key"),
        payload: Payload::Integer(3),
        level: 4,
    });
}

/// A consumer on another CPU than the producer's, if there are two. It waits once for each ticket that it is sent.
struct Sleeper {
    waiter: Arc<Waiter>,
    begin: Sender<u32>,
    ends: Receiver<Result<Woken, Errno>>,
}

impl Sleeper {
    fn new(page: ControlPage) -> Self {
        let waiter = Arc::new(Waiter::default());
        let (begin, begins) = channel();
        let (end, ends) = channel();
        let waits = waiter.clone();
        thread::spawn(move || {
            own::stay_on(|cpus| cpus[cpus.len() - 1]);
            begins.iter().for_each(|ticket| {
                end.send(waits.wait(ticket, slice::from_ref(&page))).expect("the test still listens");
            });
        });
        Self { waiter, begin, ends }
    }

    fn begin(&self) {
        self.begin.send(self.waiter.ticket()).expect("the consumer's thread still runs");
    }

    /// How the wait ended while the producer made at most this many annotations.
    fn end(&self, annotations: usize) -> Option<Result<Woken, Errno>> {
        (0..annotations).find_map(|_| {
            annotate();
            self.ends.try_recv().ok()
        })
    }
}

/// A wake-up that comes before its consumer waits is lost, and a full ring passes no further eighth that would repeat it. A
/// wake-up that ended the wait is not repeated until the consumer says that it sleeps again.
#[test]
fn a_consumer_waiting_on_a_full_ring_is_woken_once_per_sleep() {
    assert_eq!(init(), Status::Tracing);
    let attachment = own::attach();
    attachment.mark_attached(true);
    let page = attachment.control();
    let sleeper = Sleeper::new(page.clone());
    own::stay_on(|cpus| cpus[0]);
    (0..ENOUGH).find(|_| {
        annotate();
        attachment.counters().full > 0
    });
    page.set_sleeping(true);
    (0..1000).for_each(|_| annotate());
    sleeper.begin();
    assert_eq!(
        sleeper.end(ENOUGH),
        Some(Ok(Woken::ByProgram)),
        "a wake-up that came before the wait was not repeated"
    );
    sleeper.begin();
    assert_eq!(sleeper.end(100_000), None, "woken although it had not said that it sleeps again");
    sleeper.waiter.call();
    assert_eq!(sleeper.ends.recv(), Ok(Ok(Woken::Called)));
    page.set_sleeping(true);
    sleeper.begin();
    assert_eq!(sleeper.end(ENOUGH), Some(Ok(Woken::ByProgram)));
}
