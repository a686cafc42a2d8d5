//! What a call costs its program, and an annotation consumerd, when there are more programs, and more threads.
//!
//! `scale [ANNOTATIONS [RATE]]`: both are of all programs together, so that only their number changes. consumerd on CPU 1,
//! the programs and the Scribe server on CPU 0. A program's cost is the CPU time of its threads, so that one which has to
//! wait for its turn does not count the others' time. Each program has made its first records, and consumerd has shipped
//! them, before anything is counted.

use anyhow::{Context, Result};
use blkin_bench_consumer::consumerd::Consumerd;
use blkin_bench_consumer::producer::{self, ANNOTATIONS_OF_SPAN, Load, PRODUCER, Producer, WARM_UP};
use blkin_bench_consumer::scribe::Scribe;
use blkin_bench_consumer::{machine, report};

/// Programs, and threads of each. The others are compared with the first.
const SHAPES: [(u64, u64, &str); 4] = [
    (1, 1, "1 program"),
    (10, 1, "10 programs"),
    (100, 1, "100 programs"),
    (1, 1000, "1 program of 1,000 threads"),
];

/// Nanoseconds of CPU.
#[derive(Clone, Copy, Debug)]
struct Cost {
    call: f64,
    shipped: f64,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == PRODUCER) {
        return producer::run(&arguments[1..]);
    }
    let number = |at: usize, default: u64| arguments.get(at).map_or(Ok(default), |text| text.parse());
    let (annotations, rate) = (number(0, 4_000_000)?, number(1, 1_000_000)?);
    machine::pin(0);
    let scribe = Scribe::start()?;
    let mut alone = None;
    for (programs, threads, name) in SHAPES {
        let load =
            Load { spans: annotations / ANNOTATIONS_OF_SPAN / programs, rate: rate / programs, threads };
        let cost = measure(&scribe, programs, load, name)?;
        let base = *alone.get_or_insert(cost);
        report(&format!("scale, {name}, a call ÷ that of 1 program"), "×", cost.call / base.call);
        report(
            &format!("scale, {name}, an annotation of consumerd ÷ that of 1 program"),
            "×",
            cost.shipped / base.shipped,
        );
    }
    Ok(())
}

fn measure(scribe: &Scribe, programs: u64, load: Load, name: &str) -> Result<Cost> {
    let consumerd = Consumerd::start(&scribe.address, 1)?;
    let socket = consumerd.socket();
    let mut all: Vec<Producer> =
        (0..programs).map(|_| Producer::start(&socket, 0, load)).collect::<Result<_>>()?;
    let warm = consumerd.settled((programs * WARM_UP) as f64)?.acked;
    let before = seconds(&consumerd);
    all.iter_mut().try_for_each(Producer::go)?;
    let calls: Vec<f64> = all.iter_mut().map(Producer::finish).collect::<Result<_>>()?;
    let figures = consumerd.settled((programs * (WARM_UP + load.spans * ANNOTATIONS_OF_SPAN)) as f64)?;
    let spent = seconds(&consumerd) - before;
    let cost = Cost {
        call: calls.iter().sum::<f64>() / calls.len() as f64,
        shipped: spent * 1e9
            / Some(figures.acked - warm).filter(|acked| *acked > 0.0).context("nothing was shipped")?,
    };
    report(&format!("scale, {name}, a call"), "ns of CPU", cost.call);
    report(&format!("scale, {name}, an annotation of consumerd"), "ns of CPU", cost.shipped);
    report(&format!("scale, {name}, memory of consumerd"), "KiB", consumerd.resident_kib());
    report(&format!("scale, {name}, rings of programs in that"), "KiB", consumerd.shared_kib());
    report(&format!("scale, {name}, lost"), "annotations", figures.lost_in_programs + figures.lost_in_sink);
    Ok(cost)
}

/// CPU time of all threads of the daemon.
fn seconds(consumerd: &Consumerd) -> f64 {
    consumerd.threads_cpu().iter().map(|(_, seconds)| seconds).sum()
}
