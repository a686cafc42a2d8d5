//! Zipkin's own page, served by our collector, in a real browser.

use std::fs;

use anyhow::Result;
use blkin_cli::span::Span;
use blkin_tests::artifacts::{fetched, target};
use blkin_tests::browser::Browser;
use blkin_tests::daemons::{Node, Setup};
use blkin_tests::objectstore::ObjectStore;

#[test]
fn zipkins_page_lists_and_draws_a_trace_of_the_object_store() -> Result<()> {
    let page = fetched("zipkin-lens")?;
    let node = Node::start(Setup {
        collector: vec!["--ui-dir".into(), page.display().to_string()],
        consumerd: vec!["--quiet-ms".into(), "1000".into()],
        ..Setup::default()
    })?;
    let store = ObjectStore::start(&node.socket())?;
    store.put(5)?;
    node.settled(5 * 98)?;
    let found = node.collector.http.get_ok("/api/v2/traces", &[("serviceName", "bench"), ("limit", "1")])?;
    let traces: Vec<Vec<Span>> = serde_json::from_str(&found)?;
    let id = &traces[0][0].trace_id;

    let browser = Browser::start(1400, 1250)?;
    let base = node.collector.http.base();
    browser.open(&format!("{base}/zipkin/?serviceName=bench&lookback=15m&limit=10"))?;
    browser.press("RUN QUERY")?;
    browser.shows(&["bench: bench service"])?;
    keep("list", &browser)?;

    browser.open(&format!("{base}/zipkin/traces/{id}"))?;
    let page = browser.shows(&[id, "osd.0", "osd.1", "journal access", "mosdop", "Object", "load-t00"])?;
    assert!(page.contains("Total Spans"), "{page}");
    keep("trace", &browser)
}

/// Screenshots stay beside the build, for people to look at.
fn keep(name: &str, browser: &Browser) -> Result<()> {
    let folder = target().join("screenshots");
    fs::create_dir_all(&folder)?;
    Ok(fs::write(folder.join(format!("{name}.png")), browser.screenshot()?)?)
}
