//! What a span costs the servers: CPU, memory, disk.

use std::time::Instant;

use anyhow::Result;

use crate::data::now_us;
use crate::send::{Load, Messages, Road};
use crate::server::Server;

const CASES: [(Road, u64); 4] =
    [(Road::Scribe, 10), (Road::Scribe, 100), (Road::Json, 10), (Road::Json, 100)];

/// What one case showed.
struct Figures {
    spans_per_cpu_second: f64,
    spans_per_second: f64,
}

/// Measures both servers, one after the other, and prints the table.
pub(crate) fn beside_zipkin(spans: usize, warm_up: usize) -> Result<()> {
    let all = CASES.len() * (spans + warm_up);
    let zipkin = Server::zipkin(2 * all)?;
    let (theirs, their_mib) = measure(&zipkin, spans, warm_up)?;
    drop(zipkin);
    let collector = Server::collector()?;
    let (ours, our_mib) = measure(&collector, spans, warm_up)?;
    println!(
        "| spans of | Zipkin, spans per CPU second | blkin-collector | ratio | spans/s, Zipkin | ours, durable |"
    );
    println!("|---|---|---|---|---|---|");
    for (((road, size), their), our) in CASES.iter().zip(&theirs).zip(&ours) {
        println!(
            "| {}, traces of {size} | {:.0} | {:.0} | {:.1} | {:.0} | {:.0} |",
            road.title(),
            their.spans_per_cpu_second,
            our.spans_per_cpu_second,
            our.spans_per_cpu_second / their.spans_per_cpu_second,
            their.spans_per_second,
            our.spans_per_second,
        );
    }
    println!("\n{all} spans stored: Zipkin {their_mib:.0} MiB resident, blkin-collector {our_mib:.0} MiB");
    println!("and {:.0} bytes on disk for each span", collector.disk_bytes() as f64 / all as f64);
    Ok(())
}

/// Measures our collector, and prints its part of the table.
pub(crate) fn alone(spans: usize, warm_up: usize) -> Result<()> {
    let collector = Server::collector()?;
    let (figures, mib) = measure(&collector, spans, warm_up)?;
    println!("| spans of | blkin-collector, spans per CPU second | spans/s, durable |");
    println!("|---|---|---|");
    for ((road, size), figures) in CASES.iter().zip(&figures) {
        let Figures { spans_per_cpu_second, spans_per_second } = figures;
        println!(
            "| {}, traces of {size} | {spans_per_cpu_second:.0} | {spans_per_second:.0} |",
            road.title()
        );
    }
    let all = CASES.len() * (spans + warm_up);
    println!("\n{all} spans stored: {mib:.0} MiB resident");
    println!("and {:.0} bytes on disk for each span", collector.disk_bytes() as f64 / all as f64);
    Ok(())
}

fn measure(server: &Server, spans: usize, warm_up: usize) -> Result<(Vec<Figures>, f64)> {
    let first_us = now_us() - 3_600_000_000;
    let mut next_trace = 0;
    let mut figures = Vec::new();
    for (road, trace_spans) in CASES {
        let mut load = |spans: usize| {
            let traces = next_trace..next_trace + spans as u64 / trace_spans;
            next_trace = traces.end;
            Messages::of(road, &Load { traces, trace_spans, first_us })
        };
        load(warm_up)?.send(server)?;
        let messages = load(spans)?;
        let (before, begun) = (server.settled_cpu(), Instant::now());
        messages.send(server)?;
        let seconds = begun.elapsed().as_secs_f64();
        let cpu = server.settled_cpu() - before;
        eprintln!(
            "{}: {}, traces of {trace_spans}: {cpu:.2} s of CPU in {seconds:.2} s",
            server.title,
            road.title()
        );
        figures.push(Figures {
            spans_per_cpu_second: spans as f64 / cpu.max(0.01),
            spans_per_second: spans as f64 / seconds,
        });
    }
    Ok((figures, server.resident_mib()))
}
