//! A thread whose index is that of the shared slot, as on a machine with more CPUs than slots, writes the shared ring, by
//! compare-and-swap, however far that ring has come.
#![cfg(all(target_arch = "x86_64", not(blkin_portable)))]

mod own;

use std::io::Write;

use blkin_record::names_word;
use blkin_ringbuf::layout::{MAX_SLOTS, RINGS_OFFSET_BYTES, SEGMENT_NAME};
use blkin_ringbuf::process::{self, Short, Status, init};

const IDS: [u64; 3] = [7, 8, 9];
const TIMES: u64 = 1000;
const SLOT_HEADER_BYTES: usize = 256;
/// Where the kernel keeps a thread's concurrency id in its area, if the feature size is at least this.
const ID_AT: isize = 24;
const WITH_ID: libc::c_ulong = 28;
const AT_RSEQ_FEATURE_SIZE: libc::c_ulong = 27;

unsafe extern "C" {
    /// Offset of the area from the thread pointer (`sys/rseq.h`).
    static __rseq_offset: isize;
}

#[test]
fn the_shared_slot_stays_shared_after_two_billion_grains() {
    assert_eq!(init(), Status::Tracing);
    let program = own::attach();
    // SAFETY: no preconditions.
    let features = unsafe { libc::getauxval(AT_RSEQ_FEATURE_SIZE) };
    if !own::is_by_sequence(&program) || features < WITH_ID {
        let _ = writeln!(std::io::stderr(), "not shown: no concurrency ids here");
        return;
    }
    let last = program.slots() - 1;
    let (name, key) = (process::declare(b"name"), process::declare(b"key"));
    let names = names_word(name, process::declare(b"endpoint"));
    let record = |id: usize| {
        claim(id);
        process::record_string(&IDS, names, key, b"a text that travels", 4);
        claim(id);
        process::record_short(&IDS, names, key, Short::Event, 4);
    };
    record(last);
    move_head_of(last, 1 << 31);
    // The kernel sets the id back whenever something else has run.
    for _ in 0..TIMES {
        record(last);
    }
    let counters = program.counters();
    // Nobody has read that far, so there is no room in that ring.
    let (committed, full) = (counters.committed, counters.full);
    assert_eq!((counters.attempted, committed + full), (2 * (1 + TIMES), 2 * (1 + TIMES)));
    assert!(committed >= 2 && full > 0, "{counters:?}");
}

/// Claims this concurrency id for this thread, until the kernel sets it back, as it does when something else has run.
fn claim(id: usize) {
    let thread_pointer: *mut u8;
    // SAFETY: the first word of a thread's block is its own address.
    unsafe {
        std::arch::asm!("mov {}, fs:[0]", out(reg) thread_pointer, options(pure, readonly, nostack));
    }
    // SAFETY: a constant of libc.
    let offset = unsafe { __rseq_offset };
    let word = thread_pointer.wrapping_offset(offset + ID_AT).cast::<u32>();
    // SAFETY: in this thread's area, which libc has registered, and which is large enough.
    unsafe { word.write_volatile(id as u32) };
}

/// Moves head of a slot that nobody writes at this moment on by this many grains.
fn move_head_of(slot: usize, grains: u64) {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc is there");
    let line = maps.lines().find(|line| line.contains(SEGMENT_NAME) && line.contains(" rw-s 00000000 "));
    let start = line.and_then(|line| line.split_once('-')).expect("the segment is mapped").0;
    let start = usize::from_str_radix(start, 16).expect("an address");
    let head = start + RINGS_OFFSET_BYTES - (MAX_SLOTS - slot) * SLOT_HEADER_BYTES;
    let head = std::ptr::with_exposed_provenance_mut::<u64>(head);
    // SAFETY: the first word of the slot's header, mapped for this process to write.
    unsafe { *head += grains };
}
