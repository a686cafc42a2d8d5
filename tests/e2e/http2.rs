//! HTTP/2 in cleartext, as proxies and gRPC clients speak it to Zipkin: the same answers and the same limits as HTTP/1.1.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use blkin_cli::http::Client;
use blkin_tests::artifacts::output;
use blkin_tests::daemons::{LIMIT, Node, Setup};
use blkin_tests::process::Process;
use blkin_tests::zipkin::Zipkin;
use blkin_tests::{ingest, wait};
use serde_json::{Value, json};
use tempfile::NamedTempFile;

/// curl's flags: assume that the server speaks HTTP/2, ask whether it does, or use HTTP/1.1.
const KNOWS: &str = "--http2-prior-knowledge";
const ASKS: &str = "--http2";
const DOES_NOT: &str = "--http1.1";

/// Runs `curl`; returns the body, and the HTTP version with the status.
fn curl(how: &str, url: &str, more: &[&str]) -> Result<(String, String)> {
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--max-time", "60", "-w", "\n%{http_version} %{http_code}", how]).args(more).arg(url);
    let said = output(&mut curl)?;
    let (body, status) = said.rsplit_once('\n').context("no status")?;
    Ok((body.to_owned(), status.to_owned()))
}

/// Posts spans as a file.
fn post(how: &str, server: &Client, spans: &Value) -> Result<String> {
    let mut file = NamedTempFile::new()?;
    file.write_all(&serde_json::to_vec(spans)?)?;
    let body = format!("@{}", file.path().display());
    let more = ["-H", "Content-Type: application/json", "--data-binary", &body];
    Ok(curl(how, &format!("{}/api/v2/spans", server.base()), &more)?.1)
}

/// `count` spans of one trace, each with a tag of `tag_bytes` bytes.
fn spans(trace: &str, count: u64, tag_bytes: usize) -> Value {
    let start = ingest::now_us();
    let one = |id: u64| {
        json!({
            "traceId": trace, "id": format!("{id:016x}"), "name": "write", "timestamp": start + id as i64, "duration": 1,
            "localEndpoint": {"serviceName": "osd"}, "tags": {"filler": "x".repeat(tag_bytes)}
        })
    };
    (1..=count).map(one).collect()
}

#[test]
fn http_2_answers_equal_those_of_http_1_as_with_zipkin() -> Result<()> {
    let zipkin = Zipkin::start()?;
    let node = Node::without_consumerd(Setup::default())?;
    for (server, upgraded) in [(&zipkin.http, "2 200"), (&node.collector.http, "1.1 200")] {
        assert_eq!(post(KNOWS, server, &spans("a", 3, 10))?, "2 202");
        assert_eq!(post(KNOWS, server, &json!("no list"))?, "2 400");
        let trace = format!("{}/api/v2/trace/a", server.base());
        let read = |how| curl(how, &trace, &[]);
        // Zipkin answers a post before it has stored the spans.
        wait::until(LIMIT, "the trace", || (read(DOES_NOT).ok()?.1 == "1.1 200").then_some(()))?;
        let (plain, _) = read(DOES_NOT)?;
        assert_eq!(serde_json::from_str::<Vec<Value>>(&plain)?.len(), 3);
        assert_eq!(read(KNOWS)?, (plain.clone(), "2 200".to_owned()));
        // A client that only asks stays with HTTP/1.1 unless the server agrees to HTTP/2.
        assert_eq!(read(ASKS)?, (plain, upgraded.to_owned()));
        assert_eq!(curl(KNOWS, &format!("{}/api/v2/trace/b", server.base()), &[])?.1, "2 404");
    }
    Ok(())
}

#[test]
fn http_2_answers_are_complete_if_large_or_concurrent() -> Result<()> {
    let node = Node::without_consumerd(Setup::default())?;
    let server = &node.collector.http;
    assert_eq!(post(KNOWS, server, &spans("c", 4000, 1000))?, "2 202");
    let trace = format!("{}/api/v2/trace/c", server.base());
    for more in [&[][..], &["--limit-rate", "8M"], &["--compressed"]] {
        let (body, status) = curl(KNOWS, &trace, more)?;
        assert_eq!((status.as_str(), serde_json::from_str::<Vec<Value>>(&body)?.len()), ("2 200", 4000));
    }
    // Each connection tries to have more requests under way than the collector allows.
    let mut many = Command::new("h2load");
    many.args(["--requests=2000", "--clients=4", "--max-concurrent-streams=200"])
        .arg(format!("{}/api/v2/services", server.base()));
    let said = output(&mut many)?;
    ensure!(said.contains("2000 succeeded, 0 failed"), "{said}");
    Ok(())
}

#[test]
fn a_live_view_works_over_http_2() -> Result<()> {
    let node = Node::without_consumerd(Setup::default())?;
    let server = &node.collector.http;
    let mut curl = Command::new("curl");
    curl.args(["-sSN", KNOWS]).arg(format!("{}/api/blkin/live", server.base())).stdout(Stdio::piped());
    let mut curl = Process::spawn("curl", &mut curl)?;
    let lines = BufReader::new(curl.child().stdout.take().context("no pipe")?).lines();
    let viewers = || node.collector.metrics().ok().map(|now| now.sum("blkin_collector_live_viewers", &[]));
    wait::until(LIMIT, "a viewer", || (viewers()? == 1).then_some(()))?;
    assert_eq!(post(KNOWS, server, &spans("d", 1, 1))?, "2 202");
    let seen = lines.map_while(Result::ok).find(|line| line.contains("000000000000000d"));
    ensure!(seen.is_some(), "the view ended");
    drop(curl);
    wait::until(LIMIT, "no viewer", || (viewers()? == 0).then_some(()))?;
    Ok(())
}
