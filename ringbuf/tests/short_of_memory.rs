//! A forked child that has no memory for the next part of a ring counts the records it loses, and records again once it has some.

#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod own;

use std::thread;

use blkin_record::{GRAIN_BYTES, names_word};
use blkin_ringbuf::Attachment;
use blkin_ringbuf::process::{self, Short, Status, init};

/// How much memory a ring is given at a time, in grains.
const PART_GRAINS: usize = 1024;
const RECORDS: usize = 3 * PART_GRAINS;
/// Within this many records there is memory again, however slow the machine: it is asked for once a second.
const ENOUGH: usize = 2_000_000_000;

fn record() {
    let names = names_word(process::declare(b"name"), process::declare(b"endpoint"));
    process::record_short(&[7, 8, 9], names, process::declare(b"key"), Short::Integer(1), 4);
}

/// Makes `madvise` answer the calling thread from now on that there is no memory.
fn have_madvise_fail() {
    let statement = |code: u32, k: u32, jt, jf| libc::sock_filter { code: code as u16, jt, jf, k };
    let fail = libc::SECCOMP_RET_ERRNO | libc::ENOMEM as u32;
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_madvise as u32, 0, 1),
        statement(libc::BPF_RET | libc::BPF_K, fail, 0, 0),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: numbers.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: a filter that is copied during the call (invariant 10).
    let set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn records_without_memory_are_counted_and_recording_resumes() {
    own::in_forked_child(loses_and_goes_on);
}

fn loses_and_goes_on() {
    assert_eq!(init(), Status::Tracing);
    let mut attachment = own::attach();
    if !own::is_by_sequence(&attachment) {
        // Rings that are written by compare-and-swap have all their memory from the first record on.
        return;
    }
    record();
    thread::spawn(|| {
        have_madvise_fail();
        (1..RECORDS).for_each(|_| record());
    })
    .join()
    .expect("the thread does not panic");
    let counters = attachment.counters();
    assert_eq!(counters.attempted, RECORDS as u64);
    assert_eq!(counters.committed + counters.no_segment, RECORDS as u64);
    assert_eq!(counters.full, 0);
    let mut written = vec![0; attachment.slots()];
    assert!(most_written(&mut attachment, &mut written) <= PART_GRAINS, "{written:?}");
    let goes_on = (0..ENOUGH).any(|_| {
        record();
        most_written(&mut attachment, &mut written) > PART_GRAINS
    });
    assert!(goes_on, "{:?}", attachment.counters());
}

/// Adds to `written` the grains that came since the last look; returns the count of the ring with most of them.
fn most_written(attachment: &mut Attachment, written: &mut [usize]) -> usize {
    for (slot, written) in written.iter_mut().enumerate() {
        let mut raw = Vec::new();
        attachment.drain(slot, usize::MAX, &mut raw);
        attachment.publish(slot);
        *written += raw.len() / GRAIN_BYTES;
    }
    written.iter().copied().max().unwrap_or_default()
}
