//! What a relay makes of answers that break off.

use crate::process::{Relay, program};
use crate::upstream::{Calls, Sender, upstream};

#[test]
fn calls_behind_a_refused_one_are_sent_again_when_the_connection_breaks_and_the_next_one_too() {
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
    // The refused one comes by itself, and gets no answer.
    let mut calls = Calls::accept(&listener);
    assert_eq!(calls.next().1, [b"first"]);
    drop(calls);
    // The relay goes on with what is behind it, of which it does not know whether it arrived.
    sender.send("zipkin", b"third".into());
    let mut calls = Calls::accept(&listener);
    let mut arrived = Vec::new();
    while arrived.last().is_none_or(|last| last != b"third") {
        let (seq, messages) = calls.next();
        arrived.extend(messages);
        calls.answer(seq);
    }
    assert_eq!(arrived, [&b"first"[..], b"second", b"third"]);
}
