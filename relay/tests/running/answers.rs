//! How a relay handles connections that break instead of an answer.

use std::net::TcpListener;

use blkin_scribe::trial::TIMES;

use crate::keys::sum;
use crate::process::{Relay, program};
use crate::upstream::{Calls, Sender, upstream};

#[test]
fn calls_behind_a_refused_one_are_resent_if_connections_break() {
    let (folder, (listener, address)) = (tempfile::tempdir().unwrap(), upstream());
    let one_by_one = "batch_entries = 1\nbackoff_min_ms = 1\nbackoff_max_ms = 2";
    let relay = Relay::start(program(), folder.path(), &address, one_by_one);
    let mut sender = Sender::of(&relay);
    ["first", "second"].into_iter().for_each(|message| sender.send("zipkin", message.into()));
    let mut calls = Calls::accept(&listener);
    let (first, _) = calls.next();
    let (_unanswered, second) = calls.next();
    assert_eq!(second, [b"second"]);
    calls.refuse(first);
    drop(calls);
    // The refused entry arrives by itself, and gets no answer.
    let mut calls = Calls::accept(&listener);
    assert_eq!(calls.next().1, [b"first"]);
    drop(calls);
    // The relay continues with that entry and those behind it, since it does not know whether they arrived.
    sender.send("zipkin", b"third".into());
    let (_connected, mut arrived) = take(&listener, 3, |_| false);
    arrived.sort_unstable();
    assert_eq!(arrived, [&b"first"[..], b"second", b"third"]);
}

const SHORT_PAUSES: &str = "backoff_min_ms = 1\nbackoff_max_ms = 2";

/// The metrics of acknowledged and lost entries, and of those in flight.
fn fates(relay: &Relay) -> [u64; 3] {
    [
        "blkin_relay_entries_upstream_acked_total{",
        "blkin_relay_entries_upstream_lost_total{",
        "blkin_relay_entries_upstream_in_flight{",
    ]
    .map(|name| sum(relay, name))
}

/// Accepts calls on one connection after another, and closes it if `breaks` says so, until `most` messages were accepted.
fn take(
    listener: &TcpListener,
    most: usize,
    mut breaks: impl FnMut(&[Vec<u8>]) -> bool,
) -> (Calls, Vec<Vec<u8>>) {
    let mut taken = Vec::new();
    loop {
        let mut calls = Calls::accept(listener);
        while let Some((seq, messages)) = calls.next_or_end() {
            if breaks(&messages) {
                break;
            }
            calls.answer(seq);
            taken.extend(messages);
            if taken.len() >= most {
                return (calls, taken);
            }
        }
    }
}

#[test]
fn entry_that_always_breaks_connections_is_rejected_alone() {
    let (folder, (listener, address)) = (tempfile::tempdir().unwrap(), upstream());
    let relay = Relay::start(program(), folder.path(), &address, SHORT_PAUSES);
    let mut sender = Sender::of(&relay);
    // Several records; the first one has many entries.
    (0..300_u32).for_each(|number| sender.send("zipkin", number.to_string().into()));
    let mut alone = 0;
    let (_connected, mut taken) = take(&listener, 299, |messages| {
        alone += u32::from(messages == [b"7"]);
        messages.iter().any(|message| message == b"7")
    });
    taken.sort_unstable();
    taken.dedup();
    assert!(taken.len() == 299 && alone >= TIMES, "{alone}");
    while fates(&relay)[2] > 0 {
        std::thread::yield_now();
    }
    assert_eq!(fates(&relay), [299, 1, 0]);
    let told = relay.end();
    assert_eq!(told.iter().filter(|line| line.contains("the entry is given up")).count(), 1, "{told:?}");
}

#[test]
fn no_entry_is_lost_while_an_upstream_breaks_every_call() {
    let (folder, (listener, address)) = (tempfile::tempdir().unwrap(), upstream());
    let relay = Relay::start(program(), folder.path(), &address, SHORT_PAUSES);
    let mut sender = Sender::of(&relay);
    (0..50_u32).for_each(|number| sender.send("zipkin", number.to_string().into()));
    let mut calls = 0;
    let (_connected, mut taken) = take(&listener, 50, |_| {
        calls += 1;
        calls < 200
    });
    taken.sort_unstable();
    taken.dedup();
    assert_eq!(taken.len(), 50);
    while fates(&relay)[2] > 0 {
        std::thread::yield_now();
    }
    assert_eq!(fates(&relay), [50, 0, 0]);
}
