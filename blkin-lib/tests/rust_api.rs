//! Tests the Rust API from the other side of the rings: a program (this binary, run again) annotates, and the test reads
//! its segment as consumerd does.

#![allow(clippy::print_stdout, reason = "the program tells the test its own counts")]

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::task::Waker;
use std::time::Duration;

use blkin::{Context, Endpoint, Level, Span};
use blkin_record::{EndpointRef, Kind, Record, Text, Value, records};
use blkin_ringbuf::{Attachment, OFFER_BYTES, OFFER_MESSAGE, UnreadReason};
use rustix::fs::{FlockOperation, flock};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix, SocketFlags,
    SocketType, accept, bind, listen, recvmsg, socket_with,
};
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};

const GATEWAY: Endpoint = Endpoint::new("gateway").at("10.0.0.7", 40_000);
const DISK: Endpoint = Endpoint::new("disk");

/// The program that the child process runs. The variable names the part.
#[test]
fn program() {
    match std::env::var("BLKIN_TEST_PROGRAM").as_deref() {
        Ok("one request") => one_request(),
        Ok("two requests") => two_requests(),
        Ok("many threads") => many_threads(),
        Ok("without end") => without_end(),
        Ok("unsampled") => unsampled(),
        Ok("scopes") => scopes(),
        _ => {}
    }
}

fn one_request() {
    let request = Span::root("write", &GATEWAY);
    request.server_receive();
    request.tag("Object", "rbd_data.1");
    request.tag("bytes", 4096);
    let wire = request.context().to_bytes();
    let context = Context::from_bytes(&wire).expect("packed bytes can be unpacked");
    let access = Span::child_of("access", &DISK, context).at_level(Level::Error);
    access.tag("long", &"é".repeat(4000));
    access.end();
    request.seen_by(&DISK).event("copied");
    request.server_send();
}

/// Scopes that are left by an error, by a panic, by a future that is dropped, and at their end.
fn scopes() {
    let fails = || -> Result<(), std::num::ParseIntError> {
        let _failed = Span::root("failed", &GATEWAY).begin();
        "no number".parse::<u8>().map(drop)
    };
    assert!(fails().is_err());
    let panics = || {
        let _served = Span::root("panicked", &GATEWAY).serve();
        std::panic::resume_unwind(Box::new(()));
    };
    assert!(std::panic::catch_unwind(panics).is_err());
    let mut given_up = Box::pin(async {
        let _called = Span::root("given up", &GATEWAY).call();
        std::future::pending::<()>().await;
    });
    assert!(given_up.as_mut().poll(&mut std::task::Context::from_waker(Waker::noop())).is_pending());
    println!("it waits");
    drop(given_up);
    let request = Span::root("request", &GATEWAY).serve();
    let step = request.child("step", &DISK).begin();
    step.event("halfway");
    step.end();
    request.event("goes on");
}

/// Records one request, and another when it is told to. On one CPU: a program that opens another ring repeats its offer, if a
/// second has passed.
fn two_requests() {
    let mut own = CpuSet::new();
    own.set(sched_getcpu());
    sched_setaffinity(None, &own).expect("the thread may stay on its CPU");
    one_request();
    println!("one is done");
    std::io::stdin().read_line(&mut String::new()).expect("a line or the end");
    one_request();
}

/// Records requests until its input ends.
fn without_end() {
    let input = std::thread::spawn(|| std::io::stdin().read_line(&mut String::new()));
    while !input.is_finished() {
        one_request();
    }
}

fn many_threads() {
    let root = Span::root("many", &GATEWAY).at_level(Level::Info);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            scope.spawn(move || {
                let span = root.child("thread", &DISK);
                (0..1000).for_each(|n| span.tag("n", thread * 1000 + n));
            });
        }
    });
}

fn unsampled() {
    let sampled = (0..1000).filter(|_| {
        let root = Span::root("rare", &GATEWAY);
        root.event("hello");
        root.child("below", &DISK).event("hello");
        root.is_sampled()
    });
    println!("sampled={}", sampled.count());
}

/// The ways of writing rings, as values of BLKIN_PRODUCER.
const PRODUCERS: &[&str] = if cfg!(all(target_arch = "x86_64", not(blkin_portable))) {
    &["rseq", "portable"]
} else {
    &["portable"]
};

/// The longest time that a test waits for something.
const LIMIT: Duration = Duration::from_secs(60);

struct Receiver {
    directory: tempfile::TempDir,
    socket: OwnedFd,
}

impl Receiver {
    fn new() -> Receiver {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let socket = socket.expect("a socket");
        let address = SocketAddrUnix::new(directory.path().join("socket")).expect("a short path");
        bind(&socket, &address).expect("the socket binds");
        listen(&socket, 8).expect("the socket listens");
        Receiver { directory, socket }
    }

    fn path(&self) -> std::path::PathBuf {
        self.directory.path().join("socket")
    }

    /// Attaches to the program of the first waiting offer; it may have ended already.
    fn attach(&self) -> Attachment {
        let (segment, control) = self.receive();
        Attachment::open(segment, &control).expect("a valid segment")
    }

    /// As [`Receiver::attach`], and also takes the lock by which a consumer excludes others.
    fn claim(&self) -> (Attachment, OwnedFd) {
        let (segment, control) = self.receive();
        let page = format!("/proc/self/fd/{}", control.as_raw_fd());
        let lock: OwnedFd =
            OpenOptions::new().read(true).write(true).open(page).expect("the page opens").into();
        flock(&lock, FlockOperation::NonBlockingLockExclusive).expect("nobody else has the lock");
        (Attachment::open(segment, &control).expect("a valid segment"), lock)
    }

    /// Whether no offer waits now.
    fn is_idle(&self) -> bool {
        ioctl_fionbio(&self.socket, true).expect("a socket");
        matches!(accept(&self.socket), Err(Errno::AGAIN))
    }

    /// Drops further offers: a program that is slow to start may have made two.
    fn forget_others(&self) {
        while !self.is_idle() {}
    }

    /// Receives segment and control page of the first waiting offer.
    fn receive(&self) -> (OwnedFd, OwnedFd) {
        let connection = accept(&self.socket).expect("a program offered itself");
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut payload = [0; 64];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let message = recvmsg(&connection, &mut [IoSliceMut::new(&mut payload)], &mut ancillary, flags)
            .expect("an offer");
        assert_eq!(payload[..message.bytes], OFFER_MESSAGE[..OFFER_BYTES]);
        let mut fds: Vec<OwnedFd> = ancillary
            .drain()
            .flat_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => fds.collect::<Vec<_>>(),
                _ => Vec::new(),
            })
            .collect();
        let control = fds.pop().expect("two descriptors");
        (fds.pop().expect("two descriptors"), control)
    }
}

/// A program that has recorded the first of two requests.
struct Halfway(Child);

impl Halfway {
    fn start(socket: &Path) -> Halfway {
        let mut child = command("two requests", socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program runs");
        let lines = BufReader::new(child.stdout.as_mut().expect("a pipe")).lines();
        assert!(lines.map_while(Result::ok).any(|line| line.contains("one is done")));
        Halfway(child)
    }

    /// Lets the program record the second request and end. Returns the lines that the library has written.
    fn end(self) -> Vec<String> {
        let output = self.0.wait_with_output().expect("the program ends");
        let said = String::from_utf8(output.stderr).expect("UTF-8");
        assert!(output.status.success(), "{said}");
        said.lines().filter(|line| line.starts_with("blkin:")).map(Into::into).collect()
    }
}

/// Drains all rings of a live program, and frees their room. Returns the number of records.
fn take(program: &mut Attachment) -> u64 {
    let mut records = 0;
    for slot in 0..program.slots() {
        records += program.drain(slot, usize::MAX, &mut Vec::new()).records;
        program.publish(slot);
    }
    records
}

/// A program whose first request a consumer has drained. Returns the receiver of offers, the program, its rings and their
/// lock.
fn halfway_taken() -> (Receiver, Halfway, Attachment, OwnedFd) {
    let receiver = Receiver::new();
    let halfway = Halfway::start(&receiver.path());
    let (mut program, lock) = receiver.claim();
    receiver.forget_others();
    program.mark_attached(true);
    assert_eq!(take(&mut program), 7);
    (receiver, halfway, program, lock)
}

/// A program that was told, after its first request, why it is not read. Returns the receiver of offers, the program, and its
/// segment and control page.
fn refused(why: UnreadReason) -> (Receiver, Halfway, (OwnedFd, OwnedFd)) {
    let receiver = Receiver::new();
    let halfway = Halfway::start(&receiver.path());
    let offered = receiver.receive();
    receiver.forget_others();
    why.write_to(&offered.1).expect("the page can be written");
    (receiver, halfway, offered)
}

fn command(part: &str, socket: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command.args(["--exact", "program", "--nocapture"]);
    command.env("BLKIN_TEST_PROGRAM", part).env("BLKIN_SOCKET", socket);
    command
}

fn run(part: &str, socket: &Path, rate: &str, producer: &str) -> (ExitStatus, String, String) {
    let output = command(part, socket)
        .env("BLKIN_RATE", rate)
        .env("BLKIN_PRODUCER", producer)
        .output()
        .expect("the program runs");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (output.status, text(output.stdout), text(output.stderr))
}

fn drain(program: &mut Attachment) -> Vec<u8> {
    assert!(program.no_writer_left(), "the program has ended");
    let mut raw = Vec::new();
    for slot in 0..program.slots() {
        let drained = program.drain(slot, usize::MAX, &mut raw);
        assert_eq!((drained.torn, drained.insane), (0, false));
    }
    raw
}

fn text(program: &Attachment, text: &Text<'_>) -> String {
    let bytes = match text {
        Text::Id(id) => program.text(*id).expect("the id is in the table"),
        Text::Inline(bytes) => bytes.to_vec(),
    };
    String::from_utf8(bytes).expect("UTF-8")
}

fn service(program: &Attachment, record: &Record<'_>) -> blkin_record::Endpoint {
    let bytes = match &record.endpoint {
        EndpointRef::Id(id) => program.text(*id).expect("the id is in the table"),
        EndpointRef::Inline(bytes) => bytes.to_vec(),
    };
    blkin_record::Endpoint::decode(&bytes).expect("an endpoint")
}

#[test]
fn annotations_of_an_ended_program_read_back_as_written() {
    PRODUCERS.iter().for_each(|producer| one_request_reads_as_written(producer));
}

fn one_request_reads_as_written(producer: &str) {
    let receiver = Receiver::new();
    let (status, _, stderr) = run("one request", &receiver.path(), "1", producer);
    assert!(status.success());
    assert!(!stderr.contains("blkin:"), "{stderr}");
    let mut program = receiver.attach();
    let raw = drain(&mut program);
    let cookie = program.info().cookie;
    let read: Vec<Record<'_>> = records(&raw, cookie).map(|item| item.expect("a valid record")).collect();
    let said: Vec<(String, String, Kind)> = read
        .iter()
        .map(|record| (text(&program, &record.name), text(&program, &record.key), record.kind))
        .collect();
    let expect = |name: &str, key: &str, kind| (name.to_owned(), key.to_owned(), kind);
    // The process may have moved to another CPU meanwhile: the rings together hold all records, each ring in its own order.
    for wanted in [
        expect("write", "sr", Kind::Event),
        expect("write", "Object", Kind::String),
        expect("write", "bytes", Kind::Integer),
        expect("access", "long", Kind::String),
        expect("access", "end", Kind::Event),
        expect("write", "copied", Kind::Event),
        expect("write", "ss", Kind::Event),
    ] {
        assert_eq!(said.iter().filter(|one| **one == wanted).count(), 1, "{wanted:?} in {said:?}");
    }
    assert_eq!(said.len(), 7);
    let find =
        |key: &str| read.iter().zip(&said).find(|(_, said)| said.1 == key).expect("a record with this key").0;
    let (root, access) = (find("sr"), find("long"));
    assert_eq!((root.trace_id, root.parent_span_id), (root.span_id, 0));
    assert_eq!((access.trace_id, access.parent_span_id), (root.trace_id, root.span_id));
    assert_ne!(access.span_id, root.span_id);
    assert_eq!((root.level, access.level), (4, 3));
    assert_eq!(find("Object").value, Value::Str(b"rbd_data.1"[..].into()));
    assert_eq!(find("bytes").value, Value::Integer(4096));
    assert_eq!(find("long").value, Value::Str("é".repeat(2048).as_bytes().into()));
    assert!(find("long").truncated);
    let gateway = service(&program, root);
    assert_eq!((&gateway.ip[..], gateway.port, &gateway.name[..]), ("10.0.0.7", 40_000, "gateway"));
    assert_eq!(service(&program, find("copied")).name, "disk");
    let counters = program.counters();
    assert_eq!((counters.attempted, counters.committed, counters.truncated), (7, 7, 1));
}

#[test]
fn an_open_span_is_closed_once_however_its_scope_is_left() {
    let receiver = Receiver::new();
    let (status, stdout, stderr) = run("scopes", &receiver.path(), "1", "portable");
    assert!(status.success() && stdout.contains("it waits"), "{stdout}{stderr}");
    let mut program = receiver.attach();
    let raw = drain(&mut program);
    let read = records(&raw, program.info().cookie).map(|item| item.expect("a valid record"));
    let mut said: Vec<(u64, String, String)> =
        read.map(|record| (record.time, text(&program, &record.name), text(&program, &record.key))).collect();
    said.sort_by_key(|(time, ..)| *time);
    let said: Vec<(&str, &str)> = said.iter().map(|(_, name, key)| (&name[..], &key[..])).collect();
    let wanted = [
        ("failed", "begin"),
        ("failed", "end"),
        ("panicked", "sr"),
        ("panicked", "ss"),
        ("given up", "cs"),
        ("given up", "cr"),
        ("request", "sr"),
        ("step", "begin"),
        ("step", "halfway"),
        ("step", "end"),
        ("request", "goes on"),
        ("request", "ss"),
    ];
    assert_eq!(said, wanted);
}

#[test]
fn annotations_of_many_threads_are_all_recorded() {
    PRODUCERS.iter().for_each(|producer| threads_annotations_are_all_there(producer));
}

fn threads_annotations_are_all_there(producer: &str) {
    let receiver = Receiver::new();
    assert!(run("many threads", &receiver.path(), "1", producer).0.success());
    let mut program = receiver.attach();
    let raw = drain(&mut program);
    let mut values: Vec<i64> = records(&raw, program.info().cookie)
        .map(|item| {
            let record = item.expect("a valid record");
            assert_eq!(record.level, Level::Info as u8, "the child does not have its parent's level");
            match record.value {
                Value::Integer(value) => value,
                other => panic!("{other:?} was never written"),
            }
        })
        .collect();
    values.sort_unstable();
    assert_eq!(values, (0..8000).collect::<Vec<_>>());
    let counters = program.counters();
    assert_eq!((counters.attempted, counters.committed), (8000, 8000));
    assert_eq!(program.pending(), 0);
}

#[test]
fn a_request_that_is_not_sampled_leaves_no_record() {
    PRODUCERS.iter().for_each(|producer| only_sampled_requests_leave_records(producer));
}

fn only_sampled_requests_leave_records(producer: &str) {
    let receiver = Receiver::new();
    let (status, stdout, _) = run("unsampled", &receiver.path(), "100", producer);
    assert!(status.success());
    let mut program = receiver.attach();
    let raw = drain(&mut program);
    let sampled: usize = stdout
        .split("sampled=")
        .nth(1)
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse().ok())
        .expect("the program says its count");
    // One of every hundred roots, counted for each CPU on which the program ran.
    assert!((9..=10 + program.slots()).contains(&sampled), "{sampled}");
    assert_eq!(records(&raw, program.info().cookie).count(), 2 * sampled);
    assert_eq!(program.counters().attempted, 2 * sampled as u64);
}

#[test]
fn an_invalid_rate_traces_everything_and_warns_once() {
    for rate in ["0", "-3", "often"] {
        let receiver = Receiver::new();
        let (status, stdout, stderr) = run("unsampled", &receiver.path(), rate, "");
        assert!(status.success());
        assert!(stdout.contains("sampled=1000"), "{stdout}");
        assert_eq!(stderr.matches("blkin:").count(), 1, "{stderr}");
    }
}

#[test]
fn a_program_without_a_consumer_reports_its_losses_once() {
    let nowhere = tempfile::tempdir().expect("a temporary directory");
    let (status, _, stderr) = run("one request", &nowhere.path().join("socket"), "1", "");
    assert!(status.success());
    let told: Vec<&str> = stderr.lines().filter(|line| line.starts_with("blkin:")).collect();
    assert_eq!(told.len(), 1, "{stderr}");
    assert!(told[0].contains("7 annotations of this program were not collected"), "{stderr}");
}

#[test]
fn records_lost_to_full_rings_count_in_the_report_at_exit() {
    let nowhere = tempfile::tempdir().expect("a temporary directory");
    for producer in PRODUCERS {
        let mut program = command("many threads", &nowhere.path().join("socket"));
        let output = program
            .env("BLKIN_RING_BYTES", "4096")
            .env("BLKIN_PRODUCER", producer)
            .output()
            .expect("the program runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains("blkin: 8000 annotations of this program were not collected"), "{stderr}");
    }
}

#[test]
fn a_program_whose_consumer_left_reports_what_was_not_taken() {
    let (receiver, halfway, program, lock) = halfway_taken();
    program.mark_attached(false);
    drop((receiver, lock));
    let told = halfway.end();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains(" 7 annotations of this program were not collected"), "{told:?}");
}

#[test]
fn a_program_detached_by_a_live_consumer_reports_all_records() {
    let receiver = Receiver::new();
    let halfway = Halfway::start(&receiver.path());
    let (program, _lock) = receiver.claim();
    program.mark_attached(true);
    program.mark_attached(false);
    drop(receiver);
    let told = halfway.end();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains(" 14 annotations of this program were not collected"), "{told:?}");
}

#[test]
fn records_that_a_killed_consumer_left_unsettled_are_reported() {
    let (receiver, halfway, _program, lock) = halfway_taken();
    // Closing it is not enough: a child that another test has forked may still have it open.
    flock(&lock, FlockOperation::Unlock).expect("the lock was held");
    drop(receiver);
    let told = halfway.end();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains(" 14 annotations of this program were not collected"), "{told:?}");
}

#[test]
fn a_full_program_whose_consumer_was_killed_offers_itself_again() {
    for producer in PRODUCERS {
        let receiver = Receiver::new();
        let mut program = command("without end", &receiver.path())
            .env("BLKIN_RING_BYTES", "4096")
            .env("BLKIN_PRODUCER", producer)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("the program runs");
        let (mut taken, lock) = receiver.claim();
        taken.mark_attached(true);
        take(&mut taken);
        receiver.forget_others();
        drop((taken, lock));
        ioctl_fionbio(&receiver.socket, false).expect("a socket");
        set_socket_timeout(&receiver.socket, Timeout::Recv, Some(LIMIT)).expect("a socket");
        let (mut again, _lock) = receiver.claim();
        assert!(take(&mut again) > 0);
        drop(program.stdin.take());
        assert!(program.wait().expect("the program ends").success());
    }
}

#[test]
fn a_program_whose_consumer_left_offers_itself_again_at_exit() {
    let (receiver, halfway, program, lock) = halfway_taken();
    program.mark_attached(false);
    drop(lock);
    assert!(receiver.is_idle());
    assert_eq!(halfway.end(), [""; 0]);
    let (mut program, _lock) = receiver.claim();
    assert_eq!(take(&mut program), 7);
}

#[test]
fn a_program_held_by_a_consumer_exits_silently() {
    for is_attached in [true, false] {
        let receiver = Receiver::new();
        let halfway = Halfway::start(&receiver.path());
        // As slow as possible: nothing is read before the program has ended, or it is not even marked as attached.
        let (mut program, _lock) = receiver.claim();
        receiver.forget_others();
        if is_attached {
            program.mark_attached(true);
        }
        assert_eq!(halfway.end(), [""; 0]);
        assert!(receiver.is_idle(), "attached: {is_attached}");
        assert_eq!(take(&mut program), 14);
    }
}

#[test]
fn a_program_of_an_unreadable_version_reports_all_its_records() {
    let (receiver, halfway, _) = refused(UnreadReason::Version);
    let told = halfway.end();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].contains(" 14 annotations of this program were not collected: consumerd at "),
        "{told:?}"
    );
    assert!(told[0].contains("cannot read what this version of the library writes"), "{told:?}");
    assert!(receiver.is_idle());
}

#[test]
fn a_program_refused_for_lack_of_room_reports_and_offers_again() {
    let (receiver, halfway, _) = refused(UnreadReason::NoRoom);
    let told = halfway.end();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains(" 14 annotations of this program were not collected, unless"), "{told:?}");
    assert!(told[0].contains("no room"), "{told:?}");
    assert!(!receiver.is_idle());
}

#[test]
fn exit_report_says_that_an_untaken_offer_may_still_be_taken() {
    let receiver = Receiver::new();
    let halfway = Halfway::start(&receiver.path());
    std::fs::remove_file(receiver.path()).expect("the socket was there");
    let told = halfway.end();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains(" 14 annotations of this program were not collected, unless"), "{told:?}");
    assert!(told[0].contains(": no consumerd answers at "), "{told:?}");
    let (mut program, _lock) = receiver.claim();
    assert_eq!(take(&mut program), 14);
}

#[test]
fn a_refused_program_that_is_attached_later_exits_silently() {
    let (_receiver, halfway, (segment, control)) = refused(UnreadReason::NoRoom);
    let program = Attachment::open(segment, &control).expect("a valid segment");
    program.mark_attached(true);
    program.mark_attached(false);
    assert_eq!(halfway.end(), [""; 0]);
}

#[test]
fn a_refused_program_warns_once_that_it_runs_untraced() {
    let receiver = Receiver::new();
    let mut program = command("without end", &receiver.path())
        .env("BLKIN_RING_BYTES", "4096")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program runs");
    let (_segment, control) = receiver.receive();
    UnreadReason::Version.write_to(&control).expect("the page can be written");
    let mut lines = BufReader::new(program.stderr.take().expect("a pipe")).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("this program runs untraced")));
    drop(program.stdin.take());
    let rest: Vec<String> = lines.filter(|line| line.starts_with("blkin:")).collect();
    assert!(program.wait().expect("the program ends").success());
    assert_eq!(rest.len(), 1, "{rest:?}");
    assert!(rest[0].contains("were not collected"), "{rest:?}");
}
