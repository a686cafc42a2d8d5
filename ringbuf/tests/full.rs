//! A ring that is full goes on waking a consumer that sleeps.

mod own;

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use blkin_record::{EndpointParts, Payload, Source};
use blkin_ringbuf::process::{Annotation, Status, init, record};
use blkin_ringbuf::wake::{Waiter, Woken};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Far more than any machine takes; nothing is waited for by time where all goes well.
const LIMIT: Duration = Duration::from_secs(60);

/// The calling thread stays on one of the CPUs that it may use, and so with one ring.
fn stay_on(cpu: impl FnOnce(&[usize]) -> usize) {
    let allowed = sched_getaffinity(None).expect("CPUs are known");
    let allowed: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    let mut one = CpuSet::new();
    one.set(cpu(&allowed));
    sched_setaffinity(None, &one).expect("the CPU is allowed");
}

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

/// A wake that comes before its consumer waits is lost, and no eighth of the ring follows that would repeat it.
#[test]
fn a_consumer_that_began_to_wait_when_the_ring_was_full_is_woken() {
    assert_eq!(init(), Status::Tracing);
    let attachment = own::attach();
    attachment.mark_attached(true);
    let (waiter, page) = (Arc::new(Waiter::default()), attachment.control());
    let (begin, begins) = channel();
    let waiting = thread::spawn({
        let waiter = waiter.clone();
        move || {
            stay_on(|cpus| cpus[cpus.len() - 1]);
            begins.recv().expect("the ring gets full");
            waiter.wait(waiter.ticket(), &[page])
        }
    });
    stay_on(|cpus| cpus[0]);
    let due = Instant::now() + LIMIT;
    while attachment.counters().full == 0 {
        assert!(Instant::now() < due, "a ring that nobody reads gets full");
        annotate();
    }
    attachment.set_sleeping(true);
    begin.send(()).expect("it waits");
    while !waiting.is_finished() && Instant::now() < due {
        annotate();
    }
    waiter.call();
    assert_eq!(waiting.join().expect("it waits"), Ok(Woken::ByProgram));
}
