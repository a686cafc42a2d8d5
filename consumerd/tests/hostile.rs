//! Programs that write anything into their own memory do not harm anybody else.

#![allow(clippy::unwrap_used)]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use blkin_consumerd::link::send;
use blkin_record::{POSITION_MASK, Stamp};
use blkin_ringbuf::layout::{CONTROL_BYTES, LAYOUT_VERSION, RINGS_OFFSET_BYTES, segment_bytes};
use common::{Site, wait_for};
use rustix::fs::{MemfdFlags, Mode, SealFlags, fchmod, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::{Errno, pread, pwrite};
use rustix::net::{
    AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, socket_with,
};
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};
use rustix::process::{Signal, geteuid};

const SLOTS: usize = 64;
const RING_BYTES: usize = 4096;
const GRAIN_WORDS: usize = 8;
const COOKIE: u32 = 77;
/// First word of the table of names.
const NAMES: usize = 512;
/// First word of the slots' headers, which end where the rings begin.
const SLOT_HEADERS: usize = RINGS_OFFSET_BYTES / 8 - SLOTS * 32;
/// The header's word that says what full rings do; the next one says which producer writes.
const MODE: usize = 10;
/// First word of the slots' lines in the control page.
const SLOT_LINES: usize = 64;
/// The control page's word that says why the program is not read.
const UNREAD: usize = 7;

const HEADER: [u64; 8] = [
    u64::from_le_bytes(*b"BLKINSEG"),
    LAYOUT_VERSION,
    blkin_record::VERSION as u64,
    RING_BYTES as u64,
    SLOTS as u64,
    1,
    COOKIE as u64,
    2,
];

/// Pseudo-random numbers, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        // Extreme values are likelier to do harm than those in between.
        match self.0 % 8 {
            0 => u64::MAX,
            1 => u64::MAX >> 2,
            2 => self.0 % 64,
            _ => self.0.rotate_left(29),
        }
    }
}

fn sealed(name: &str, words: &[u64], seals: SealFlags) -> OwnedFd {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    ftruncate(&fd, bytes.len() as u64).unwrap();
    assert_eq!(pwrite(&fd, &bytes, 0).unwrap(), bytes.len());
    fcntl_add_seals(&fd, seals | SealFlags::SHRINK | SealFlags::GROW).unwrap();
    fd
}

/// A segment with a valid header, and anything in the table of names, heads, counters and rings, and a control page. Half of
/// the rings look sane enough to be read.
fn segment_and_control(numbers: &mut Numbers) -> (Vec<u64>, Vec<u64>) {
    let mut segment: Vec<u64> = (0..segment_bytes(SLOTS, RING_BYTES) / 8).map(|_| numbers.next()).collect();
    let mut control: Vec<u64> = (0..CONTROL_BYTES / 8).map(|_| numbers.next()).collect();
    segment[..HEADER.len()].copy_from_slice(&HEADER);
    // Full rings discard records; the producer is either of the two.
    segment[MODE..MODE + 2].copy_from_slice(&[0, numbers.next() % 2]);
    // Plausible lengths of texts.
    segment[NAMES + 2048..SLOT_HEADERS].iter_mut().step_by(3).for_each(|word| *word %= 300);
    for slot in (0..SLOTS).step_by(2) {
        let grains = RING_BYTES / 64;
        let tail = numbers.next() >> 2;
        control[SLOT_LINES + slot * 8] = tail;
        let end = tail.wrapping_add(grains as u64) & POSITION_MASK;
        segment[SLOT_HEADERS + slot * 32] = numbers.next() << 36 | end;
        for ahead in 0..grains as u64 {
            let at = tail + ahead;
            let word = RINGS_OFFSET_BYTES / 8 + slot * RING_BYTES / 8 + at as usize % grains * GRAIN_WORDS;
            let length = 1 + numbers.next() as usize % 3;
            segment[word] = Stamp::head(at, length, COOKIE).0;
            // Plausible ids of texts, kind, level, and length of the tail.
            segment[word + 5] &= 0x0000_1fff_0000_1fff;
            segment[word + 6] &= 0x0000_0703_0000_1fff;
            segment[word + 7] &= 0x0000_0000_0fff_ffff;
        }
    }
    (segment, control)
}

/// Offers a program with these words in its memory. Returns the descriptor of its control page.
fn offer(site: &Site, words: (Vec<u64>, Vec<u64>)) -> OwnedFd {
    let (segment, control) = memfds(words);
    offer_memfds(site, &segment, &control);
    control
}

fn memfds((segment, control): (Vec<u64>, Vec<u64>)) -> (OwnedFd, OwnedFd) {
    let segment = sealed("blkin-segment", &segment, SealFlags::FUTURE_WRITE);
    (segment, sealed("blkin-control", &control, SealFlags::empty()))
}

/// Offers these memfds. Returns the connection, which the daemon closes once it has handled the offer.
fn offer_memfds(site: &Site, segment: &OwnedFd, control: &OwnedFd) -> OwnedFd {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    connect(&socket, &SocketAddrUnix::new(site.socket()).unwrap()).unwrap();
    send(&socket, b"BLKOFFER\x01\0\0\0\0\0\0\0", &[segment.as_fd(), control.as_fd()]).unwrap();
    socket
}

#[test]
fn hostile_segments_harm_neither_worker_nor_other_programs() {
    let site = Site::new();
    let daemon = site.daemon(&[]);
    let worker = daemon.worker_pid();
    let mut numbers = Numbers(0x1234_5678_9abc_def1);
    let mut program = site.program(&[500, 2, 100], &[]);
    for _ in 0..24 {
        offer(&site, segment_and_control(&mut numbers));
    }
    let calls = program.calls();
    daemon.settled_of(&program, calls);
    let metrics = wait_for("the hostile programs are released", || {
        let metrics = daemon.metrics();
        let is_through = metrics.sum("blkin_programs_departed_total") == 24;
        (is_through && metrics.sum("blkin_sink_in_flight") == 0).then_some(metrics)
    });
    assert_eq!(metrics.sum("blkin_programs_rejected_total"), 0);
    assert_eq!(metrics.sum("blkin_worker_restarts_total"), 0);
    daemon.assert_healthy();
    assert_eq!(daemon.worker_pid(), worker);
    let honest = site.lines().iter().filter(|line| line["service_name"] == "osd.0").count();
    assert_eq!(honest as u64, calls);
    // Some records of the hostile programs were read; otherwise this would show little.
    assert!(metrics.sum_where("blkin_valid_total", "departed") > 0);
    program.end();
}

/// A new worker needs all programs that were there, and retries while memory is short.
#[test]
fn unmappable_memory_does_not_prevent_a_worker_start() {
    let site = Site::new();
    let daemon = site.daemon(&[]);
    let mut program = site.program(&[500, 2], &[]);
    let calls = program.calls();
    daemon.settled(calls);
    let control = sealed("blkin-control", &[0; CONTROL_BYTES / 8], SealFlags::empty());
    let huge = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    let segment = memfd_create("blkin-segment", huge).unwrap();
    ftruncate(&segment, 4 << 20).unwrap();
    fcntl_add_seals(&segment, SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE).unwrap();
    // No worker sees the programs that are admitted from here on before the next one starts.
    daemon.signal_worker(Signal::STOP);
    let offering = offer_memfds(&site, &segment, &control);
    // The end of the connection; it is reset if the offer was refused, and so lay unread in it.
    let heard = recv(&offering, &mut [0; 1], RecvFlags::empty());
    assert!(matches!(heard, Ok((_, 0)) | Err(Errno::CONNRESET)), "{heard:?}");
    daemon.signal_worker(Signal::KILL);
    program.record_more();
    let calls = program.calls();
    let metrics = daemon.settled_of(&program, calls);
    assert_eq!(metrics.sum("blkin_worker_restarts_total"), 1);
    program.end();
}

fn told(control: &OwnedFd) -> Option<u64> {
    let mut word = [0; 8];
    assert_eq!(pread(control, &mut word, UNREAD as u64 * 8).unwrap(), word.len());
    Some(u64::from_ne_bytes(word)).filter(|told| *told != 0)
}

#[test]
fn refused_programs_are_told_why() {
    let site = Site::new();
    let daemon = site.daemon(&["--config", &site.config("max_programs_per_uid = 1\n")]);
    let header = |version: u64| {
        let mut segment = vec![0; segment_bytes(SLOTS, RING_BYTES) / 8];
        segment[..2].copy_from_slice(&[u64::from_le_bytes(*b"BLKINSEG"), version]);
        (segment, vec![0; CONTROL_BYTES / 8])
    };
    let later = offer(&site, header(LAYOUT_VERSION + 1));
    assert_eq!(wait_for("a program of another version is told", || told(&later)), 1);
    wait_for("the program is released", || (daemon.metrics().sum("blkin_programs_held") == 0).then_some(()));
    let program = site.program(&[1, 1], &[]);
    wait_for("there is a program", || (daemon.metrics().sum("blkin_programs_held") == 1).then_some(()));
    let one_more = offer(&site, header(LAYOUT_VERSION));
    assert_eq!(wait_for("the program over quota is told", || told(&one_more)), 2);
    program.finish();
}

/// Requests metrics over one connection, many requests at once, until `is_over`.
fn ask_without_end(http: &str, is_over: &AtomicBool) {
    const AT_ONCE: usize = 100;
    let mut stream = TcpStream::connect(http).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let requests = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(AT_ONCE);
    let mut part = vec![0; 64 << 10];
    let mut asked = 0;
    while !is_over.load(Relaxed) {
        if asked == 0 {
            stream.write_all(requests.as_bytes()).unwrap();
            asked = AT_ONCE;
        }
        let read = stream.read(&mut part).unwrap_or(0);
        asked -= asked.min(part[..read].windows(5).filter(|bytes| bytes == b"HTTP/").count());
    }
}

/// The requests are answered by a thread that does not drain rings.
#[test]
fn many_metrics_requests_do_not_delay_draining() {
    let site = Site::new();
    let daemon = site.daemon(&[]);
    // Each program adds to the length of the answers.
    let programs: Vec<_> = (0..40).map(|_| site.program(&[1, 1], &[])).collect();
    wait_for("all are held", || (daemon.metrics().sum("blkin_programs_held") == 40).then_some(()));
    let is_over = AtomicBool::new(false);
    let metrics = std::thread::scope(|scope| {
        for _ in 0..50 {
            scope.spawn(|| ask_without_end(&daemon.http, &is_over));
        }
        // Nearly 40,000 annotations a second; the program's ring holds those of a sixth of a second.
        let mut program = site.program(&[10_000, 1, 50], &[("BLKIN_RING_BYTES", "524288")]);
        program.calls();
        is_over.store(true, Relaxed);
        program.end();
        daemon.metrics()
    });
    assert_eq!(metrics.sum("blkin_program_lost_total"), 0);
    programs.into_iter().for_each(common::Program::end);
}

/// How many programs these log lines name or count.
fn named_or_counted(lines: &[String]) -> u64 {
    let count = |line: &str, field: &str| {
        let (_, rest) = line.split_once(field)?;
        rest.split_whitespace().next()?.parse::<u64>().ok()
    };
    let of_line = |line: &String| count(line, "programs=").or_else(|| Some(1 + count(line, "held_back=")?));
    lines.iter().map(|line| of_line(line).unwrap_or(1)).sum()
}

#[test]
fn invalid_programs_and_lost_recorders_do_not_fill_the_log() {
    const EACH: u64 = 60;
    let site = Site::new();
    let daemon = site.daemon(&["--config", &site.config("recorder_keep = 0\n")]);
    let with = |at: usize, word: u64| {
        let mut segment = vec![0; segment_bytes(SLOTS, RING_BYTES) / 8];
        segment[..HEADER.len()].copy_from_slice(&HEADER);
        segment[at] = word;
        (segment, vec![0; CONTROL_BYTES / 8])
    };
    for _ in 0..EACH {
        // A program of another version; one whose ring claims to hold more than it can; a flight recorder that nobody takes.
        offer(&site, with(1, LAYOUT_VERSION + 1));
        offer(&site, with(SLOT_HEADERS, 1 << 36 | 10_000));
        offer(&site, with(MODE, 1));
    }
    for what in ["failed to attach to", "contradict", "given up"] {
        let lines = wait_for(what, || {
            let lines = daemon.said(what);
            (named_or_counted(&lines) == EACH).then_some(lines)
        });
        assert!(lines.len() < 20, "{lines:?}");
    }
}

/// A daemon without all of root's rights may not open the pages again, and cannot know whether another daemon reads the programs.
#[test]
fn programs_with_unopenable_pages_do_not_fill_the_log() {
    const EACH: u64 = 60;
    let site = Site::new();
    let mut starter = Command::new("setpriv");
    starter.arg("--no-new-privs");
    if geteuid().is_root() {
        starter.args(["--bounding-set", "-dac_override"]);
    }
    let daemon = site.started_by(starter, &[]).ready();
    for _ in 0..EACH {
        let (segment, control) = memfds((vec![0; RINGS_OFFSET_BYTES / 8], vec![0; CONTROL_BYTES / 8]));
        fchmod(&control, Mode::empty()).unwrap();
        offer_memfds(&site, &segment, &control);
    }
    let lines = wait_for("all programs are named or counted", || {
        let lines = daemon.said("failed to find out whether another daemon reads");
        (named_or_counted(&lines) == EACH).then_some(lines)
    });
    assert!(lines.len() < 20, "{lines:?}");
}

/// While pages are in use elsewhere, the kernel waits a sixth of a second before it answers that a segment may still be written.
#[test]
fn slow_kernel_answers_about_programs_delay_no_others() {
    let site = Site::new();
    let daemon = site.daemon(&["--config", &site.config("stuck_kill_ms = 5000\n")]);
    let pipes: Vec<_> = (0..60)
        .map(|_| {
            let mut segment = vec![0; segment_bytes(SLOTS, RING_BYTES) / 8];
            segment[..HEADER.len()].copy_from_slice(&HEADER);
            let (segment, control) = memfds((segment, vec![0; CONTROL_BYTES / 8]));
            let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
            assert_eq!(splice(&segment, Some(&mut 0), &write, None, 64, SpliceFlags::empty()).unwrap(), 64);
            offer_memfds(&site, &segment, &control);
            (read, write)
        })
        .collect();
    wait_for("all are held", || (daemon.metrics().sum("blkin_programs_held") == 60).then_some(()));
    let mut program = site.program(&[500, 2, 100], &[]);
    let calls = program.calls();
    daemon.settled_of(&program, calls);
    drop(pipes);
    let metrics = wait_for("the programs are released", || {
        let metrics = daemon.metrics();
        (metrics.sum("blkin_programs_departed_total") == 60).then_some(metrics)
    });
    assert_eq!(metrics.sum("blkin_worker_restarts_total"), 0);
    metrics.assert_balanced();
    program.end();
}
