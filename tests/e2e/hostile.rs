//! Bad input on every socket: the sender gets an error, others notice nothing, and memory stays bounded.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use blkin_cli::traces;
use blkin_tests::daemons::{Daemon, LIMIT, Node, Setup};
use blkin_tests::program::Program;
use blkin_tests::{ingest, wait};
use blkin_thrift::scribe::{self, LogEntry, Outcome, ResultCode};
use blkin_thrift::{Annotation, Endpoint, Limits, Span};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::ledger::ROOMY;
use blkin_tests::sums::check_lossless;

/// The message that a program sends with its two descriptors.
pub(crate) const OFFER: &[u8] = b"BLKOFFER\x01\0\0\0\0\0\0\0";
const MAX_GROWTH_KB: u64 = 300 << 10;

fn good_span(id: i64) -> Span {
    let host = Some(Endpoint { ipv4: 0x7f00_0001, service_name: "good".into(), ..Endpoint::default() });
    let event = |timestamp, value: &str| Annotation {
        timestamp,
        value: value.into(),
        host: host.clone(),
        ..Annotation::default()
    };
    let now = ingest::now_us();
    let annotations = vec![event(now, "sr"), event(now + 10, "ss")];
    Span { trace_id: id, id, name: "kept".into(), annotations, ..Span::default() }
}

fn entry(message: impl Into<Vec<u8>>) -> LogEntry {
    LogEntry { category: "zipkin".into(), message: message.into() }
}

/// Sends bytes on a new connection and reads until the daemon closes it or sends no more.
fn exchange(address: &str, bytes: &[u8]) -> Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(LIMIT))?;
    // The daemon may close the connection before it has read everything; that is a valid answer.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    Ok(answer)
}

fn resident_kb(daemon: &Daemon) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.process.pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    Ok(line.split_whitespace().next().context("empty VmHWM")?.parse()?)
}

#[test]
fn a_bad_entry_does_not_affect_others_of_its_batch() -> Result<()> {
    let node = Node::without_consumerd(Setup::default())?;
    let mut zero = good_span(7);
    zero.trace_id = 0;
    let mut torn = blkin_thrift::span::encode(&good_span(8));
    torn.truncate(torn.len() / 2);
    let mut absurd = blkin_thrift::span::encode(&good_span(9));
    // The length of the name, directly after the trace id and two field headers.
    absurd[14..18].copy_from_slice(&i32::MAX.to_be_bytes());
    let entries = [
        entry(scribe::span_message(&good_span(1))),
        entry("%%% no base64 at all \u{0}"),
        entry(STANDARD.encode(torn)),
        entry(STANDARD.encode(absurd)),
        entry(STANDARD.encode([0x0c; 3000])),
        entry(scribe::span_message(&zero)),
        entry(""),
        entry(scribe::span_message(&good_span(2))),
    ];
    let answer = exchange(&node.collector.address("scribe")?, &scribe::encode_log_call(1, &entries))?;
    let reply = scribe::decode_reply(&answer[4..], &Limits::default())?;
    assert_eq!(reply.outcome, Outcome::Result(ResultCode::Ok));
    for id in ["1", "2"] {
        assert_eq!(traces::fetch(&node.collector.http, id)?.spans.len(), 1);
    }
    let metrics = node.collector.metrics()?;
    assert_eq!(metrics.sum("blkin_collector_stored_total", &[]), 4);
    let malformed = metrics.sum("blkin_collector_spans_lost_total", &[("cause", "malformed")]);
    assert_eq!(malformed, 6, "each bad entry is counted");
    Ok(())
}

#[test]
fn absurd_frames_affect_only_their_connection() -> Result<()> {
    let node = Node::without_consumerd(Setup::default())?;
    let scribe = node.collector.address("scribe")?;
    let before = resident_kb(&node.collector)?;
    let good = scribe::encode_log_call(1, &[entry(scribe::span_message(&good_span(5)))]);
    let mut many_entries = scribe::encode_log_call(1, &[]);
    let length = many_entries.len();
    // The list's count, directly before the two stop bytes.
    many_entries[length - 5..length - 1].copy_from_slice(&i32::MAX.to_be_bytes());
    let attacks: [&[u8]; 8] = [
        &u32::MAX.to_be_bytes(),
        &i32::MAX.to_be_bytes(),
        &[0, 0, 0, 0],
        &[0, 0, 0, 5, 1],
        &good[..good.len() / 2],
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        &many_entries,
        &[&[0, 1, 0, 0][..], &[0x0c; 65_536][..]].concat(),
    ];
    for attack in attacks {
        exchange(&scribe, attack)?;
    }
    let answer = exchange(&scribe, &good)?;
    let reply = scribe::decode_reply(&answer[4..], &Limits::default())?;
    assert_eq!(reply.outcome, Outcome::Result(ResultCode::Ok));
    let grown = resident_kb(&node.collector)? - before;
    assert!(grown < MAX_GROWTH_KB, "grew by {grown} KiB");
    Ok(())
}

#[test]
fn bad_json_is_refused_with_a_reason() -> Result<()> {
    let node = Node::without_consumerd(Setup::default())?;
    let deep = "[".repeat(200_000);
    let many_bad: [(&str, &str); 7] = [
        ("/api/v2/spans", "{"),
        ("/api/v2/spans", &deep),
        ("/api/v2/spans", "{\"traceId\":\"1\"}"),
        ("/api/v2/spans", "[1,2]"),
        ("/api/v1/spans", "[[[["),
        ("/api/v1/spans", "null"),
        ("/api/v1/spans", &deep),
    ];
    for (path, body) in many_bad {
        let (status, said) = ingest::post(&node.collector.http, path, "application/json", body.as_bytes())?;
        assert!((400..500).contains(&status), "{path} {body:.60}: {status} {said}");
        assert!(!said.trim().is_empty() && said.len() < 2_000, "{said}");
    }
    let (status, said) = ingest::post(
        &node.collector.http,
        "/api/v1/spans",
        "application/x-thrift",
        &[0x0c, 0x7f, 0xff, 0xff, 0xff],
    )?;
    assert!((400..500).contains(&status), "{status} {said}");
    let now = ingest::now_us();
    let mixed = format!(
        r#"[{{"traceId":"aa","id":"1","name":"kept","timestamp":{now},"duration":5,"localEndpoint":{{"serviceName":"good"}}}},
            {{"traceId":"XYZ","id":"2"}}, {{"id":"3"}}, 17,
            {{"traceId":"bb","id":"4","name":"kept","timestamp":{now},"duration":5,"localEndpoint":{{"serviceName":"good"}}}}]"#
    );
    let (status, said) =
        ingest::post(&node.collector.http, "/api/v2/spans", "application/json", mixed.as_bytes())?;
    assert_eq!(status, 202, "{said}");
    for id in ["aa", "bb"] {
        assert_eq!(traces::fetch(&node.collector.http, id)?.spans.len(), 1);
    }
    Ok(())
}

#[test]
fn hostile_offers_lose_nothing_of_other_programs() -> Result<()> {
    let node = Node::start(Setup::default())?;
    let mut program = Program::start("writer", &["--traces", "100"], &node.socket(), &ROOMY)?;
    let first = program.round()?;
    let plain = std::fs::File::open("/dev/null")?;
    let unsealed = rustix::fs::memfd_create("blkin-segment", MemfdFlags::CLOEXEC)?;
    let garbage = rustix::fs::memfd_create("blkin-segment", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::io::write(&garbage, &[0xa5; 65_536])?;
    rustix::fs::fcntl_add_seals(&garbage, SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE)?;
    let attacks: [(&[u8], Vec<std::os::fd::BorrowedFd<'_>>); 8] = [
        (b"", vec![]),
        (b"hello", vec![]),
        (OFFER, vec![]),
        (OFFER, vec![plain.as_fd()]),
        (OFFER, vec![plain.as_fd(), plain.as_fd()]),
        (OFFER, vec![unsealed.as_fd(), unsealed.as_fd()]),
        (OFFER, vec![garbage.as_fd(), garbage.as_fd()]),
        (OFFER, vec![garbage.as_fd(); 30]),
    ];
    for (message, fds) in &attacks {
        send_offer(&node, message, fds)?;
    }
    let second = program.round()?;
    node.settled(first + second)?;
    check_lossless(&node, first + second)
}

pub(crate) fn send_offer(node: &Node, message: &[u8], fds: &[std::os::fd::BorrowedFd<'_>]) -> Result<()> {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let address = SocketAddrUnix::new(node.socket())?;
    wait::until(LIMIT, "the socket", || rustix::net::connect(&socket, &address).ok())?;
    let mut space = vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(rustix::net::SendAncillaryMessage::ScmRights(fds));
    }
    rustix::net::sendmsg(
        &socket,
        &[std::io::IoSlice::new(message)],
        &mut control,
        rustix::net::SendFlags::NOSIGNAL,
    )?;
    Ok(())
}
