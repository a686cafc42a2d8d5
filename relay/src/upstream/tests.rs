//! An upstream's thread with a spool that cannot be read for a while.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use blkin_daemon::Health;
use blkin_thrift::Limits;
use blkin_thrift::scribe::{
    ExceptionKind, LogEntry, Method, ResultCode, encode_exception, encode_log_call, encode_log_reply,
    parse_call, skim_log,
};
use tempfile::TempDir;

use super::*;
use crate::ledger::Loss;
use crate::spool::{self, Draft, WhenFull};

/// Longest wait for anything, even on a slow machine: half of the time for which the upstream may be silent.
const PATIENCE: Duration = Duration::from_secs(60);

const WINDOW_BYTES: usize = 256 << 10;

struct Fixture {
    _folder: TempDir,
    listener: TcpListener,
    spool: Arc<Spool>,
    standing: Arc<Standing>,
    traffic: Arc<Traffic>,
    ending: Ending,
    thread: JoinHandle<()>,
}

impl Fixture {
    fn new() -> Self {
        let (folder, listener) = (TempDir::new().unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
        let name = listener.local_addr().unwrap().to_string();
        let limits = spool::Limits::new(1 << 20, WhenFull::DropOldest);
        let spool = Arc::new(Spool::open(folder.path(), limits, std::slice::from_ref(&name)).unwrap());
        let standing = Arc::new(Standing::new("upstream", &name, Upstream::CAUSES));
        let ending = Ending::default();
        let options = Options {
            batch_bytes: 1 << 20,
            batch_entries: 1000,
            window: Window { calls: 8, bytes: WINDOW_BYTES },
            io_timeout: 2 * PATIENCE,
            backoff_min: Duration::from_millis(1),
            backoff_max: Duration::from_millis(2),
        };
        let start = Start {
            name: &name,
            spool: &spool,
            counter: &Counter::new("zipkin", Limits::default()),
            options: &options,
            ending: &ending,
            own: "127.0.0.1:1".parse().unwrap(),
            heartbeat: Health::new().worker("upstream"),
            standing: standing.clone(),
        };
        let (thread, traffic) = Upstream::start(start).unwrap();
        Fixture { _folder: folder, listener, spool, standing, traffic, ending, thread }
    }

    fn append(&self, message: &str) {
        let call = encode_log_call(1, &[LogEntry { category: "zipkin".into(), message: message.into() }]);
        let mut draft = Draft::default();
        let entries = skim_log(&call[4..], &Limits::default()).unwrap().entries;
        entries.iter().for_each(|entry| draft.push(entry.bytes, 1));
        self.spool.append(&[draft], &|| {}).unwrap();
    }

    fn wait_for(&self, why: &str, is_so: impl Fn(&Self) -> bool) {
        let due = Instant::now() + PATIENCE;
        while !is_so(self) {
            assert!(Instant::now() < due, "waited in vain until {why}");
            std::thread::yield_now();
        }
    }

    fn acked(&self) -> u64 {
        self.spool.figures().upstreams[0].1.acked.entries
    }

    fn is_up(&self) -> bool {
        self.traffic.up.load(Ordering::Relaxed) == 1
    }

    fn end(self) {
        self.ending.now.cancel();
        self.thread.join().unwrap();
    }
}

/// The sequence number of the next call, and its messages.
fn next_call(stream: &mut TcpStream) -> (i32, Vec<Vec<u8>>) {
    next_call_or_end(stream).unwrap()
}

fn next_call_or_end(stream: &mut TcpStream) -> Option<(i32, Vec<Vec<u8>>)> {
    let mut header = [0; 4];
    stream.read_exact(&mut header).ok()?;
    let mut body = vec![0; u32::from_be_bytes(header) as usize];
    stream.read_exact(&mut body).ok()?;
    let call = parse_call(&body, &Limits::default()).unwrap();
    let Method::Log(entries) = call.method else { panic!("not a Log call") };
    Some((call.seq, entries.iter().map(|entry| entry.message.to_vec()).collect()))
}

#[test]
fn answered_calls_are_settled_while_the_spool_is_unreadable() {
    let fixture = Fixture::new();
    fixture.append("first");
    let (mut stream, _) = fixture.listener.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (first, _) = next_call(&mut stream);
    fixture.spool.set_readable(false);
    fixture.append("second");
    fixture.wait_for("the spool cannot be read", |fixture| fixture.standing.trouble().is_some());
    stream.write_all(&encode_log_reply(first, ResultCode::Ok)).unwrap();
    fixture.wait_for("the answer is counted", |fixture| fixture.acked() == 1);
    fixture.spool.set_readable(true);
    let (second, messages) = next_call(&mut stream);
    assert_eq!(messages, [b"second"]);
    stream.write_all(&encode_log_reply(second, ResultCode::Ok)).unwrap();
    fixture.wait_for("all is settled", |fixture| fixture.acked() == 2);
    fixture.end();
}

#[test]
fn entries_behind_an_unreadable_place_are_sent_in_the_end() {
    let fixture = Fixture::new();
    fixture.append("first");
    let (mut stream, _) = fixture.listener.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (first, _) = next_call(&mut stream);
    // From the end of the first entry to the end of its page.
    let end = fixture.spool.figures().bytes;
    fixture.spool.set_bad_place(end..4096);
    let message = "x".repeat(3000);
    fixture.append(&message);
    fixture.append("third, behind the page");
    stream.write_all(&encode_log_reply(first, ResultCode::Ok)).unwrap();
    fixture.append(&message);
    fixture.append("last");
    let (mut messages, mut last) = (Vec::new(), first);
    while messages.last().is_none_or(|message| message != b"last") {
        let call = next_call(&mut stream);
        messages.extend(call.1);
        last = call.0;
        stream.write_all(&encode_log_reply(last, ResultCode::Ok)).unwrap();
    }
    assert_ne!(last, first);
    fixture.wait_for("all is settled", |fixture| fixture.spool.is_drained(0));
    let delivered = fixture.spool.figures().upstreams[0].1;
    let damaged = delivered.lost[Loss::Damaged as usize].entries;
    assert!(damaged > 0 && delivered.acked.entries + damaged == 5, "{delivered:?}");
    assert_eq!(delivered.acked.entries, 1 + messages.len() as u64);
    fixture.end();
}

/// An upstream that has answered one call with OK, and the connection to it.
fn answered() -> (Fixture, TcpStream) {
    let fixture = Fixture::new();
    fixture.append("first");
    let (mut stream, _) = fixture.listener.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (first, _) = next_call(&mut stream);
    stream.write_all(&encode_log_reply(first, ResultCode::Ok)).unwrap();
    fixture.wait_for("the answer is counted", |fixture| fixture.acked() == 1);
    (fixture, stream)
}

#[test]
fn read_size_shrinks_after_read_errors() {
    let (fixture, mut stream) = answered();
    fixture.spool.set_readable(false);
    let message = "x".repeat(3000);
    (0..4).for_each(|_| fixture.append(&message));
    let failures = std::cell::Cell::new(0);
    fixture.wait_for("the read size has shrunk to its least", |fixture| {
        let has_failed = fixture.standing.trouble().is_some();
        fixture.standing.succeeded();
        failures.set(failures.get() + u32::from(has_failed));
        failures.get() > 8
    });
    fixture.spool.set_readable(true);
    assert_eq!(next_call(&mut stream).1.len(), 1, "two entries are larger than the least read size");
    fixture.end();
}

#[test]
fn entries_sent_one_by_one_stay_within_the_window_bytes() {
    let fixture = Fixture::new();
    let length = WINDOW_BYTES / 2 - 1000;
    (0..7).for_each(|number| fixture.append(&number.to_string().repeat(length)));
    let mut called = Vec::new();
    for connection in 0..BREAKS + 20 {
        let (mut stream, _) = fixture.listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let (_, messages) = next_call(&mut stream);
        if connection >= BREAKS {
            called.extend(messages.iter().map(|message| message[0] - b'0'));
        }
    }
    // The first entry by itself, then by turns a witness and the first.
    assert_eq!(called[..6], [0, 1, 0, 2, 0, 1]);
    assert!(called.len() == 20 && called.iter().all(|number| *number < 3), "{called:?}");
    fixture.end();
}

/// Twenty entries, each with its number as its message.
fn twenty() -> Fixture {
    let fixture = Fixture::new();
    (0..20).for_each(|number| fixture.append(&number.to_string()));
    fixture
}

/// Waits until nothing is left for the upstream; it must have accepted `acked` entries.
fn drains(fixture: Fixture, acked: u64) {
    fixture.wait_for("the upstream has everything", |fixture| fixture.spool.is_drained(0));
    assert_eq!(fixture.acked(), acked);
    fixture.end();
}

#[test]
fn upstream_closing_after_each_answer_gets_everything() {
    let fixture = twenty();
    let listener = fixture.listener.try_clone().unwrap();
    std::thread::spawn(move || {
        // The first connections get no answer, so that entries are sent one by one, and the first of those in vain.
        for (number, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            if number > BREAKS as usize
                && let Some((call, _)) = next_call_or_end(&mut stream)
                && stream.write_all(&encode_log_reply(call, ResultCode::Ok)).is_ok()
            {
                next_call_or_end(&mut stream);
            }
        }
    });
    drains(fixture, 20);
}

#[test]
fn upstream_breaking_every_second_connection_gets_everything() {
    let fixture = twenty();
    let listener = fixture.listener.try_clone().unwrap();
    std::thread::spawn(move || {
        // At first all connections break, so that entries are sent one by one; then every second one does, as behind a load
        // balancer with one broken server.
        for (number, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let is_well = number > BREAKS as usize && number % 2 == 0;
            while let Some((call, _)) = next_call_or_end(&mut stream).filter(|_| is_well) {
                stream.write_all(&encode_log_reply(call, ResultCode::Ok)).unwrap();
            }
        }
    });
    drains(fixture, 20);
}

/// Serves all connections. A call is answered with an internal error if `fails` says so, from its index and its messages.
fn fail(listener: &TcpListener, fails: fn(u32, &[Vec<u8>]) -> bool) {
    let (listener, mut calls) = (listener.try_clone().unwrap(), 0);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map(Result::unwrap) {
            while let Some((call, messages)) = next_call_or_end(&mut stream) {
                let error = encode_exception("Log", call, ExceptionKind::InternalError, "no database");
                let taken = encode_log_reply(call, ResultCode::Ok);
                stream.write_all(if fails(calls, &messages) { &error } else { &taken }).unwrap();
                calls += 1;
            }
        }
    });
}

#[test]
fn no_entry_is_lost_while_an_upstream_fails_every_call() {
    let fixture = twenty();
    fail(&fixture.listener, |calls, _| calls < 100);
    drains(fixture, 20);
}

#[test]
fn entry_that_always_fails_is_rejected_and_the_rest_arrive() {
    let fixture = twenty();
    fail(&fixture.listener, |_, messages| messages.iter().any(|message| message == b"7"));
    drains(fixture, 19);
}

#[test]
fn refused_call_does_not_count_as_answered_with_ok() {
    let fixture = Fixture::new();
    fixture.append("first");
    let (mut stream, _) = fixture.listener.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // Once in a call with all entries, once by itself.
    for _ in 0..2 {
        let (call, _) = next_call(&mut stream);
        let refusal = encode_exception("Log", call, ExceptionKind::ProtocolError, "no");
        stream.write_all(&refusal).unwrap();
    }
    fixture.wait_for("the entry is given up", |fixture| fixture.spool.is_drained(0));
    fixture.append("second");
    let (second, _) = next_call(&mut stream);
    let figures = |fixture: &Fixture| {
        [&fixture.traffic.calls, &fixture.traffic.up].map(|figure| figure.load(Ordering::Relaxed))
    };
    assert_eq!(figures(&fixture), [0, 0]);
    stream.write_all(&encode_log_reply(second, ResultCode::Ok)).unwrap();
    fixture.wait_for("the answer counts", |fixture| figures(fixture) == [1, 1]);
    fixture.end();
}

#[test]
fn repeated_refusals_are_trouble_until_an_entry_is_accepted() {
    let (fixture, mut stream) = answered();
    let mut refuse = |times: u32| {
        for _ in 0..times {
            fixture.append("bad");
            let before = fixture.spool.figures().upstreams[0].1.lost[Loss::Rejected as usize].entries;
            // Once in a call with all entries, once by itself.
            for _ in 0..2 {
                let (call, _) = next_call(&mut stream);
                let refusal = encode_exception("Log", call, ExceptionKind::UnknownMethod, "Log?");
                stream.write_all(&refusal).unwrap();
            }
            fixture.wait_for("the entry is given up", |fixture| {
                fixture.spool.figures().upstreams[0].1.lost[Loss::Rejected as usize].entries > before
            });
        }
    };
    refuse(REFUSALS - 1);
    assert_eq!(fixture.standing.trouble(), None, "a few refusals are no trouble yet");
    refuse(1);
    let trouble = fixture.standing.trouble().unwrap();
    assert_eq!((trouble.cause, trouble.reason.ends_with(": Log?")), (Cause::Refused, true), "{trouble:?}");
    fixture.append("good");
    let (call, _) = next_call(&mut stream);
    stream.write_all(&encode_log_reply(call, ResultCode::Ok)).unwrap();
    fixture.wait_for("the trouble is over", |fixture| fixture.standing.trouble().is_none());
    fixture.end();
}

/// An upstream that is up and has another entry to get.
fn up() -> (Fixture, TcpStream) {
    let (fixture, stream) = answered();
    fixture.wait_for("the upstream is up", Fixture::is_up);
    fixture.append("second");
    (fixture, stream)
}

#[test]
fn an_upstream_whose_last_call_was_not_answered_with_ok_is_not_up() {
    let later = |call| encode_log_reply(call, ResultCode::TryLater);
    let refused = |call| encode_exception("Log", call, ExceptionKind::ProtocolError, "no");
    let answers: [&dyn Fn(i32) -> Vec<u8>; 2] = [&later, &refused];
    for answer in answers {
        let (fixture, mut stream) = up();
        let (second, _) = next_call(&mut stream);
        stream.write_all(&answer(second)).unwrap();
        // Once the next call arrives, the relay has noted the answer.
        let (again, _) = next_call(&mut stream);
        assert!(!fixture.is_up());
        stream.write_all(&encode_log_reply(again, ResultCode::Ok)).unwrap();
        fixture.wait_for("the upstream is up again", Fixture::is_up);
        fixture.end();
    }
}

#[test]
fn an_upstream_that_is_gone_is_not_up() {
    let (mut fixture, stream) = up();
    // Nothing listens at the upstream's address any more.
    fixture.listener = TcpListener::bind("127.0.0.1:0").unwrap();
    drop(stream);
    let is_unreachable = |fixture: &Fixture| {
        fixture.standing.trouble().is_some_and(|trouble| trouble.cause == Cause::Unreachable)
    };
    fixture.wait_for("no connection can be made", is_unreachable);
    assert!(!fixture.is_up());
    fixture.end();
}
