//! The time from a record in a program to a live viewer, over the whole path: rings, consumerd, collector, stream.
//!
//! ```text
//! cargo build --release && BLKIN_TEST_BINDIR=target/release \
//!     cargo run -p blkin-tests --example live-latency collector|relay [SECONDS [PAUSE_US [KEY=VALUE...]]]
//! ```
//!
//! The viewer watches the collector, or a relay between consumerd and the collector, for 10 s with pauses of 100 us by
//! default. KEY=VALUE are lines of consumerd's configuration, such as linger_ms=2. Two threads write traces of one span
//! with 8 annotations and pause after each; the pause sets the rate. For each annotation whose time the live event
//! contains, the program measures the time from its record to the event's arrival at the viewer. It prints one line for
//! each figure, `case<TAB>unit<TAB>value`.
#![allow(clippy::print_stdout, reason = "a command line program")]

use std::env;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use blkin_cli::live::{Event, LiveArguments, watch};
use blkin_cli::span::Span;
use blkin_tests::daemons::{Node, Setup};
use blkin_tests::program::Program;
use blkin_tests::relays::Relay;

/// Annotations of a trace of `tests/c/writer.c`.
const ANNOTATIONS: u64 = 8;
const THREADS: u64 = 2;
/// Events of this first period do not count: the daemons have only just started.
const WARM_UP: Duration = Duration::from_secs(1);

fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

/// What a viewer has seen during a run.
#[derive(Default)]
struct Seen {
    spans: u64,
    missed: u64,
    latencies_us: Vec<u64>,
}

/// Watches until all spans are accounted for.
fn view(base: &str, spans: u64, ready: &std::sync::mpsc::Sender<()>) -> Result<Seen> {
    let mut stream = watch(base, &LiveArguments::default())?;
    ready.send(())?;
    let mut seen = Seen::default();
    let mut arrived: Vec<(u64, String)> = Vec::new();
    while seen.spans + seen.missed < spans {
        match stream.next_event()?.context("the stream ended")? {
            Event::Span(json) => {
                seen.spans += 1;
                arrived.push((now_us(), json));
            }
            Event::Missed(missed) => seen.missed += missed.spans + missed.unseen,
        }
    }
    let begin = arrived.first().map_or(0, |(at, _)| at + WARM_UP.as_micros() as u64);
    for (at, json) in arrived.iter().filter(|(at, _)| *at >= begin) {
        let span: Span = serde_json::from_str(json)?;
        let own = span.timestamp.into_iter().flat_map(|start| [start, start + span.duration.unwrap_or(0)]);
        let times = own.chain(span.annotations.iter().map(|annotation| annotation.timestamp));
        seen.latencies_us.extend(times.map(|time| at.saturating_sub(time)));
    }
    Ok(seen)
}

fn percentile(sorted: &[u64], percent: f64) -> u64 {
    let at = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted.get(at.max(1) - 1).copied().unwrap_or(0)
}

fn main() -> Result<()> {
    let mut arguments = env::args().skip(1);
    let watched = arguments.next().context("name what to watch: collector or relay")?;
    let seconds: u64 = arguments.next().map_or(Ok(10), |text| text.parse()).context("SECONDS")?;
    let pause_us: u64 = arguments.next().map_or(Ok(100), |text| text.parse()).context("PAUSE_US")?;
    let folder = tempfile::TempDir::new()?;
    let file = folder.path().join("consumerd.toml");
    std::fs::write(&file, arguments.collect::<Vec<_>>().join("\n"))?;
    let flags = vec!["--config".to_owned(), file.display().to_string()];
    let mut node = Node::without_consumerd(Setup { consumerd: flags, ..Setup::default() })?;
    let mut base = node.collector.http.base().to_owned();
    let relay = match watched.as_str() {
        "relay" => Some(Relay::start(folder.path(), "relay", &[&node.collector.address("scribe")?], &[])?),
        _ => None,
    };
    if let Some(relay) = &relay {
        node.ship_to(&relay.scribe);
        relay.daemon.http.base().clone_into(&mut base);
    }
    node.start_consumerd()?;
    // Each trace takes its pause, the slack of the timer and a little more.
    let traces = seconds * 1_000_000 / (pause_us + 60);
    let (pause, each) = (pause_us.to_string(), traces.to_string());
    let shape = ["--threads", &THREADS.to_string(), "--traces", &each, "--pace-us", &pause];
    let mut program = Program::start("writer", &shape, &node.socket(), &[])?;
    let (ready, is_ready) = std::sync::mpsc::channel();
    let viewer = thread::spawn(move || view(&base, THREADS * traces, &ready));
    is_ready.recv().context("the viewer did not start")?;
    let began = Instant::now();
    let calls = program.round()?;
    let rate = calls as f64 / began.elapsed().as_secs_f64();
    let mut seen = viewer.join().map_err(|_| anyhow::anyhow!("the viewer panicked"))??;
    ensure!(calls as u64 == ANNOTATIONS * THREADS * traces, "{calls} calls of {traces} traces a thread");
    seen.latencies_us.sort_unstable();
    println!("live: watching\t\t{watched}");
    println!("live: annotations written\t1/s\t{rate:.0}");
    println!("live: spans seen\tcount\t{}", seen.spans);
    println!("live: spans missed\tcount\t{}", seen.missed);
    for (name, percent) in [("50 %", 50.0), ("99 %", 99.0), ("maximum", 100.0)] {
        println!("live: record to viewer, {name}\tus\t{}", percentile(&seen.latencies_us, percent));
    }
    Ok(())
}
