//! What a flooding program costs another program, and consumerd, while there is no Scribe server.
//!
//! `away [SECONDS]`: for 30 s without a Scribe server, one program makes a hundred requests a second, and another makes
//! up to twenty million annotations a second. Then a server starts. Only the second program is bound to a CPU, to CPU 1.

use std::net::TcpListener;

use anyhow::{Result, ensure};
use blkin_bench_consumer::consumerd::Consumerd;
use blkin_bench_consumer::producer::{
    self, ANNOTATIONS_OF_SPAN, Load, PRODUCER, Pattern, Producer, REQUEST, SPANS_OF_REQUEST, WARM_UP_REQUESTS,
};
use blkin_bench_consumer::report;
use blkin_bench_consumer::scribe::Scribe;

const REQUESTS_A_SECOND: u64 = 100;
const FLOOD_RATE: u64 = 20_000_000;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == PRODUCER) {
        return producer::run(&arguments[1..]);
    }
    away(arguments.first().map_or(Ok(30), |seconds| seconds.parse())?)
}

fn away(seconds: u64) -> Result<()> {
    // Nothing listens at this address until the server starts below.
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    let consumerd = Consumerd::start_anywhere(&address)?;
    let load = |rate: u64, pattern| {
        let load = Load { spans: seconds * rate / ANNOTATIONS_OF_SPAN, rate, threads: 1, pattern };
        Producer::start(&consumerd.socket(), 1, load)
    };
    let quiet_rate = REQUESTS_A_SECOND * SPANS_OF_REQUEST * ANNOTATIONS_OF_SPAN;
    let mut programs = [load(quiet_rate, Pattern::Requests)?, load(FLOOD_RATE, Pattern::Bursts)?];
    let before = consumerd.cpu();
    programs.iter_mut().try_for_each(Producer::go)?;
    for program in &mut programs {
        program.finish()?;
    }
    let after = consumerd.cpu();
    let attempted = consumerd.figures()?.attempted;

    let scribe = Scribe::start_at(&address, Some(REQUEST))?;
    let figures = consumerd.settled(attempted)?;
    let requests = WARM_UP_REQUESTS + seconds * REQUESTS_A_SECOND;
    ensure!(
        scribe.of_name() <= requests,
        "{} requests arrived, but only {requests} were made",
        scribe.of_name()
    );
    report(
        "away, requests of the quiet program that arrived",
        "%",
        scribe.of_name() as f64 * 100.0 / requests as f64,
    );
    report("away, CPU of consumerd meanwhile", "s", after.0 + after.1 - before.0 - before.1);
    report("away, annotations that were made", "1/s", attempted / seconds as f64);
    report("away, lost in programs", "annotations", figures.lost_in_programs);
    report("away, lost in the sink", "annotations", figures.lost_in_sink);
    Ok(())
}
