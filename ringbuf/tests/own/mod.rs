//! The segment that this process writes, as a consumer gets it.

use std::os::fd::OwnedFd;
use std::panic::{UnwindSafe, catch_unwind};
use std::process::Command;

use blkin_ringbuf::layout::{CONTROL_NAME, SEGMENT_NAME};
use blkin_ringbuf::process::{Status, init};
use blkin_ringbuf::{Attachment, ProducerKind};
use rustix::fs::{Mode, OFlags, open};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// This process's own memfd of that name, opened again like the descriptor that an offer carries.
pub(crate) fn own_memfd(name: &str) -> OwnedFd {
    let wanted = format!("/memfd:{name} (deleted)");
    let entries = std::fs::read_dir("/proc/self/fd").expect("/proc is there");
    let path = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .find(|path| std::fs::read_link(path).is_ok_and(|target| target.as_os_str() == wanted.as_str()))
        .expect("the memfd is open");
    open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).expect("it opens again")
}

/// A consumer's attachment to this process's segment.
pub(crate) fn attach() -> Attachment {
    Attachment::open(own_memfd(SEGMENT_NAME), &own_memfd(CONTROL_NAME)).expect("a valid segment")
}

/// Runs a test's body in a forked child of this process, which has recorded.
#[allow(dead_code, reason = "not all tests do")]
pub(crate) fn in_forked_child(body: impl FnOnce() + UnwindSafe) {
    assert!(passes_in_forked_child(body), "the test failed in a forked child");
}

/// Whether a forked child has a state of its own. Under qemu-user it has not: qemu-user does not pass on the advice by which the
/// kernel wipes the state.
#[allow(dead_code, reason = "not all tests ask")]
pub(crate) fn children_begin_anew() -> bool {
    passes_in_forked_child(|| {
        assert_eq!(init(), Status::Tracing);
        assert_eq!(attach().info().pid, std::process::id(), "a forked child has a segment of its own");
    })
}

fn passes_in_forked_child(body: impl FnOnce() + UnwindSafe) -> bool {
    assert_eq!(init(), Status::Tracing);
    // SAFETY: the child runs what tests run, on one thread, with a C library that makes its allocator usable after a fork, and
    // leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_passed = catch_unwind(body).is_ok();
        // SAFETY: no preconditions.
        unsafe { libc::_exit(i32::from(!is_passed)) };
    }
    let mut status = 0;
    // SAFETY: waits for that child, and writes to a variable of this frame.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status == 0
}

/// Keeps the calling thread on one of the CPUs that it may use, and so on one ring.
#[allow(dead_code, reason = "not all tests do")]
pub(crate) fn stay_on(cpu: impl FnOnce(&[usize]) -> usize) {
    let allowed = sched_getaffinity(None).expect("CPUs are known");
    let allowed: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    let mut one = CpuSet::new();
    one.set(cpu(&allowed));
    sched_setaffinity(None, &one).expect("the CPU is allowed");
}

/// Whether the program's rings are written by restartable sequences.
#[allow(dead_code, reason = "not all tests ask")]
pub(crate) fn is_by_sequence(program: &Attachment) -> bool {
    program.info().producer == ProducerKind::Rseq
}

/// Runs a test of this file again, in processes of its own: by compare-and-swap, also in a process without rseq areas, as with a
/// C library before glibc 2.35, and with strings read byte by byte.
#[allow(dead_code, reason = "not all tests do")]
pub(crate) fn run_again_by_each_way(test: &str) {
    let ways = [
        ("BLKIN_PRODUCER", "portable"),
        ("GLIBC_TUNABLES", "glibc.pthread.rseq=0"),
        ("BLKIN_STRINGS", "bytes"),
    ];
    for (variable, value) in ways {
        let program = std::env::current_exe().expect("this program has a path");
        let run = Command::new(program).args(["--exact", test]).env(variable, value).output();
        let run = run.expect("this program starts again");
        let said = String::from_utf8_lossy(&run.stdout) + String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success() && said.contains("1 passed"), "{variable}={value}: {said}");
    }
}
