//! The figures of a program that goes on recording add up at each look.

mod own;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use blkin_record::{EndpointParts, names_word};
use blkin_ringbuf::Attachment;
use blkin_ringbuf::process::{Short, Status, declare, declare_endpoint, init, record_short};

const LOOKS: usize = 20_000;

/// Ends the writer's loop even if a figure is wrong: the scope waits for its threads.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(false, Relaxed);
    }
}

/// What found no room, after a check that the other figures agree with it. If a drain met the writer in the middle of a record,
/// losses count as stalled until the next drain.
fn lost_when_adding_up(attachment: &Attachment, drained: u64) -> u64 {
    let (counters, pending) = attachment.counters_and_pending();
    // The only writer may have been stopped between counting an attempt and its loss, where these are two steps.
    assert!(counters.attempted - (counters.committed + counters.lost()) <= 1, "{counters:?}");
    assert_eq!(counters.committed, drained + pending);
    counters.lost()
}

#[test]
fn figures_add_up_while_a_program_records() {
    assert_eq!(init(), Status::Tracing);
    let mut attachment = own::attach();
    attachment.mark_attached(true);
    let endpoint = EndpointParts { ip: b"", port: 1, name: b"service" };
    let names = names_word(declare(b"name"), declare_endpoint(&endpoint));
    let key = declare(b"key");
    let goes_on = AtomicBool::new(true);
    thread::scope(|scope| {
        scope.spawn(|| {
            while goes_on.load(Relaxed) {
                record_short(&[1, 2, 0], names, key, Short::Integer(3), 4);
            }
        });
        let _ends = Ends(&goes_on);
        let (mut drained, mut raw) = (0, Vec::new());
        // On a busy machine the writer's thread may begin late.
        while lost_when_adding_up(&attachment, drained) == 0 {}
        for _ in 0..LOOKS {
            for slot in 0..attachment.slots() {
                raw.clear();
                drained += attachment.drain(slot, 1 << 16, &mut raw).records;
                attachment.publish(slot);
            }
            lost_when_adding_up(&attachment, drained);
        }
        while lost_when_adding_up(&attachment, drained) < LOOKS as u64 {}
        assert!(drained > 0);
    });
}
