//! Relays between consumerd and its upstreams: what they accept arrives or is counted as lost, whatever is killed or full.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use blkin_cli::live::{LiveArguments, watch};
use blkin_scribe::{Client, Reply};
use blkin_tests::artifacts::{binary, run};
use blkin_tests::chain::Chain;
use blkin_tests::daemons::{LIMIT, Node, Setup, unused_address};
use blkin_tests::disk::Disk;
use blkin_tests::program::Program;
use blkin_tests::relays::Relay;
use blkin_tests::scribe::{Behaviour, Server};
use blkin_tests::sums::in_store;
use blkin_tests::wait;
use blkin_tests::zipkin::Zipkin;
use blkin_thrift::scribe::{
    LogEntry, ResultCode, encode_log_call, encode_log_reply, encode_raw_log_call, skim_log, span_message,
};
use blkin_thrift::{Annotation, Limits, Span};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::ledger::ROOMY;

/// Spans with these ids, each with two annotations.
fn spans(ids: std::ops::Range<i64>) -> Vec<LogEntry> {
    let span = |id: i64| {
        let at = |timestamp| Annotation { timestamp, value: "e".into(), ..Annotation::default() };
        let annotations = vec![at(1_700_000_000_000_000 + id), at(1_700_000_000_000_001 + id)];
        Span { trace_id: id, id, name: "relayed".into(), annotations, ..Span::default() }
    };
    ids.map(|id| LogEntry { category: "zipkin".into(), message: span_message(&span(id)) }).collect()
}

fn send(client: &mut Client, entries: &[LogEntry]) -> Result<Reply> {
    Ok(client.log(|seq| encode_log_call(seq, entries), &mut || Ok(()))?)
}

fn client(relay: &Relay) -> Client {
    Client::new(&relay.scribe, LIMIT)
}

#[test]
fn annotations_pass_two_relays_without_loss() -> Result<()> {
    let chain = Chain::start()?;
    let mut program = Program::start("writer", &["--traces", "500"], &chain.node.socket(), &[])?;
    let calls = program.round()?;
    chain.settled(calls)?;
    let consumerd = chain.node.consumerd()?.metrics()?.sum("blkin_sink_acked_total", &[("sink", "scribe")]);
    for relay in [&chain.leaf, &chain.root] {
        assert_eq!(
            relay.figure("received_total", &[])?,
            consumerd,
            "relays count annotations without decoding them"
        );
    }
    let mut blkin = Command::new(binary("blkin")?);
    blkin.args(["ledger", "--consumerd", chain.node.consumerd()?.http.base()]);
    blkin.args(["--relay", chain.leaf.daemon.http.base(), "--relay", chain.root.daemon.http.base()]);
    run(blkin.args(["--collector", chain.node.collector.http.base(), "--settle", "10s"]))
}

/// The collector is killed for half a minute under load, and each relay once.
#[test]
fn a_collector_outage_and_killed_relays_lose_nothing() -> Result<()> {
    const AWAY: Duration = Duration::from_secs(30);
    let mut chain = Chain::start()?;
    let traces = ((AWAY.as_secs() + 4) * 1000).to_string();
    let shape = ["--threads", "2", "--traces", &traces, "--pace-us", "900"];
    let mut program = Program::start("writer", &shape, &chain.node.socket(), &ROOMY)?;
    program.begin()?;
    wait::until(LIMIT, "load", || (chain.root.figure("accepted_total", &[]).ok()? > 0).then_some(()))?;
    let scribe = chain.node.collector.address("scribe")?;
    let http = chain.node.collector.http.base().trim_start_matches("http://").to_owned();
    chain.node.collector.process.kill()?;
    let killed = Instant::now();
    wait::until(LIMIT, "the root's spool to fill", || (spooled(&chain.root)? > 100).then_some(()))?;
    chain.root.daemon.process.kill()?;
    chain.root.start_again()?;
    wait::until(LIMIT, "the leaf to reach the root again", || {
        (chain.leaf.figure("upstream_up", &[]).ok()? == 1).then_some(())
    })?;
    chain.leaf.daemon.process.kill()?;
    chain.leaf.start_again()?;
    std::thread::sleep(AWAY.saturating_sub(killed.elapsed()));
    chain.node.start_collector_at(&scribe, &http)?;
    let calls = program.finish()?;
    chain.settled(calls)
}

fn spooled(relay: &Relay) -> Option<i64> {
    relay.figure("entries_upstream_in_flight", &[]).ok()
}

#[test]
fn a_dead_upstream_does_not_delay_the_others() -> Result<()> {
    let zipkin = Zipkin::start()?;
    let node = Node::without_consumerd(Setup::default())?;
    let collector = node.collector.address("scribe")?;
    let dead = unused_address()?;
    let other = Server::start(|_| Behaviour::Ok)?;
    let upstreams = [collector.as_str(), &zipkin.scribe, &dead, other.address()];
    let relay = Relay::start(node.folder(), "relay", &upstreams, &["--stop-timeout-ms", "200"])?;
    ensure!(send(&mut client(&relay), &spans(1..201))? == Reply::Ok, "not accepted");
    relay.drained(200, &[&collector, &zipkin.scribe, other.address()])?;
    assert_eq!(other.messages().len(), 200);
    assert_eq!(in_store(&node)?, 400);
    let stored = || {
        let metrics = zipkin.http.get_ok("/metrics", &[]).ok()?;
        let metrics: serde_json::Value = serde_json::from_str(&metrics).ok()?;
        (metrics["counter.zipkin_collector.spans.scribe"].as_f64()? >= 200.0).then_some(())
    };
    wait::until(LIMIT, "Zipkin to have counted", stored).with_context(|| zipkin.log())?;
    let of_dead = [("upstream", dead.as_str())];
    assert_eq!(relay.figure("entries_upstream_in_flight", &of_dead)?, 200);
    assert_eq!(relay.figure("upstream_in_flight", &of_dead)?, 400);
    assert!(relay.ledger()?.balances());
    Ok(())
}

/// The troubles in a relay's `/healthz`: name, target and cause of each.
fn troubles(relay: &Relay) -> Result<Vec<[String; 3]>> {
    let answer = relay.daemon.http.get("/healthz", &[])?;
    ensure!(answer.status == 200, "{}", answer.body);
    let report: serde_json::Value = serde_json::from_str(&answer.body)?;
    let troubles = report["troubles"].as_array().context("no troubles")?;
    let word = |trouble: &serde_json::Value, key: &str| trouble[key].as_str().unwrap_or_default().to_owned();
    Ok(troubles.iter().map(|trouble| ["name", "to", "cause"].map(|key| word(trouble, key))).collect())
}

fn lines(relay: &Relay, part: &str) -> usize {
    relay.daemon.log().lines().filter(|line| line.contains(part)).count()
}

/// Waits until the log contains `part`, because lines are written with a delay; fails if more than one line does.
fn tells_once(relay: &Relay, part: &str) -> Result<()> {
    let told = || Some(lines(relay, part)).filter(|lines| *lines > 0);
    let lines = wait::until(LIMIT, part, told).with_context(|| relay.daemon.log())?;
    ensure!(lines == 1, "{lines} lines: {}", relay.daemon.log());
    Ok(())
}

#[test]
fn an_unreachable_upstream_is_a_trouble_until_it_returns() -> Result<()> {
    let folder = TempDir::new()?;
    let gone = unused_address()?;
    let busy = Server::start(|_| Behaviour::TryLater)?;
    let upstreams = [gone.as_str(), busy.address()];
    let relay = Relay::start(folder.path(), "relay", &upstreams, &["--stop-timeout-ms", "100"])?;
    ensure!(troubles(&relay)?.is_empty(), "{:?}", troubles(&relay)?);
    ensure!(send(&mut client(&relay), &spans(1..11))? == Reply::Ok, "not accepted");
    let failures = |upstream: &str, cause: &str| {
        let labels = [("upstream", upstream), ("cause", cause)];
        Some((
            relay.figure("upstream_failures_total", &labels).ok()?,
            relay.figure("upstream_trouble", &labels).ok()?,
        ))
    };
    wait::until(LIMIT, "several attempts", || {
        let all = [failures(&gone, "unreachable")?, failures(busy.address(), "try_later")?];
        all.iter().all(|(count, is_last)| *count > 2 && *is_last == 1).then_some(())
    })
    .with_context(|| format!("{:#?}\n{}", relay.metrics(), relay.daemon.log()))?;
    let told = |to: &str, cause: &str| ["upstream", to, cause].map(str::to_owned);
    assert_eq!(troubles(&relay)?, [told(&gone, "unreachable"), told(busy.address(), "try_later")]);

    let _back = Server::start_at(&gone, |_| Behaviour::Ok)?;
    relay.drained(10, &[&gone])?;
    wait::until(LIMIT, "the trouble to end", || (troubles(&relay).ok()?.len() == 1).then_some(()))?;
    assert_eq!(relay.figure("upstream_trouble_seconds", &[("upstream", &gone)])?, 0);
    tells_once(&relay, "failed to send: it cannot be reached")?;
    tells_once(&relay, "failed to send: it answered TRY_LATER")?;
    tells_once(&relay, "sending again")
}

/// Two relays are each other's upstream: spans circulate until one of them gets another upstream.
#[test]
fn a_loop_of_relays_is_reported_and_loses_nothing() -> Result<()> {
    let folder = TempDir::new()?;
    let server = Server::start(|_| Behaviour::Ok)?;
    let flags = ["--stop-timeout-ms", "100"];
    let mut one = Relay::start(folder.path(), "one", &[server.address()], &flags)?;
    let other = Relay::start(folder.path(), "other", &[&one.scribe], &flags)?;
    ensure!(send(&mut client(&other), &spans(1..11))? == Reply::Ok, "not accepted");
    other.drained(10, &[&one.scribe])?;
    one.drained(10, &[server.address()])?;
    assert_eq!(one.figure("returned_spans_total", &[])?, 0, "no loop yet");
    one.daemon.process.kill()?;
    one.rename_upstreams(&[&other.scribe]);
    one.start_again()?;
    ensure!(send(&mut client(&one), &spans(11..21))? == Reply::Ok, "not accepted");
    for relay in [&one, &other] {
        let told = || troubles(relay).ok()?.iter().any(|[name, ..]| name == "loop").then_some(());
        wait::until(LIMIT, "the loop to be reported", told).with_context(|| relay.daemon.log())?;
        tells_once(relay, "upstreams lead back to this relay")?;
        ensure!(relay.figure("returned_spans_total", &[])? >= 16, "not counted");
        assert!(relay.ledger()?.balances());
    }
    one.daemon.process.kill()?;
    one.rename_upstreams(&[server.address()]);
    one.start_again()?;
    other.drained(10, &[&one.scribe])?;
    one.drained(10, &[server.address()])?;
    let ids: BTreeSet<i64> = server.spans().iter().map(|span| span.id).collect();
    assert_eq!(ids, BTreeSet::from_iter(1..21));
    Ok(())
}

#[test]
fn sighup_makes_a_relay_reload_its_configuration() -> Result<()> {
    let folder = TempDir::new()?;
    let gone = unused_address()?;
    let configuration = folder.path().join("relay.toml");
    std::fs::write(&configuration, "stop_timeout_ms = 3600000\n")?;
    let flags = ["--config", configuration.to_str().context("the path is not UTF-8")?];
    let mut relay = Relay::start(folder.path(), "relay", &[&gone], &flags)?;
    std::fs::write(&configuration, "stop_timeout_ms = 10\nbatch_bytes = 4096\n")?;
    relay.daemon.process.signal(Signal::HUP)?;
    tells_once(&relay, "read the configuration again")?;
    tells_once(&relay, "failed to change batch_bytes while running")?;
    assert_eq!(relay.metrics()?.sum("blkin_config_refused", &[]), 0);
    std::fs::write(&configuration, "stop_timeout_ms = 10\nbatch_byte = 4096\n")?;
    relay.daemon.process.signal(Signal::HUP)?;
    let refused = || (relay.metrics().ok()?.sum("blkin_config_refused", &[]) == 1).then_some(());
    wait::until(LIMIT, "the relay to refuse the misspelt key", refused)?;
    tells_once(&relay, "relay.toml, line 2: there is no key `batch_byte` (is `batch_bytes` meant?)")?;
    ensure!(send(&mut client(&relay), &spans(1..11))? == Reply::Ok, "not accepted");
    // With the old stop_timeout_ms it would now wait an hour for its upstream.
    ensure!(relay.daemon.process.terminate()?.success(), "the relay failed");
    Ok(())
}

#[test]
fn a_full_spool_evicts_the_oldest_entries_and_counts_them() -> Result<()> {
    let folder = TempDir::new()?;
    let gone = unused_address()?;
    let flags = ["--spool-bytes", "4194304", "--max-message-mib", "1", "--stop-timeout-ms", "200"];
    let mut relay = Relay::start(folder.path(), "relay", &[&gone], &flags)?;
    let mut sender = client(&relay);
    for first in (0..60_000).step_by(500) {
        ensure!(send(&mut sender, &spans(first + 1..first + 501))? == Reply::Ok, "not accepted");
    }
    let evicted = relay.figure("entries_upstream_lost_total", &[("cause", "spool_evicted")])?;
    assert!(evicted > 10_000, "{evicted}");
    assert!(relay.figure("spool_bytes", &[])? <= 4 << 20);
    assert!(relay.ledger()?.balances());
    relay.daemon.process.kill()?;
    // A server that starts at that address gets everything not evicted: the newest, in order.
    let server = Server::start_at(&gone, |_| Behaviour::Ok)?;
    relay.start_again()?;
    relay.drained(60_000, &[&gone])?;
    let ids: Vec<i64> = server.spans().iter().map(|span| span.id).collect();
    assert_eq!(ids, Vec::from_iter(evicted + 1..60_001));
    assert_eq!(relay.figure("upstream_lost_total", &[("cause", "spool_evicted")])?, 2 * evicted);
    assert!(relay.ledger()?.balances());
    Ok(())
}

#[test]
fn a_full_spool_that_refuses_answers_try_later_until_it_has_room() -> Result<()> {
    let folder = TempDir::new()?;
    let gone = unused_address()?;
    let flags = ["--spool-bytes", "4194304", "--max-message-mib", "1", "--when-full", "refuse"];
    let relay = Relay::start(folder.path(), "relay", &[&gone], &flags)?;
    let mut sender = client(&relay);
    let mut accepted = 0;
    while send(&mut sender, &spans(accepted + 1..accepted + 501))? == Reply::Ok {
        accepted += 500;
    }
    assert!(relay.figure("refused_calls_total", &[("cause", "spool_full")])? > 0);
    let server = Server::start_at(&gone, |_| Behaviour::Ok)?;
    relay.drained(accepted, &[&gone])?;
    let taken = || (send(&mut sender, &spans(accepted + 1..accepted + 501)).ok()? == Reply::Ok).then_some(());
    wait::until(LIMIT, "room", taken)?;
    relay.drained(accepted + 500, &[&gone])?;
    let ids: Vec<i64> = server.spans().iter().map(|span| span.id).collect();
    assert_eq!(ids, Vec::from_iter(1..accepted + 501));
    assert_eq!(relay.ledger()?.lost(), 0);
    assert!(relay.ledger()?.balances());
    Ok(())
}

#[test]
fn a_relay_answers_try_later_while_its_disk_is_full() -> Result<()> {
    let folder = TempDir::new()?;
    let disk = folder.path().join("relay-spool");
    let _mounted = Disk::mount(&disk, "3m")?;
    let gone = unused_address()?;
    let mut relay = Relay::start(folder.path(), "relay", &[&gone], &["--stop-timeout-ms", "200"])?;
    let mut sender = client(&relay);
    let view = watch(relay.daemon.http.base(), &LiveArguments::default())?;
    let mut accepted = 0;
    while send(&mut sender, &spans(accepted + 1..accepted + 101))? == Reply::Ok {
        accepted += 100;
    }
    assert!(relay.figure("refused_calls_total", &[("cause", "disk")])? > 0);
    assert_eq!(relay.figure("live_spans_total", &[("fate", "unkept")])?, 100, "shown live, but not accepted");
    drop(view);
    assert_eq!(relay.figure("spool_trouble", &[("what", "spool"), ("cause", "disk_full")])?, 1);
    let folder_of_spool = disk.display().to_string();
    let told = ["spool", &folder_of_spool, "disk_full"].map(str::to_owned);
    ensure!(troubles(&relay)?.contains(&told), "{:?}", troubles(&relay)?);
    let error = "ERROR blkin_relay::spool::writer: failed to write the spool";
    wait::until(LIMIT, "the error in the log", || relay.daemon.log().contains(error).then_some(()))?;
    // The relay also starts on a full disk.
    relay.daemon.process.kill()?;
    relay.start_again()?;
    let mut sender = client(&relay);
    assert_eq!(send(&mut sender, &spans(0..100))?, Reply::TryLater);
    let server = Server::start_at(&gone, |_| Behaviour::Ok)?;
    relay.drained(accepted, &[&gone])?;
    // Entries that the upstream has acknowledged make room for new ones on the same disk.
    assert_eq!(send(&mut sender, &spans(accepted + 1..accepted + 101))?, Reply::Ok);
    relay.drained(accepted + 100, &[&gone])?;
    wait::until(LIMIT, "no trouble", || troubles(&relay).ok()?.is_empty().then_some(()))?;
    tells_once(&relay, "the spool takes entries again")?;
    let ids: BTreeSet<i64> = server.spans().iter().map(|span| span.id).collect();
    assert_eq!(ids, BTreeSet::from_iter(1..accepted + 101));
    assert!(relay.ledger()?.balances());
    Ok(())
}

#[test]
fn a_full_disk_ceases_to_be_a_trouble_without_new_entries() -> Result<()> {
    let folder = TempDir::new()?;
    let disk = Disk::mount(&folder.path().join("relay-spool"), "8m")?;
    let relay = Relay::start(folder.path(), "relay", &[&unused_address()?], &[])?;
    let mut sender = client(&relay);
    assert_eq!(send(&mut sender, &spans(1..101))?, Reply::Ok);
    let spooled = relay.figure("spool_bytes", &[])?;
    disk.fill()?;
    assert_eq!(send(&mut sender, &spans(101..1101))?, Reply::TryLater);
    drop(sender);
    // The relay retries by itself, and goes on failing as long as the room is too little.
    let tried = || (relay.figure("spool_failures_total", &[("what", "spool")]).ok()? > 1).then_some(());
    wait::until(LIMIT, "another attempt", tried)?;
    assert_eq!(relay.figure("spool_trouble", &[("what", "spool"), ("cause", "disk_full")])?, 1);
    disk.free()?;
    let is_well = || troubles(&relay).ok()?.iter().all(|[name, ..]| name != "spool").then_some(());
    wait::until(LIMIT, "no trouble of the spool", is_well)?;
    tells_once(&relay, "the spool takes entries again")?;
    assert_eq!(relay.figure("entries_received_total", &[])?, 100);
    assert_eq!(relay.figure("spool_bytes", &[])?, spooled);
    assert!(relay.ledger()?.balances());
    Ok(())
}

#[test]
fn garbage_affects_only_its_sender() -> Result<()> {
    let folder = TempDir::new()?;
    let server = Server::start(|_| Behaviour::Ok)?;
    let flags = ["--scribe-frame-seconds", "1", "--scribe-idle-seconds", "2", "--max-message-mib", "1"];
    let relay = Relay::start(folder.path(), "relay", &[server.address()], &flags)?;
    let whole = encode_log_call(1, &spans(1..4));
    for at in (4..whole.len()).step_by(7) {
        let mut garbage = whole.clone();
        garbage[at] ^= 0xff;
        let mut stream = TcpStream::connect(&relay.scribe)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.write_all(&garbage)?;
        // Whatever the relay takes the bytes for, it answers or closes the connection. (read_to_end goes on when a stop of this
        // process interrupts it; a single read would not.)
        let _answered_or_closed = stream.take(1).read_to_end(&mut Vec::new())?;
    }
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 64], &whole[..whole.len() - 1], &[]] {
        let mut stream = TcpStream::connect(&relay.scribe)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.write_all(bytes)?;
        let mut rest = Vec::new();
        assert!(
            !matches!(stream.read_to_end(&mut rest), Err(e) if e.kind() == std::io::ErrorKind::WouldBlock)
        );
    }
    ensure!(
        send(&mut client(&relay), &spans(100..110))? == Reply::Ok,
        "a valid call after the garbage was not accepted"
    );
    let accepted = relay.figure("entries_accepted_total", &[])?;
    relay.drained(accepted, &[server.address()])?;
    assert!(relay.figure("entries_lost_total", &[("cause", "malformed")])? > 0);
    assert!(relay.ledger()?.balances());
    assert_eq!(
        server.messages().len() as i64,
        accepted,
        "entries that are not spans are left to the upstream"
    );
    Ok(())
}

/// Takes one `Log` call and returns the bytes of its entries.
fn take_raw(listener: &TcpListener) -> Result<Vec<u8>> {
    let (mut stream, _) = listener.accept()?;
    let mut header = [0; 4];
    stream.read_exact(&mut header)?;
    let mut frame = vec![0; u32::from_be_bytes(header) as usize];
    stream.read_exact(&mut frame)?;
    let log = skim_log(&frame, &Limits::default()).context("no Log call")?;
    stream.write_all(&encode_log_reply(log.seq, ResultCode::Ok))?;
    Ok(log.entries.iter().flat_map(|entry| entry.bytes).copied().collect())
}

#[test]
fn entries_are_relayed_byte_for_byte() -> Result<()> {
    let folder = TempDir::new()?;
    let upstream = TcpListener::bind("127.0.0.1:0")?;
    let relay = Relay::start(folder.path(), "relay", &[&upstream.local_addr()?.to_string()], &[])?;
    let entries: [&[u8]; 3] = [
        // A field 9 between those of Scribe, and a message that is not UTF-8.
        b"\x0b\x00\x01\x00\x00\x00\x06zipkin\x08\x00\x09\x00\x00\x00\x07\x0b\x00\x02\x00\x00\x00\x02\xff\xfe\x00",
        // A struct after the message, and no category.
        b"\x0b\x00\x02\x00\x00\x00\x02hi\x0c\x00\x0a\x08\x00\x01\x00\x00\x00\x01\x00\x00",
        b"\x00",
    ];
    let mut client = client(&relay);
    let reply = client.log(|seq| encode_raw_log_call(seq, entries.len(), entries), &mut || Ok(()))?;
    ensure!(reply == Reply::Ok, "not accepted");
    assert_eq!(take_raw(&upstream)?, entries.concat());
    relay.drained(3, &[&upstream.local_addr()?.to_string()])
}

#[test]
fn a_rejected_entry_is_counted_and_does_not_block_others() -> Result<()> {
    let folder = TempDir::new()?;
    let refuses = |entries: &[LogEntry]| match entries.iter().any(|entry| entry.message == b"bad") {
        true => Behaviour::Exception,
        false => Behaviour::Ok,
    };
    let server = Server::start(refuses)?;
    let relay = Relay::start(folder.path(), "relay", &[server.address()], &[])?;
    let mut entries = spans(1..10);
    entries.insert(4, LogEntry { category: "zipkin".into(), message: b"bad".to_vec() });
    ensure!(send(&mut client(&relay), &entries)? == Reply::Ok, "not accepted");
    relay.drained(10, &[server.address()])?;
    let ids: Vec<i64> = server.spans().iter().map(|span| span.id).collect();
    assert_eq!(ids, Vec::from_iter(1..10));
    assert_eq!(relay.figure("entries_upstream_lost_total", &[("cause", "rejected")])?, 1);
    assert_eq!(relay.figure("upstream_acked_total", &[])?, 18);
    assert!(relay.ledger()?.balances());
    Ok(())
}

#[test]
fn a_terminated_relay_sends_what_it_can_and_keeps_the_rest() -> Result<()> {
    let folder = TempDir::new()?;
    let (taking, busy) = (Server::start(|_| Behaviour::Ok)?, Server::start(|_| Behaviour::TryLater)?);
    let upstreams = [taking.address(), busy.address()];
    // The relay waits this long for the busy upstream; long enough for the other to get everything on any machine.
    let mut relay = Relay::start(folder.path(), "relay", &upstreams, &["--stop-timeout-ms", "4000"])?;
    ensure!(send(&mut client(&relay), &spans(1..301))? == Reply::Ok, "not accepted");
    let status = relay.daemon.process.terminate()?;
    assert!(status.success(), "{status}: {}", relay.daemon.log());
    assert_eq!(taking.messages().len(), 300);
    relay.start_again()?;
    assert_eq!(relay.figure("entries_upstream_acked_total", &[])?, 300, "positions were written down");
    assert_eq!(relay.figure("entries_upstream_in_flight", &[("upstream", busy.address())])?, 300);
    assert!(relay.ledger()?.balances());
    Ok(())
}
