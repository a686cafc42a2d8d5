//! The cost of a span in our collector when few arrive: the fixed cost of each message, wake-up and commit.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::data;
use crate::send::{call_of, over_scribe};
use crate::server::Server;

/// Spans of a trace, all in one message.
const TRACE_SPANS: u64 = 10;

/// Sends messages of the given sizes at the given rates, and prints their cost.
pub(crate) fn run(messages: &[u32], message_spans: &[u64], connections: usize, time: Duration) -> Result<()> {
    println!(
        "| messages/s | spans each | spans/s | CPU, µs a span | CPU, µs a message | answered within, ms: p50 | p99 |"
    );
    println!("|---|---|---|---|---|---|---|");
    let server = Server::collector()?;
    let mut next_trace = 0;
    for &spans in message_spans {
        for &rate in messages {
            let count = u64::from(rate) * time.as_secs();
            let calls = calls(&mut next_trace, count, spans);
            let (before, begun) = (server.settled_cpu(), Instant::now());
            let mut answered = send(&server, calls, rate, connections)?;
            let seconds = begun.elapsed().as_secs_f64();
            let cpu = (server.settled_cpu() - before) * 1e6;
            answered.sort_unstable();
            let within = |percent: usize| {
                answered.get(answered.len() * percent / 100).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
            };
            println!(
                "| {rate} | {spans} | {:.0} | {:.2} | {:.0} | {:.1} | {:.1} |",
                (count * spans) as f64 / seconds,
                cpu / (count * spans) as f64,
                cpu / count as f64,
                within(50),
                within(99),
            );
        }
    }
    Ok(())
}

fn calls(next_trace: &mut u64, count: u64, spans: u64) -> Vec<Vec<u8>> {
    let first_us = data::now_us() - 3_600_000_000;
    let mut call = || {
        let traces = *next_trace..*next_trace + spans.div_ceil(TRACE_SPANS);
        *next_trace = traces.end;
        call_of(traces.flat_map(|trace| data::thrift(trace, 0..TRACE_SPANS.min(spans), first_us)))
    };
    (0..count).map(|_| call()).collect()
}

/// Sends each call at its due time, over a free connection; returns the time from then to each answer.
fn send(server: &Server, calls: Vec<Vec<u8>>, rate: u32, connections: usize) -> Result<Vec<Duration>> {
    let left = Mutex::new(calls.into_iter().enumerate());
    let answered = Mutex::new(Vec::new());
    let begun = Instant::now();
    let connection = || {
        let due = Mutex::new(None::<Instant>);
        let next = || {
            if let (Some(due), Ok(mut answered)) = (due.lock().ok()?.take(), answered.lock()) {
                answered.push(due.elapsed());
            }
            let (number, call) = left.lock().ok()?.next()?;
            let moment = begun + Duration::from_secs(1) * number as u32 / rate;
            std::thread::sleep(moment.saturating_duration_since(Instant::now()));
            *due.lock().ok()? = Some(moment);
            Some(call)
        };
        over_scribe(&server.scribe, &next)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..connections).map(|_| scope.spawn(connection)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow::anyhow!("a thread"))?)
    })?;
    Ok(answered.into_inner().unwrap_or_default())
}
