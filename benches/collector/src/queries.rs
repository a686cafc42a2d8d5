//! How long our collector's queries take, and how that grows with what is stored.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::data::{self, now_us};
use crate::send::{Load, Messages, Road};
use crate::server::Server;

/// Spans of one message.
const MESSAGE_SPANS: u64 = 100;
const TRACE_SPANS: u64 = 10;
/// Traces that are made and sent at a time, so that the client's memory stays small.
const PART_TRACES: u64 = 20_000;
/// Connections that fill the store.
const SENDERS: usize = 8;
const QUESTIONS: u64 = 500;
/// Of those that read all there is.
const LONG_QUESTIONS: u64 = 5;

/// Fills the collector step by step, asks at each, and prints the table.
pub(crate) fn run(steps: &[usize]) -> Result<()> {
    let server = Server::collector()?;
    let first_us = now_us() - 3_600_000_000;
    let mut traces = 0;
    println!("| stored spans | resident | disk, bytes a span | query | p50 | p99 | max |");
    println!("|---|---|---|---|---|---|---|");
    for &spans in steps {
        while traces < spans as u64 / TRACE_SPANS {
            let part = traces..(traces + PART_TRACES).min(spans as u64 / TRACE_SPANS);
            traces = part.end;
            Messages::of(
                Road::Scribe,
                MESSAGE_SPANS,
                &Load { traces: part, trace_spans: TRACE_SPANS, first_us },
            )?
            .send(&server, SENDERS)?;
        }
        let stored = format!(
            "{spans} | {:.0} MiB | {:.0}",
            server.resident_mib(),
            server.disk_bytes() as f64 / spans as f64
        );
        for (title, question) in questions(traces, first_us) {
            let times = ask(&server, QUESTIONS, &*question)?;
            println!("| {stored} | {title} | {} |", percentiles(times));
        }
        for (title, question) in long_questions(traces, first_us) {
            let before = server.cpu();
            let times = ask(&server, LONG_QUESTIONS, &move |_| question.clone())?;
            let cpu_us = (server.cpu() - before) * 1e6 / (times.len() * spans) as f64;
            println!("| {stored} | {title}, {cpu_us:.1} µs of CPU a span | {} |", percentiles(times));
        }
    }
    Ok(())
}

type Question = Box<dyn Fn(u64) -> String>;

/// The kinds of queries: each makes the path of the nth question.
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

/// The path of each kind of query that reads all traces.
fn long_questions(traces: u64, first_us: i64) -> [(&'static str, String); 2] {
    let end_ms = data::begin_us(first_us, traces) / 1000 + 1;
    let all = format!("endTs={end_ms}&lookback={end_ms}");
    [
        ("links between all services", format!("/api/v2/dependencies?{all}")),
        ("time between two annotations", format!("/api/blkin/intervals?from=sr&to=ss&{all}")),
    ]
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
        ensure!(!response.headers().contains_key("blkin-partial"), "{url} has no whole answer");
        if patience.elapsed() > Duration::from_secs(20) && times.len() >= 20 {
            break;
        }
    }
    Ok(times)
}

/// p50, p99 and the longest.
fn percentiles(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |percent: usize| times.get((times.len() * percent / 100).min(times.len() - 1));
    let shown = |time: Option<&Duration>| {
        time.map_or_else(String::new, |time| format!("{:.1} ms", time.as_secs_f64() * 1000.0))
    };
    format!("{} | {} | {}", shown(at(50)), shown(at(99)), shown(times.last()))
}
