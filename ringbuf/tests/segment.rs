//! What the kernel enforces between a program and its daemon, and what the daemon refuses to map.

mod own;

use std::os::fd::{AsFd, OwnedFd};

use blkin_record::{EndpointParts, Payload, Record, Source, records};
use blkin_ringbuf::layout::{CONTROL_BYTES, CONTROL_NAME, SEGMENT_NAME, segment_bytes};
use blkin_ringbuf::process::{Annotation, Status, init, record};
use blkin_ringbuf::{AttachError, Attachment};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};
use rustix::io::{Errno, pwrite};

use own::{attach, own_memfd};

/// The tests are threads of one process: the first one makes the segment, and no other may find it half made.
fn start() {
    static STARTED: std::sync::Once = std::sync::Once::new();
    STARTED.call_once(|| assert_eq!(init(), Status::Tracing));
}

fn annotate(span_id: u64) {
    record(&Annotation {
        trace_id: 1,
        span_id,
        parent_span_id: 0,
        name: Source::inline(b"name"),
        endpoint: Source::inline(EndpointParts { ip: b"", port: 0, name: b"service" }),
        key: Source::inline(b"key"),
        payload: Payload::Integer(span_id as i64),
        level: 4,
    });
}

/// All tests of this binary share one process and so one segment: each reads it from its beginning.
fn read_spans(program: &mut Attachment) -> Vec<u64> {
    let mut raw = Vec::new();
    for slot in 0..program.slots() {
        program.drain(slot, usize::MAX, &mut raw);
    }
    records(&raw, program.info().cookie)
        .map(|item| item.map(|record: Record<'_>| record.span_id).expect("a valid record"))
        .collect()
}

#[test]
fn the_daemon_cannot_write_the_programs_memory() {
    start();
    let segment = own_memfd(SEGMENT_NAME);
    assert_eq!(pwrite(&segment, &[1], 0), Err(Errno::PERM));
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert_eq!(fallocate(&segment, punch, 0, 4096), Err(Errno::PERM));
    assert_eq!(ftruncate(&segment, 0), Err(Errno::PERM));
    assert_eq!(ftruncate(&segment, 1 << 30), Err(Errno::PERM));
    assert_eq!(ftruncate(own_memfd(CONTROL_NAME), 0), Err(Errno::PERM));
}

#[test]
fn the_segment_holds_the_programs_name() {
    start();
    let path = std::env::args().next().expect("a program has a name");
    let name = path.rsplit('/').next().expect("a path has an end").as_bytes();
    let length = name.len().min(15);
    let mut expected = [0; 16];
    expected[..length].copy_from_slice(&name[..length]);
    assert_eq!(attach().info().name, expected);
}

#[test]
fn a_live_program_prevents_the_write_seal() {
    start();
    assert!(!attach().no_writer_left());
}

#[test]
fn several_attachments_read_the_same_records() {
    start();
    annotate(4242);
    let (mut first, mut second) = (attach(), attach());
    assert!(read_spans(&mut first).contains(&4242));
    assert!(read_spans(&mut second).contains(&4242));
    let counters = first.counters();
    assert_eq!(counters.attempted, counters.committed);
    assert_eq!(first.pending(), 0);
}

#[test]
fn records_are_in_the_rings_that_a_program_reports_as_opened() {
    start();
    annotate(4343);
    let mut program = attach();
    assert!(program.slots() > 1);
    let opened = program.opened();
    assert!(opened != 0 && opened.count_ones() < program.slots() as u32, "{opened:#x}");
    let mut raw = Vec::new();
    for slot in (0..program.slots()).filter(|slot| opened >> slot & 1 == 1) {
        program.drain(slot, usize::MAX, &mut raw);
    }
    let found = records(&raw, program.info().cookie).filter_map(Result::ok);
    assert!(found.map(|record: Record<'_>| record.span_id).any(|span_id| span_id == 4343));
}

#[test]
fn rings_not_reported_as_unopened_count_as_opened() {
    start();
    let header = [u64::from_le_bytes(*b"BLKINSEG"), 2, 1, 4096, 2, 7, 9, 1];
    let open = |unopened: u64| {
        let header: Vec<u64> = header.into_iter().chain([0; 5]).chain([unopened]).collect();
        let segment = sealed(segment_bytes(2, 4096) as u64, &header);
        Attachment::open(segment, &own_memfd(CONTROL_NAME)).expect("the header is valid")
    };
    assert_eq!(open(0).opened(), 0b11);
    assert_eq!(open(0b01).opened(), 0b10);
    let mut ended = open(u64::MAX);
    assert_eq!(ended.opened(), 0);
    assert!(ended.no_writer_left(), "nobody maps it for writing");
    assert_eq!(ended.opened(), 0b11, "the word of a program that has ended does not count");
}

#[test]
fn a_segment_that_is_not_a_sealed_memfd_is_refused() {
    start();
    let control = || own_memfd(CONTROL_NAME);
    let file = OwnedFd::from(tempfile::tempfile().expect("a temporary file"));
    assert!(matches!(Attachment::open(file, &control()), Err(AttachError::NotSealed(_))));
    let unsealed = memfd_create("blkin-segment", MemfdFlags::ALLOW_SEALING).expect("a memfd");
    assert!(matches!(Attachment::open(unsealed, &control()), Err(AttachError::NotSealed(_))));
    let swapped = Attachment::open(control(), &own_memfd(SEGMENT_NAME));
    assert!(matches!(swapped, Err(AttachError::NotSealed(_))));
}

#[test]
fn a_segment_that_cannot_be_sealed_further_is_refused() {
    start();
    let fd =
        sealed(segment_bytes(2, 4096) as u64, &[u64::from_le_bytes(*b"BLKINSEG"), 2, 1, 4096, 2, 7, 9, 1]);
    fcntl_add_seals(&fd, SealFlags::SEAL).expect("further seals can be forbidden");
    let opened = Attachment::open(fd, &own_memfd(CONTROL_NAME));
    assert!(matches!(opened, Err(AttachError::NotSealed(_))));
}

#[test]
fn a_program_that_forbids_further_seals_counts_as_ended() {
    start();
    let fd =
        sealed(segment_bytes(2, 4096) as u64, &[u64::from_le_bytes(*b"BLKINSEG"), 2, 1, 4096, 2, 7, 9, 1]);
    let again = fd.try_clone().expect("another descriptor");
    let mut program = Attachment::open(fd, &own_memfd(CONTROL_NAME)).expect("a valid segment");
    fcntl_add_seals(&again, SealFlags::SEAL).expect("further seals can be forbidden");
    assert!(program.no_writer_left());
}

fn sealed(bytes: u64, header: &[u64]) -> OwnedFd {
    let fd = memfd_create("sealed", MemfdFlags::ALLOW_SEALING).expect("a memfd");
    ftruncate(&fd, bytes).expect("it grows");
    if !header.is_empty() && bytes > 0 {
        let header: Vec<u8> = header.iter().flat_map(|word| word.to_le_bytes()).collect();
        pwrite(&fd, &header[..header.len().min(bytes as usize)], 0).expect("it is written");
    }
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE;
    fcntl_add_seals(fd.as_fd(), seals).expect("it is sealed");
    fd
}

#[test]
fn headers_that_contradict_themselves_are_refused() {
    start();
    let magic = u64::from_le_bytes(*b"BLKINSEG");
    let good = [magic, 2, 1, 4096, 2, 7, 9, 1, 0, 0, 0, 0];
    let bytes = segment_bytes(2, 4096) as u64;
    let open = |bytes: u64, header: &[u64]| Attachment::open(sealed(bytes, header), &own_memfd(CONTROL_NAME));
    assert!(open(bytes, &good).is_ok(), "the valid header that the other cases alter");
    let with_records = |version: u64| [&good[..2], &[version], &good[3..]].concat();
    assert!(open(bytes, &with_records(u64::from(blkin_record::VERSION))).is_ok(), "the present version");
    assert!(open(bytes, &with_records(u64::from(blkin_record::VERSION) + 1)).is_err(), "a later version");
    let bends = [(0, 0), (1, 1), (2, 9), (3, 0), (3, 4097), (3, u64::MAX), (4, 0), (4, 3), (4, u64::MAX)];
    for (index, value) in bends.into_iter().chain([(6, 0), (6, 1 << 18), (7, 3), (10, 2), (11, 2)]) {
        let mut bent = good;
        bent[index] = value;
        assert!(open(bytes, &bent).is_err(), "word {index} = {value}");
    }
    for bytes in [0, 4096, bytes - 4096, bytes + 4096, 1 << 40] {
        assert!(open(bytes, &good).is_err(), "{bytes} bytes");
    }
}

#[test]
fn a_head_outside_its_ring_is_reported_and_nothing_is_read() {
    start();
    let bytes = segment_bytes(1, 4096);
    let mut words = vec![0u64; bytes / 8];
    words[..8].copy_from_slice(&[u64::from_le_bytes(*b"BLKINSEG"), 2, 1, 4096, 1, 7, 9, 1]);
    // The first slot's header lies at byte 69632, with head in its first word.
    words[69632 / 8] = 1 << 36 | 4097;
    let segment = sealed(bytes as u64, &words);
    let mut program = Attachment::open(segment, &own_memfd(CONTROL_NAME)).expect("the header is valid");
    let mut out = Vec::new();
    let drained = program.drain(0, usize::MAX, &mut out);
    assert!(drained.insane && out.is_empty());
    assert!(program.no_writer_left(), "nobody maps it for writing");
}

#[test]
fn a_control_page_of_another_size_is_refused() {
    start();
    let small = CONTROL_BYTES as i64 - 4096;
    let refused = Attachment::open(own_memfd(SEGMENT_NAME), &sealed(small as u64, &[]));
    assert!(matches!(refused, Err(AttachError::Size("control page", bytes)) if bytes == small));
}
