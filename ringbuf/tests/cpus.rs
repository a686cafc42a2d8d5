//! Threads on different CPUs write different rings, even where the C library registers no rseq areas.

mod own;

use std::process::Command;

use blkin_ringbuf::process::{self, Short, Status, init};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

const TUNABLES: &str = "GLIBC_TUNABLES";
const NO_AREAS: &str = "glibc.pthread.rseq=0";

#[test]
fn without_rseq_areas_each_cpu_has_its_own_ring() {
    let may_have_areas = cfg!(all(target_arch = "x86_64", not(blkin_portable)));
    if !may_have_areas || std::env::var(TUNABLES).is_ok_and(|value| value == NO_AREAS) {
        return check_rings();
    }
    let program = std::env::current_exe().expect("this program has a path");
    let status = Command::new(program).env(TUNABLES, NO_AREAS).status().expect("this program starts again");
    assert!(status.success());
}

/// Moves this thread from CPU to CPU, and checks which rings it has written.
fn check_rings() {
    assert_eq!(init(), Status::Tracing);
    let program = own::attach();
    let allowed = sched_getaffinity(None).expect("the allowed CPUs can be read");
    let mut written = 0;
    let mut has_written = vec![false; program.slots()];
    for cpu in (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)) {
        // A CPU's number may be larger than the number of rings.
        if std::mem::replace(&mut has_written[cpu % program.slots()], true) {
            continue;
        }
        let mut here = CpuSet::new();
        here.set(cpu);
        sched_setaffinity(None, &here).expect("the thread may run on this CPU");
        let name = process::declare(b"name");
        process::record_short(&[1, 2, 3], u64::from(name) << 32 | u64::from(name), name, Short::Event, 4);
        written += 1;
        assert_eq!(program.opened().count_ones(), written, "after CPU {cpu}");
    }
    assert_eq!(program.pending(), u64::from(written));
}
