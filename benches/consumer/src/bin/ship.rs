//! How many annotations consumerd reads, joins, encodes and ships per second of CPU of its processes.
//!
//! `ship [ANNOTATIONS [RATE]]`: consumerd runs on CPU 1, the program and the Scribe server on CPU 0.

use anyhow::{Result, ensure};
use blkin_bench_consumer::consumerd::Consumerd;
use blkin_bench_consumer::producer::{self, ANNOTATIONS_OF_SPAN, Load, PRODUCER, Pattern, Producer, WARM_UP};
use blkin_bench_consumer::scribe::Scribe;
use blkin_bench_consumer::{machine, report};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == PRODUCER) {
        return producer::run(&arguments[1..]);
    }
    let number = |at: usize, default: u64| arguments.get(at).map_or(Ok(default), |text| text.parse());
    ship(number(0, 10_000_000)?, number(1, 1_500_000)?)
}

fn ship(annotations: u64, rate: u64) -> Result<()> {
    machine::pin(0);
    let scribe = Scribe::start()?;
    let consumerd = Consumerd::start(&scribe.address, 1)?;
    let spans = annotations / ANNOTATIONS_OF_SPAN;
    let mut program =
        Producer::start(&consumerd.socket(), 0, Load { spans, rate, threads: 1, pattern: Pattern::Bursts })?;
    let (warm, warm_bytes) = (consumerd.settled(WARM_UP as f64)?.acked, scribe.bytes());
    let (before, threads_before) = (consumerd.cpu(), consumerd.threads_cpu());
    program.go()?;
    program.finish()?;
    let figures = consumerd.settled((WARM_UP + spans * ANNOTATIONS_OF_SPAN) as f64)?;
    let acked = figures.acked - warm;
    let after = consumerd.cpu();
    let (user, system) = (after.0 - before.0, after.1 - before.1);
    ensure!(acked > 0.0, "nothing was shipped");
    report("consumerd, annotations shipped", "1/s of CPU", acked / (user + system));
    report("consumerd, user time", "ns/annotation", user * 1e9 / acked);
    report("consumerd, system time", "ns/annotation", system * 1e9 / acked);
    for (name, seconds) in consumerd.threads_cpu() {
        let spent = seconds - threads_before.get(&name).unwrap_or(&0.0);
        report(&format!("consumerd, thread {name}"), "ns/annotation", spent * 1e9 / acked);
    }
    report("consumerd, on the wire", "bytes/annotation", (scribe.bytes() - warm_bytes) as f64 / acked);
    report("consumerd, memory", "KiB", consumerd.resident_kib());
    report("ship, lost in the program", "annotations", figures.lost_in_programs);
    report("ship, lost in the sink", "annotations", figures.lost_in_sink);
    Ok(())
}
