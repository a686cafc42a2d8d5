//! What it costs our collector if a very long trace continues after a restart.

use std::cell::Cell;
use std::time::Instant;

use anyhow::Result;
use blkin_thrift::Span;

use crate::data;
use crate::send::{call_of, over_scribe};
use crate::server::Server;

const MESSAGE_SPANS: u64 = 1000;

/// For each size, stores one trace of as many spans, restarts the collector, and prints the time of the start and of
/// the next two messages of the trace.
pub(crate) fn run(sizes: &[u64]) -> Result<()> {
    println!(
        "| spans of the trace | start, s | first message, ms | second, ms | MiB resident before | at most after |"
    );
    println!("|---|---|---|---|---|---|");
    for &size in sizes {
        let mut server = Server::collector()?;
        let first_us = data::now_us() - 3_600_000_000;
        let message = Cell::new(0);
        let next = || {
            let number = message.replace(message.get() + 1);
            (number < size / MESSAGE_SPANS).then(|| call_of(one(number, first_us).into_iter()))
        };
        over_scribe(&server.scribe, &next)?;
        let before = server.resident_mib();
        let begun = Instant::now();
        server.restart()?;
        let start = begun.elapsed().as_secs_f64();
        let first = timed(&server, size / MESSAGE_SPANS, first_us)?;
        let second = timed(&server, size / MESSAGE_SPANS + 1, first_us)?;
        let most = server.peak_mib();
        println!("| {size} | {start:.1} | {first:.0} | {second:.0} | {before:.0} | {most:.0} |");
    }
    Ok(())
}

/// Sends the message of this number; returns the milliseconds until it is stored.
fn timed(server: &Server, number: u64, first_us: i64) -> Result<f64> {
    let call = Cell::new(Some(call_of(one(number, first_us).into_iter())));
    let begun = Instant::now();
    over_scribe(&server.scribe, &|| call.take())?;
    Ok(begun.elapsed().as_secs_f64() * 1e3)
}

/// Spans of the trace. Each annotation has a ring position, as consumerd sends it.
fn one(message: u64, first_us: i64) -> Vec<Span> {
    let mut spans = data::thrift(0, message * MESSAGE_SPANS..(message + 1) * MESSAGE_SPANS, first_us);
    let mut position = (message * MESSAGE_SPANS * 5) as i64;
    let mut next = || {
        position += 1;
        Some(position)
    };
    for span in &mut spans {
        span.source = Some(1);
        span.annotations.iter_mut().for_each(|annotation| annotation.position = next());
        span.binary_annotations.iter_mut().for_each(|annotation| annotation.position = next());
    }
    spans
}
