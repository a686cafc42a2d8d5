//! Zipkin's own page, served by our collector, in a real browser; and what Grafana expects of a Zipkin server.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use blkin_cli::http::Client;
use blkin_cli::span::Span;
use blkin_cli::stats::Stats;
use blkin_tests::artifacts::{binary, fetched, output, target};
use blkin_tests::browser::Browser;
use blkin_tests::daemons::{Node, Setup};
use blkin_tests::ingest::{now_us, post};
use blkin_tests::objectstore::ObjectStore;
use serde_json::{Value, json};

const PUTS: u32 = 5;
/// The spans of the large trace.
const SPANS: i64 = 1000;

#[test]
fn zipkins_ui_finds_and_draws_traces() -> Result<()> {
    let page = fetched("zipkin-lens")?;
    let node = Node::start(Setup {
        collector: vec!["--ui-dir".into(), page.display().to_string()],
        consumerd: vec!["--quiet-ms".into(), "1000".into()],
        ..Setup::default()
    })?;
    let store = ObjectStore::start(&node.socket())?;
    store.put(PUTS)?;
    node.settled(i64::from(PUTS) * 98)?;
    let http = &node.collector.http;
    rooted(http)?;
    journal_times(http)?;
    calls(http)?;
    let start = now_us() - 60_000_000;
    send(http, &shop(start))?;
    send(http, &large(start))?;
    send(http, &timeless())?;

    let browser = Browser::start(1400, 1250)?;
    lists(&browser, http)?;
    traces(&browser, http)?;
    dependencies(&browser, http)
}

/// Grafana's data source fails on a trace that has no span without parent.
fn rooted(http: &Client) -> Result<()> {
    let found = http.get_ok("/api/v2/traces", &[("serviceName", "bench"), ("limit", "10")])?;
    let traces: Vec<Vec<Span>> = serde_json::from_str(&found)?;
    ensure!(traces.len() == PUTS as usize, "{} traces", traces.len());
    for spans in &traces {
        let roots: Vec<&Span> = spans.iter().filter(|span| span.parent_id.is_none()).collect();
        ensure!(!roots.is_empty() && roots.iter().all(|root| root.id == roots[0].id), "{roots:?}");
        ensure!(roots.iter().all(|root| root.timestamp.is_some()), "{roots:?}");
    }
    Ok(())
}

/// Who called whom: each put goes from the client to the gateway, on to the primary, and from there to the replica.
fn calls(http: &Client) -> Result<()> {
    let end_ms = (now_us() / 1000).to_string();
    let found = http.get_ok("/api/v2/dependencies", &[("endTs", &end_ms), ("lookback", "3600000")])?;
    let links: Vec<Value> = serde_json::from_str(&found)?;
    let calls = |parent: &str, child: &str| -> u64 {
        let link = |link: &&Value| {
            let name = |side: &str| link[side].as_str().unwrap_or_default().to_owned();
            name("parent").starts_with(parent) && name("child").starts_with(child)
        };
        links.iter().filter(link).filter_map(|link| link["callCount"].as_u64()).sum()
    };
    for (parent, child) in [("bench", "vlmc"), ("vlmc", "osd."), ("osd.", "osd.")] {
        ensure!(calls(parent, child) == u64::from(PUTS), "{parent} {child}: {found}");
    }
    Ok(())
}

/// How long the journals took, by daemon: each put is written to both journals.
fn journal_times(http: &Client) -> Result<()> {
    let mut stats = Command::new(binary("blkin")?);
    stats.args(["stats", "Write begins", "Span ended", "--collector", http.base(), "--json"]);
    let found: Stats = serde_json::from_str(&output(stats.args(["--span", "journal access"]))?)?;
    let journals: Vec<_> = found.services.iter().filter(|found| found.service.contains("journal")).collect();
    ensure!(found.complete && journals.len() == 2, "{found:?}");
    for journal in journals {
        ensure!(journal.count == u64::from(PUTS), "{journal:?}");
        ensure!(journal.average_us > 0.0 && journal.average_us <= journal.max_us as f64, "{journal:?}");
    }
    Ok(())
}

fn send(http: &Client, spans: &Value) -> Result<()> {
    let (status, said) = post(http, "/api/v2/spans", "application/json", spans.to_string().as_bytes())?;
    ensure!(status == 202, "{status} {said}");
    Ok(())
}

/// A shop that speaks Chinese, calls its store, and fails.
fn shop(start: i64) -> Value {
    let (shop, store) = (json!({"serviceName": "商店"}), json!({"serviceName": "对象存储"}));
    json!([
        {"traceId": "c1", "id": "1", "kind": "SERVER", "name": "下单", "timestamp": start, "duration": 9_000,
         "localEndpoint": shop},
        {"traceId": "c1", "id": "2", "parentId": "1", "kind": "CLIENT", "name": "读取", "timestamp": start + 10,
         "duration": 8_000, "localEndpoint": shop, "remoteEndpoint": store},
        {"traceId": "c1", "id": "2", "parentId": "1", "kind": "SERVER", "name": "读取", "timestamp": start + 20,
         "duration": 7_000, "localEndpoint": store, "shared": true, "tags": {"error": "磁盘坏了", "键": "值 😀"},
         "annotations": [{"timestamp": start + 30, "value": "缓存未命中"}]},
    ])
}

/// One root with many children.
fn large(start: i64) -> Value {
    let here = json!({"serviceName": "large"});
    let child = |n: i64| {
        json!({"traceId": "c2", "id": format!("{n:x}"), "parentId": (n > 1).then_some("1"), "name": format!("step {n}"),
            "timestamp": start + n, "duration": 2 * SPANS - n, "localEndpoint": here})
    };
    (1..=SPANS).map(child).collect()
}

/// A root with a time and a child without one.
fn timeless() -> Value {
    let here = json!({"serviceName": "timeless"});
    json!([
        {"traceId": "c3", "id": "1", "name": "known", "timestamp": now_us() - 1_000_000, "duration": 50, "localEndpoint": here},
        {"traceId": "c3", "id": "2", "parentId": "1", "name": "unknown", "localEndpoint": here},
    ])
}

/// Checks searches in the page, each with a trace that it must list and one that it must not.
fn lists(browser: &Browser, http: &Client) -> Result<()> {
    let searches = [
        ("serviceName=bench", "bench service", "下单"),
        ("serviceName=%E5%95%86%E5%BA%97&spanName=%E8%AF%BB%E5%8F%96", "下单", "bench service"),
        ("annotationQuery=error", "下单", "bench service"),
        ("serviceName=large&minDuration=1500", "step 1", "下单"),
        ("serviceName=timeless", "known", "下单"),
    ];
    for (parameters, listed, not_listed) in searches {
        browser.open(&format!("{}/zipkin/?{parameters}&lookback=15m&limit=10", http.base()))?;
        browser.press("RUN QUERY")?;
        let page = browser.shows(&[listed, "Start Time"]).with_context(|| parameters.to_owned())?;
        ensure!(!page.contains(not_listed), "{parameters}: {page}");
        if parameters == "serviceName=bench" {
            keep("list", browser)?;
        }
    }
    // The link that scripts/demo prints shows the list without pressing a button.
    let end_ms = now_us() / 1000;
    let link = format!("{}/zipkin/?serviceName=bench&lookback=15m&endTs={end_ms}&limit=10", http.base());
    browser.open(&link)?;
    browser.shows(&["bench service", "Start Time"]).map(drop)
}

fn traces(browser: &Browser, http: &Client) -> Result<()> {
    let found = http.get_ok("/api/v2/traces", &[("serviceName", "bench"), ("limit", "1")])?;
    let traces: Vec<Vec<Span>> = serde_json::from_str(&found)?;
    let id = traces.first().and_then(|spans| spans.first()).context("no trace")?.trace_id.clone();
    let long_id = |id: &str| format!("{id:0>16}");
    for (name, id, words) in [
        (
            "trace",
            id,
            &["osd.0", "osd.1", "journal access", "mosdop", "Object", "load-t00", "Total Spans"][..],
        ),
        ("chinese", long_id("c1"), &["商店", "对象存储", "读取", "下单"]),
        ("large", long_id("c2"), &["large", "step 1", "1000"]),
        ("timeless", long_id("c3"), &["known", "unknown"]),
    ] {
        browser.open(&format!("{}/zipkin/traces/{id}", http.base()))?;
        browser.shows(&[&[id.as_str()], words].concat()).with_context(|| name.to_owned())?;
        keep(name, browser)?;
    }
    Ok(())
}

/// The dependency graph is a drawing without text, so this checks that the page shows it and what the API answers to the page.
fn dependencies(browser: &Browser, http: &Client) -> Result<()> {
    let end_ms = now_us() / 1000;
    browser.open(&format!(
        "{}/zipkin/dependency?startTime={}&endTime={end_ms}",
        http.base(),
        end_ms - 3_600_000
    ))?;
    browser.shows(&["Filter"])?;
    keep("dependencies", browser)?;
    let links = browser.run(
        "const r = new XMLHttpRequest(); r.open('GET', '/zipkin/api/v2/dependencies?endTs=' + Date.now(), false); \
         r.send(); return r.responseText",
    )?;
    let links = links.as_str().unwrap_or_default();
    ensure!(links.contains(r#""parent":"商店","child":"对象存储","callCount":1,"errorCount":1"#), "{links}");
    Ok(())
}

/// Keeps a screenshot in the target directory, for people to look at.
fn keep(name: &str, browser: &Browser) -> Result<()> {
    let folder = target().join("screenshots");
    fs::create_dir_all(&folder)?;
    Ok(fs::write(folder.join(format!("{name}.png")), browser.screenshot()?)?)
}
