//! Live views of what arrives at collectors and relays: each viewer gets what it asked for, and a slow viewer affects no other.

use std::io::Read;
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result, ensure};
use blkin_cli::live::{Event, LiveArguments, Stream, watch};
use blkin_cli::span::Span;
use blkin_scribe::{Client, Reply};
use blkin_tests::artifacts::binary;
use blkin_tests::daemons::{LIMIT, Node, Setup, unused_address};
use blkin_tests::process::Process;
use blkin_tests::relays::Relay;
use blkin_tests::wait;
use blkin_thrift::scribe::{LogEntry, encode_log_call, span_message};
use blkin_thrift::{AnnotationType, BinaryAnnotation, Endpoint, Span as V1Span};

/// A span of 5 ms, unless changed.
fn span(id: i64, service: &str, tag: &str) -> V1Span {
    let host = Endpoint { service_name: service.into(), ..Endpoint::default() };
    let kind = AnnotationType::String;
    let tag = BinaryAnnotation {
        key: "Object".into(),
        value: tag.into(),
        kind,
        host: Some(host),
        ..Default::default()
    };
    V1Span {
        trace_id: id,
        id,
        name: "write".into(),
        timestamp: Some(1_700_000_000_000_000),
        duration: Some(5000),
        binary_annotations: vec![tag],
        ..V1Span::default()
    }
}

fn send(client: &mut Client, spans: &[V1Span]) -> Result<()> {
    let entry = |span| LogEntry { category: "zipkin".into(), message: span_message(span) };
    let entries: Vec<LogEntry> = spans.iter().map(entry).collect();
    let reply = client.log(|seq| encode_log_call(seq, &entries), &mut || Ok(()))?;
    ensure!(reply == Reply::Ok, "answered {reply:?}");
    Ok(())
}

fn id_of(event: Option<Event>) -> Result<i64> {
    let Some(Event::Span(json)) = event else { anyhow::bail!("no span but {event:?}") };
    Ok(i64::from_str_radix(&serde_json::from_str::<Span>(&json)?.id, 16)?)
}

#[test]
fn live_views_of_collector_and_relay_show_matching_spans() -> Result<()> {
    let node = Node::without_consumerd(Setup::default())?;
    let relay = Relay::start(node.folder(), "relay", &[&node.collector.address("scribe")?], &[])?;
    let wanted = LiveArguments {
        service: Some("OSD.0".into()),
        span: Some("write".into()),
        query: Some("Object=foo".into()),
        min_duration: Some(5000),
        limit: None,
        no_reconnect: true,
    };
    let mut views = [watch(relay.daemon.http.base(), &wanted)?, watch(node.collector.http.base(), &wanted)?];
    let mut blkin = Command::new(binary("blkin")?);
    blkin.args(["live", "--json", "--limit", "2", "--service", "osd.0", "--query", "Object=foo"]);
    blkin.args(["--span", "write", "--min-duration", "5ms", "--collector", node.collector.http.base()]);
    let mut blkin = Process::spawn("blkin live", blkin.stdout(Stdio::piped()))?;
    let mut output = blkin.child().stdout.take().context("no pipe")?;
    let viewers = |metrics: &blkin_cli::metrics::Metrics| metrics.sum("blkin_collector_live_viewers", &[]);
    wait::until(LIMIT, "two viewers", || (viewers(&node.collector.metrics().ok()?) == 2).then_some(()))?;
    let short = V1Span { duration: Some(4999), ..span(5, "osd.0", "foo") };
    let renamed = V1Span { name: "read".into(), ..span(6, "osd.0", "foo") };
    let others = [span(2, "osd.1", "foo"), span(3, "osd.0", "bar"), short, renamed];
    let mut client = Client::new(&relay.scribe, LIMIT);
    send(&mut client, &[&[span(1, "osd.0", "foo")], &others[..], &[span(7, "osd.0", "foo")]].concat())?;
    for view in &mut views {
        assert_eq!([id_of(view.next_event()?)?, id_of(view.next_event()?)?], [1, 7]);
    }
    let mut printed = String::new();
    output.read_to_string(&mut printed)?;
    assert!(blkin.wait(LIMIT)?.success());
    let ids = printed.lines().map(|line| serde_json::from_str::<Span>(line).map(|span| span.id));
    assert_eq!(ids.collect::<Result<Vec<_>, _>>()?, ["0000000000000001", "0000000000000007"], "{printed}");
    Ok(())
}

/// Reads until all spans are accounted for; returns those seen, and those that the daemon reported as missed.
fn account(view: &mut Stream<impl Read>, total: u64) -> Result<(u64, u64)> {
    let (mut seen, mut missed) = (0, 0);
    while seen + missed < total {
        match view.next_event()?.context("the stream ended")? {
            Event::Span(_) => seen += 1,
            Event::Missed(more) => missed += more.spans + more.unseen,
        }
    }
    ensure!(seen + missed == total, "{seen} seen and {missed} missed of {total}");
    Ok((seen, missed))
}

#[test]
fn a_stalled_viewer_alone_misses_spans_and_learns_how_many() -> Result<()> {
    let node = Node::without_consumerd(Setup::default())?;
    let mut stalled = watch(node.collector.http.base(), &LiveArguments::default())?;
    let mut reading = watch(node.collector.http.base(), &LiveArguments::default())?;
    // More than the kernel's buffers and the viewer's queue hold together.
    let (calls, spans) = (48, 200);
    let total = calls * spans;
    let mut client = Client::new(&node.collector.address("scribe")?, LIMIT);
    let tag = "x".repeat(3000);
    for call in 0..calls {
        let ids = (call * spans + 1..(call + 1) * spans + 1).map(|id| span(id as i64, "osd.0", &tag));
        send(&mut client, &ids.collect::<Vec<_>>())?;
        assert_eq!(account(&mut reading, spans)?, (spans, 0), "a viewer that reads sees every span");
    }
    let stored = node.collector.metrics()?.sum("blkin_collector_spans_stored_total", &[]);
    assert_eq!(stored, total as i64, "the store has every span despite the stalled viewer");
    let (seen, missed) = account(&mut stalled, total)?;
    assert!(missed > 0, "{seen} seen");
    assert_eq!(node.collector.http.get("/healthz", &[])?.status, 200);
    Ok(())
}

#[test]
fn a_viewer_stalled_for_too_long_is_disconnected_and_counted() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let gone = unused_address()?;
    let config = folder.path().join("relay.toml");
    // Not too short: on a busy machine the viewer that reads may be delayed as well.
    std::fs::write(&config, "http_idle_seconds = 6\n")?;
    let flags = ["--config", config.to_str().context("the path is not UTF-8")?, "--stop-timeout-ms", "100"];
    let relay = Relay::start(folder.path(), "relay", &[&gone], &flags)?;
    let all = LiveArguments::default();
    let (_stalled, mut reading) =
        (watch(relay.daemon.http.base(), &all)?, watch(relay.daemon.http.base(), &all)?);
    let reader = thread::spawn(move || while matches!(reading.next_event(), Ok(Some(_))) {});
    let mut client = Client::new(&relay.scribe, LIMIT);
    let tag = "x".repeat(3000);
    let spans: Vec<_> = (1..200).map(|id| span(id, "osd.0", &tag)).collect();
    wait::until(LIMIT, "the stalled viewer to be disconnected", || {
        send(&mut client, &spans).ok()?;
        (relay.figure("http_stalled_total", &[]).ok()? == 1).then_some(())
    })?;
    assert_eq!(relay.figure("live_viewers", &[])?, 1, "the viewer that reads stays");
    drop(relay);
    reader.join().map_err(|_| anyhow::anyhow!("the reader panicked"))
}

#[test]
fn the_number_of_viewers_is_bounded_and_places_are_freed() -> Result<()> {
    let folder = tempfile::TempDir::new()?;
    let gone = unused_address()?;
    let flags = ["--live-viewers", "2", "--stop-timeout-ms", "100"];
    let mut relay = Relay::start(folder.path(), "relay", &[&gone], &flags)?;
    let base = relay.daemon.http.base().to_owned();
    let all = LiveArguments::default();
    let refused = |wanted: &LiveArguments| watch(&base, wanted).err().map(|error| error.to_string());
    let longest =
        LiveArguments { query: Some("x".into()), min_duration: Some(i64::MAX as u64), ..all.clone() };
    assert!(refused(&longest).is_none(), "the longest duration is refused");
    wait::until(LIMIT, "the viewer to leave", || {
        (relay.figure("live_viewers", &[]).ok()? == 0).then_some(())
    })?;
    let (first, mut second) = (watch(&base, &all)?, watch(&base, &all)?);
    let full = refused(&all).context("a third viewer was let in")?;
    assert!(full.contains("503") && full.contains("live_viewers"), "{full}");
    drop(first);
    wait::until(LIMIT, "a free place", || (relay.figure("live_viewers", &[]).ok()? == 1).then_some(()))?;
    let _third = watch(&base, &all)?;
    assert_eq!(relay.daemon.http.get("/api/blkin/live", &[("minDuration", "x")])?.status, 400);
    let mut client = Client::new(&relay.scribe, LIMIT);
    send(&mut client, &[span(1, "osd.0", "foo")])?;
    assert_eq!(id_of(second.next_event()?)?, 1);
    // Viewers do not delay the relay's end.
    let status = relay.daemon.process.terminate()?;
    assert!(status.success(), "{status}: {}", relay.daemon.log());
    assert_eq!(second.next_event()?, None);
    Ok(())
}
