//! The cost of very long traces in our collector, as they grow.

use std::cell::Cell;
use std::time::Instant;

use anyhow::Result;
use blkin_thrift::Span;

use crate::data;
use crate::send::{call_of, over_scribe};
use crate::server::Server;

const MESSAGE_SPANS: u64 = 1000;
/// Messages after which a row is printed.
const STAGE: u64 = 100;

/// A kind of load: makes the spans of a message from its number.
struct Case {
    title: &'static str,
    message: fn(u64, i64) -> Vec<Span>,
}

const CASES: [Case; 3] = [
    Case { title: "traces of 10, complete in one message", message: short },
    Case { title: "1000 traces that grow with each message", message: thousand },
    Case { title: "one trace of half of all spans, and traces of 10", message: one },
];

/// Sends each case to a new server, and prints the figures of each stage.
pub(crate) fn run(spans: u64) -> Result<()> {
    println!("| spans of | of them before | spans/s | CPU, µs a span | MiB resident |");
    println!("|---|---|---|---|---|");
    for case in &CASES {
        let server = Server::collector()?;
        for stage in 0..spans / (STAGE * MESSAGE_SPANS) {
            measure(&server, case, stage)?;
        }
    }
    Ok(())
}

fn measure(server: &Server, case: &Case, stage: u64) -> Result<()> {
    let first_us = data::now_us() - 3_600_000_000;
    let calls = (stage * STAGE..(stage + 1) * STAGE)
        .map(|message| call_of((case.message)(message, first_us).into_iter()));
    let calls = Cell::new(calls.collect::<Vec<_>>().into_iter());
    let next = || {
        let mut left = calls.take();
        let call = left.next();
        calls.set(left);
        call
    };
    let (before, begun) = (server.cpu(), Instant::now());
    over_scribe(&server.scribe, &next)?;
    let (seconds, cpu) = (begun.elapsed().as_secs_f64(), server.cpu() - before);
    let spans = (STAGE * MESSAGE_SPANS) as f64;
    println!(
        "| {} | {} | {:.0} | {:.1} | {:.0} |",
        case.title,
        stage * STAGE * MESSAGE_SPANS,
        spans / seconds,
        cpu / spans * 1e6,
        server.resident_mib(),
    );
    Ok(())
}

fn short(message: u64, first_us: i64) -> Vec<Span> {
    shorts(message * MESSAGE_SPANS / 10, MESSAGE_SPANS / 10, first_us)
}

/// Traces of ten spans; their numbers begin where no long trace has one.
fn shorts(first: u64, traces: u64, first_us: i64) -> Vec<Span> {
    let traces = 1_000_000 + first..1_000_000 + first + traces;
    traces.flat_map(|trace| data::thrift(trace, 0..10, first_us)).collect()
}

fn thousand(message: u64, first_us: i64) -> Vec<Span> {
    (0..MESSAGE_SPANS).flat_map(|trace| data::thrift(trace, message..message + 1, first_us)).collect()
}

fn one(message: u64, first_us: i64) -> Vec<Span> {
    const HALF: u64 = MESSAGE_SPANS / 2;
    let mut spans = data::thrift(0, message * HALF..(message + 1) * HALF, first_us);
    spans.extend(shorts(message * HALF / 10, HALF / 10, first_us));
    spans
}
