//! How long our collector's queries take, and how that grows with the number of stored spans.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::data::{self, now_us};
use crate::send::{Load, Messages, Road};
use crate::server::Server;

/// Spans of one message.
const MESSAGE_SPANS: u64 = 100;
const TRACE_SPANS: u64 = 10;
/// Traces that are made and sent in one step, to keep the client's memory small.
const PART_TRACES: u64 = 20_000;
/// Connections that fill the store.
const SENDERS: usize = 8;
const QUESTIONS: u64 = 500;
/// Repetitions of each query that reads all traces, after the first time.
const LATER_QUESTIONS: u64 = 20;
/// The queries that read all traces, with their paths.
const LONG_QUESTIONS: [(&str, Path); 2] =
    [("links between all services", links), ("time between two annotations", times_between)];

/// Fills the collector step by step, asks at each, and prints the table.
pub(crate) fn run(steps: &[usize]) -> Result<()> {
    let mut filled = Filled { server: Server::collector()?, first_us: now_us() - 3_600_000_000, traces: 0 };
    println!("| stored spans | resident | disk, bytes a span | query | p50 | p99 | max |");
    println!("|---|---|---|---|---|---|---|");
    for &spans in steps {
        filled.fill(spans as u64 / TRACE_SPANS)?;
        let server = &filled.server;
        let stored = format!(
            "{spans} | {:.0} MiB | {:.0}",
            server.resident_mib(),
            server.disk_bytes() as f64 / spans as f64
        );
        for (title, question) in questions(filled.traces, filled.first_us) {
            let times = ask(server, QUESTIONS, &*question)?;
            println!("| {stored} | {title} | {} |", percentiles(times));
        }
        for (title, path) in LONG_QUESTIONS {
            let first = format!("{title}, the first time");
            filled.ask_long(&first, 1, spans as f64, &stored, path)?;
            let again = format!("{title}, again, 100 spans later");
            filled.ask_long(&again, LATER_QUESTIONS, spans as f64, &stored, path)?;
        }
    }
    Ok(())
}

/// A collector, and how many traces were sent to it.
struct Filled {
    server: Server,
    first_us: i64,
    traces: u64,
}

impl Filled {
    /// Sends traces until there are `traces`.
    fn fill(&mut self, traces: u64) -> Result<()> {
        while self.traces < traces {
            let part = self.traces..(self.traces + PART_TRACES).min(traces);
            self.traces = part.end;
            let load = Load { traces: part, trace_spans: TRACE_SPANS, first_us: self.first_us };
            Messages::of(Road::Scribe, MESSAGE_SPANS, &load)?.send(&self.server, SENDERS)?;
        }
        Ok(())
    }

    /// Asks a query that reads all traces, `questions` times. Before each, some spans are sent, as they are where
    /// programs run.
    fn ask_long(&mut self, title: &str, questions: u64, spans: f64, stored: &str, path: Path) -> Result<()> {
        let (mut times, mut cpu) = (Vec::new(), 0.0);
        for _ in 0..questions {
            self.fill(self.traces + MESSAGE_SPANS / TRACE_SPANS)?;
            let end_ms = data::begin_us(self.first_us, self.traces) / 1000 + 1;
            let path = path(&format!("endTs={end_ms}&lookback={end_ms}"));
            let before = self.server.cpu();
            times.extend(ask(&self.server, 1, &move |_| path.clone())?);
            cpu += self.server.cpu() - before;
        }
        let cpu_us = cpu * 1e6 / (times.len() as f64 * spans);
        println!("| {stored} | {title}, {cpu_us:.2} µs of CPU a span | {} |", percentiles(times));
        Ok(())
    }
}

type Question = Box<dyn Fn(u64) -> String>;
/// Makes the path of a query from its time window.
type Path = fn(&str) -> String;

/// The kinds of queries: each makes the path of its nth query.
fn questions(traces: u64, first_us: i64) -> Vec<(&'static str, Question)> {
    let any = move |nth: u64| data::scatter(nth) % traces;
    let service = move |nth: u64| data::service(any(nth), 0);
    let window = move |nth: u64| {
        let end_ms = data::begin_us(first_us, any(nth)) / 1000 + 1;
        format!("endTs={end_ms}&lookback=900000&limit=10")
    };
    let object = move |nth: u64| format!("object%3D{}", data::object(any(nth), 3));
    vec![
        ("trace by id", Box::new(move |nth| format!("/api/v2/trace/{}", data::trace_id(any(nth))))),
        (
            "search: service, 10 traces",
            Box::new(move |nth| format!("/api/v2/traces?serviceName={}&{}", service(nth), window(nth))),
        ),
        (
            "search: service and span",
            Box::new(move |nth| {
                let name = data::name(any(nth), 0).replace(' ', "%20");
                format!("/api/v2/traces?serviceName={}&spanName={name}&{}", service(nth), window(nth))
            }),
        ),
        (
            "search: service, slow spans",
            Box::new(move |nth| {
                format!("/api/v2/traces?serviceName={}&minDuration=10000&{}", service(nth), window(nth))
            }),
        ),
        (
            "search: service and a tag that few have",
            Box::new(move |nth| {
                let service = data::service(any(nth), 3);
                format!("/api/v2/traces?serviceName={service}&annotationQuery={}&limit=10", object(nth))
            }),
        ),
    ]
}

fn links(window: &str) -> String {
    format!("/api/v2/dependencies?{window}")
}

fn times_between(window: &str) -> String {
    format!("/api/blkin/intervals?from=sr&to=ss&{window}")
}

fn ask(server: &Server, questions: u64, question: &dyn Fn(u64) -> String) -> Result<Vec<Duration>> {
    let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
    let mut times = Vec::new();
    let patience = Instant::now();
    for nth in 0..questions {
        let url = format!("http://{}{}", server.http, question(nth));
        let begun = Instant::now();
        let mut response = agent.get(&url).call()?;
        let said = response.body_mut().read_to_vec()?;
        times.push(begun.elapsed());
        ensure!(response.status().as_u16() == 200, "{url}: {}", String::from_utf8_lossy(&said));
        ensure!(!response.headers().contains_key("blkin-partial"), "{url} has only a partial answer");
        if patience.elapsed() > Duration::from_secs(20) && times.len() >= 20 {
            break;
        }
    }
    Ok(times)
}

/// p50, p99 and the maximum, as cells of the table.
fn percentiles(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |percent: usize| times.get((times.len() * percent / 100).min(times.len() - 1));
    let shown = |time: Option<&Duration>| {
        time.map_or_else(String::new, |time| format!("{:.1} ms", time.as_secs_f64() * 1000.0))
    };
    format!("{} | {} | {}", shown(at(50)), shown(at(99)), shown(times.last()))
}
