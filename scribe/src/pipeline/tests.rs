//! Pipelines against servers that answer as the test says. The message of a call's only entry is the call's number.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use blkin_thrift::Limits;
use blkin_thrift::scribe::{
    ExceptionKind, LogEntry, Method, ResultCode, encode_exception, encode_log_call, encode_log_reply,
    parse_call,
};
use proptest::prelude::*;
use socket2::SockRef;

use super::*;

/// Longest wait for anything, even on a slow machine.
const LIMIT: Duration = Duration::from_secs(60);

/// What a server does with a call. After the last act of its list, it takes everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Take,
    Later,
    Refuse,
    /// Closes the connection without having taken the call.
    Break,
    /// Takes the call, and closes the connection without an answer.
    TakeAndBreak,
}

/// What a server saw, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    Call(u32),
    Taken(u32),
}

/// A server that reads up to `ahead` calls before it answers the oldest one, if they arrive without its answers.
fn server(acts: &[Act], ahead: usize) -> (String, Receiver<Seen>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut acts = VecDeque::from_iter(acts.iter().copied());
    let (seen, all) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            if serve(stream.unwrap(), &mut acts, ahead, &seen).is_none() {
                return;
            }
        }
    });
    (address, all)
}

/// Serves one connection. None once the receiver of what was seen is gone.
fn serve(mut stream: TcpStream, acts: &mut VecDeque<Act>, ahead: usize, seen: &Sender<Seen>) -> Option<()> {
    let mut calls = VecDeque::new();
    loop {
        while calls.len() < ahead && (calls.is_empty() || has_more(&stream)) {
            let Some(call) = read_call(&mut stream) else { return Some(()) };
            seen.send(Seen::Call(call.1)).ok()?;
            calls.push_back(call);
        }
        let (sequence, number) = calls.pop_front()?;
        let act = acts.pop_front().unwrap_or(Act::Take);
        if matches!(act, Act::Take | Act::TakeAndBreak) {
            seen.send(Seen::Taken(number)).ok()?;
        }
        let answer = match act {
            Act::Take => encode_log_reply(sequence, ResultCode::Ok),
            Act::Later => encode_log_reply(sequence, ResultCode::TryLater),
            Act::Refuse => encode_exception("Log", sequence, ExceptionKind::ProtocolError, "no"),
            Act::Break | Act::TakeAndBreak => return Some(()),
        };
        if stream.write_all(&answer).is_err() {
            return Some(());
        }
    }
}

/// Whether another call is there, or arrives within a moment. The length of that moment changes only the order of what is seen.
fn has_more(stream: &TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let more = matches!(stream.peek(&mut [0]), Ok(1));
    stream.set_read_timeout(None).unwrap();
    more
}

fn read_call(stream: &mut TcpStream) -> Option<(i32, u32)> {
    let mut header = [0; 4];
    stream.read_exact(&mut header).ok()?;
    let mut body = vec![0; u32::from_be_bytes(header) as usize];
    stream.read_exact(&mut body).ok()?;
    let call = parse_call(&body, &Limits::default()).unwrap();
    let Method::Log(entries) = call.method else { panic!("not a Log call") };
    Some((call.seq, String::from_utf8(entries[0].message.clone()).unwrap().parse().unwrap()))
}

fn encode(number: &u32, sequence: i32) -> Vec<u8> {
    encode_log_call(sequence, &[LogEntry { category: "c".into(), message: number.to_string().into_bytes() }])
}

/// Sends calls through a window and returns what was popped.
fn drive(address: &str, calls: u32, window: Window) -> Vec<(u32, Verdict)> {
    let mut pipeline = Pipeline::new(Client::new(address, LIMIT), window);
    let bell = Doorbell::new().unwrap();
    let (mut next, mut popped) = (0, Vec::new());
    let deadline = Instant::now() + LIMIT;
    while popped.len() < calls as usize {
        assert!(Instant::now() < deadline, "{popped:?}");
        while next < calls && pipeline.has_room() {
            pipeline.push(next, 10);
            next += 1;
        }
        let turned = pipeline.turn(encode, &bell, Some(deadline), &mut || Ok(()));
        while let Some((number, verdict)) = pipeline.pop() {
            if verdict == Verdict::Refused {
                assert_eq!(pipeline.client.unanswered(), 0);
            }
            popped.push((number, verdict));
        }
        assert!(turned.is_ok() || pipeline.client.unanswered() == 0, "{turned:?}");
    }
    popped
}

fn window(calls: usize) -> Window {
    Window { calls, bytes: 1 << 20 }
}

#[test]
fn as_many_calls_are_under_way_as_the_window_holds() {
    for calls in [1, 5] {
        // The server answers nothing before `calls` calls have arrived.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let driving = thread::spawn(move || drive(&address, 20, window(calls)));
        let (mut stream, _) = listener.accept().unwrap();
        for _ in 0..20 / calls {
            let group: Vec<_> = (0..calls).map(|_| read_call(&mut stream).unwrap()).collect();
            assert!(!has_more(&stream), "more than {calls} calls are under way");
            for (sequence, _) in group {
                stream.write_all(&encode_log_reply(sequence, ResultCode::Ok)).unwrap();
            }
        }
        assert_eq!(driving.join().unwrap().len(), 20);
    }
}

#[test]
fn the_window_is_bounded_in_bytes_and_a_single_call_always_fits() {
    let mut pipeline =
        Pipeline::new(Client::new("127.0.0.1:1", Duration::ZERO), Window { calls: 9, bytes: 100 });
    assert!(pipeline.has_room());
    pipeline.push(1, 1000);
    assert!(!pipeline.has_room());
    pipeline.retain_waiting(|_| false);
    pipeline.push(2, 99);
    assert!(pipeline.has_room() && !pipeline.is_empty());
    pipeline.push(3, 1);
    assert!(!pipeline.has_room());
    pipeline.clear();
    assert!(pipeline.has_room() && pipeline.is_empty());
    pipeline.push(4, 99);
    assert!(pipeline.has_room(), "the bytes of removed calls are still counted");
}

#[test]
fn answered_call_frees_its_bytes_in_the_window() {
    let (address, _seen) = server(&[], 1);
    let mut pipeline = Pipeline::new(Client::new(&address, LIMIT), Window { calls: 9, bytes: 100 });
    let bell = Doorbell::new().unwrap();
    pipeline.push(0, 1000);
    while pipeline.pop().is_none() {
        pipeline.turn(encode, &bell, Some(Instant::now() + LIMIT), &mut || Ok(())).unwrap();
    }
    pipeline.push(1, 99);
    assert!(pipeline.has_room());
}

#[test]
fn retain_waiting_drops_only_waiting_calls_not_done_ones() {
    let client = Client::new("127.0.0.1:1", Duration::ZERO);
    let mut pipeline = Pipeline::new(client, Window { calls: 9, bytes: 100 });
    pipeline.push_done(0);
    pipeline.push(1, 60);
    pipeline.push(2, 60);
    assert!(!pipeline.has_room());
    pipeline.retain_waiting(|number| *number == 2);
    assert!(pipeline.has_room());
    assert_eq!((pipeline.pop(), pipeline.pop()), (Some((0, Verdict::Taken)), None));
    assert_eq!((pipeline.take_waiting(), pipeline.is_empty()), (vec![2], true));
}

#[test]
fn answered_call_can_be_popped_before_the_next_is_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    SockRef::from(&listener).set_recv_buffer_size(64 << 10).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        while let Some((sequence, _)) = read_call(&mut stream) {
            stream.write_all(&encode_log_reply(sequence, ResultCode::Ok)).unwrap();
        }
    });
    let mut pipeline = Pipeline::new(Client::new(&address, LIMIT), window(9));
    let (bell, sent) = (Doorbell::new().unwrap(), RefCell::new(Vec::new()));
    (0..3).for_each(|number| pipeline.push(number, 1));
    // More than the kernels buffer: once it is written, the server has read it, and has answered the first call before.
    let encode = |number: &u32, sequence| {
        sent.borrow_mut().push(*number);
        let category = " ".repeat(4 << 20);
        encode_log_call(sequence, &[LogEntry { category, message: number.to_string().into_bytes() }])
    };
    while pipeline.pop().is_none() {
        pipeline.turn(encode, &bell, Some(Instant::now() + LIMIT), &mut || Ok(())).unwrap();
    }
    assert!(!sent.borrow().contains(&2), "{:?} were sent", sent.borrow());
}

#[test]
fn broken_connection_leaves_sent_calls_with_unknown_outcome() {
    let (address, _seen) = server(&[Act::Break], 1);
    let mut pipeline = Pipeline::new(Client::new(&address, LIMIT), Window { calls: 9, bytes: 100 });
    let bell = Doorbell::new().unwrap();
    pipeline.push(0, 60);
    while pipeline.turn(encode, &bell, Some(Instant::now() + LIMIT), &mut || Ok(())).is_ok() {}
    pipeline.push(1, 60);
    pipeline.push_done(2);
    assert_eq!(pipeline.with_unknown_outcome().collect::<Vec<_>>(), [&0]);
    assert_eq!(pipeline.take_waiting(), [0, 1]);
    assert_eq!((pipeline.pop(), pipeline.is_empty()), (Some((2, Verdict::Taken)), true));
    pipeline.push(3, 99);
    assert!(pipeline.has_room(), "the bytes of removed calls are still counted");
}

#[test]
fn unsent_call_has_no_unknown_outcome() {
    let mut pipeline = Pipeline::new(Client::new("127.0.0.1:1", LIMIT), window(9));
    let bell = Doorbell::new().unwrap();
    pipeline.push(0, 1);
    assert!(pipeline.turn(encode, &bell, Some(Instant::now() + LIMIT), &mut || Ok(())).is_err());
    assert_eq!((pipeline.with_unknown_outcome().count(), pipeline.take_waiting()), (0, vec![0]));
}

#[test]
fn call_answered_try_later_has_no_unknown_outcome() {
    let (address, _seen) = server(&[Act::Later], 1);
    let mut pipeline = Pipeline::new(Client::new(&address, LIMIT), window(9));
    let bell = Doorbell::new().unwrap();
    pipeline.push(0, 1);
    while pipeline.turn(encode, &bell, Some(Instant::now() + LIMIT), &mut || Ok(())).is_ok() {}
    assert_eq!((pipeline.with_unknown_outcome().count(), pipeline.take_waiting()), (0, vec![0]));
}

#[test]
fn with_a_window_of_one_call_everything_arrives_in_order() {
    let acts = [Act::Take, Act::Later, Act::Later, Act::Take, Act::Break, Act::Refuse];
    let (address, seen) = server(&acts, 64);
    drive(&address, 8, window(1));
    let calls: Vec<Seen> = seen.try_iter().collect();
    let expected = [0, 1, 1, 1, 2, 2, 3, 4, 5, 6, 7].map(Seen::Call);
    assert_eq!(
        calls.iter().filter(|seen| matches!(seen, Seen::Call(_))).copied().collect::<Vec<_>>(),
        expected
    );
}

#[test]
fn nothing_is_sent_behind_a_refused_call_before_it_was_popped() {
    let (address, _seen) = server(&[Act::Later, Act::Refuse], 2);
    let mut pipeline = Pipeline::new(Client::new(&address, LIMIT), window(9));
    let bell = Doorbell::new().unwrap();
    let turn = |pipeline: &mut Pipeline<u32>| {
        let due = Instant::now() + LIMIT;
        pipeline.turn(encode, &bell, Some(due), &mut || Ok(()))
    };
    pipeline.push(0, 1);
    pipeline.push(1, 1);
    while turn(&mut pipeline).is_ok() {}
    // The first call has to be sent again, the second is refused for good, and the third waits behind it.
    pipeline.push(2, 1);
    assert!(pipeline.pop().is_none());
    while pipeline.pop().is_none() {
        turn(&mut pipeline).unwrap();
    }
    assert_eq!(pipeline.pop(), Some((1, Verdict::Refused)));
    assert_eq!(pipeline.client.unanswered(), 0);
    assert!(pipeline.pop().is_none());
    while pipeline.pop().is_none() {
        turn(&mut pipeline).unwrap();
    }
    assert!(pipeline.is_empty());
}

#[test]
fn unreachable_and_broken_connections_are_distinguished() {
    let (address, _seen) = server(&[Act::Take, Act::Break], 1);
    let trouble_with = |address: &str| {
        let mut pipeline = Pipeline::new(Client::new(address, LIMIT), window(9));
        let bell = Doorbell::new().unwrap();
        pipeline.push(0, 1);
        pipeline.push(1, 1);
        let due = Instant::now() + LIMIT;
        loop {
            match pipeline.turn(encode, &bell, Some(due), &mut || Ok(())) {
                Ok(()) => drop(pipeline.pop()),
                Err(trouble) => return trouble,
            }
        }
    };
    assert!(matches!(trouble_with("127.0.0.1:1"), Trouble::Unreachable(_)));
    assert!(matches!(trouble_with(&address), Trouble::Broken(_)));
}

#[test]
fn failed_single_call_tells_if_it_may_have_arrived() {
    let (address, _seen) = server(&[Act::Break], 1);
    let call_to = |address: &str| {
        let mut pipeline = Pipeline::<u32>::new(Client::new(address, LIMIT), window(9));
        pipeline.call(|sequence| encode(&0, sequence), &mut || Ok(()))
    };
    assert!(matches!(call_to("127.0.0.1:1"), Err(Trouble::Unreachable(_))));
    assert!(matches!(call_to(&address), Err(Trouble::Broken(_))));
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => Just(Act::Take),
        2 => Just(Act::Later),
        1 => Just(Act::Refuse),
        1 => Just(Act::Break),
        1 => Just(Act::TakeAndBreak),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever the server does, each call is popped once, in order, and was taken exactly once unless it was refused or a
    /// connection broke.
    #[test]
    fn every_call_is_settled_once_and_in_order(
        acts in proptest::collection::vec(act(), 0..40),
        ahead in 1_usize..8,
        calls in 1_usize..8,
    ) {
        let (address, seen) = server(&acts, ahead);
        let popped = drive(&address, 30, window(calls));
        prop_assert_eq!(popped.iter().map(|(number, _)| *number).collect::<Vec<_>>(), Vec::from_iter(0..30));
        let seen: Vec<Seen> = seen.try_iter().collect();
        let breaks = acts.iter().any(|act| matches!(act, Act::Break | Act::TakeAndBreak));
        for (number, verdict) in popped {
            let taken = seen.iter().filter(|seen| **seen == Seen::Taken(number)).count();
            let is_taken = verdict == Verdict::Taken;
            prop_assert!(if is_taken { taken > 0 } else { breaks || taken == 0 }, "{}: {}", number, taken);
            prop_assert!(breaks || taken <= 1, "{} was taken {} times", number, taken);
        }
    }
}
